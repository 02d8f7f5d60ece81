//! Cache blocks as bytes: what one executable computed, another goes on with.

use tokenmill_ir::{BlockId, StepOutput};

use super::Case;
use crate::{Backend, DeviceError, Executable};

/// Runs a case's steps, each on a fresh executable that was given the blocks of the one before.
///
/// # Errors
/// Those of the device.
pub fn moved(device: &mut dyn Backend, case: &Case) -> Result<Vec<StepOutput>, DeviceError> {
    let upload = |spec| device.upload(spec, &case.material);
    let handles = case.program.weights.iter().map(upload).collect::<Result<Vec<_>, _>>()?;
    let mut all = Vec::new();
    let mut last: Option<Box<dyn Executable>> = None;
    for step in &case.steps {
        let mut next = device.compile(&case.program, &handles, &case.limits)?;
        if let Some(last) = &mut last {
            copy_blocks(last.as_mut(), next.as_mut(), &case.limits.group_blocks)?;
        }
        let mut out = StepOutput::default();
        next.submit(step)?;
        next.wait(&mut out)?;
        all.push(out);
        last = Some(next);
    }
    handles.into_iter().for_each(|h| device.free(h));
    Ok(all)
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
