//! The suite every device passes: small programs of one or a few ops, seeded, with odd sizes,
//! ragged batches and shuffled blocks, each compared with the reference device through the
//! production door: upload, compile, submit, wait.

mod blocks;
mod cases;
mod hostile;
mod lab;
mod pager;

use std::fmt;

use std::ops::ControlFlow;
use std::time::Duration;

use tokenmill_ir::{Batch, Limits, Mode, Program, StepOutput};

pub use blocks::moved;
pub use cases::{all as cases, wide_heads};
pub use hostile::spoiled;
pub use lab::Material;
pub use pager::Pager;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_backend::{Device, DeviceError, Executable, Weights};

/// One program and the steps it runs.
#[derive(Debug)]
pub struct Case {
    /// What it is, such as `linear q4_k 17x768`.
    pub name: String,
    /// The program.
    pub program: Program,
    /// The bytes of its weights.
    pub material: Material,
    /// Its limits.
    pub limits: Limits,
    /// Steps in order.
    pub steps: Vec<Batch>,
    /// How far results may be from the reference.
    pub tolerance: Tolerance,
}

/// How far from the reference a result may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Σ(x − r)² / Σr² over all rows of a step.
    pub nmse: f64,
    /// max|x − r| / max|r| over a step.
    pub max: f64,
}

impl Tolerance {
    /// Arithmetic in f32 (or in another order).
    pub const F32: Tolerance = Tolerance { nmse: 1e-9, max: 1e-4 };
    /// One rounding of activations to bytes or bf16 on the way.
    pub const ENCODED: Tolerance = Tolerance { nmse: 2e-4, max: 6e-2 };
    /// As `F32`, where a stored key or value may round to its neighbour.
    pub const CACHED: Tolerance = Tolerance { nmse: 2e-5, max: 2e-2 };

    /// The narrower of both measures.
    pub fn least(self, other: Self) -> Self {
        Self { nmse: self.nmse.min(other.nmse), max: self.max.min(other.max) }
    }
}

/// What came of a case.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Within tolerance; the worst errors of its steps.
    Passed(Tolerance),
    /// The device says so itself.
    Unsupported(String),
    /// Anything else, with the numbers.
    Failed(String),
}

/// A case and what came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The case's name.
    pub name: String,
    /// What came of it.
    pub outcome: Outcome,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Passed(t) => write!(f, "ok   {} (nmse {:.1e})", self.name, t.nmse),
            Outcome::Unsupported(what) => write!(f, "none {}: {what}", self.name),
            Outcome::Failed(why) => write!(f, "FAIL {}: {why}", self.name),
        }
    }
}

/// Runs every case on a device, which may promise of a case to be nearer than the case asks.
pub fn run(
    device: &dyn Device,
    mode: Mode,
    promise: &dyn Fn(&Case) -> Tolerance,
    report: &mut dyn FnMut(Report),
) {
    for mut case in cases(device.caps().block_tokens) {
        case.tolerance = case.tolerance.least(promise(&case));
        let outcome = match run_case(device, mode, &case) {
            Ok(worst) => Outcome::Passed(worst),
            Err(Problem::Device(DeviceError::Unsupported { what, .. })) => {
                Outcome::Unsupported(what)
            }
            Err(Problem::Device(error)) => Outcome::Failed(error.to_string()),
            Err(Problem::Differs(why)) => Outcome::Failed(why),
        };
        report(Report { name: case.name, outcome });
    }
}

enum Problem {
    Device(DeviceError),
    Differs(String),
}

impl From<DeviceError> for Problem {
    fn from(error: DeviceError) -> Self {
        Problem::Device(error)
    }
}

