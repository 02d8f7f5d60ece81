//! Weights in the device's memory: panels for products, stored rows for look-ups, plain vectors.

use std::sync::{Arc, Mutex, PoisonError};

use crate::panel::{PANEL_ROWS, PanelSpec};
use tokenmill_backend::{DeviceError, stored};
use tokenmill_ir::{ColumnOrder, RowPart, SourceError, WeightSource, WeightSpec, WeightUse};
use tokenmill_quant::FormatId;

use crate::memory::{Buffer, HUGE_PAGE, Parts};
use crate::pool::SharedPool;
use crate::{DEVICE, Mode};

/// Bytes taken from the system at a time; large pages are shared by many weights.
const SLAB_BYTES: usize = 64 << 20;
/// Bytes of panels made without letting steps of other programs in: a few milliseconds.
const PIECE_BYTES: usize = 8 << 20;
/// Weights start at multiples of this.
const ALIGN: usize = 64;

/// A run of bytes inside a slab.
#[derive(Debug, Clone)]
pub(crate) struct Bytes {
    slab: Arc<Slab>,
    start: usize,
    len: usize,
}

#[derive(Debug)]
struct Slab {
    start: *mut u8,
    /// Owns the memory behind `start`; never borrowed again.
    _buffer: Buffer,
}

// SAFETY: a slab is plain memory; runs of it are written once, before anyone else has them.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Bytes {
    pub fn get(&self) -> &[u8] {
        // SAFETY: the run lies inside the slab, which lives as long as `self`, and is no longer
        // written.
        unsafe { std::slice::from_raw_parts(self.slab.start.add(self.start), self.len) }
    }

    /// The bytes, to fill.
    ///
    /// # Safety
    /// Nobody else uses this run yet.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn fill(&self) -> &mut [u8] {
        // SAFETY: inside the slab; alone by contract.
        unsafe { std::slice::from_raw_parts_mut(self.slab.start.add(self.start), self.len) }
    }
}

/// Hands out runs of large pages.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    current: Option<(Arc<Slab>, usize, usize)>,
    /// Bytes of large pages that slabs before the current one touch and do not use.
    slack: usize,
}

impl Slabs {
    pub fn take(&mut self, len: usize, what: &str) -> Result<Bytes, DeviceError> {
        let fits = |(_, used, size): &&(Arc<Slab>, usize, usize)| size - used >= len;
        let (slab, start, size) = match self.current.as_ref().filter(fits) {
            Some((slab, used, size)) => (Arc::clone(slab), *used, *size),
            None => {
                self.slack = self.slack_bytes();
                let size = len.max(SLAB_BYTES);
                let mut buffer = Buffer::zeroed(size).map_err(|e| out_of_memory(e, what))?;
                let start = buffer.bytes_mut().as_mut_ptr();
                (Arc::new(Slab { start, _buffer: buffer }), 0, size)
            }
        };
        let end = (start + len).next_multiple_of(ALIGN).min(size);
        self.current = Some((Arc::clone(&slab), end, size));
        Ok(Bytes { slab, start, len })
    }

    /// What the last large page of every slab holds in memory beyond what was taken.
    pub fn slack_bytes(&self) -> usize {
        let used = self.current.as_ref().map_or(0, |(_, used, _)| *used);
        self.slack + used.next_multiple_of(HUGE_PAGE) - used
    }
}

/// What is requested of [`Slabs`] here.
const WEIGHTS: &str = "weights";

pub(crate) fn out_of_memory(error: crate::memory::OutOfMemory, what: &str) -> DeviceError {
    DeviceError::OutOfMemory {
        device: DEVICE.into(),
        what: what.to_owned(),
        needed_bytes: error.bytes as u64,
    }
}

/// Rows in one panel layout.
#[derive(Debug, Clone)]
pub(crate) struct Panels {
    pub spec: PanelSpec,
    /// First row within the weight.
    pub row: usize,
    /// The column of the input that each column is, where they lie in another order.
    pub order: Option<ColumnOrder>,
    bytes: Bytes,
}

impl Panels {
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get()
    }
}

/// Rows as stored.
#[derive(Debug, Clone)]
struct Table {
    format: FormatId,
    row: usize,
    rows: usize,
    bytes: Bytes,
}

