//! A weight's rows as its parts describe them, pulled from a source: what every device does first.

use tokenmill_ir::{Columns, RowPart, SourceError, WeightSource, WeightSpec, WeightUse, math};

/// Why a part cannot be read, as the error devices hand on.
fn error(part: &RowPart, reason: impl Into<String>) -> SourceError {
    SourceError { tensor: part.tensor.clone(), reason: reason.into() }
}

/// Bytes of one stored row of `cols` columns.
///
/// # Errors
/// When `cols` is not a whole number of the format's blocks.
pub fn row_bytes(part: &RowPart, cols: u64) -> Result<usize, SourceError> {
    let bytes = part.format.row_bytes(cols).and_then(|b| usize::try_from(b).ok());
    bytes.ok_or_else(|| error(part, format!("{cols} columns in blocks of {}", part.format)))
}

/// Rows of the weight that come from each part, top to bottom.
///
/// # Errors
/// When the parts do not make up the rows of the weight.
pub fn part_rows(spec: &WeightSpec) -> Result<Vec<u64>, SourceError> {
    let rows: Vec<u64> = spec.parts.iter().map(RowPart::weight_rows).collect();
    let all = rows.iter().fold(0u64, |sum, rows| sum.saturating_add(*rows));
    if all != u64::from(spec.rows) {
        let reason = format!("{all} rows stored for {} of the weight", spec.rows);
        return Err(SourceError { tensor: spec.name.clone(), reason });
    }
    Ok(rows)
}

/// Copies rows `first .. first + count` of an untransposed part to `out`: `count` stored rows of
/// `cols` columns.
///
/// # Errors
/// Those of the source; `out` of another length.
pub fn read_rows(
    part: &RowPart,
    cols: u64,
    first: u64,
    source: &dyn WeightSource,
    out: &mut [u8],
) -> Result<(), SourceError> {
    let size = row_bytes(part, cols)?;
    if size == 0 || !out.len().is_multiple_of(size) {
        return Err(error(part, format!("{} bytes of room for rows of {size}", out.len())));
    }
    let end = first + (out.len() / size) as u64;
    let (mut at, mut out) = (first, out);
    while at < end {
        // As many rows as lie one after another in the tensor.
        let left = part.rows.count - at % part.rows.count;
        let run = if part.rows.repeat == 1 || part.rows.stride == part.rows.count {
            end - at
        } else {
            left.min(end - at)
        };
        let start = part.rows.row(at);
        let (now, rest) = out.split_at_mut(run as usize * size);
        source.read_rows(&part.tensor, start..start + run, now)?;
        (at, out) = (at + run, rest);
    }
    Ok(())
}

/// Numbers of rows `first ..` of an untransposed part, as many as `out` has room for, their columns as stored; rows that are
/// stored together may be cut. [rows × cols]
///
/// # Errors
/// Those of the source.
pub fn numbers(
    part: &RowPart,
    cols: usize,
    first: u64,
    source: &dyn WeightSource,
    out: &mut [f32],
) -> Result<(), SourceError> {
    let (size, band) = (row_bytes(part, cols as u64)?, part.format.band_rows() as u64);
    if band == 1 {
        let mut bytes = vec![0; out.len() / cols.max(1) * size];
        read_rows(part, cols as u64, first, source, &mut bytes)?;
        part.format.decode_row(&bytes, out);
        return Ok(());
    }
    let (mut bytes, mut values) = (vec![0; band as usize * size], vec![0.0; band as usize * cols]);
    let mut read = None;
    for (i, out) in out.chunks_exact_mut(cols).enumerate() {
        let row = part.rows.row(first + i as u64);
        let start = row / band * band;
        if read.replace(start) != Some(start) {
            source.read_rows(&part.tensor, start..start + band, &mut bytes)?;
            part.format.decode_rows(cols, &bytes, &mut values);
        }
        out.copy_from_slice(&values[(row - start) as usize * cols..][..cols]);
    }
    Ok(())
}

/// The bytes of the `taken` columns of a part, transposed: rows of `cols` columns in its format.
///
/// # Errors
/// Blocked formats; columns that are not there; those of the source.
pub fn transposed(
    part: &RowPart,
    taken: Columns,
    cols: u64,
    source: &dyn WeightSource,
) -> Result<Vec<u8>, SourceError> {
    let info = part.format.info();
    let last = taken.count.checked_sub(1).and_then(|n| n.checked_mul(taken.step.max(1)));
    let last = last.and_then(|n| n.checked_add(taken.start));
    let there = last.is_some_and(|last| last < taken.of);
    if info.block_weights != 1 || part.rows.count != cols || !there {
        return Err(error(part, format!("cannot be read transposed: {taken:?}, {cols} rows")));
    }
    let size = info.block_bytes;
    let [cols, first, count, of] = [cols, taken.start, taken.count, taken.of].map(|n| n as usize);
    let step = taken.step.max(1) as usize;
    let mut block = vec![0; cols * of * size];
    let mut out = vec![0; part.rows.repeat as usize * count * cols * size];
    for (i, transposed) in out.chunks_exact_mut(count * cols * size).enumerate() {
        let start = part.rows.start + i as u64 * part.rows.stride;
        source.read_rows(&part.tensor, start..start + part.rows.count, &mut block)?;
        for (col, stored) in block.chunks_exact(of * size).enumerate() {
            let taken = stored[first * size..].chunks_exact(size).step_by(step).take(count);
            for (row, number) in taken.enumerate() {
                transposed[(row * cols + col) * size..][..size].copy_from_slice(number);
            }
        }
    }
    Ok(out)
}

