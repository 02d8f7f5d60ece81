//! From a program to launches, as data: pure, made once a program. What a step holds is read by
//! kernels from the step itself; of its size only grids depend.

mod dense;
mod experts;
mod mixers;
mod sample;
mod words;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tokenmill_backend::DeviceError;
use tokenmill_ir::{
    BufferId, CacheId, CacheKind, CacheSpec, GroupKind, KvFormat, Limits, Mode, Op, Operand,
    Program, Rows as RowKind, View, WeightId, op,
};
use tokenmill_quant::FormatId;

use crate::batch::splits;
use crate::failure::unsupported;
use crate::kernels::{Kernel, wide_rows};
use crate::layout::Shape;

/// Shared memory a block may ask for everywhere.
const MOST_SHARED: u32 = 48 << 10;
/// Rows of x, and rows of a matrix, that a block of a product computes.
const PRODUCT_ROWS: (u32, u32) = (8, 4);

/// Rows of a strip of atoms; rows of x that a block multiplies with it at least, and its threads.
const STRIP: u32 = 16;
const TILE: u64 = 8;
const NARROW: u32 = 256;
/// Strips of a block for many rows of x, which are more than so many times two tiles.
const WIDE: u32 = 8;
pub(crate) const MOST_TILES: u32 = 2;
/// Splits of keys that have a place for their sums, at most, but for those of one sequence.
const MOST_SLOTS: u32 = 256;

/// An argument that is an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ptr {
    Null,
    /// The step's array.
    Step,
    /// A column of a place among the buffers.
    Place(usize, u32),
    /// A weight's f32.
    Numbers(WeightId),
    /// A constant.
    Const(usize),
    Cache(CacheId),
}

/// What a step has so many of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    One,
    Tokens,
    Outputs,
    Spans,
}

/// Blocks along an axis: `count · times / per`, rounded up, and no more than `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    count: Count,
    times: u64,
    per: u64,
    most: u64,
}

/// How many of each a step has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub tokens: u32,
    pub outputs: u32,
    pub spans: u32,
}

impl Extent {
    pub const ONE: Self = Self::fixed(1);

    pub const fn fixed(n: u64) -> Self {
        Self { count: Count::One, times: n, per: 1, most: u64::MAX }
    }

    pub fn of(count: Count) -> Self {
        Self { count, times: 1, per: 1, most: u64::MAX }
    }

    pub fn rows(kind: RowKind) -> Self {
        Self::of(match kind {
            RowKind::Tokens => Count::Tokens,
            RowKind::Outputs => Count::Outputs,
        })
    }

    pub fn times(self, times: u64) -> Self {
        Self { times: self.times * times, ..self }
    }

    pub fn per(self, per: u64) -> Self {
        Self { per, ..self }
    }

    pub fn at_most(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// Of a step of those sizes.
    pub fn blocks(self, sizes: Sizes) -> u32 {
        let count = match self.count {
            Count::One => 1,
            Count::Tokens => sizes.tokens,
            Count::Outputs => sizes.outputs,
            Count::Spans => sizes.spans,
        };
        let blocks = u64::from(count).saturating_mul(self.times).div_ceil(self.per.max(1));
        u32::try_from(blocks.min(self.most)).unwrap_or(u32::MAX)
    }
}

/// In which steps something runs: those with at most so many rows of a kind, or with more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    AtMost(RowKind, u32),
    Above(RowKind, u32),
}

impl When {
    /// Whether a step of those sizes is one.
    pub fn holds(self, sizes: Sizes) -> bool {
        match self {
            Self::Always => true,
            Self::AtMost(kind, n) => Extent::rows(kind).blocks(sizes) <= n,
            Self::Above(kind, n) => Extent::rows(kind).blocks(sizes) > n,
        }
    }
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Launch {
    pub when: When,
    pub kernel: Kernel,
    pub grid: [Extent; 3],
    /// What runs instead where its grid has one block along the second axis.
    pub few: Option<(Kernel, [Extent; 3])>,
    /// What runs instead where it would have more than [`MOST_TILES`] along it.
    pub many: Option<(Kernel, [Extent; 3])>,
    pub threads: u32,
    pub shared: u32,
    pub p: Vec<Ptr>,
    pub n: Vec<u32>,
    pub f: Vec<f32>,
}

/// What launches read besides the step and the weights.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Const {
    Words(Vec<u32>),
    /// Runs of rows of weights, and whose expert's each is.
    Parts(Vec<(WeightId, usize, u32)>),
    /// Where the caches of a group lie.
    Caches(u32),
}

