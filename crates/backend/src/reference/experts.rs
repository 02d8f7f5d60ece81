//! Routing and the experts chosen.

use tokenmill_ir::{GateAct, GroupRule, RouteRule, RouteScore};

use super::dense::{gated, sigmoid};
use super::matrix::Matrix;
use super::rows::Rows;

/// Chooses experts. [tokens, 2 × top]
pub(super) fn route(
    x: Rows<'_>,
    router: &Matrix,
    rule: &RouteRule,
    choice_bias: Option<&Matrix>,
    gains: Option<&Matrix>,
) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.count() * 2 * rule.top as usize);
    for r in 0..x.count() {
        let logits: Vec<f64> =
            (0..router.rows).map(|e| f64::from(router.product(e, x.row(r)))).collect();
        let scores = match rule.score {
            RouteScore::Softmax => softmax(&logits),
            RouteScore::SoftmaxOfTop => logits,
            RouteScore::Sigmoid => logits.iter().map(|&l| sigmoid(l)).collect(),
        };
        let bias = |e: usize| choice_bias.map_or(0.0, |b| f64::from(b.data[e]));
        let mut choice: Vec<f64> = scores.iter().enumerate().map(|(e, s)| s + bias(e)).collect();
        if let Some(groups) = rule.groups {
            keep_best_groups(&mut choice, groups);
        }
        let chosen = best(&choice, rule.top as usize);
        let mut weights: Vec<f64> = chosen.iter().map(|&e| scores[e]).collect();
        if rule.score == RouteScore::SoftmaxOfTop {
            weights = softmax(&weights);
        }
        if rule.normalise {
            let sum: f64 = weights.iter().sum::<f64>() + 1e-20;
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        out.extend(chosen.iter().map(|&e| e as f32));
        let gain = |e: usize| gains.map_or(1.0, |g| f64::from(g.data[e]));
        let last = |(w, &e): (&f64, &usize)| (w * f64::from(rule.scale) * gain(e)) as f32;
        out.extend(weights.iter().zip(&chosen).map(last));
    }
    out
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let p: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = p.iter().sum();
    p.into_iter().map(|p| p / sum).collect()
}

/// Indices of the `n` greatest, descending; ties go to the lower index.
fn best(scores: &[f64], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order.truncate(n);
    order
}

/// Puts experts outside the best groups at −∞. A group counts its best scores.
fn keep_best_groups(choice: &mut [f64], rule: GroupRule) {
    let size = choice.len() / rule.groups as usize;
    let total = |group: &[f64]| best(group, rule.best as usize).iter().map(|&e| group[e]).sum();
    let totals: Vec<f64> = choice.chunks_exact(size).map(total).collect();
    let kept = best(&totals, rule.keep as usize);
    for (g, group) in choice.chunks_exact_mut(size).enumerate() {
        if !kept.contains(&g) {
            group.fill(f64::NEG_INFINITY);
        }
    }
}

/// Weighted outputs of the chosen experts, in slot order; `expert` gives the gate, up and down
/// matrices of one. [tokens, hidden]
pub(super) fn experts<'a>(
    x: Rows<'_>,
    route: Rows<'_>,
    expert: impl Fn(usize) -> [&'a Matrix; 3],
    act: GateAct,
    cols: usize,
) -> Vec<f32> {
    let top = route.cols / 2;
    let mut out = Vec::with_capacity(x.count() * cols);
    for r in 0..x.count() {
        let mut sum = vec![0.0f64; cols];
        for slot in 0..top {
            let [gate, up, down] = expert(route.row(r)[slot] as usize);
            let inner = |n: usize| gated(act, gate.product(n, x.row(r)), up.product(n, x.row(r)));
            let inner: Vec<f32> = (0..gate.rows).map(inner).collect();
            let weight = f64::from(route.row(r)[top + slot]);
            for (n, sum) in sum.iter_mut().enumerate() {
                *sum += weight * f64::from(down.product(n, &inner));
            }
        }
        out.extend(sum.into_iter().map(|s| s as f32));
    }
    out
}
