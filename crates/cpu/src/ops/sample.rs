//! Serving output rows: one row a worker at a time.

use tokenmill_ir::sampling::{SampleRow, sample, score};
use tokenmill_ir::{Output, Sampled, TokenId};

use crate::isa::Isa;
use crate::step::{Cols, Job, Kernel};

/// Chooses tokens and scores them. Logits are left as they are.
#[derive(Debug)]
pub(crate) struct Sample {
    /// Absent where only hidden rows are requested.
    pub logits: Option<Cols>,
    pub vocab: usize,
}

impl Kernel for Sample {
    fn run(&self, job: &Job<'_>) {
        let (count, workers) = (job.step.outputs, job.worker.count());
        for r in (job.worker.index()..count).step_by(workers) {
            // SAFETY: each row has one worker; scratch is used here only.
            let (served, scratch) =
                unsafe { (&mut job.step.served.part(r..r + 1)[0], job.scratch()) };
            served.top.clear();
            let logits = self.logits.map_or(&[][..], |l| job.read(l, r));
            let (top, sampling) = (&mut served.top, &mut scratch.sample);
            served.sampled = match job.step.batch.output(r, self.vocab) {
                Output::Sample(how) if is_plain(&how) => match greatest(job.step.isa, logits) {
                    Some(token) => Sampled { token, valid: true, ..Sampled::default() },
                    None => Sampled::default(),
                },
                Output::Sample(how) => {
                    let changed = &mut scratch.row[..self.vocab];
                    changed.copy_from_slice(logits);
                    sample(changed, &how, sampling, top)
                }
                Output::Score { target, top: n } => {
                    score(logits, target, n as usize, sampling, top)
                }
                Output::Logits | Output::Hidden => Sampled::default(),
            };
        }
    }
}

/// Whether the token is simply that of the greatest logit.
fn is_plain(row: &SampleRow<'_>) -> bool {
    let SampleRow { params, history, prompt: _, bias, rules, mask } = row;
    params.temperature == 0.0
        && (history.is_empty() || !params.penalises())
        && [bias, rules].iter().all(|list| list.is_empty())
        && mask.is_empty()
        && params.logprobs.is_none()
}

crate::math::per_isa! {
    /// As `sampling::argmax`: the greatest finite logit, ties to the lower id.
    greatest(logits: &[f32]) -> Option<TokenId> = greatest_lanes;
}

#[inline(always)]
fn greatest_lanes(logits: &[f32]) -> Option<TokenId> {
    let mut tops = [f32::NEG_INFINITY; 64];
    let mut nan = [false; 64];
    let (vectors, rest) = logits.as_chunks::<64>();
    for vector in vectors {
        for i in 0..64 {
            let x = vector[i];
            tops[i] = if x > tops[i] { x } else { tops[i] };
            nan[i] |= x.is_nan();
        }
    }
    let top = tops.iter().chain(rest).fold(f32::NEG_INFINITY, |t, &x| if x > t { x } else { t });
    let nan = nan.contains(&true) || rest.iter().any(|x| x.is_nan());
    if nan || !top.is_finite() {
        return None;
    }
    logits.iter().position(|&x| x == top).map(|i| i as TokenId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use tokenmill_ir::sampling::argmax;

    #[test]
    fn the_greatest_is_what_sampling_says() {
        let wave: Vec<f32> = (0..1000).map(|i| ((i * 37) % 501) as f32 - 250.0).collect();
        let with = |at: usize, x: f32| {
            let mut w = wave.clone();
            w[at] = x;
            w
        };
        let cases = [
            wave.clone(),
            with(999, 900.0),
            with(3, f32::NAN),
            with(998, f32::NAN),
            with(5, f32::INFINITY),
            with(5, f32::NEG_INFINITY),
            vec![f32::NEG_INFINITY; 70],
            vec![-0.0, 0.0, -1.0],
            vec![2.0; 130],
        ];
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for case in &cases {
                assert_eq!(greatest(isa, case), argmax(case), "{}", isa.name());
            }
        }
    }
}