/// Where and how a buffer lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// Rows of the step; absent where there is one whatever the step.
    rows: Option<RowKind>,
    /// Numbers of a row.
    ld: u32,
    /// Rows a row of the step.
    times: u32,
    /// From the start of the buffers, bytes.
    at: u64,
}

/// A cache's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheLayout {
    pub group: u32,
    pub block_bytes: u64,
    /// Start of the second kind of number (values, rotated keys) in a block.
    pub second: u64,
    /// Bytes of a head of both kinds, and how kernels call their formats.
    pub heads: [(u32, u32); 2],
}

/// How kernels call a format, and the bytes of a head in it.
fn head_of(format: KvFormat, dim: u32) -> (u32, u32) {
    let (code, bytes) = match format {
        KvFormat::F32 => (0, dim * 4),
        KvFormat::Bf16 => (1, dim * 2),
        KvFormat::Int16 => (2, 4 + dim * 2),
        KvFormat::Int8 => (3, 4 + dim),
        _ => (4, dim.div_ceil(32) * 18),
    };
    (bytes.next_multiple_of(4), code)
}

/// How latents are kept where others have that format: no kernel reads them as codes of 16 bits, so they are bf16.
pub(crate) fn latent_format(format: KvFormat) -> KvFormat {
    if format == KvFormat::Int16 { KvFormat::Bf16 } else { format }
}

impl CacheLayout {
    fn of(spec: &CacheSpec, block_tokens: u32) -> Result<Self, DeviceError> {
        let (keys, values) = spec.format.parts();
        let (count, heads) = match spec.kind {
            CacheKind::Full { kv_heads, k_dim, v_dim }
            | CacheKind::Window { kv_heads, k_dim, v_dim, .. } => {
                (kv_heads, [head_of(keys, k_dim), head_of(values, v_dim)])
            }
            CacheKind::Latent { latent, rope } => {
                if spec.format.of_latents() != spec.format {
                    return Err(unsupported(format!("latents in {:?}", spec.format)));
                }
                let format = latent_format(keys);
                (1, [head_of(format, latent), head_of(format, rope)])
            }
            CacheKind::State { len } => (1, [(len * 4, 0), (0, 0)]),
        };
        let (group, state) = (spec.group, spec.group_kind() == GroupKind::State);
        let tokens = if state { 1 } else { u64::from(block_tokens) };
        let [first, second] = heads.map(|(bytes, _)| u64::from(bytes) * u64::from(count) * tokens);
        Ok(Self { group, block_bytes: first + second, second: first, heads })
    }
}

/// Rows of a step's buffer where a host reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Served {
    /// From the start of the buffers, bytes.
    pub at: u64,
    /// Numbers from row to row, and of a row.
    pub ld: u32,
    pub cols: u32,
}

/// A program as launches.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub launches: Vec<Launch>,
    pub consts: Vec<Const>,
    /// Of each group, the constant that says where its caches lie.
    pub groups: Vec<usize>,
    pub caches: Vec<CacheLayout>,
    pub buffer_bytes: u64,
    pub logits: Option<Served>,
    pub hidden: Option<Served>,
    /// What is chosen of outputs, as kernels/args.h has it.
    pub chosen: Option<Served>,
    /// Splits of keys that have a place for their sums.
    pub slots: u32,
    places: Vec<Place>,
}

