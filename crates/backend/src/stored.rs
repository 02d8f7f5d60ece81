//! A weight's rows as its parts describe them, pulled from a source: what every device does first.

use tokenmill_ir::{Columns, RowPart, SourceError, WeightSource, WeightSpec, WeightUse, math};

/// Why a part cannot be read, as the error devices hand on.
fn error(part: &RowPart, reason: impl Into<String>) -> SourceError {
    SourceError { tensor: part.tensor.clone(), reason: reason.into() }
}

/// Rows that are decoded at once on their way to another side: those of a band.
const TOGETHER: u64 = 128;

/// Bytes of one row of `cols` columns as it is read ([`RowPart::read_as`]).
///
/// # Errors
/// When `cols` is not a whole number of the format's blocks.
pub fn row_bytes(part: &RowPart, cols: u64) -> Result<usize, SourceError> {
    let (format, _) = part.read_as();
    let bytes = format.row_bytes(cols).and_then(|b| usize::try_from(b).ok());
    bytes.ok_or_else(|| error(part, format!("{cols} columns in blocks of {format}")))
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

/// The bytes of the `taken` columns of a part, transposed: rows of `cols` columns in the format that they are read as,
/// which is f32 where the stored rows have blocks or another order of columns. Beside what it gives, this takes memory for
/// [`TOGETHER`] stored rows.
///
/// # Errors
/// Columns that are not there, or are no whole blocks; an order of other columns; those of the source.
pub fn transposed(
    part: &RowPart,
    taken: Columns,
    cols: u64,
    source: &dyn WeightSource,
) -> Result<Vec<u8>, SourceError> {
    let last = taken.count.checked_sub(1).and_then(|n| n.checked_mul(taken.step.max(1)));
    let last = last.and_then(|n| n.checked_add(taken.start));
    let there = last.is_some_and(|last| last < taken.of);
    if part.rows.count != cols || !there {
        return Err(error(part, format!("cannot be read transposed: {taken:?}, {cols} rows")));
    }
    let lying = RowPart { transposed: None, ..part.clone() };
    row_bytes(&lying, taken.of)?;
    let size = part.read_as().0.info().block_bytes;
    let [width, first, count, of] = [cols, taken.start, taken.count, taken.of].map(|n| n as usize);
    let step = taken.step.max(1) as usize;
    let mut rows = vec![0; TOGETHER.min(cols) as usize * of * size];
    let mut out = vec![0; part.rows.repeat as usize * count * width * size];
    for (slice, out) in
        (0..part.rows.repeat).zip(out.chunks_exact_mut((count * width * size).max(1)))
    {
        for at in (0..cols).step_by(TOGETHER as usize) {
            let rows = &mut rows[..TOGETHER.min(cols - at) as usize * of * size];
            read_plain(&lying, of, slice * cols + at, source, rows)?;
            for (col, stored) in (at as usize..).zip(rows.chunks_exact(of * size)) {
                let taken = stored[first * size..].chunks_exact(size).step_by(step).take(count);
                for (row, number) in taken.enumerate() {
                    out[(row * width + col) * size..][..size].copy_from_slice(number);
                }
            }
        }
    }
    Ok(out)
}

/// Rows `first ..` of an untransposed part as numbers that lie one by one, each column in its place: as they are stored where
/// they do, else as f32. As many as `out` has room for. [rows × cols]
fn read_plain(
    part: &RowPart,
    cols: usize,
    first: u64,
    source: &dyn WeightSource,
    out: &mut [u8],
) -> Result<(), SourceError> {
    let order = order(part, cols as u64)?;
    if part.format.info().block_weights == 1 && order.is_none() {
        return read_rows(part, cols as u64, first, source, out);
    }
    let mut values = vec![0.0; out.len() / size_of::<f32>()];
    numbers(part, cols, first, source, &mut values)?;
    if let Some(order) = order {
        put_back(order, &mut values);
    }
    for (out, value) in out.chunks_exact_mut(size_of::<f32>()).zip(values) {
        out.copy_from_slice(&value.to_le_bytes());
    }
    Ok(())
}

/// The order of the columns of a part as it is read, where they lie in another; that of rows that are read transposed is
/// undone on the way.
///
/// # Errors
/// When it is no permutation of the stored columns, which are `cols` where rows are read as they lie.
pub fn order(part: &RowPart, cols: u64) -> Result<Option<&[u32]>, SourceError> {
    let Some(order) = part.order.as_deref() else { return Ok(None) };
    let cols = part.transposed.map_or(cols, |taken| taken.of);
    let mut seen = vec![false; order.len()];
    let once = |&k: &u32| seen.get_mut(k as usize).is_some_and(|s| !std::mem::replace(s, true));
    if order.len() as u64 != cols || !order.iter().all(once) {
        return Err(error(part, format!("an order of {} columns for {cols}", order.len())));
    }
    Ok(part.read_as().1.map(|order| &**order))
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
                part.read_as().0.decode_row(&transposed(part, columns, cols, source)?, now);
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
    use tokenmill_quant::{FORMATS, FormatId};

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

    /// One tensor of rows of so many bytes.
    struct Tensor(usize, Vec<u8>);

    impl WeightSource for Tensor {
        fn read_rows(&self, _: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
            let bytes = self.1.get(rows.start as usize * self.0..rows.end as usize * self.0);
            let found = bytes.filter(|found| found.len() == out.len());
            let error = || SourceError { tensor: "t".into(), reason: "length".into() };
            out.copy_from_slice(found.ok_or_else(error)?);
            Ok(())
        }

        fn rows(&self, _: &str, _: Range<u64>) -> Option<&[u8]> {
            None
        }
    }

    /// The numbers that rows of blocks decode to stand where a plain matrix has them when it is turned: the same bits, in every
    /// format, of slices of fewer and of more rows than are decoded at once, some columns or all, in any order.
    #[test]
    fn blocks_are_turned_number_by_number() {
        let shuffled: Vec<u32> = (0..256).map(|k| (k * 37 + 11) % 256).collect();
        let some = Columns { start: 3, count: 80, step: 3, of: 256 };
        let ways = [(None, Columns::all(256)), (Some(shuffled), Columns::all(256)), (None, some)];
        let formats = FORMATS.iter().filter(|f| f.id.is_weight() || f.id.band_rows() > 1);
        for (format, (order, taken)) in formats.flat_map(|f| ways.clone().map(|way| (f.id, way))) {
            let size = format.row_bytes(256).expect("whole blocks") as usize;
            // (Bytes below 0x3c: no scale is endless.)
            let bytes = (0..384 * size).map(|i| (i * i / 7 + i) as u8 % 0x3c).collect();
            let mut lying = vec![0.0; 384 * 256];
            let source = Tensor(size, bytes);
            format.decode_rows(256, &source.1, &mut lying);
            order.iter().for_each(|order| put_back(order, &mut lying));
            for [start, count, stride, repeat] in
                [[3, 20, 44, 4], [1, 150, 200, 2], [128, 128, 128, 2]]
            {
                let rows = RowSlices { start, count, stride, repeat };
                let order = order.clone().map(Into::into);
                let (tensor, transposed) = ("t".into(), Some(taken));
                let spec = spec(
                    (taken.count * repeat) as u32,
                    count as u32,
                    vec![RowPart { format, tensor, rows, transposed, order }],
                );
                let found = decode(&spec, &source).unwrap_or_else(|e| panic!("{format}: {e}"));
                let plain = format.info().block_weights == 1 && spec.parts[0].order.is_none();
                let read = if plain { format } else { FormatId::F32 };
                assert_eq!(spec.parts[0].read_as(), (read, None));
                let bytes = read.row_bytes(count).expect("plain") * taken.count * repeat;
                assert_eq!(spec.stored_bytes(), bytes, "{format}");
                for (i, x) in found.iter().enumerate() {
                    let (row, col) = (i as u64 / count, i as u64 % count);
                    let column = taken.start + row % taken.count * taken.step;
                    let stored = start + row / taken.count * stride + col;
                    let expect = lying[(stored * 256 + column) as usize];
                    assert_eq!(x.to_bits(), expect.to_bits(), "{format}: {row}, {col}");
                }
            }
        }
    }

    #[test]
    fn blocks_that_cannot_be_turned_are_errors() {
        let source = Tensor(36, vec![0; 36 * 8]);
        let part = |of, order: Option<&[u32]>| RowPart {
            format: FormatId::U4_32,
            order: order.map(Into::into),
            ..part("t", [0, 4, 4, 2], Some(Columns::all(of)))
        };
        for (of, order) in [(40, None), (64, Some(&[0, 1][..])), (64, Some(&[0; 64][..]))] {
            let error = decode(&spec(2 * of as u32, 4, vec![part(of, order)]), &source);
            assert!(error.unwrap_err().to_string().contains("columns"), "{of} {order:?}");
        }
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
