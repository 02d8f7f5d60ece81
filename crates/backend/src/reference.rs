//! The reference device: plain loops in f32 with sums in f64, the truth by tolerance. Slow and
//! obvious; one file a family of ops.

mod attention;
mod caches;
mod dense;
mod exec;
mod experts;
mod matrix;
mod recurrent;
mod rows;
mod sampling;

use tokenmill_ir::{DeviceCaps, KvFormat, Limits, Mode, Program, WeightSource, WeightSpec};

use crate::{Device, DeviceError, Executable, Footprint, Owner, Watch, Weights};
pub use matrix::Matrix;

/// The device of plain loops; one thread, weights as f32.
#[derive(Debug)]
pub struct ReferenceDevice {
    caps: DeviceCaps,
    owner: Owner,
}

impl ReferenceDevice {
    /// A device whose cache blocks hold `block_tokens` tokens.
    pub fn new(block_tokens: u32) -> Self {
        let caps = DeviceCaps {
            name: "reference".to_owned(),
            memory_bytes: u64::MAX,
            block_tokens: block_tokens.max(1),
            kv: KvFormat::Int16,
            workers: 1,
            read_bytes_per_s: 1e9,
            ops_per_s: 1e9,
        };
        Self { caps, owner: Owner::default() }
    }
}

impl Default for ReferenceDevice {
    fn default() -> Self {
        Self::new(32)
    }
}

impl Device for ReferenceDevice {
    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn upload(
        &self,
        program: &Program,
        source: &dyn WeightSource,
        mode: Mode,
        watch: Watch<'_>,
    ) -> Result<Weights, DeviceError> {
        let mut held: Vec<Matrix> = Vec::with_capacity(program.weights.len());
        for spec in &program.weights {
            if watch(held.len()).is_break() {
                return Err(DeviceError::Cancelled);
            }
            held.push(Matrix::read(spec, source)?);
        }
        Ok(Weights::new(&self.owner, mode, held))
    }

    /// (It computes in f32 in every mode.)
    fn footprint(
        &self,
        program: &Program,
        limits: &Limits,
        _: Mode,
    ) -> Result<Footprint, DeviceError> {
        let numbers = |w: &WeightSpec| u64::from(w.rows) * u64::from(w.cols) * 4;
        Ok(Footprint {
            weight_bytes: program.weights.iter().map(numbers).sum(),
            ..Footprint::of_caches(program, limits, self.caps.block_tokens)
        })
    }

    fn compile(
        &self,
        program: &Program,
        weights: &Weights,
        limits: &Limits,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        let failed = |reason: String| DeviceError::Failed { device: "reference".into(), reason };
        program.check().map_err(|e| failed(e.to_string()))?;
        let held = weights.of::<Vec<Matrix>>(&self.owner);
        let held = held.filter(|h| h.len() == program.weights.len());
        let held = held.ok_or_else(|| failed("not the weights of this program".into()))?;
        let block_tokens = self.caps.block_tokens;
        Ok(Box::new(exec::ReferenceExecutable::new(program, held, limits, block_tokens)?))
    }
}