impl Plan {
    /// The launches of a program, with weights for that mode.
    pub fn new(
        program: &Program,
        shapes: &[Shape],
        limits: &Limits,
        mode: Mode,
        block_tokens: u32,
    ) -> Result<Self, DeviceError> {
        let caches = program.caches.iter().map(|c| CacheLayout::of(c, block_tokens));
        let caches: Vec<CacheLayout> = caches.collect::<Result<_, _>>()?;
        let place = |b: &tokenmill_ir::BufferSpec| Place {
            rows: Some(b.rows),
            ld: b.cols,
            times: 1,
            at: 0,
        };
        let places = program.buffers.iter().map(place).collect();
        let (launches, consts) = (Vec::new(), Vec::new());
        let (top, served) = (limits.top_logprobs, ServedViews::default());
        let (now, joined, when) = (0, None, When::Always);
        // As many as keep any GPU busy; of the longest sequence all.
        let longest = splits(limits.context);
        let all = limits.sequences.saturating_mul(longest);
        let slots = if longest > 1 { all.min(longest.max(MOST_SLOTS)) } else { 0 };
        let mut draft = Draft {
            program,
            shapes,
            block_tokens,
            mode,
            slots,
            top,
            now,
            joined,
            when,
            caches,
            places,
            launches,
            consts,
            served,
        };
        for (now, op) in program.ops.iter().enumerate() {
            draft.now = now;
            draft.op(op).map_err(|e| named(e, op))?;
        }
        draft.finish(limits)
    }

    /// The address of a column of a place, from the start of the buffers.
    pub fn offset(&self, place: usize, column: u32) -> u64 {
        self.places[place].at + u64::from(column) * 4
    }

    /// A readable listing, one launch a line.
    pub fn dump(&self) -> String {
        let mut text = String::new();
        for launch in &self.launches {
            let _ = write!(text, "{:<20}", launch.kernel.entry());
            for extent in launch.grid {
                let Extent { count, times, per, most } = extent;
                let _ = match (count, times, per) {
                    (Count::One, n, per) => write!(text, " {}", n.div_ceil(per)),
                    (count, 1, 1) => write!(text, " {count:?}"),
                    (count, 1, per) => write!(text, " {count:?}/{per}"),
                    (count, times, per) => write!(text, " {count:?}*{times}/{per}"),
                };
                if most < u64::MAX {
                    let _ = write!(text, "<={most}");
                }
            }
            let _ = write!(text, " x {}", launch.threads);
            if launch.shared > 0 {
                let _ = write!(text, " +{}", launch.shared);
            }
            text.push_str(" |");
            for p in &launch.p {
                let _ = match p {
                    Ptr::Null => write!(text, " -"),
                    Ptr::Step => write!(text, " step"),
                    Ptr::Place(place, 0) => write!(text, " b{place}"),
                    Ptr::Place(place, column) => write!(text, " b{place}+{column}"),
                    Ptr::Numbers(w) => write!(text, " w{}", w.0),
                    Ptr::Const(c) => write!(text, " c{c}"),
                    Ptr::Cache(c) => write!(text, " cache{}", c.0),
                };
            }
            let _ = write!(text, " | {:?} {:?}", launch.n, launch.f);
            for (kernel, _) in launch.few.iter().chain(&launch.many) {
                let _ = write!(text, " or {}", kernel.entry());
            }
            let _ = match launch.when {
                When::Always => Ok(()),
                When::AtMost(_, n) => write!(text, " up to {n} rows"),
                When::Above(_, n) => write!(text, " above {n} rows"),
            };
            text.push('\n');
        }
        text
    }
}

/// Where the lack of a kernel is said with the op that wants it.
fn named(error: DeviceError, op: &Op) -> DeviceError {
    match error {
        DeviceError::Unsupported { what, .. } => unsupported(format!("{}: {what}", op.name())),
        other => other,
    }
}

/// Rows of a place from a column on.
#[derive(Debug, Clone, Copy)]
struct Rows {
    ptr: Ptr,
    ld: u32,
    kind: RowKind,
}

/// How a product is to be made.
#[derive(Debug, Clone, Copy)]
struct Product {
    /// Rows of the matrix a head; 0: one head.
    head_rows: u32,
    scale: f32,
    cap: f32,
    pairs: Option<Pairs>,
    /// Rows that are added to the results; of atoms only.
    add: Option<Rows>,
}

