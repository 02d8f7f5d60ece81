//! Serving output rows from logits and hidden rows.

use tokenmill_ir::sampling::{SampleScratch, sample, score};
use tokenmill_ir::{Batch, Output, Sampled, StepOutput};

use super::rows::Rows;

/// Fills `out`; `hidden` are side by side.
pub(super) fn serve(
    logits: Option<Rows<'_>>,
    hidden: &[Rows<'_>],
    batch: &Batch,
    vocab: usize,
    scratch: &mut SampleScratch,
    out: &mut StepOutput,
) {
    for r in 0..batch.outputs.len() {
        let row = logits.map_or(&[][..], |l| l.row(r));
        let sampled = match batch.output(r, vocab) {
            Output::Sample(how) => sample(&mut row.to_vec(), &how, scratch, &mut out.top),
            Output::Score { target, top } => {
                score(row, target, top as usize, scratch, &mut out.top)
            }
            Output::Logits => {
                out.rows.extend_from_slice(row);
                Sampled::default()
            }
            Output::Hidden => {
                hidden.iter().for_each(|h| out.rows.extend_from_slice(h.row(r)));
                Sampled::default()
            }
        };
        out.sampled.push(sampled);
    }
}