fn run_case(device: &dyn Device, mode: Mode, case: &Case) -> Result<Tolerance, Problem> {
    let reference = ReferenceDevice::new(device.caps().block_tokens);
    let expected = outputs(&reference, mode, case)
        .map_err(|e| Problem::Differs(format!("the reference itself: {e}")))?;
    let found = outputs(device, mode, case)?;
    let mut worst = Tolerance { nmse: 0.0, max: 0.0 };
    for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
        compare(found, expected, case.tolerance, &mut worst)
            .map_err(|why| Problem::Differs(format!("step {step}: {why}")))?;
    }
    if in_parts(device, mode, case)? != found {
        return Err(Problem::Differs("a step in parts differs".into()));
    }
    if !case.program.caches.is_empty() {
        match moved(device, mode, case) {
            Ok(again) if again == found => {}
            Ok(_) => return Err(Problem::Differs("blocks moved elsewhere differ".into())),
            // A device may do without; the tier of the cache on disk is off then.
            Err(DeviceError::Unsupported { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(worst)
}

/// A case's program on a device, ready to run.
///
/// # Errors
/// Those of the device.
pub fn prepared(
    device: &dyn Device,
    mode: Mode,
    case: &Case,
) -> Result<Box<dyn Executable>, DeviceError> {
    device.compile(&case.program, &uploaded(device, mode, case)?, &case.limits)
}

fn uploaded(device: &dyn Device, mode: Mode, case: &Case) -> Result<Weights, DeviceError> {
    device.upload(&case.program, &case.material, mode, &mut |_| ControlFlow::Continue(()))
}

/// Runs a case's steps on a device.
///
/// # Errors
/// Those of the device.
pub fn outputs(
    device: &dyn Device,
    mode: Mode,
    case: &Case,
) -> Result<Vec<StepOutput>, DeviceError> {
    let mut executable = prepared(device, mode, case)?;
    case.steps.iter().map(|step| run_step(&mut *executable, step)).collect()
}

fn run_step(executable: &mut dyn Executable, step: &Batch) -> Result<StepOutput, DeviceError> {
    let mut out = StepOutput::default();
    executable.submit(&mut step.clone())?;
    executable.wait(&mut out)?;
    Ok(out)
}

/// The same steps, stopped wherever they can be.
fn in_parts(device: &dyn Device, mode: Mode, case: &Case) -> Result<Vec<StepOutput>, DeviceError> {
    let mut executable = prepared(device, mode, case)?;
    let mut all = Vec::new();
    for step in &case.steps {
        executable.submit(&mut step.clone())?;
        while !executable.advance(Duration::ZERO)? {}
        let mut out = StepOutput::default();
        executable.wait(&mut out)?;
        all.push(out);
    }
    Ok(all)
}

/// Runs spoiled batches between the good steps of a case: each is refused as a bad batch or runs,
/// and the good steps run after them as before.
///
/// # Errors
/// What else came of a batch, with the seed that spoiled it.
pub fn endure(device: &dyn Device, mode: Mode, case: &Case, seeds: u64) -> Result<u64, String> {
    let mut executable = prepared(device, mode, case).map_err(|e| e.to_string())?;
    let (mut out, mut refused) = (StepOutput::default(), 0);
    for step in &case.steps {
        for seed in 0..seeds {
            match executable.submit(&mut spoiled(step, seed)) {
                Ok(()) => executable.wait(&mut out).map_err(|e| format!("seed {seed}: {e}"))?,
                Err(DeviceError::BadBatch(_)) => refused += 1,
                Err(other) => return Err(format!("seed {seed}: {other}")),
            }
        }
        run_step(&mut *executable, step).map_err(|e| format!("a good step: {e}"))?;
    }
    Ok(refused)
}

/// Holds a step's results against the reference's.
fn compare(
    found: &StepOutput,
    expected: &StepOutput,
    limit: Tolerance,
    worst: &mut Tolerance,
) -> Result<(), String> {
    let error = difference(&found.rows, &expected.rows)?;
    worst.nmse = worst.nmse.max(error.nmse);
    worst.max = worst.max.max(error.max);
    if !(error.nmse <= limit.nmse && error.max <= limit.max) {
        return Err(format!("nmse {:.2e}, max {:.2e} (limit {limit:?})", error.nmse, error.max));
    }
    if found.sampled.len() != expected.sampled.len() || found.top.len() != expected.top.len() {
        let (f, e) = (found.sampled.len(), expected.sampled.len());
        return Err(format!("{f} sampled rows for {e}, or lists of other lengths"));
    }
    for (f, e) in found.sampled.iter().zip(&expected.sampled) {
        let same = (f.token, f.valid, f.top) == (e.token, e.valid, e.top);
        if !same || (f.logprob - e.logprob).abs() > 1e-4 {
            return Err(format!("{f:?}, expected {e:?}"));
        }
    }
    for (f, e) in found.top.iter().zip(&expected.top) {
        if f.0 != e.0 || (f.1 - e.1).abs() > 1e-4 {
            return Err(format!("alternative {f:?}, expected {e:?}"));
        }
    }
    Ok(())
}

/// The two measures of difference; numbers that are not finite never pass.
///
/// # Errors
/// Unequal lengths; a number that is not finite where the reference's is.
pub fn difference(found: &[f32], expected: &[f32]) -> Result<Tolerance, String> {
    if found.len() != expected.len() {
        return Err(format!("{} numbers for {}", found.len(), expected.len()));
    }
    let (mut error, mut power, mut max_error, mut max) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
    for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
        if f.is_finite() != e.is_finite() {
            return Err(format!("number {i} is {f}, expected {e}"));
        }
        if e.is_finite() {
            let d = f64::from(f) - f64::from(e);
            (error, power) = (error + d * d, power + f64::from(e) * f64::from(e));
            (max_error, max) = (max_error.max(d.abs()), max.max(f64::from(e).abs()));
        }
    }
    let of = |error: f64, whole: f64| if error == 0.0 { 0.0 } else { error / whole.max(1e-30) };
    Ok(Tolerance { nmse: of(error, power), max: of(max_error, max) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenmill_ir::{GroupKind, Op};

    /// The position of an op's variant; a new variant does not compile without a place here, and
    /// fails the test below without a case.
    fn variant(op: &Op) -> usize {
        match op {
            Op::Embed { .. } => 0,
            Op::Norm(_) => 1,
            Op::Linear { .. } => 2,
            Op::GatedLinear { .. } => 3,
            Op::HeadLinear { .. } => 4,
            Op::RotateStore(_) => 5,
            Op::StoreLatent(_) => 6,
            Op::Attend(_) => 7,
            Op::AttendLatent(_) => 8,
            Op::Conv(_) => 9,
            Op::DeltaRule(_) => 10,
            Op::Scan(_) => 11,
            Op::Route { .. } => 12,
            Op::Experts(_) => 13,
            Op::Map { .. } => 14,
            Op::TakeRows { .. } => 15,
            Op::Pool { .. } => 16,
            Op::Head { .. } => 17,
            Op::Sample { .. } => 18,
            Op::Input { .. } => 19,
            Op::Gather { .. } => 20,
        }
    }

    #[test]
    fn every_op_has_a_case_and_every_case_is_consistent() {
        let cases = cases(32);
        let mut seen = [false; 21];
        for case in &cases {
            case.program.check().unwrap_or_else(|e| panic!("{}: {e}", case.name));
            case.program.ops.iter().for_each(|op| seen[variant(op)] = true);
        }
        assert!(seen.iter().all(|&s| s), "{seen:?}");
        let mut names: Vec<_> = cases.iter().map(|c| &c.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), cases.len(), "names are distinct");
    }

    #[test]
    fn the_reference_passes_with_other_block_sizes() {
        for block_tokens in [32, 5] {
            let mut count = 0;
            let device = ReferenceDevice::new(block_tokens);
            // (its own truth)
            let promise = |_: &Case| Tolerance { nmse: 0.0, max: 0.0 };
            run(&device, Mode::F32, &promise, &mut |report| {
                assert!(matches!(report.outcome, Outcome::Passed(_)), "{report}");
                count += 1;
            });
            assert!(count > 100, "{count} cases");
        }
    }

    #[test]
    fn paging_does_not_show_in_results() {
        // The same steps with blocks of another size must give the same numbers.
        let mut compared = 0;
        for (a, b) in cases(32).into_iter().zip(cases(7)) {
            assert_eq!(a.name, b.name);
            let paged = a.program.groups().iter().any(|g| *g != GroupKind::State);
            if !paged {
                continue;
            }
            let differs = a.steps.iter().zip(&b.steps).any(|(a, b)| a.tables != b.tables);
            assert!(differs, "{}: the same blocks", a.name);
            compared += 1;
            let one = outputs(&ReferenceDevice::new(32), Mode::F32, &a).expect("runs");
            let two = outputs(&ReferenceDevice::new(7), Mode::F32, &b).expect("runs");
            assert_eq!(one, two, "{}", a.name);
        }
        assert!(compared > 40, "{compared} cases");
    }

    #[test]
    fn bad_batches_are_refused_by_the_reference() {
        let wanted = [
            "sampling",
            "window of 20",
            "scan",
            "latent attention",
            "embed f32",
            "pool",
            "rows embedded",
        ];
        for case in cases(32).iter().filter(|c| wanted.iter().any(|w| c.name.contains(w))) {
            let refused = endure(&ReferenceDevice::new(32), Mode::F32, case, 300);
            assert!(refused.as_ref().is_ok_and(|&n| n > 300), "{}: {refused:?}", case.name);
        }
    }

    #[test]
    fn differences_are_seen() {
        assert_eq!(difference(&[1.0], &[1.0]), Ok(Tolerance { nmse: 0.0, max: 0.0 }));
        assert!(difference(&[1.0], &[1.0, 2.0]).is_err());
        assert!(difference(&[f32::NAN], &[1.0]).is_err());
        let d = difference(&[1.1, 2.0], &[1.0, 2.0]).expect("finite");
        assert!((d.nmse - 0.002).abs() < 1e-6 && (d.max - 0.05).abs() < 1e-6, "{d:?}");
    }
}