/// The order of a part's stored columns, where they lie in another.
///
/// # Errors
/// When it is no permutation of `cols` columns, or of rows that are read transposed.
pub fn order(part: &RowPart, cols: u64) -> Result<Option<&[u32]>, SourceError> {
    let Some(order) = part.order.as_deref() else { return Ok(None) };
    let mut seen = vec![false; order.len()];
    let once = |&k: &u32| seen.get_mut(k as usize).is_some_and(|s| !std::mem::replace(s, true));
    if order.len() as u64 != cols || part.transposed.is_some() || !order.iter().all(once) {
        return Err(error(part, format!("an order of {} columns for {cols}", order.len())));
    }
    Ok(Some(order))
}

/// Puts the columns of rows that were stored in `order` where they belong.
pub fn put_back(order: &[u32], rows: &mut [f32]) {
    let mut stored = vec![0.0; order.len()];
    for row in rows.chunks_exact_mut(order.len()) {
        stored.copy_from_slice(row);
        for (&k, value) in order.iter().zip(&stored) {
            row[k as usize] = *value;
        }
    }
}

/// All rows of a matrix as f32. [rows × cols]
///
/// # Errors
/// Those of the parts and of the source.
pub fn decode(spec: &WeightSpec, source: &dyn WeightSource) -> Result<Vec<f32>, SourceError> {
    let cols = u64::from(spec.cols);
    let mut data = vec![0.0; spec.rows as usize * spec.cols as usize];
    let mut rest = data.as_mut_slice();
    for (part, rows) in spec.parts.iter().zip(part_rows(spec)?) {
        let (now, after) = rest.split_at_mut(rows as usize * spec.cols as usize);
        match part.transposed {
            Some(columns) => {
                part.format.decode_row(&transposed(part, columns, cols, source)?, now);
            }
            None => numbers(part, spec.cols as usize, 0, source, now)?,
        }
        if let Some(order) = order(part, cols)? {
            put_back(order, now);
        }
        rest = after;
    }
    Ok(data)
}

/// A vector weight as f32. [cols]
///
/// # Errors
/// Those of the parts and of the source.
pub fn vector(spec: &WeightSpec, source: &dyn WeightSource) -> Result<Vec<f32>, SourceError> {
    let rows: u64 = spec.parts.iter().map(|p| p.rows.len()).sum();
    let whole = WeightSpec {
        rows: u32::try_from(rows).unwrap_or(u32::MAX),
        cols: u32::try_from(u64::from(spec.cols) / rows.max(1)).unwrap_or(u32::MAX),
        ..spec.clone()
    };
    let mut numbers = decode(&whole, source)?;
    if spec.role == WeightUse::LogVector {
        numbers.iter_mut().for_each(|x| *x = math::ln(-f64::from(*x)) as f32);
    }
    Ok(numbers)
}

/// The bias of a matrix, one number a row; empty when it has none.
///
/// # Errors
/// Numbers that are missing; those of the source.
pub fn bias(spec: &WeightSpec, source: &dyn WeightSource) -> Result<Vec<f32>, SourceError> {
    let mut all = Vec::new();
    for part in &spec.bias {
        elements(part, source, &mut all)?;
    }
    if !spec.bias.is_empty() && all.len() != spec.rows as usize {
        let reason = format!("{} biases for {} rows", all.len(), spec.rows);
        return Err(SourceError { tensor: spec.name.clone(), reason });
    }
    Ok(all)
}

/// The factor of every row; empty when all are 1.
pub fn scales(spec: &WeightSpec) -> Vec<f32> {
    let runs = spec.scales.iter().flat_map(|&(rows, s)| std::iter::repeat_n(s, rows as usize));
    let mut scales: Vec<f32> = runs.take(spec.rows as usize).collect();
    if !scales.is_empty() {
        scales.resize(spec.rows as usize, 1.0);
    }
    scales
}

