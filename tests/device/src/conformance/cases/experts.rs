//! Routing and experts.

use tokenmill_ir::{Act, GateAct, GroupRule, Op, RouteRule, RouteScore, WeightId, WeightUse, op};
use tokenmill_quant::FormatId;

use super::dense::product_tolerance;
use crate::conformance::lab::Lab;
use crate::conformance::{Case, Tolerance};

const RULE: RouteRule = RouteRule {
    experts: 8,
    top: 3,
    score: RouteScore::Softmax,
    choice_bias: None,
    groups: None,
    normalise: false,
    scale: 1.0,
    gains: None,
};

pub(super) fn cases(block: u32) -> Vec<Case> {
    let mut all = Vec::new();
    for score in [RouteScore::Softmax, RouteScore::SoftmaxOfTop, RouteScore::Sigmoid] {
        for normalise in [false, true] {
            all.push(route(RouteRule { score, normalise, ..RULE }, false, block));
        }
    }
    let groups = Some(GroupRule { groups: 4, keep: 2, best: 2 });
    let deepseek =
        RouteRule { score: RouteScore::Sigmoid, groups, normalise: true, scale: 2.5, ..RULE };
    all.push(route(deepseek, true, block));
    let groups = Some(GroupRule { groups: 4, keep: 2, best: 1 });
    all.push(route(RouteRule { groups, scale: 2.5, ..RULE }, false, block));
    for groups in [None, groups, Some(GroupRule { groups: 4, keep: 2, best: 2 })] {
        all.push(ties(RouteRule { groups, ..RULE }, block));
    }
    for format in [FormatId::F32, FormatId::BF16, FormatId::Q4_K, FormatId::Q8_0, FormatId::MXFP4] {
        all.push(experts([format; 2], block));
    }
    all.push(experts([FormatId::Q4_K, FormatId::Q6_K], block));
    all.push(experts([FormatId::EXL3_1, FormatId::EXL3_3], block));
    all.push(experts([FormatId::EXL3_2, FormatId::EXL3_5], block));
    all
}

fn route(mut rule: RouteRule, biased: bool, block: u32) -> Case {
    let mut lab = Lab::new(50);
    let x = lab.inputs(&[96])[0];
    let router = lab.matrix(FormatId::F32, rule.experts, 96);
    if biased {
        lab.add_bias(router);
        rule.choice_bias = Some(lab.vector(rule.experts, 0.0, 0.4));
        rule.gains = Some(lab.vector(rule.experts, 1.0, 0.4));
    }
    let out = lab.out(2 * rule.top);
    lab.push(Op::Route { x, router, rule, out: out.buffer });
    let groups =
        rule.groups.map_or(String::new(), |g| format!(", groups by their best {}", g.best));
    let biased = if biased { ", biased" } else { "" };
    let name = format!("route {:?}, normalise {}{groups}{biased}", rule.score, rule.normalise);
    lab.finish(name, out, Tolerance::F32, block)
}

/// Experts, and groups of them, of the same score: the lower ones are taken.
fn ties(rule: RouteRule, block: u32) -> Case {
    let mut lab = Lab::new(52);
    let x = lab.inputs(&[96])[0];
    let router = lab.alike(rule.experts, 96);
    let out = lab.out(2 * rule.top);
    let name = format!("route among equals, groups {:?}", rule.groups.map(|g| (g.keep, g.best)));
    lab.push(Op::Route { x, router, rule, out: out.buffer });
    lab.finish(name, out, Tolerance::F32, block)
}

/// Experts of two formats in turn.
fn experts(formats: [FormatId; 2], block: u32) -> Case {
    let mut lab = Lab::new(51);
    let (hidden, width, count) = (256, 256, RULE.experts);
    let x = lab.inputs(&[hidden])[0];
    let router = lab.matrix(FormatId::F32, count, hidden);
    let rule = RouteRule { normalise: true, ..RULE };
    let route = lab.out(2 * rule.top);
    lab.push(Op::Route { x, router, rule, out: route.buffer });
    let clamped = formats[0] == FormatId::MXFP4;
    let mut matrices = |rows: u32, cols: u32| {
        let all: Vec<WeightId> = (0..count)
            .map(|i| {
                let part = lab.part(formats[i as usize % 2], rows, cols);
                let id = lab.of_parts(WeightUse::Expert, cols, vec![part]);
                if clamped {
                    lab.add_bias(id);
                }
                id
            })
            .collect();
        all[0]
    };
    let (gate, up) = (matrices(width, hidden), matrices(width, hidden));
    let down = matrices(hidden, width);
    let act = match clamped {
        true => GateAct::Clamped { alpha: 1.702, limit: 1.0 },
        false => GateAct::Plain(Act::Silu),
    };
    let out = lab.out(hidden);
    let id = out.buffer;
    lab.push(Op::Experts(op::Experts { x, route, gate, up, down, experts: count, act, out: id }));
    let mut tolerance = product_tolerance(formats[0]);
    tolerance.nmse *= 6.0;
    let names = if formats[0] == formats[1] { &formats[..1] } else { &formats };
    let names: Vec<String> = names.iter().map(FormatId::to_string).collect();
    lab.finish(format!("experts {}", names.join(" and ")), out, tolerance, block)
}
