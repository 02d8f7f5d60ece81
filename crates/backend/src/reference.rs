//! The reference device: plain loops in f32 with sums in f64, the truth by tolerance. Slow and
//! obvious; one file a family of ops.

mod attention;
mod caches;
mod dense;
mod exec;
mod experts;
mod matrix;
mod recurrent;
mod sampling;

use tokenmill_ir::{DeviceCaps, Limits, Program, WeightSource, WeightSpec};

use crate::{Backend, DeviceError, Executable, Footprint, WeightHandle};
pub use matrix::Matrix;

use std::sync::Arc;

/// The device of plain loops; one thread, weights as f32.
#[derive(Debug)]
pub struct ReferenceDevice {
    caps: DeviceCaps,
    weights: Vec<Option<Arc<Matrix>>>,
}

impl ReferenceDevice {
    /// A device whose cache blocks hold `block_tokens` tokens.
    pub fn new(block_tokens: u32) -> Self {
        let caps = DeviceCaps {
            name: "reference".to_owned(),
            memory_bytes: u64::MAX,
            block_tokens: block_tokens.max(1),
            workers: 1,
            read_bytes_per_s: 1e9,
            ops_per_s: 1e9,
        };
        Self { caps, weights: Vec::new() }
    }
}

impl Default for ReferenceDevice {
    fn default() -> Self {
        Self::new(32)
    }
}

impl Backend for ReferenceDevice {
    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn upload(
        &mut self,
        spec: &WeightSpec,
        source: &dyn WeightSource,
    ) -> Result<WeightHandle, DeviceError> {
        let matrix = Some(Arc::new(Matrix::read(spec, source)?));
        let free = self.weights.iter().position(Option::is_none);
        let at = free.unwrap_or(self.weights.len());
        match free {
            Some(at) => self.weights[at] = matrix,
            None => self.weights.push(matrix),
        }
        Ok(WeightHandle(at as u32))
    }

    fn free(&mut self, weight: WeightHandle) {
        if let Some(held) = self.weights.get_mut(weight.0 as usize) {
            *held = None;
        }
    }

    fn footprint(&self, program: &Program, limits: &Limits) -> Result<Footprint, DeviceError> {
        let numbers = |w: &WeightSpec| u64::from(w.rows) * u64::from(w.cols) * 4;
        Ok(Footprint {
            weight_bytes: program.weights.iter().map(numbers).sum(),
            ..Footprint::of_caches(program, limits, self.caps.block_tokens)
        })
    }

    fn compile(
        &mut self,
        program: &Program,
        weights: &[WeightHandle],
        limits: &Limits,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        let failed = |reason: String| DeviceError::Failed { device: "reference".into(), reason };
        program.check().map_err(|e| failed(e.to_string()))?;
        if weights.len() != program.weights.len() {
            let (found, expected) = (weights.len(), program.weights.len());
            return Err(failed(format!("{found} weights for {expected} of the program")));
        }
        let held = |h: &WeightHandle| self.weights.get(h.0 as usize).cloned().flatten();
        let held: Option<Vec<_>> = weights.iter().map(held).collect();
        let held = held.ok_or_else(|| failed("a weight of the program was freed".into()))?;
        let block_tokens = self.caps.block_tokens;
        Ok(Box::new(exec::ReferenceExecutable::new(program, held, limits, block_tokens)?))
    }
}