/// The elements of a flattened tensor that `part` picks.
fn elements(
    part: &RowPart,
    source: &dyn WeightSource,
    out: &mut Vec<f32>,
) -> Result<(), SourceError> {
    if part.format.info().block_weights != 1 || part.rows.is_empty() {
        return Err(error(part, format!("no bias can be read from {} numbers", part.format)));
    }
    let tensor_cols = tensor_cols(part, source)?;
    let mut row = vec![0.0; tensor_cols as usize];
    let mut bytes = vec![0; row_bytes(part, tensor_cols)?];
    let mut held = None;
    for i in 0..part.rows.len() {
        let at = part.rows.row(i);
        if held != Some(at / tensor_cols) {
            let wanted = at / tensor_cols;
            source.read_rows(&part.tensor, wanted..wanted + 1, &mut bytes)?;
            part.format.decode_row(&bytes, &mut row);
            held = Some(wanted);
        }
        out.push(row[(at % tensor_cols) as usize]);
    }
    Ok(())
}

/// Columns of the tensor behind a bias. A source that maps its tensors says; otherwise the part
/// must reach the end of a tensor of one axis.
fn tensor_cols(part: &RowPart, source: &dyn WeightSource) -> Result<u64, SourceError> {
    let size = part.format.info().block_bytes;
    if let Some(row) = source.rows(&part.tensor, 0..1) {
        return Ok(((row.len() / size) as u64).max(1));
    }
    let r = part.rows;
    let ends = [r.row(r.len() - 1) + 1, r.start / r.stride.max(1) * r.stride + r.repeat * r.stride];
    let fits = |&cols: &u64| {
        let mut bytes = vec![0; cols as usize * size];
        source.read_rows(&part.tensor, 0..1, &mut bytes).is_ok()
    };
    ends.into_iter().find(fits).ok_or_else(|| error(part, "its length is not known"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;
    use tokenmill_ir::RowSlices;
    use tokenmill_quant::FormatId;

    /// Tensors whose number i is i; `a` is `[6, 4]`, `b` has one axis of 12, `c` is `[3, 4]`.
    struct Counting {
        mapped: bool,
        bytes: Vec<u8>,
    }

    impl Counting {
        fn new(mapped: bool) -> Self {
            let bytes = (0..24u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
            Self { mapped, bytes }
        }

        fn range(&self, tensor: &str, rows: &Range<u64>) -> Option<&[u8]> {
            let (all, cols) = match tensor {
                "a" => (6, 4),
                "b" => (1, 12),
                _ => (3, 4),
            };
            let bytes = rows.start as usize * cols * 4..rows.end as usize * cols * 4;
            (rows.end <= all).then(|| &self.bytes[bytes])
        }
    }

    impl WeightSource for Counting {
        fn read_rows(
            &self,
            tensor: &str,
            rows: Range<u64>,
            out: &mut [u8],
        ) -> Result<(), SourceError> {
            let found = self.range(tensor, &rows).filter(|f| f.len() == out.len());
            let error = || SourceError { tensor: tensor.into(), reason: "length".into() };
            out.copy_from_slice(found.ok_or_else(error)?);
            Ok(())
        }

        fn rows(&self, tensor: &str, rows: Range<u64>) -> Option<&[u8]> {
            self.range(tensor, &rows).filter(|_| self.mapped)
        }
    }

    fn part(tensor: &str, rows: [u64; 4], transposed: Option<Columns>) -> RowPart {
        let [start, count, stride, repeat] = rows;
        let rows = RowSlices { start, count, stride, repeat };
        RowPart { format: FormatId::F32, tensor: tensor.into(), rows, transposed, order: None }
    }

    fn spec(rows: u32, cols: u32, parts: Vec<RowPart>) -> WeightSpec {
        let (name, role) = ("w".to_owned(), WeightUse::Matmul);
        WeightSpec { name, role, rows, cols, parts, bias: Vec::new(), scales: Vec::new() }
    }

    #[test]
    fn parts_are_read_row_by_row() {
        let source = Counting::new(true);
        let check = |rows, cols, parts, expect: &[f32]| {
            assert_eq!(decode(&spec(rows, cols, parts), &source).as_deref(), Ok(expect));
        };
        check(2, 4, vec![part("a", [2, 2, 2, 1], None)], &[8., 9., 10., 11., 12., 13., 14., 15.]);
        // Every third row from the second on, then the first row again.
        let strided = vec![part("a", [1, 1, 3, 2], None), part("a", [0, 1, 1, 1], None)];
        check(3, 4, strided, &[4., 5., 6., 7., 16., 17., 18., 19., 0., 1., 2., 3.]);
        // Two blocks [2, 4], three rows apart, each read as [4, 2].
        let transposed = [0., 4., 1., 5., 2., 6., 3., 7., 12., 16., 13., 17., 14., 18., 15., 19.];
        let all = Some(Columns::all(4));
        check(8, 2, vec![part("a", [0, 2, 3, 2], all)], &transposed);
        // Of the same blocks the last three columns.
        let some = Some(Columns { start: 1, count: 3, step: 1, of: 4 });
        let last = [&transposed[2..8], &transposed[10..]].concat();
        check(6, 2, vec![part("a", [0, 2, 3, 2], some)], &last);
        // Every second, from the second on.
        let odd = Some(Columns { start: 1, count: 2, step: 2, of: 4 });
        let odds = [1., 5., 3., 7., 13., 17., 15., 19.];
        check(4, 2, vec![part("a", [0, 2, 3, 2], odd)], &odds);
    }

    #[test]
    fn columns_are_put_back_in_their_order() {
        let source = Counting::new(true);
        let ordered = |order: &[u32], transposed| RowPart {
            order: Some(order.into()),
            ..part("a", [0, 2, 2, 1], transposed)
        };
        let rows = spec(2, 4, vec![ordered(&[2, 0, 3, 1], None)]);
        assert_eq!(decode(&rows, &source).as_deref(), Ok(&[1., 3., 0., 2., 5., 7., 4., 6.][..]));
        for order in [&[0, 1, 2][..], &[0, 1, 2, 2], &[0, 1, 2, 4]] {
            let error = decode(&spec(2, 4, vec![ordered(order, None)]), &source).unwrap_err();
            assert!(
                error.to_string().contains(&format!("{} columns for 4", order.len())),
                "{error}"
            );
        }
        let transposed = ordered(&[1, 0], Some(Columns::all(4)));
        assert!(decode(&spec(4, 2, vec![transposed]), &source).is_err());
    }

    #[test]
    fn a_run_of_rows_may_begin_anywhere() {
        let part = part("a", [1, 2, 3, 2], None);
        for (first, expect) in [(0, [4u8, 8, 16, 20].as_slice()), (1, &[8, 16]), (3, &[20])] {
            let mut out = vec![0; expect.len() * 16];
            read_rows(&part, 4, first, &Counting::new(true), &mut out).expect("rows");
            let firsts: Vec<f32> = out
                .chunks_exact(16)
                .map(|row| f32::from_le_bytes([row[0], row[1], row[2], row[3]]))
                .collect();
            assert_eq!(firsts, expect.iter().map(|&x| f32::from(x)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn biases_are_elements_of_their_tensor() {
        for (mapped, bias, expect) in [
            (true, vec![part("b", [3, 2, 2, 1], None)], Some(vec![3., 4.])),
            (true, vec![part("c", [2, 2, 6, 2], None)], Some(vec![2., 3., 8., 9.])),
            (
                true,
                vec![part("b", [0, 12, 12, 1], None)],
                Some((0..12).map(|i| i as f32).collect()),
            ),
            (
                false,
                vec![part("b", [0, 12, 12, 1], None)],
                Some((0..12).map(|i| i as f32).collect()),
            ),
            (false, vec![part("b", [6, 6, 6, 1], None)], Some(vec![6., 7., 8., 9., 10., 11.])),
            (false, vec![part("b", [0, 3, 3, 1], None)], None),
        ] {
            let rows = expect.as_ref().map_or(3, Vec::len) as u32;
            let spec = WeightSpec { bias, ..spec(rows, 4, Vec::new()) };
            assert_eq!(super::bias(&spec, &Counting::new(mapped)).ok(), expect);
        }
    }

    #[test]
    fn rows_that_do_not_add_up_are_errors() {
        let source = Counting::new(true);
        let columns = |start, count, step| Some(Columns { start, count, step, of: 4 });
        for spec in [
            spec(3, 4, vec![part("a", [0, 2, 2, 1], None)]),
            spec(7, 2, vec![part("a", [0, 2, 3, 2], Some(Columns::all(4)))]),
            spec(8, 2, vec![part("a", [0, 2, 3, 2], columns(1, 4, 1))]),
            spec(4, 2, vec![part("a", [0, 2, 3, 2], columns(2, 2, 2))]),
            spec(0, 2, vec![part("a", [0, 2, 3, 2], columns(0, 0, 1))]),
            spec(2, 4, vec![part("a", [5, 2, 2, 1], None)]),
            spec(2, 5, vec![part("a", [0, 2, 2, 1], None)]),
        ] {
            assert!(decode(&spec, &source).is_err(), "{spec:?}");
        }
    }

    #[test]
    fn factors_come_in_runs() {
        let with = |scales| super::scales(&WeightSpec { scales, ..spec(4, 4, Vec::new()) });
        assert_eq!(with(vec![]), Vec::<f32>::new());
        assert_eq!(with(vec![(1, 2.0), (2, 3.0)]), [2.0, 3.0, 3.0, 1.0]);
        assert_eq!(with(vec![(9, 2.0)]), [2.0; 4]);
    }
}
