//! What a weight is in device memory: stored rows as they lie in files or as atoms
//! (kernels/atoms.cuh), what belongs to them, and vectors as f32.

use std::ops::ControlFlow;
use std::sync::Arc;

use tokenmill_backend::{DeviceError, Watch, stored};
use tokenmill_ir::{Mode, Op, Operand, Program, RowPart, View, WeightId, WeightSource, op};
use tokenmill_ir::{WeightSpec, WeightUse};
use tokenmill_quant::FormatId;

use crate::driver::{Args, Driver, Lane, Memory, Shape as Blocks};
use crate::failure;
use crate::few::{in_four_bits, to_four_bits};
use crate::kernels::{Kernel, has_atoms, is_decoded};

/// Pieces of a weight begin at multiples of this.
const ALIGN: u64 = 256;
/// Bytes that go to the device at a time.
const PIECE: usize = 16 << 20;
/// Weights share allocations of about so many bytes.
const SLAB: u64 = 1 << 30;

/// How a program reads a weight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// Number by number.
    numbers: bool,
    /// As rows of a product or a table.
    rows: bool,
    /// As a matrix of products that tensor cores make, and as a table at most beside that.
    atoms: bool,
}

/// How a program reads each of its weights.
pub(crate) fn uses(program: &Program) -> Vec<Uses> {
    let mut all = vec![Uses::default(); program.weights.len()];
    let mut others = vec![false; program.weights.len()];
    for op in &program.ops {
        let product = match op {
            Op::Linear { x, .. } | Op::GatedLinear { x, .. } | Op::Head { x, .. } => Some(x),
            Op::Experts(e) => Some(&e.x),
            _ => None,
        };
        let product = product.map(|x| is_aligned(program, x) && may_be_picked(program, op));
        let rows: Option<Vec<WeightId>> = match op {
            Op::Embed { table, .. } => Some(vec![*table]),
            Op::Route { router, .. } => Some(vec![*router]),
            Op::Linear { .. }
            | Op::GatedLinear { .. }
            | Op::HeadLinear { .. }
            | Op::Head { .. }
            | Op::Experts(_) => None,
            _ => Some(Vec::new()),
        };
        for operand in op.operands() {
            let Operand::Weight(w) = operand else { continue };
            let Some(uses) = all.get_mut(w.0 as usize) else { continue };
            match &rows {
                Some(rows) if !rows.contains(&w) => uses.numbers = true,
                _ => uses.rows = true,
            }
            uses.atoms |= product == Some(true);
            others[w.0 as usize] |= product != Some(true) && !matches!(op, Op::Embed { .. });
        }
        if let Op::RotateStore(op::RotateStore { rope: Some(rope), .. })
        | Op::StoreLatent(op::StoreLatent { rope, .. }) = op
        {
            let factors = program.ropes.get(rope.0 as usize).and_then(|r| r.factors);
            let uses = factors.and_then(|w| all.get_mut(w.0 as usize));
            uses.into_iter().for_each(|u| u.numbers = true);
        }
    }
    all.iter_mut().zip(others).for_each(|(uses, other)| uses.atoms &= !other);
    all
}

/// Whether experts, where the op has any, are as one kernel takes them: rows between their products
/// aligned, too, and all matrices of a kind in one format.
fn may_be_picked(program: &Program, op: &Op) -> bool {
    let Op::Experts(op::Experts { gate, up, down, experts, .. }) = op else { return true };
    let of = |first: &WeightId| {
        let first = first.0 as usize;
        program.weights.get(first..first + *experts as usize).unwrap_or_default()
    };
    let format = |w: &WeightSpec| match &w.parts[..] {
        [part] if part.order.is_none() && part.transposed.is_none() => Some(part.format),
        _ => None,
    };
    let alike = |all: &[WeightSpec]| {
        let first = all.first().and_then(format);
        first.is_some() && all.iter().all(|w| format(w) == first)
    };
    let aligned = of(gate).iter().all(|w| w.rows.is_multiple_of(8));
    aligned && [gate, up, down].iter().all(|first| alike(of(first)))
}