/// Pairs of a token and a slot, by expert.
#[derive(Debug, Clone, Copy)]
struct Pairs {
    /// Where those of each expert begin.
    starts: Ptr,
    list: Ptr,
    /// Experts that have some: how many, and which.
    chosen: Ptr,
    /// Pairs a row of x.
    of_row: u32,
    /// Pairs a token, and experts.
    top: u32,
    experts: u32,
}

impl Product {
    const PLAIN: Self = Self { head_rows: 0, scale: 1.0, cap: 0.0, pairs: None, add: None };
}

/// What a host reads of a step.
#[derive(Debug, Clone, Copy, Default)]
struct ServedViews {
    logits: Option<View>,
    hidden: Option<View>,
    /// A place, and its columns.
    chosen: Option<(usize, u32)>,
}

/// A plan being made.
struct Draft<'a> {
    program: &'a Program,
    shapes: &'a [Shape],
    block_tokens: u32,
    mode: Mode,
    /// Splits of keys that have a place for their sums.
    slots: u32,
    /// Alternatives with log-probabilities at most.
    top: u32,
    /// Which op is being planned.
    now: usize,
    /// What the norm that comes next is of, where a product has made the sum already.
    joined: Option<View>,
    /// When what is planned runs.
    when: When,
    caches: Vec<CacheLayout>,
    places: Vec<Place>,
    launches: Vec<Launch>,
    consts: Vec<Const>,
    served: ServedViews,
}

