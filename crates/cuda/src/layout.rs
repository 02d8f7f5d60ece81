//! What a weight is in device memory: stored rows as they lie in files, what belongs to them, and
//! vectors as f32.

use std::ops::ControlFlow;
use std::sync::Arc;

use tokenmill_backend::{DeviceError, Watch, stored};
use tokenmill_ir::{Op, Operand, Program, RowPart, WeightId, WeightSource, op};
use tokenmill_ir::{WeightSpec, WeightUse};
use tokenmill_quant::FormatId;

use crate::driver::{Driver, Lane, Memory};
use crate::failure;
use crate::kernels::is_decoded;

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
}

/// How a program reads each of its weights.
pub(crate) fn uses(program: &Program) -> Vec<Uses> {
    let mut all = vec![Uses::default(); program.weights.len()];
    for op in &program.ops {
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
        }
        if let Op::RotateStore(op::RotateStore { rope: Some(rope), .. })
        | Op::StoreLatent(op::StoreLatent { rope, .. }) = op
        {
            let factors = program.ropes.get(rope.0 as usize).and_then(|r| r.factors);
            let uses = factors.and_then(|w| all.get_mut(w.0 as usize));
            uses.into_iter().for_each(|u| u.numbers = true);
        }
    }
    all
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
            let rows = shape.take(count * u64::from(stride));
            let ordered = part.order.is_some() && format == part.format;
            let order = ordered.then(|| shape.take(u64::from(spec.cols) * 4));
            let [bias, scales] =
                [bias, scales].map(|at| at.map(|at: u64| at + u64::from(first) * 4));
            let count = count as u32;
            shape.parts.push(PartShape { format, first, count, stride, rows, order, bias, scales });
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

/// The format a part has in device memory: its own, if kernels decode that.
fn format_here(part: &RowPart) -> FormatId {
    if is_decoded(part.format) { part.format } else { FormatId::F32 }
}

/// The weights of a program in device memory.
#[derive(Debug)]
pub(crate) struct Held {
    pub shapes: Vec<Shape>,
    /// Where each begins.
    pub addresses: Vec<u64>,
    slabs: Vec<Memory>,
}

/// The shapes of all weights of a program.
pub(crate) fn shapes(program: &Program) -> Result<Vec<Shape>, DeviceError> {
    let all = program.weights.iter().zip(uses(program));
    all.map(|(spec, uses)| Shape::of(spec, uses)).collect()
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
        watch: Watch<'_>,
    ) -> Result<Self, DeviceError> {
        let shapes = shapes(program)?;
        let (sizes, places) = slabs(&shapes);
        let memory = |&bytes: &u64| {
            Memory::new(driver, bytes).map_err(|e| failure::of(e, &format!("weights ({bytes})")))
        };
        let slabs: Vec<Memory> = sizes.iter().map(memory).collect::<Result<_, _>>()?;
        let address = |&(slab, at): &(usize, u64)| slabs[slab].address() + at;
        let addresses: Vec<u64> = places.iter().map(address).collect();
        let mut piece = Vec::new();
        for (i, (spec, shape)) in program.weights.iter().zip(&shapes).enumerate() {
            if let ControlFlow::Break(()) = watch(i) {
                return Err(DeviceError::Cancelled);
            }
            let mut upload = Upload { driver, source, spec, to: addresses[i], piece: &mut piece };
            upload.weight(shape)?;
        }
        Ok(Self { shapes, addresses, slabs })
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
        if there.format != part.format {
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
        let stride = there.stride as usize;
        let together = (PIECE / stride.max(1)).max(1) as u64;
        let mut first = 0;
        while first < u64::from(there.count) {
            let count = together.min(u64::from(there.count) - first);
            let mut piece = std::mem::take(self.piece);
            piece.resize(count as usize * stride, 0);
            stored::read_rows(part, cols, first, self.source, &mut piece)?;
            self.bytes(there.rows + first * stride as u64, &piece)?;
            *self.piece = piece;
            first += count;
        }
        Ok(())
    }

    fn floats(&self, at: u64, numbers: &[f32]) -> Result<(), DeviceError> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.bytes(at, &bytes)
    }

    fn bytes(&self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let written = self.driver.write(Lane::Uploads, self.to + at, bytes);
        written.map_err(|e| failure::of(e, &format!("weight '{}'", self.spec.name)))
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
            part(FormatId::F16, 3, None),
        ];
        let bias = vec![part(FormatId::F32, 136, None)];
        let (name, role) = ("w".to_owned(), WeightUse::RowsAndMatmul);
        let scales = vec![(136, 2.0)];
        let spec = WeightSpec { name, role, rows: 136, cols: 128, parts, bias, scales };
        let shape = Shape::of(&spec, Uses { numbers: true, rows: true }).expect("a shape");
        let formats: Vec<_> = shape.parts.iter().map(|p| p.format).collect();
        // What no kernel decodes is f32 here, its columns where they belong.
        assert_eq!(formats, [FormatId::Q8_0, FormatId::F32, FormatId::F16]);
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