#[derive(Debug, Clone)]
enum Kind {
    Vector(Vec<f32>),
    Table(Vec<Table>),
    Panels(Vec<Panels>),
}

/// How weights are laid out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Laid {
    /// The arithmetic they are for.
    pub mode: Mode,
    /// Whether code books are written out.
    pub written_out: bool,
}

/// A weight.
#[derive(Debug, Clone)]
pub(crate) struct Weight {
    pub rows: usize,
    kind: Kind,
    /// One a row, or empty.
    bias: Vec<f32>,
    /// One a row, or empty.
    scales: Vec<f32>,
}

impl Weight {
    /// Reads a weight and brings it into the layout its use asks for.
    pub fn upload(
        spec: &WeightSpec,
        laid: Laid,
        source: &dyn WeightSource,
        slabs: &mut Slabs,
        pool: &SharedPool,
    ) -> Result<Self, DeviceError> {
        let kind = match spec.role {
            WeightUse::Vector | WeightUse::LogVector => Kind::Vector(stored::vector(spec, source)?),
            WeightUse::Rows => Kind::Table(tables(spec, source, slabs)?),
            _ => Kind::Panels(panels(spec, laid, source, slabs, pool)?),
        };
        let rows = spec.rows as usize;
        let (bias, scales) = (stored::bias(spec, source)?, stored::scales(spec));
        Ok(Self { rows, kind, bias, scales })
    }

    /// The weight with room for its numbers and none of them: what compiling and measuring need.
    pub fn shape(spec: &WeightSpec, laid: Laid, slabs: &mut Slabs) -> Result<Self, DeviceError> {
        if matches!(spec.role, WeightUse::Vector | WeightUse::LogVector) {
            let kind = Kind::Vector(vec![0.0; spec.rows as usize * spec.cols as usize]);
            let (bias, scales) = (Vec::new(), Vec::new());
            return Ok(Self { rows: spec.rows as usize, kind, bias, scales });
        }
        let mut runs: Vec<((FormatId, Option<&ColumnOrder>), usize)> = Vec::new();
        for (part, rows) in spec.parts.iter().zip(stored::part_rows(spec)?) {
            match runs.last_mut().filter(|run| run.0 == part.read_as()) {
                Some(run) => run.1 += rows as usize,
                None => runs.push((part.read_as(), rows as usize)),
            }
        }
        let (mut tables, mut panels, mut row) = (Vec::new(), Vec::new(), 0);
        for ((format, order), rows) in runs {
            if spec.role == WeightUse::Rows {
                let size = row_bytes(format, spec.cols as usize);
                tables.push(Table { format, row, rows, bytes: slabs.take(size * rows, WEIGHTS)? });
            } else {
                let (layout, order) = layout_of(spec, laid, format, order, rows)?;
                let bytes = slabs.take(layout.bytes(), WEIGHTS)?;
                panels.push(Panels { spec: layout, row, order: order.cloned(), bytes });
            }
            row += rows;
        }
        let kind = match spec.role {
            WeightUse::Rows => Kind::Table(tables),
            _ => Kind::Panels(panels),
        };
        let rows = spec.rows as usize;
        let bias = if spec.bias.is_empty() { Vec::new() } else { vec![0.0; rows] };
        Ok(Self { rows, kind, bias, scales: stored::scales(spec) })
    }

    /// Bytes of memory it takes.
    pub fn bytes(&self) -> usize {
        let numbers = match &self.kind {
            Kind::Vector(v) => v.len() * 4,
            Kind::Table(tables) => tables.iter().map(|t| t.bytes.len).sum(),
            Kind::Panels(panels) => panels.iter().map(|p| p.bytes.len).sum(),
        };
        numbers + 4 * (self.bias.len() + self.scales.len())
    }

    /// Whether a product needs [`Self::after`].
    pub fn has_after(&self) -> bool {
        !self.bias.is_empty() || !self.scales.is_empty()
    }

    /// The numbers of a vector; empty for matrices.
    pub fn vector(&self) -> &[f32] {
        match &self.kind {
            Kind::Vector(v) => v,
            _ => &[],
        }
    }

    /// The panels of a matrix; empty for others.
    pub fn panels(&self) -> &[Panels] {
        match &self.kind {
            Kind::Panels(p) => p,
            _ => &[],
        }
    }

