//! A weight's rows as its parts describe them, pulled from a source: what every device does first.

use tokenmill_ir::{RowPart, SourceError, WeightSource, WeightSpec};

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
    let plain: u64 = spec.parts.iter().filter(|p| !p.transposed).map(|p| p.rows.len()).sum();
    let turned: u64 = spec.parts.iter().filter(|p| p.transposed).map(|p| p.rows.repeat).sum();
    let rest = u64::from(spec.rows).checked_sub(plain);
    let tensor_cols = match (rest, turned) {
        (Some(0), 0) => Some(0),
        (Some(rest), 1..) if rest % turned == 0 => Some(rest / turned),
        _ => None,
    };
    let Some(tensor_cols) = tensor_cols else {
        let reason = format!("{plain} rows stored for {} of the weight", spec.rows);
        return Err(SourceError { tensor: spec.name.clone(), reason });
    };
    let rows = |p: &RowPart| if p.transposed { p.rows.repeat * tensor_cols } else { p.rows.len() };
    Ok(spec.parts.iter().map(rows).collect())
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

/// The bytes of a transposed part, turned: `rows` rows of `cols` columns in the part's format.
///
/// # Errors
/// Blocked formats; those of the source.
pub fn transposed(
    part: &RowPart,
    rows: u64,
    cols: u64,
    source: &dyn WeightSource,
) -> Result<Vec<u8>, SourceError> {
    let info = part.format.info();
    if info.block_weights != 1 || part.rows.count != cols || part.rows.repeat == 0 {
        return Err(error(part, format!("cannot be read transposed as [{rows}, {cols}]")));
    }
    let (size, tensor_cols) = (info.block_bytes, (rows / part.rows.repeat) as usize);
    let cols = cols as usize;
    let mut block = vec![0; cols * tensor_cols * size];
    let mut out = vec![0; rows as usize * cols * size];
    for (i, turned) in out.chunks_exact_mut(block.len().max(1)).enumerate() {
        let start = part.rows.start + i as u64 * part.rows.stride;
        source.read_rows(&part.tensor, start..start + part.rows.count, &mut block)?;
        for (at, number) in block.chunks_exact(size).enumerate() {
            let (row, col) = (at % tensor_cols, at / tensor_cols);
            turned[(row * cols + col) * size..][..size].copy_from_slice(number);
        }
    }
    Ok(out)
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
        let bytes = if part.transposed {
            transposed(part, rows, cols, source)?
        } else {
            let mut bytes = vec![0; rows as usize * row_bytes(part, cols)?];
            read_rows(part, cols, 0, source, &mut bytes)?;
            bytes
        };
        part.format.decode_row(&bytes, now);
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
    decode(&whole, source)
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