impl Draft<'_> {
    fn op(&mut self, op: &Op) -> Result<(), DeviceError> {
        match op {
            Op::Embed { .. } => self.embed(op),
            Op::Norm(op) => self.norm(op),
            Op::Linear { x, weight, out } => match self.joins(*weight, *out) {
                Some((add, to)) => {
                    let cols = self.program.buffers[to.0 as usize].cols;
                    self.joined = Some(View { buffer: to, start: 0, cols });
                    self.linear(*x, *weight, to, Product { add: Some(add), ..Product::PLAIN })
                }
                None => self.linear(*x, *weight, *out, Product::PLAIN),
            },
            Op::HeadLinear { x, heads, weight, out } => {
                let head_rows = self.program.weights[weight.0 as usize].rows / (*heads).max(1);
                self.linear(*x, *weight, *out, Product { head_rows, ..Product::PLAIN })
            }
            Op::Head { x, weight, scale, softcap, out } => {
                let cap = softcap.unwrap_or(0.0);
                let product = Product { scale: *scale, cap, ..Product::PLAIN };
                self.linear(*x, *weight, *out, product)
            }
            Op::GatedLinear { .. } => self.gated_linear(op),
            Op::Map { .. } => self.map(op),
            Op::TakeRows { .. } | Op::Pool { .. } => self.take(op),
            Op::RotateStore(op) => self.rotate_store(op),
            Op::StoreLatent(op) => self.store_latent(op),
            Op::Attend(op) => self.attend(op),
            Op::AttendLatent(op) => self.attend_latent(op),
            Op::Conv(op) => self.conv(op),
            Op::DeltaRule(op) => self.delta_rule(op),
            Op::Scan(op) => self.scan(op),
            Op::Route { .. } => self.route(op),
            Op::Experts(op) => self.experts(op),
            Op::Sample { more, .. } if !more.is_empty() => {
                Err(unsupported("final rows of several parts"))
            }
            Op::Sample { logits, hidden, .. } => self.sample(*logits, *hidden),
            Op::Input { .. } | Op::Gather { .. } => Err(unsupported("rows in the place of tokens")),
        }
    }

    fn view(&self, v: View) -> Rows {
        let place = &self.places[v.buffer.0 as usize];
        let ptr = Ptr::Place(v.buffer.0 as usize, v.start);
        Rows { ptr, ld: place.ld, kind: place.rows.unwrap_or(RowKind::Tokens) }
    }

    fn buffer(&self, b: BufferId) -> Rows {
        self.view(View { buffer: b, start: 0, cols: 0 })
    }

    /// Room for so many rows of `ld` numbers a row of the step.
    fn scratch(&mut self, rows: RowKind, times: u32, ld: u32) -> Rows {
        self.places.push(Place { rows: Some(rows), ld, times, at: 0 });
        Rows { ptr: Ptr::Place(self.places.len() - 1, 0), ld, kind: rows }
    }

    /// Room for so many words, whatever the step.
    fn words(&mut self, count: u32) -> Ptr {
        self.places.push(Place { rows: None, ld: count, times: 1, at: 0 });
        Ptr::Place(self.places.len() - 1, 0)
    }

    fn constant(&mut self, constant: Const) -> Ptr {
        let known = self.consts.iter().position(|c| *c == constant);
        Ptr::Const(known.unwrap_or_else(|| {
            self.consts.push(constant);
            self.consts.len() - 1
        }))
    }

    fn numbers(weight: Option<WeightId>) -> Ptr {
        weight.map_or(Ptr::Null, Ptr::Numbers)
    }

    fn launch(
        &mut self,
        kernel: Kernel,
        grid: [Extent; 3],
        (threads, shared): (u32, u32),
        (p, n, f): (Vec<Ptr>, Vec<u32>, Vec<f32>),
    ) -> Result<(), DeviceError> {
        if shared > MOST_SHARED {
            let name = kernel.entry();
            return Err(unsupported(format!("{shared} bytes of shared memory for {name}")));
        }
        if p.len() > 16 || n.len() > 24 || f.len() > 8 {
            return Err(unsupported(format!("{} operands", p.len())));
        }
        let (when, few, many) = (self.when, None, None);
        let launch = Launch { when, kernel, grid, few, many, threads, shared, p, n, f };
        self.launches.push(launch);
        Ok(())
    }

    /// Where a product's results are added to other rows by a norm and nobody else reads them: those
    /// rows, and the buffer that gets the sum.
    fn joins(&self, weight: WeightId, out: BufferId) -> Option<(Rows, BufferId)> {
        let Some(Op::Norm(op::Norm { x, adds, sum, .. })) = self.program.ops.get(self.now + 1)
        else {
            return None;
        };
        let cols = self.program.buffers[out.0 as usize].cols;
        let whole = View { buffer: out, start: 0, cols };
        let reads = self.program.ops.iter().flat_map(Op::operands);
        let reads = reads.filter(|o| matches!(o, Operand::Read(v) if v.buffer == out)).count();
        let all_atoms = self.shapes[weight.0 as usize].parts.iter().all(|p| p.is_atoms);
        let alone = all_atoms && reads == 1 && x.cols == cols && x.buffer != out;
        (alone && *adds == [whole]).then(|| (self.view(*x), sum.unwrap_or(out)))
    }

    fn linear(
        &mut self,
        x: View,
        weight: WeightId,
        out: BufferId,
        product: Product,
    ) -> Result<(), DeviceError> {
        let (x, out) = (self.view(x), self.buffer(out));
        self.product(x, &[(weight, 0)], out, product)
    }

    /// Products with matrices of one shape, each of one expert: a launch a format.
    fn product(
        &mut self,
        x: Rows,
        weights: &[(WeightId, u32)],
        out: Rows,
        product: Product,
    ) -> Result<(), DeviceError> {
        let mut formats = BTreeMap::<(FormatId, bool), Vec<(WeightId, usize, u32)>>::new();
        let mut longest = BTreeMap::<(FormatId, bool), u32>::new();
        for &(weight, expert) in weights {
            for (i, part) in self.shapes[weight.0 as usize].parts.iter().enumerate() {
                let kind = (part.format, part.is_atoms);
                formats.entry(kind).or_default().push((weight, i, expert));
                let longest = longest.entry(kind).or_default();
                *longest = part.count.max(*longest);
            }
        }
        let cols = weights.first().map_or(0, |(w, _)| self.program.weights[w.0 as usize].cols);
        let Product { head_rows, scale, cap, pairs, add } = product;
        // As many blocks of pairs as an expert has on average; they go on where it has more.
        let many = |p: Pairs| {
            let all = Extent::rows(x.kind).times(p.top.into());
            all.per(u64::from(PRODUCT_ROWS.0) * u64::from(p.experts))
        };
        let many = pairs.map_or(Extent::rows(x.kind).per(PRODUCT_ROWS.0.into()), many);
        let of_pairs = |p: Pairs| (p.starts, p.list, p.of_row);
        let (starts, pairs, div) = pairs.map_or((Ptr::Null, Ptr::Null, 1), of_pairs);
        let outputs = u32::from(x.kind == RowKind::Outputs);
        for ((format, is_atoms), parts) in formats {
            let rows = longest.get(&(format, is_atoms)).copied().unwrap_or(0);
            let count = parts.len() as u64;
            if let (true, Some(of)) = (is_atoms, product.pairs) {
                // (One of each expert, in their order: layout::may_be_picked.)
                let parts = self.constant(Const::Parts(parts));
                let p = vec![Ptr::Step, parts, x.ptr, out.ptr, of.starts, of.list, of.chosen];
                let n = vec![cols, x.ld, out.ld, of.of_row];
                self.picked(format, rows, (x.kind, of), (p, n, vec![scale]))?;
                continue;
            }
            if is_atoms {
                let parts = self.constant(Const::Parts(parts));
                let (add, add_ld) = add.map_or((Ptr::Null, 0), |rows| (rows.ptr, rows.ld));
                let p = vec![Ptr::Step, parts, x.ptr, out.ptr, add];
                let n = vec![cols, x.ld, out.ld, outputs, add_ld];
                self.narrow(format, (rows, count), x.kind, (p, n, vec![scale, cap]))?;
                continue;
            }
            let rows = rows.div_ceil(PRODUCT_ROWS.1);
            let grid = [Extent::fixed(rows.into()), many, Extent::fixed(count)];
            let parts = self.constant(Const::Parts(parts));
            let p = vec![Ptr::Step, parts, x.ptr, out.ptr, starts, pairs];
            let n = vec![cols, x.ld, out.ld, head_rows, outputs, div];
            self.launch(Kernel::Product(format), grid, (128, 0), (p, n, vec![scale, cap]))?;
        }
        Ok(())
    }

    /// Products with `count` parts in atoms, the longest of so many rows.
    fn narrow(
        &mut self,
        format: FormatId,
        (rows, count): (u32, u64),
        kind: RowKind,
        operands: (Vec<Ptr>, Vec<u32>, Vec<f32>),
    ) -> Result<(), DeviceError> {
        let strips = Extent::fixed(rows.div_ceil(STRIP).into());
        let grid = |tile| [strips, Extent::rows(kind).per(tile), Extent::fixed(count)];
        self.launch(Kernel::Narrow(format, true), grid(2 * TILE), (NARROW, 0), operands)?;
        if let Some(launch) = self.launches.last_mut() {
            launch.few = Some((Kernel::Narrow(format, false), grid(TILE)));
            let blocks = Extent::fixed(rows.div_ceil(STRIP * WIDE).into());
            let wide = |tile| [blocks, Extent::rows(kind).per(tile), Extent::fixed(count)];
            launch.many = wide_rows(format).map(|tile| (Kernel::Wide(format), wide(tile)));
        }
        Ok(())
    }

    /// Places the buffers: memory is used again behind the last launch that needs it.
    fn finish(mut self, limits: &Limits) -> Result<Plan, DeviceError> {
        let mut lives: Vec<Option<(usize, usize)>> = vec![None; self.places.len()];
        for (i, launch) in self.launches.iter().enumerate() {
            for p in &launch.p {
                if let Ptr::Place(place, _) = p {
                    let life = lives[*place].get_or_insert((i, i));
                    life.1 = i;
                }
            }
        }
        let ServedViews { logits, hidden, chosen } = self.served;
        let views = logits.iter().chain(&hidden).map(|view| view.buffer.0 as usize);
        for place in views.chain(chosen.map(|(place, _)| place)) {
            if let Some(life) = &mut lives[place] {
                life.1 = usize::MAX;
            }
        }
        let mut arena = Arena::default();
        for (place, life) in self.places.iter_mut().zip(lives) {
            let Some(life) = life else { continue };
            let rows = match place.rows {
                Some(RowKind::Tokens) => limits.step_tokens,
                Some(RowKind::Outputs) => limits.outputs,
                None => 1,
            };
            let bytes = u64::from(rows) * u64::from(place.times) * u64::from(place.ld) * 4;
            place.at = arena.take(bytes, life);
        }
        let served = |place: usize, start: u32, cols: u32| {
            let Place { at, ld, .. } = self.places[place];
            Served { at: at + u64::from(start) * 4, ld, cols }
        };
        let result = |v: View| served(v.buffer.0 as usize, v.start, v.cols);
        let (logits, hidden) = (logits.map(result), hidden.map(result));
        let chosen = chosen.map(|(place, cols)| served(place, 0, cols));
        let groups = 0..self.program.groups().len() as u32;
        let groups: Vec<usize> = groups
            .map(|g| {
                self.consts.push(Const::Caches(g));
                self.consts.len() - 1
            })
            .collect();
        let Draft { launches, consts, caches, places, slots, .. } = self;
        let buffer_bytes = arena.end;
        Ok(Plan {
            launches,
            consts,
            groups,
            caches,
            buffer_bytes,
            logits,
            hidden,
            chosen,
            slots,
            places,
        })
    }
}