/// Whether rows of a view begin at multiples of 16 bytes and end at such of 32.
fn is_aligned(program: &Program, x: &View) -> bool {
    let ld = program.buffers.get(x.buffer.0 as usize).map_or(1, |b| b.cols);
    ld.is_multiple_of(4) && x.start.is_multiple_of(4) && x.cols.is_multiple_of(8)
}

/// Columns of a unit of atoms, its bytes, and those of its scales (kernels/atoms.cuh).
fn unit_of(format: FormatId) -> (u64, u64, u64) {
    match format {
        FormatId::BF16 => (128, 4096, 0),
        FormatId::F8_E4M3 => (256, 4096, 0),
        FormatId::Q8_0 => (256, 4096, 256),
        FormatId::Q6_K => (256, 4096, 288),
        FormatId::E4M3_32 => (256, 4096, 512),
        FormatId::Q4_0 | FormatId::U4_128 => (256, 2048, 256),
        FormatId::Q4_K => (256, 2048, 320),
        FormatId::Q4_1 | FormatId::U4_64 => (256, 2048, 512),
        _ => (256, 2048, 1024),
    }
}

/// Bytes of a part's atoms, and of their scales behind them.
fn atoms_of(format: FormatId, rows: u64, cols: u64) -> (u64, u64) {
    let (columns, bytes, scales) = unit_of(format);
    let units = rows.div_ceil(16) * cols.div_ceil(columns);
    (units * bytes, units * scales)
}

/// A run of rows in one format. Offsets are from the weight's address.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PartShape {
    /// The format of the rows here.
    pub format: FormatId,
    /// Row of the matrix that is its first.
    pub first: u32,
    pub count: u32,
    /// Bytes from row to row.
    pub stride: u32,
    pub rows: u64,
    /// The rows are atoms; the stride is that of the stored rows they are made of.
    pub is_atoms: bool,
    pub order: Option<u64>,
    pub bias: Option<u64>,
    pub scales: Option<u64>,
}

/// A weight in device memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Shape {
    /// Where its f32 begin, where it is read number by number.
    pub numbers: Option<u64>,
    pub parts: Vec<PartShape>,
    pub bytes: u64,
}

impl Shape {
    /// Of a weight that is so used.
    pub fn of(spec: &WeightSpec, uses: Uses) -> Result<Self, DeviceError> {
        let mut shape = Shape::default();
        if uses.numbers {
            shape.numbers = Some(shape.take(u64::from(spec.rows) * u64::from(spec.cols) * 4));
        }
        if !uses.rows {
            return Ok(shape);
        }
        let vector =
            |shape: &mut Shape, there: bool| there.then(|| shape.take(u64::from(spec.rows) * 4));
        let bias = vector(&mut shape, !spec.bias.is_empty());
        let scales = vector(&mut shape, !spec.scales.is_empty());
        let mut first = 0u32;
        for (part, count) in spec.parts.iter().zip(stored::part_rows(spec)?) {
            let format = format_here(part);
            let here = RowPart { format, ..part.clone() };
            let stride = stored::row_bytes(&here, spec.cols.into())?;
            let stride = u32::try_from(stride)
                .map_err(|_| failure::unsupported(format!("rows of {stride} bytes")))?;
            let (cols, ordered) = (u64::from(spec.cols), part.read_as().1.is_some());
            let plain = !ordered && part.transposed.is_none();
            let is_atoms = uses.atoms && plain && has_atoms(format);
            let (atoms, scales_of) = atoms_of(format, count, cols);
            let bytes = if is_atoms { atoms + scales_of } else { count * u64::from(stride) };
            let rows = shape.take(bytes);
            let order = (ordered && is_as_read(part)).then(|| shape.take(u64::from(spec.cols) * 4));
            let [bias, scales] =
                [bias, scales].map(|at| at.map(|at: u64| at + u64::from(first) * 4));
            let count = count as u32;
            let part =
                PartShape { format, first, count, stride, rows, is_atoms, order, bias, scales };
            shape.parts.push(part);
            first += count;
        }
        Ok(shape)
    }

