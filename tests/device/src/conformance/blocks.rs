//! Cache blocks as bytes: what one executable computed, another goes on with.

use tokenmill_ir::{BlockId, Mode, StepOutput};

use super::{Case, run_step, uploaded};
use tokenmill_backend::{Device, DeviceError, Executable};

/// Runs a case's steps, each on a fresh executable that was given the blocks of the one before.
///
/// # Errors
/// Those of the device.
pub fn moved(device: &dyn Device, mode: Mode, case: &Case) -> Result<Vec<StepOutput>, DeviceError> {
    let weights = uploaded(device, mode, case)?;
    let mut all = Vec::new();
    let mut last: Option<Box<dyn Executable>> = None;
    for step in &case.steps {
        let mut next = device.compile(&case.program, &weights, &case.limits)?;
        if let Some(last) = &mut last {
            resized(next.as_mut(), &case.limits.group_blocks)?;
            copy_blocks(last.as_mut(), next.as_mut(), &case.limits.group_blocks)?;
        }
        all.push(run_step(&mut *next, step)?);
        last = Some(next);
    }
    Ok(all)
}

/// Shrinks and grows the caches: what is not there is refused, and comes back.
fn resized(device: &mut dyn Executable, most: &[u32]) -> Result<(), DeviceError> {
    let bytes = device.blocks()?.groups;
    let few: Vec<u32> = most.iter().map(|n| n / 3).collect();
    device.resize(&few)?;
    for (group, (&n, &bytes)) in few.iter().zip(&bytes).enumerate() {
        refused(device, group, BlockId(n), &mut vec![0; bytes])?;
    }
    let more: Vec<u32> = most.iter().map(|n| n + 1).collect();
    for wrong in [more.as_slice(), &most[1..]] {
        let answer = device.resize(wrong);
        if !matches!(answer, Err(DeviceError::BadBatch(_))) {
            let reason = format!("resized to {wrong:?} of {most:?}: {answer:?}");
            return Err(DeviceError::Failed { device: "blocks".into(), reason });
        }
    }
    device.resize(most)
}

fn copy_blocks(
    from: &mut dyn Executable,
    to: &mut dyn Executable,
    group_blocks: &[u32],
) -> Result<(), DeviceError> {
    let blocks = from.blocks()?;
    if to.blocks()? != blocks {
        let reason = "two executables of one program name other blocks".into();
        return Err(DeviceError::Failed { device: blocks.layout, reason });
    }
    for (group, (&count, &bytes)) in group_blocks.iter().zip(&blocks.groups).enumerate() {
        let mut block = vec![0; bytes];
        for id in (0..count).map(BlockId) {
            from.read_block(group, id, &mut block)?;
            to.write_block(group, id, &block)?;
        }
        refused(to, group, BlockId(count), &mut block)?;
        refused(to, group, BlockId(0), &mut vec![0; bytes + 1])?;
        refused(to, group_blocks.len(), BlockId(0), &mut block)?;
    }
    Ok(())
}

/// What does not exist is a bad batch.
fn refused(
    device: &mut dyn Executable,
    group: usize,
    block: BlockId,
    bytes: &mut [u8],
) -> Result<(), DeviceError> {
    let answers = [device.read_block(group, block, bytes), device.write_block(group, block, bytes)];
    if answers.iter().all(|a| matches!(a, Err(DeviceError::BadBatch(_)))) {
        return Ok(());
    }
    let reason = format!("block {} of group {group}: {answers:?}", block.0);
    Err(DeviceError::Failed { device: "blocks".into(), reason })
}