/// Memory whose parts are used again.
#[derive(Debug, Default)]
struct Arena {
    /// Start, bytes, first and last launch that need it.
    taken: Vec<(u64, u64, (usize, usize))>,
    end: u64,
}

impl Arena {
    /// The lowest place that nobody needs meanwhile.
    fn take(&mut self, bytes: u64, life: (usize, usize)) -> u64 {
        let bytes = bytes.next_multiple_of(256);
        let mut others: Vec<(u64, u64)> = self
            .taken
            .iter()
            .filter(|(_, _, other)| other.0 <= life.1 && life.0 <= other.1)
            .map(|&(start, bytes, _)| (start, start + bytes))
            .collect();
        others.sort_unstable();
        let mut at = 0;
        for (start, end) in others {
            if at + bytes <= start {
                break;
            }
            at = at.max(end);
        }
        self.taken.push((at, bytes, life));
        self.end = self.end.max(at + bytes);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenmill_ir::sampling::splitmix;

    #[test]
    fn memory_is_shared_only_by_what_is_needed_at_other_times() {
        let mut arena = Arena::default();
        for i in 0..300u64 {
            let bits = splitmix(i);
            let (first, len) = ((bits % 60) as usize, (bits >> 8 & 7) as usize);
            arena.take(bits >> 16 & 0xfff, (first, first + len));
        }
        let mut shared = 0;
        for (i, a) in arena.taken.iter().enumerate() {
            for b in &arena.taken[..i] {
                let together = a.2.0 <= b.2.1 && b.2.0 <= a.2.1;
                let overlap = a.0 < b.0 + b.1 && b.0 < a.0 + a.1;
                assert!(!(together && overlap), "{a:?} and {b:?}");
                shared += usize::from(overlap);
            }
        }
        assert!(shared > 100, "{shared} pairs share memory");
        let all: u64 = arena.taken.iter().map(|t| t.1).sum();
        assert!(arena.end < all / 3, "{} bytes of {all}", arena.end);
    }

    #[test]
    fn grids_cover_what_a_step_has() {
        let sizes = Sizes { tokens: 9, outputs: 0, spans: 3 };
        for (extent, blocks) in [
            (Extent::ONE, 1),
            (Extent::fixed(9).per(4), 3),
            (Extent::of(Count::Tokens).per(8), 2),
            (Extent::of(Count::Tokens).times(100).per(128), 8),
            (Extent::of(Count::Outputs), 0),
            (Extent::of(Count::Spans), 3),
            (Extent::of(Count::Tokens).times(100).at_most(128), 128),
            (Extent::of(Count::Tokens).times(2).at_most(128), 18),
            (Extent::fixed(u64::MAX), u32::MAX),
        ] {
            assert_eq!(extent.blocks(sizes), blocks, "{extent:?}");
        }
    }
}