    fn take(&mut self, bytes: u64) -> u64 {
        let at = self.bytes;
        self.bytes = (at + bytes).next_multiple_of(ALIGN);
        at
    }
}

/// The format a part has in device memory: the one it is read as, if kernels decode that; codes of few bits take four.
fn format_here(part: &RowPart) -> FormatId {
    let (format, _) = part.read_as();
    match in_four_bits(format) {
        Some(format) => format,
        None if is_decoded(format) => format,
        None => FormatId::F32,
    }
}

/// Whether the columns of a part are in device memory as they are read.
fn is_as_read(part: &RowPart) -> bool {
    is_decoded(part.read_as().0)
}

/// The weights of a program in device memory.
#[derive(Debug)]
pub(crate) struct Held {
    pub shapes: Vec<Shape>,
    /// Where each begins.
    pub addresses: Vec<u64>,
    pub mode: Mode,
    slabs: Vec<Memory>,
}

/// The shapes of all weights of a program in a mode.
pub(crate) fn shapes(program: &Program, mode: Mode) -> Result<Vec<Shape>, DeviceError> {
    let all = program.weights.iter().zip(uses(program));
    let of_mode = |uses: Uses| Uses { atoms: uses.atoms && mode != Mode::F32, ..uses };
    all.map(|(spec, uses)| Shape::of(spec, of_mode(uses))).collect()
}

/// Stored rows that become atoms together: whole strips.
fn rows_together(part: &PartShape) -> u32 {
    let rows = (PIECE / part.stride.max(1) as usize).max(1) as u32;
    part.count.min(rows.next_multiple_of(16))
}

/// Bytes of each allocation, and of each weight its allocation and place in it.
fn slabs(shapes: &[Shape]) -> (Vec<u64>, Vec<(usize, u64)>) {
    let (mut sizes, mut places) = (Vec::<u64>::new(), Vec::with_capacity(shapes.len()));
    for shape in shapes {
        if sizes.last().is_none_or(|size| size + shape.bytes > SLAB) {
            sizes.push(0);
        }
        let slab = sizes.len() - 1;
        places.push((slab, sizes[slab]));
        sizes[slab] += shape.bytes;
    }
    (sizes, places)
}

/// Memory that weights take in whole pages.
pub(crate) fn taken(shapes: &[Shape], page: u64) -> u64 {
    slabs(shapes).0.iter().map(|bytes| bytes.next_multiple_of(page)).sum()
}

impl Held {
    /// Brings all weights to the device, or on their way: who uses them goes behind
    /// [`Lane::Uploads`].
    pub fn upload(
        driver: &Arc<dyn Driver>,
        program: &Program,
        source: &dyn WeightSource,
        mode: Mode,
        watch: Watch<'_>,
    ) -> Result<Self, DeviceError> {
        let shapes = shapes(program, mode)?;
        let (sizes, places) = slabs(&shapes);
        let memory = |&bytes: &u64| {
            Memory::new(driver, bytes).map_err(|e| failure::of(e, &format!("weights ({bytes})")))
        };
        let slabs: Vec<Memory> = sizes.iter().map(memory).collect::<Result<_, _>>()?;
        let address = |&(slab, at): &(usize, u64)| slabs[slab].address() + at;
        let addresses: Vec<u64> = places.iter().map(address).collect();
        let packed = shapes.iter().flat_map(|s| &s.parts).filter(|p| p.is_atoms);
        let rows = packed.map(|p| u64::from(rows_together(p)) * u64::from(p.stride)).max();
        // (It goes when what it is needed for is done.)
        let stage = Memory::new(driver, rows.unwrap_or(0));
        let stage = stage.map_err(|e| failure::of(e, "rows that become atoms"))?;
        let stage = stage.address();
        let mut piece = Vec::new();
        for (i, (spec, shape)) in program.weights.iter().zip(&shapes).enumerate() {
            if let ControlFlow::Break(()) = watch(i) {
                return Err(DeviceError::Cancelled);
            }
            let to = addresses[i];
            let mut upload = Upload { driver, source, spec, to, stage, piece: &mut piece };
            upload.weight(shape)?;
        }
        Ok(Self { shapes, addresses, mode, slabs })
    }