    /// Adds biases and multiplies by factors: `y` holds rows `first ..` of a product.
    pub fn after(&self, first: usize, y: &mut [f32]) {
        let rows = first..first + y.len();
        if !self.bias.is_empty() {
            y.iter_mut().zip(&self.bias[rows.clone()]).for_each(|(y, b)| *y += b);
        }
        if !self.scales.is_empty() {
            y.iter_mut().zip(&self.scales[rows]).for_each(|(y, s)| *y *= s);
        }
    }

    /// Decodes one row. [cols]
    pub fn row(&self, row: usize, out: &mut [f32]) {
        match &self.kind {
            Kind::Vector(v) => out.copy_from_slice(v),
            Kind::Table(tables) => {
                let holds = |t: &&Table| (t.row..t.row + t.rows).contains(&row);
                if let Some(t) = tables.iter().find(holds) {
                    let size = t.bytes.len / t.rows;
                    t.format.decode_row(&t.bytes.get()[(row - t.row) * size..][..size], out);
                }
            }
            Kind::Panels(panels) => {
                let holds = |p: &&Panels| (p.row..p.row + p.spec.rows()).contains(&row);
                if let Some(p) = panels.iter().find(holds) {
                    p.spec.row(p.bytes(), row - p.row, out);
                    if let Some(order) = &p.order {
                        stored::put_back(order, out);
                    }
                }
            }
        }
    }
}

/// Where rows of a run of equal format come from.
enum Segment<'a> {
    Stored(&'a RowPart),
    Transposed(Vec<u8>),
}

/// Neighbouring parts of one format and one order of columns, as one matrix.
struct Run<'a> {
    format: FormatId,
    order: Option<&'a ColumnOrder>,
    row: usize,
    rows: usize,
    segments: Vec<(usize, Segment<'a>)>,
}

fn runs<'a>(spec: &'a WeightSpec, source: &dyn WeightSource) -> Result<Vec<Run<'a>>, SourceError> {
    let mut runs: Vec<Run<'a>> = Vec::new();
    let mut row = 0;
    for (part, rows) in spec.parts.iter().zip(stored::part_rows(spec)?) {
        let segment = match part.transposed {
            Some(taken) => {
                Segment::Transposed(stored::transposed(part, taken, spec.cols.into(), source)?)
            }
            None => Segment::Stored(part),
        };
        stored::order(part, spec.cols.into())?;
        let ((format, order), rows) = (part.read_as(), rows as usize);
        match runs.last_mut().filter(|run| run.format == format && run.order == order) {
            Some(run) => {
                run.segments.push((rows, segment));
                run.rows += rows;
            }
            None => {
                let segments = vec![(rows, segment)];
                runs.push(Run { format, order, row, rows, segments });
            }
        }
        row += rows;
    }
    Ok(runs)
}

impl<'a> Run<'a> {
    /// Stored rows `first ..` of the run, as many as `out` has room for.
    fn read(
        &self,
        cols: usize,
        first: usize,
        source: &dyn WeightSource,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let size = row_bytes(self.format, cols);
        self.each(first, size, out, |segment, first, out| match segment {
            Segment::Stored(part) => {
                stored::read_rows(part, cols as u64, first as u64, source, out)
            }
            Segment::Transposed(bytes) => {
                out.copy_from_slice(&bytes[first * size..][..out.len()]);
                Ok(())
            }
        })
    }

    /// The numbers of these rows, their columns as stored.
    fn numbers(
        &self,
        cols: usize,
        first: usize,
        source: &dyn WeightSource,
        out: &mut [f32],
    ) -> Result<(), SourceError> {
        self.each(first, cols, out, |segment, first, out| match segment {
            Segment::Stored(part) => stored::numbers(part, cols, first as u64, source, out),
            Segment::Transposed(bytes) => {
                let size = row_bytes(self.format, cols);
                self.format.decode_row(&bytes[first * size..][..out.len() / cols * size], out);
                Ok(())
            }
        })
    }

