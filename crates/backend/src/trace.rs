//! Which op went wrong: runs two executables over the same steps and names the first op whose
//! result differs.

use std::fmt;

use tokenmill_ir::{Batch, BufferId, Operand, Program, StepOutput};

use crate::conformance::{Tolerance, difference};
use crate::{DeviceError, Executable};

/// Where two executables part.
#[derive(Debug, Clone, PartialEq)]
pub struct Divergence {
    /// Step.
    pub step: usize,
    /// Index of the op.
    pub op: usize,
    /// Its name.
    pub name: &'static str,
    /// The buffer it wrote.
    pub buffer: BufferId,
    /// By how much, or why they cannot be compared.
    pub difference: Result<Tolerance, String>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "step {}, op {} ({}), buffer {}: ",
            self.step, self.op, self.name, self.buffer.0
        )?;
        match &self.difference {
            Ok(t) => write!(f, "nmse {:.2e}, max {:.2e}", t.nmse, t.max),
            Err(why) => f.write_str(why),
        }
    }
}

/// Runs `steps` on both and returns the first op, in order of execution, whose result differs by
/// more than `limit`. Buffers that `found` does not keep are passed over.
///
/// # Errors
/// Those of either device.
pub fn first_difference(
    program: &Program,
    found: &mut dyn Executable,
    expected: &mut dyn Executable,
    steps: &[Batch],
    limit: Tolerance,
) -> Result<Option<Divergence>, DeviceError> {
    let mut out = StepOutput::default();
    for (step, batch) in steps.iter().enumerate() {
        found.submit(batch)?;
        found.wait(&mut out)?;
        expected.submit(batch)?;
        expected.wait(&mut out)?;
        for (op, node) in program.ops.iter().enumerate() {
            for operand in node.operands() {
                let Operand::Write(buffer) = operand else { continue };
                let (Some(f), Some(e)) = (found.buffer(buffer), expected.buffer(buffer)) else {
                    continue;
                };
                let difference = difference(&f, &e);
                if let Ok(d) = &difference
                    && d.nmse <= limit.nmse
                    && d.max <= limit.max
                {
                    continue;
                }
                let name = node.name();
                return Ok(Some(Divergence { step, op, name, buffer, difference }));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;
    use crate::conformance::{Case, cases};
    use crate::reference::ReferenceDevice;
    use tokenmill_ir::Op;

    fn compiled(program: &Program, case: &Case) -> Box<dyn Executable> {
        let mut device = ReferenceDevice::default();
        let upload = |w| device.upload(w, &case.material).expect("uploads");
        let weights: Vec<_> = program.weights.iter().map(upload).collect();
        device.compile(program, &weights, &case.limits).expect("compiles")
    }

    #[test]
    fn the_changed_op_is_named() {
        let all = cases(32);
        let case = all.iter().find(|c| c.name.starts_with("norm Rms")).expect("a norm case");
        let mut changed = case.program.clone();
        for op in &mut changed.ops {
            if let Op::Norm { eps, .. } = op {
                *eps *= 2.0;
            }
        }
        let mut good = compiled(&case.program, case);
        let mut run = |program: &Program| {
            let mut other = compiled(program, case);
            first_difference(&case.program, &mut *other, &mut *good, &case.steps, Tolerance::F32)
                .expect("runs")
        };
        assert_eq!(run(&case.program), None);
        let found = run(&changed).expect("a difference");
        assert_eq!((found.step, found.op, found.name), (0, 1, "Norm"));
    }
}