    /// Whether they lie where that driver can use them.
    pub fn is_of(&self, driver: &Arc<dyn Driver>) -> bool {
        self.slabs.iter().all(|slab| slab.is_of(driver))
    }
}

/// One weight on its way.
struct Upload<'a> {
    driver: &'a Arc<dyn Driver>,
    source: &'a dyn WeightSource,
    spec: &'a WeightSpec,
    to: u64,
    /// Where stored rows lie until they are atoms.
    stage: u64,
    piece: &'a mut Vec<u8>,
}

impl Upload<'_> {
    fn weight(&mut self, shape: &Shape) -> Result<(), DeviceError> {
        let (spec, source) = (self.spec, self.source);
        if let Some(at) = shape.numbers {
            let numbers = match spec.role {
                WeightUse::Vector | WeightUse::LogVector => stored::vector(spec, source)?,
                _ => stored::decode(spec, source)?,
            };
            self.floats(at, &numbers)?;
        }
        let first = shape.parts.first();
        if let Some(at) = first.and_then(|p| p.bias) {
            self.floats(at, &stored::bias(spec, source)?)?;
        }
        if let Some(at) = first.and_then(|p| p.scales) {
            self.floats(at, &stored::scales(spec))?;
        }
        for (part, there) in spec.parts.iter().zip(&shape.parts) {
            self.part(part, there)?;
        }
        Ok(())
    }

    fn part(&mut self, part: &RowPart, there: &PartShape) -> Result<(), DeviceError> {
        let cols = u64::from(self.spec.cols);
        if !is_as_read(part) {
            let (parts, bias, scales) = (vec![part.clone()], Vec::new(), Vec::new());
            let alone = WeightSpec { rows: there.count, parts, bias, scales, ..self.spec.clone() };
            return self.floats(there.rows, &stored::decode(&alone, self.source)?);
        }
        if let (Some(at), Some(order)) = (there.order, stored::order(part, cols)?) {
            let words: Vec<u8> = order.iter().flat_map(|c| c.to_le_bytes()).collect();
            self.bytes(at, &words)?;
        }
        if let Some(columns) = part.transposed {
            let rows = stored::transposed(part, columns, cols, self.source)?;
            return self.bytes(there.rows, &rows);
        }
        let (stride, together) = (there.stride as usize, rows_together(there));
        let mut first = 0;
        while first < there.count {
            let count = together.min(there.count - first);
            let mut piece = std::mem::take(self.piece);
            piece.resize(count as usize * stored::row_bytes(part, cols)?, 0);
            stored::read_rows(part, cols, first.into(), self.source, &mut piece)?;
            if there.format != part.format {
                piece = to_four_bits(part.format, &piece);
            }
            if there.is_atoms {
                self.told(self.driver.write(Lane::Uploads, self.stage, &piece))?;
                self.pack(there, (first, count))?;
            } else {
                self.bytes(there.rows + u64::from(first) * stride as u64, &piece)?;
            }
            *self.piece = piece;
            first += count;
        }
        Ok(())
    }

    /// Makes rows of a part atoms, which lie on the stage.
    fn pack(&self, there: &PartShape, (first, count): (u32, u32)) -> Result<(), DeviceError> {
        let cols = self.spec.cols;
        let (atoms, _) = atoms_of(there.format, there.count.into(), cols.into());
        let to = self.to + there.rows;
        let mut args = Args::default();
        args.p[..3].copy_from_slice(&[self.stage, to, to + atoms]);
        args.n[..4].copy_from_slice(&[cols, there.stride, first, count]);
        let grid = [count.div_ceil(16), 8, 1];
        let blocks = Blocks { grid, threads: 256, shared: 0 };
        let kernel = Kernel::Pack(there.format);
        self.told(self.driver.launch(Lane::Uploads, kernel, blocks, &args))
    }

    fn told(&self, answer: Result<(), crate::driver::DriverError>) -> Result<(), DeviceError> {
        answer.map_err(|e| failure::of(e, &format!("weight '{}'", self.spec.name)))
    }

    fn floats(&self, at: u64, numbers: &[f32]) -> Result<(), DeviceError> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.bytes(at, &bytes)
    }

    fn bytes(&self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.told(self.driver.write(Lane::Uploads, self.to + at, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenmill_ir::RowSlices;

    fn part(format: FormatId, rows: u64, order: Option<Vec<u32>>) -> RowPart {
        let (rows, tensor) = (RowSlices::range(0, rows), "t".to_owned());
        let order = order.map(Into::into);
        RowPart { format, tensor, rows, transposed: None, order }
    }

    #[test]
    fn pieces_of_a_weight_lie_apart() {
        let order = Some((0..128).collect());
        let parts = vec![
            part(FormatId::Q8_0, 5, order.clone()),
            part(FormatId::EXL3_4, 128, order),
            part(FormatId::U3_64, 3, None),
        ];
        let bias = vec![part(FormatId::F32, 136, None)];
        let (name, role) = ("w".to_owned(), WeightUse::RowsAndMatmul);
        let scales = vec![(136, 2.0)];
        let spec = WeightSpec { name, role, rows: 136, cols: 128, parts, bias, scales };
        let shape =
            Shape::of(&spec, Uses { numbers: true, rows: true, atoms: false }).expect("a shape");
        let formats: Vec<_> = shape.parts.iter().map(|p| p.format).collect();
        // What no kernel decodes is f32 here, its columns where they belong.
        assert_eq!(formats, [FormatId::Q8_0, FormatId::F32, FormatId::U4_64]);
        assert!(shape.parts[0].order.is_some() && shape.parts[1].order.is_none());
        assert_eq!(shape.parts.iter().map(|p| p.first).collect::<Vec<_>>(), [0, 5, 133]);
        let first = &shape.parts[0];
        let mut pieces = vec![(shape.numbers, 136 * 128 * 4), (first.order, 128 * 4)];
        pieces.extend([(first.bias, 136 * 4), (first.scales, 136 * 4)]);
        let rows = shape.parts.iter().map(|p| (Some(p.rows), u64::from(p.count * p.stride)));
        pieces.extend(rows);
        pieces.sort();
        for pair in pieces.windows(2) {
            assert!(pair[0].0 < pair[1].0 && pair[0].0.map(|at| at + pair[0].1) <= pair[1].0);
        }
        assert!(pieces.iter().all(|(at, _)| at.is_some_and(|at| at.is_multiple_of(ALIGN))));
        assert!(pieces.last().is_some_and(|(at, n)| at.is_some_and(|a| a + n <= shape.bytes)));
    }

    #[test]
    fn weights_share_allocations() {
        let of = |bytes| Shape { bytes, ..Shape::default() };
        let shapes = [of(SLAB / 2), of(SLAB / 2), of(256), of(3 * SLAB), of(256), of(0)];
        let (sizes, places) = slabs(&shapes);
        assert_eq!(sizes, [SLAB, 256, 3 * SLAB, 256]);
        let expected = [(0, 0), (0, SLAB / 2), (1, 0), (2, 0), (3, 0), (3, 256)];
        assert_eq!(places, expected);
    }
}