    /// Calls `read` for what rows `first ..` are in each segment, with `out` in rows of `width` shared out among them.
    fn each<T>(
        &self,
        mut first: usize,
        width: usize,
        mut out: &mut [T],
        mut read: impl FnMut(&Segment<'a>, usize, &mut [T]) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        for (rows, segment) in &self.segments {
            if first >= *rows {
                first -= rows;
                continue;
            }
            let count = (out.len() / width.max(1)).min(rows - first);
            let (now, rest) = out.split_at_mut(count * width);
            read(segment, first, now)?;
            (out, first) = (rest, 0);
            if out.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

/// Bytes of a stored row.
fn row_bytes(format: FormatId, cols: usize) -> usize {
    format.row_bytes(cols as u64).unwrap_or(0) as usize
}

fn tables(
    spec: &WeightSpec,
    source: &dyn WeightSource,
    slabs: &mut Slabs,
) -> Result<Vec<Table>, DeviceError> {
    let cols = spec.cols as usize;
    let mut all = Vec::new();
    for run in runs(spec, source)? {
        if run.order.is_some() {
            return Err(unsupported(spec, "rows to look up with columns in another order".into()));
        }
        let bytes = slabs.take(row_bytes(run.format, cols) * run.rows, WEIGHTS)?;
        // SAFETY: just taken.
        run.read(cols, 0, source, unsafe { bytes.fill() })?;
        all.push(Table { format: run.format, row: run.row, rows: run.rows, bytes });
    }
    Ok(all)
}

fn panels(
    spec: &WeightSpec,
    laid: Laid,
    source: &dyn WeightSource,
    slabs: &mut Slabs,
    pool: &SharedPool,
) -> Result<Vec<Panels>, DeviceError> {
    let mut all = Vec::new();
    for run in runs(spec, source)? {
        let (layout, order) = layout_of(spec, laid, run.format, run.order, run.rows)?;
        let bytes = slabs.take(layout.bytes(), WEIGHTS)?;
        // SAFETY: just taken.
        let parts = Parts::new(unsafe { bytes.fill() });
        let failed = Mutex::new(None);
        let units = run.rows.div_ceil(rows_at_once(run.format));
        let pieces = layout.bytes().div_ceil(PIECE_BYTES).clamp(1, units.max(1));
        for piece in 0..pieces {
            let ran = pool.for_piece().run(|worker| {
                let share = worker.share(units);
                let at = |piece: usize| share.start + piece * share.len() / pieces;
                let share = at(piece)..at(piece + 1);
                if let Err(error) = repack(&run, &layout, order.is_some(), share, source, parts) {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            });
            ran.map_err(|e| DeviceError::Failed { device: DEVICE.into(), reason: e.to_string() })?;
            if let Some(error) = failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return Err(error.into());
            }
        }
        all.push(Panels { spec: layout, row: run.row, order: order.cloned(), bytes });
    }
    Ok(all)
}

fn unsupported(spec: &WeightSpec, what: String) -> DeviceError {
    DeviceError::Unsupported { device: DEVICE.into(), what: format!("{}: {what}", spec.name) }
}

/// The panels of a run of rows, and the order of their columns. Whole bands of rows, and columns in another order of what is
/// no expert, stay as they are in the int8 arithmetic; elsewhere they are kept as f32.
fn layout_of<'a>(
    spec: &WeightSpec,
    Laid { mode, written_out }: Laid,
    format: FormatId,
    order: Option<&'a ColumnOrder>,
    rows: usize,
) -> Result<(PanelSpec, Option<&'a ColumnOrder>), DeviceError> {
    let (int8, band) = (mode == Mode::Int8, format.band_rows() as u64);
    let orders = int8 && spec.role == WeightUse::Matmul;
    let bands = int8 && matches!(spec.role, WeightUse::Matmul | WeightUse::Expert);
    let cut = |p: &RowPart| {
        let r = p.rows;
        let starts = r.repeat == 1 || r.stride.is_multiple_of(band);
        let aligned = r.start.is_multiple_of(band) && r.count.is_multiple_of(band) && starts;
        p.read_as().0 == format && !aligned
    };
    let kept = match order {
        Some(_) if !orders => FormatId::F32,
        _ if band > 1 && (!bands || spec.parts.iter().any(cut)) => FormatId::F32,
        _ => format,
    };
    let layout = PanelSpec::new(kept, rows, spec.cols as usize)
        .map_err(|e| unsupported(spec, e.to_string()))?;
    let layout = if written_out { layout.written_out() } else { layout };
    Ok((layout, order.filter(|_| orders)))
}

/// Rows that are read at once: those of a panel, or of a band.
fn rows_at_once(format: FormatId) -> usize {
    format.band_rows().max(PANEL_ROWS)
}

/// Repacks a worker's share of a run, by what is read at once; the worker is the first to touch it. The
/// order of columns is kept or undone.
fn repack(
    run: &Run<'_>,
    layout: &PanelSpec,
    keeps_order: bool,
    share: std::ops::Range<usize>,
    source: &dyn WeightSource,
    out: Parts<'_, u8>,
) -> Result<(), SourceError> {
    let (size, cols) = (layout.panel_bytes(), layout.cols());
    let most = rows_at_once(run.format);
    let mut rows = vec![0; most * row_bytes(run.format, cols)];
    for first in share.map(|i| i * most) {
        let count = most.min(layout.rows() - first);
        let panels = first / PANEL_ROWS..(first + count).div_ceil(PANEL_ROWS);
        // SAFETY: panels of different shares do not overlap.
        let out = unsafe { out.part(panels.start * size..panels.end * size) };
        let undo = run.order.filter(|_| !keeps_order);
        if run.format == layout.format() && undo.is_none() {
            let rows = &mut rows[..count * row_bytes(run.format, cols)];
            run.read(cols, first, source, rows)?;
            layout.repack(panels.start, rows, out);
        } else {
            let mut values = vec![0.0; count * cols];
            run.numbers(cols, first, source, &mut values)?;
            if let Some(order) = undo {
                stored::put_back(order, &mut values);
            }
            let bytes: Vec<u8> = values.iter().flat_map(|w| w.to_le_bytes()).collect();
            layout.repack(panels.start, &bytes, out);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use tokenmill_ir::{Columns, RowSlices};
    use tokenmill_quant::{FORMATS, Format};

    use super::*;
    use crate::pool::{Affinity, Pool};

    /// Rows of zero bytes.
    struct Zeros;

    impl WeightSource for Zeros {
        fn read_rows(&self, _: &str, _: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
            out.fill(0);
            Ok(())
        }

        fn rows(&self, _: &str, _: Range<u64>) -> Option<&[u8]> {
            None
        }
    }

    #[test]
    fn a_shape_takes_what_an_upload_takes() {
        let pool = SharedPool::new(Pool::new(1, Affinity::Free).expect("a thread"));
        let modes = [Mode::Int8, Mode::F32];
        let bands = |f: &&Format| f.id.is_weight() || f.id.band_rows() > 1;
        for (format, mode) in FORMATS.iter().filter(bands).flat_map(|f| modes.map(|m| (f, m))) {
            let laid = Laid { mode, written_out: mode == Mode::Int8 };
            let band = format.id.band_rows() as u64;
            let roles = [WeightUse::Rows, WeightUse::Matmul, WeightUse::RowsAndMatmul];
            for (role, turned) in roles.into_iter().flat_map(|r| [(r, false), (r, true)]) {
                let part = |rows| RowPart {
                    format: format.id,
                    tensor: "t".to_owned(),
                    rows: RowSlices::range(0, if turned { 512 } else { rows }),
                    transposed: turned.then(|| Columns::all(rows * 256 / band)),
                    order: None,
                };
                let parts = vec![part(24 * band), part(16 * band)];
                let spec = WeightSpec {
                    name: "w".to_owned(),
                    role,
                    rows: parts.iter().map(RowPart::weight_rows).sum::<u64>() as u32,
                    cols: 512,
                    parts,
                    bias: Vec::new(),
                    scales: vec![(24, 2.0)],
                };
                let mut slabs = Slabs::default();
                let shape = Weight::shape(&spec, laid, &mut slabs).map(|w| w.bytes());
                let upload = Weight::upload(&spec, laid, &Zeros, &mut slabs, &pool);
                assert_eq!(
                    shape,
                    upload.map(|w| w.bytes()),
                    "{} as {role:?} {turned}",
                    format.name
                );
                if turned && role == WeightUse::Matmul && format.block_weights > 1 {
                    let f32s = u64::from(spec.rows) * 512 * 4;
                    assert_eq!(spec.stored_bytes(), f32s, "{} is turned as f32", format.name);
                }
            }
        }
    }
}
