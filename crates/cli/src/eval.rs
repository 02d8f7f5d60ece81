//! `eval`: perplexity of a text, and the KL divergence from a reference run of the same weights.

use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::Path;

use serde_json::json;
use tokenmill_engine::direct::{Direct, Feed};
use tokenmill_engine::load::LoadedModel;
use tokenmill_ir::math::log_sum_exp;
use tokenmill_ir::{OutputKind, TokenId};

use crate::args::Eval;
use crate::failure::{Failure, tell};
use crate::{input, model, score};

/// First bytes of a reference file; the version is the last one.
const MAGIC: &[u8; 8] = b"tmkl\0\0\0\x02";

/// Runs the command.
pub fn eval(args: &Eval) -> Result<(), Failure> {
    let text = input::file(&args.file)?;
    let mut loaded = model::open_scored(&args.model, &args.machine)?;
    let mut ids = score::encode(&loaded, &text)?;
    ids.truncate(args.tokens.unwrap_or(u32::MAX) as usize);
    let vocab = loaded.program.vocab;
    if vocab == 0 {
        return Err(Failure::new("cannot evaluate", "this model gives embeddings, not logits"));
    }
    if ids.len() < 2 {
        return Err(score::too_short("nothing to evaluate", ids.len()));
    }
    let context = loaded.limits.context;
    if args.window > context {
        tell!("note: windows of {context} tokens: no more fit the context");
    }
    if context < 2 {
        return Err(Failure::new("cannot evaluate", "the context is one token").fix("add --ctx 2"));
    }
    // Windows decide which tokens see each other, so references of other windows do not compare.
    let window = args.window.min(context);
    let header = header(vocab, window, &ids);
    let mut reference = match &args.kl_base {
        None => Reference::None,
        Some(path) if path.exists() => Reference::open(path, &header)?,
        Some(path) => Reference::create(path, &header)?,
    };
    let mut report = Report::default();
    rows(&mut loaded, &ids, window as usize, |row| report.add(&row, &mut reference))?;
    reference.finish()?;
    let text = if args.json { report.json().to_string() } else { report.text() };
    writeln!(std::io::stdout(), "{text}").map_err(Failure::output)
}

/// Logits that predict a token.
struct Row<'a> {
    logits: &'a [f32],
    target: TokenId,
}

/// Calls `each` for every position of every window but the first of each.
fn rows(
    loaded: &mut LoadedModel,
    ids: &[TokenId],
    window: usize,
    mut each: impl FnMut(Row<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failed = |e| Failure::new("the device failed", e);
    let block_tokens = loaded.device.caps().block_tokens;
    let executable = loaded.compile().map_err(failed)?;
    let mut direct = Direct::new(executable, &loaded.program, &loaded.limits, block_tokens, 1);
    let vocab = loaded.program.vocab as usize;
    let step = loaded.limits.outputs as usize;
    for piece in ids.chunks(window.min(loaded.limits.context as usize)) {
        direct.restart(0);
        for (chunk, tokens) in piece.chunks(step).enumerate() {
            let wanted = |i: usize| piece.get(chunk * step + i + 1).is_some();
            let kind = |i: usize| wanted(i).then_some((i as u32, OutputKind::Logits));
            let outputs: Vec<_> = (0..tokens.len()).filter_map(kind).collect();
            let out = direct.step(&[Feed { sequence: 0, tokens, outputs: &outputs }]);
            let out = out.map_err(failed)?;
            for (i, logits) in out.rows.chunks_exact(vocab).enumerate() {
                each(Row { logits, target: piece[chunk * step + i + 1] })?;
            }
        }
    }
    Ok(())
}

/// Reference logits on disk: header, then f32 rows.
enum Reference {
    None,
    Write(BufWriter<File>),
    Read { file: BufReader<File>, row: Vec<f32> },
}

impl Reference {
    fn create(path: &Path, header: &[u8]) -> Result<Self, Failure> {
        let fail = |e| Failure::new(format!("cannot write {}", path.display()), e);
        let mut out = BufWriter::new(File::create(path).map_err(fail)?);
        out.write_all(MAGIC).and_then(|()| out.write_all(header)).map_err(fail)?;
        Ok(Reference::Write(out))
    }

    fn open(path: &Path, expected: &[u8; HEADER]) -> Result<Self, Failure> {
        let name = path.display();
        let again = || "give another name, and make it with --mode f32 --device reference";
        let fail = |e| Failure::new(format!("cannot read the reference {name}"), e).fix(again());
        let mut file = BufReader::new(File::open(path).map_err(fail)?);
        let vocab = u32::from_le_bytes([expected[0], expected[1], expected[2], expected[3]]);
        let mut found = vec![0; MAGIC.len() + expected.len()];
        file.read_exact(&mut found).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => {
                Failure::new(format!("{name} is no reference"), "it is too short").fix(again())
            }
            _ => fail(e),
        })?;
        if found[..MAGIC.len()] != *MAGIC {
            let detail = "it was not written by eval of this version";
            return Err(Failure::new(format!("{name} is no reference"), detail).fix(again()));
        }
        if found[MAGIC.len()..] != *expected {
            let detail = "it was made from another text, tokenizer, vocabulary or --window";
            return Err(Failure::new(format!("{name} is not a reference for this run"), detail)
                .fix(again()));
        }
        Ok(Reference::Read { file, row: vec![0.0; vocab as usize] })
    }

    fn finish(self) -> Result<(), Failure> {
        match self {
            Reference::Write(mut out) => {
                out.flush().map_err(|e| Failure::new("cannot write the reference", e))
            }
            _ => Ok(()),
        }
    }
}

