//! Serving output rows from logits and hidden rows.

use tokenmill_ir::sampling::{SampleRow, SampleScratch, sample, score};
use tokenmill_ir::{Batch, OutputKind, Sampled, StepOutput};

use super::exec::Rows;

/// Fills `out`.
pub(super) fn serve(
    logits: Option<Rows<'_>>,
    hidden: Rows<'_>,
    batch: &Batch,
    vocab: usize,
    scratch: &mut SampleScratch,
    out: &mut StepOutput,
) {
    let slice = |(at, len): (u32, u32)| at as usize..(at + len) as usize;
    for (r, output) in batch.outputs.iter().enumerate() {
        let row = logits.map_or(&[][..], |l| l.row(r));
        let sampled = match output.kind {
            OutputKind::Sample { params, history, prompt, bias, mask } => {
                let words = vocab.div_ceil(32);
                let mask = match mask {
                    u32::MAX => &[][..],
                    m => &batch.masks[m as usize * words..][..words],
                };
                let history = if history.1 == 0 { 0..0 } else { slice(history) };
                let bias = if bias.1 == 0 { 0..0 } else { slice(bias) };
                let wanted = SampleRow {
                    params: &params,
                    history: &batch.history[history],
                    prompt: prompt as usize,
                    bias: &batch.bias[bias],
                    mask,
                };
                sample(&mut row.to_vec(), &wanted, scratch, &mut out.top)
            }
            OutputKind::Score { target, top } => {
                score(row, target, top as usize, scratch, &mut out.top)
            }
            OutputKind::Logits => {
                out.rows.extend_from_slice(row);
                Sampled::default()
            }
            OutputKind::Hidden => {
                out.rows.extend_from_slice(hidden.row(r));
                Sampled::default()
            }
        };
        out.sampled.push(sampled);
    }
}