/// Bytes of a reference's [`header`].
const HEADER: usize = 16;

/// Vocabulary, number of tokens and a digest of the window and of them.
fn header(vocab: u32, window: u32, ids: &[TokenId]) -> [u8; HEADER] {
    let mix = |h: u64, id: &TokenId| tokenmill_ir::sampling::splitmix(h ^ u64::from(*id));
    let digest = ids.iter().fold(u64::from(window), mix);
    let mut out = [0; HEADER];
    out[..4].copy_from_slice(&vocab.to_le_bytes());
    out[4..8].copy_from_slice(&(ids.len() as u32).to_le_bytes());
    out[8..].copy_from_slice(&digest.to_le_bytes());
    out
}

/// What is known of all rows.
#[derive(Default)]
struct Report {
    tokens: u64,
    nll: f64,
    kl: Vec<f64>,
    agree: u64,
    /// Rows with another first choice: margin of the reference, p99 of |Δlogit|.
    mismatches: Vec<(u64, f64, f64)>,
}

impl Report {
    fn add(&mut self, row: &Row<'_>, reference: &mut Reference) -> Result<(), Failure> {
        let not_finite = || Failure::new("cannot evaluate", "a row of logits is not a number");
        let (max, lse) = log_sum_exp(row.logits).ok_or_else(not_finite)?;
        let target = row.logits.get(row.target as usize).copied().unwrap_or(f32::NEG_INFINITY);
        self.nll -= f64::from(target - max) - lse;
        self.tokens += 1;
        match reference {
            Reference::None => {}
            Reference::Write(out) => {
                for x in row.logits {
                    let written = out.write_all(&x.to_le_bytes());
                    written.map_err(|e| Failure::new("cannot write the reference", e))?;
                }
            }
            Reference::Read { file, row: base } => {
                let mut bytes = vec![0; base.len() * 4];
                file.read_exact(&mut bytes)
                    .map_err(|e| Failure::new("the reference (--kl-base) ends too soon", e))?;
                for (x, b) in base.iter_mut().zip(bytes.chunks_exact(4)) {
                    *x = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                }
                self.compare(row.logits, base).ok_or_else(not_finite)?;
            }
        }
        Ok(())
    }

    /// `Σ p_base (ln p_base − ln p)` in f64 over the whole vocabulary.
    fn compare(&mut self, logits: &[f32], base: &[f32]) -> Option<()> {
        let norm = |row: &[f32]| {
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|x| (f64::from(*x) - f64::from(max)).exp()).sum();
            (max.is_finite()).then(|| f64::from(max) + sum.ln())
        };
        let (z, z_base) = (norm(logits)?, norm(base)?);
        let mut kl = 0.0;
        for (x, b) in logits.iter().zip(base) {
            let (x, b) = (f64::from(*x) - z, f64::from(*b) - z_base);
            kl += b.exp() * (b - x);
        }
        self.kl.push(kl.max(0.0));
        let (best, best_base) =
            (tokenmill_ir::sampling::argmax(logits)?, tokenmill_ir::sampling::argmax(base)?);
        if best == best_base {
            self.agree += 1;
        } else {
            let margin = f64::from(base[best_base as usize] - base[best as usize]);
            let mut deltas: Vec<f32> =
                logits.iter().zip(base).map(|(x, b)| (x - b).abs()).collect();
            let at = deltas.len() * 99 / 100;
            let p99 = *deltas.select_nth_unstable_by(at, f32::total_cmp).1;
            self.mismatches.push((self.tokens, margin, f64::from(p99)));
        }
        Some(())
    }

    fn perplexity(&self) -> f64 {
        (self.nll / self.tokens.max(1) as f64).exp()
    }

    fn kl_at(&self, part: f64) -> f64 {
        let mut sorted = self.kl.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = (sorted.len() as f64 * part) as usize;
        sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }

    fn mean_kl(&self) -> f64 {
        self.kl.iter().sum::<f64>() / self.kl.len().max(1) as f64
    }

    fn json(&self) -> serde_json::Value {
        let mut all = json!({"tokens": self.tokens, "perplexity": self.perplexity()});
        if !self.kl.is_empty() {
            all["kl_mean"] = json!(self.mean_kl());
            all["kl_p99"] = json!(self.kl_at(0.99));
            all["kl_max"] = json!(self.kl_at(1.0));
            all["same_top"] = json!(self.agree as f64 / self.kl.len() as f64);
            let list: Vec<_> = self
                .mismatches
                .iter()
                .map(|(at, margin, p99)| json!({"at": at, "margin": margin, "p99_delta": p99}))
                .collect();
            all["mismatches"] = json!(list);
        }
        all
    }

    fn text(&self) -> String {
        let mut text = format!("{} tokens, perplexity {:.4}", self.tokens, self.perplexity());
        if !self.kl.is_empty() {
            let same = 100.0 * self.agree as f64 / self.kl.len() as f64;
            text += &format!(
                "\nKL mean {:.3e}, p99 {:.3e}, max {:.3e}; same first choice {same:.2} %",
                self.mean_kl(),
                self.kl_at(0.99),
                self.kl_at(1.0),
            );
            let worst =
                self.mismatches.iter().map(|(_, m, p)| m / p.max(1e-30)).fold(0.0, f64::max);
            if !self.mismatches.is_empty() {
                text += &format!(
                    "\n{} other first choices; largest margin {worst:.2} × p99 |Δlogit| of its row",
                    self.mismatches.len(),
                );
            }
        }
        text
    }
}
