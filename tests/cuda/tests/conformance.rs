//! The conformance suite through the kernels as plain C++: every case, every case whose rows come alone, spoiled batches, and
//! mistakes planted in kernels.

use std::sync::Arc;

use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_cuda::{BLOCK_TOKENS, CudaDevice};
use tokenmill_cuda_tests::{
    Emulated, Fault, Kernels, attention, checks, device, products, sampled,
};
use tokenmill_device_tests::conformance::{cases, difference, endure, outputs};
use tokenmill_ir::{Mode, StepOutput};

#[test]
fn every_case_passes() {
    let Some(device) = device(32) else { return };
    let count = checks::conformance(&device, Mode::F32, &checks::promise).unwrap();
    assert!(count > 300, "{count} cases");
}

/// What else is in a step never shows, not in one bit.
#[test]
fn rows_alone_are_those_of_a_batch() {
    // (As many there with the blocks of a real GPU.)
    assert_eq!(checks::of_kinds(5).len(), checks::of_kinds(BLOCK_TOKENS).len());
    let Some(device) = device(5) else { return };
    checks::rows_alone(&device, Mode::F32, &checks::of_kinds(5)).unwrap();
    checks::rows_alone(&device, Mode::Bf16, &products::cases(5)).unwrap();
    checks::rows_alone(&device, Mode::Bf16, &products::experts(5)).unwrap();
}

#[test]
fn tensor_cores_multiply_what_is_stored() {
    let Some(device) = device(32) else { return };
    let count = products::check(&device, "").unwrap();
    assert!(count > 40, "{count} cases");
}

/// Mistakes in packing and multiplying, each in one place, and the cases that must see it.
const IN_ATOMS: [(&str, Fault); 13] = [
    ("linear q8_0", atoms("pack.cu", "i % 2 * 2 + i / 2) << (8 * i)", "i) << (8 * i)")),
    ("linear q4_0", atoms("pack.cu", "<< (4 * (i / 2 + i % 2 * 4))", "<< (4 * i)")),
    ("linear bf16", atoms("pack.cu", "4 * j + w / 2 * 2 + e", "4 * j + w % 2 * 2 + e")),
    ("linear q4_k", atoms("pack.cu", "{row_at(g), row_at(g + 8)}", "{row_at(g), row_at(g)}")),
    ("linear q4_0", atoms("atoms.cuh", "-136.f * d0, -136.f * d1", "-128.f * d0, -128.f * d1")),
    ("linear q4_k", atoms("atoms.cuh", "fmaf(-128.f, d0, -m0)", "fmaf(-128.f, d0, m0)")),
    ("linear q8_0", atoms("narrow.cuh", "unit = all * warp() / WARPS", "unit = all * warp() / 4")),
    ("linear q8_0 17x96 and", atoms("narrow.cu", "if (a.p[4]) y =", "if (a.p[5]) y =")),
    ("linear q8_0", atoms("wide.cu", "from += unit_bytes<F>();", "from += 512;")),
    ("experts q4_k", atoms("picked.cu", "pairs + start, a.n[3]}", "pairs, a.n[3]}")),
    ("experts q8_0", atoms("picked.cu", "first += blocks_y() * 8 * N", "first = count")),
    ("experts bf16", atoms("experts.cu", "[1 + rank] = e;", "[1 + rank] = e ^ (rank == 0);")),
    ("linear bf16", atoms("wide.cu", "x = buffers + now % 2", "x = buffers + (now + 1) % 2")),
];

const fn atoms(file: &'static str, from: &'static str, to: &'static str) -> Fault {
    Fault { file, from, to }
}

#[test]
fn mistakes_in_atoms_are_seen() {
    let mut unseen = Vec::new();
    for (name, fault) in IN_ATOMS {
        let Some(kernels) = Kernels::with(fault) else { return };
        let device = CudaDevice::new(Arc::new(Emulated::new(kernels)), 32);
        if products::check(&device, name).is_ok() {
            unseen.push(fault);
        }
    }
    assert!(unseen.is_empty(), "{unseen:?}");
}

#[test]
fn tensor_cores_attend_to_what_is_stored() {
    let Some(device) = device(32) else { return };
    let count = attention::check(&device, "").unwrap();
    assert_eq!(count, 18);
}

/// Tokens one by one, in short and long runs, splits side by side and one after another: the same bits.
#[test]
fn runs_of_tokens_change_no_bit_of_attention() {
    let Some(device) = device(32) else { return };
    assert_eq!(attention::runs(&device).unwrap(), 4);
    attention::crowd(&device).unwrap();
}

/// Mistakes in attention by tensor cores, each in one place, and the cases that must see it.
const IN_TILES: [(&str, &str, &str); 10] = [
    ("9 heads on 3 over Bf16", "p.w[j / 2], p.w[j / 2 + 1]);", "p.w[j / 2 + 1], p.w[j / 2]);"),
    (
        "9 heads on 3 over Bf16",
        "score[m][n], one.w[2], two.w[2]",
        "score[m][n], two.w[2], one.w[2]",
    ),
    ("9 heads on 3 over Bf16", "key >= range.end) s", "key > range.end) s"),
    ("9 heads on 3 over Int8", "is_first ? 0.f : y, by, sums", "is_first ? 0.f : y, own_by, sums"),
    ("9 heads on 3 over Int8", "own[1], own_by);", "own[1], by);"),
    ("window of 20, heads", "key < range.first ||", "key + 1 < range.first ||"),
    ("sinks", "add_rn(mul_rn(total, by), share_of(own, greatest))", "mul_rn(total, by)"),
    ("softcap, 8 heads on 1 over Bf16", "? own : next,", "? own : own,"),
    (
        "9 heads on 3 over Int8",
        "one = mul_rn(one, scales.value[i]),",
        "one = mul_rn(one, scales.value[0]),",
    ),
    ("9 heads on 3 over Int8", "0x00800080u, 0x43004300u", "0x00000080u, 0x43004300u"),
];

#[test]
fn mistakes_in_tiles_are_seen() {
    let mut unseen = Vec::new();
    for (name, from, to) in IN_TILES {
        let fault = Fault { file: "attend_tiles.cu", from, to };
        let Some(kernels) = Kernels::with(fault) else { return };
        let device = CudaDevice::new(Arc::new(Emulated::new(kernels)), 32);
        if attention::check(&device, name).is_ok() {
            unseen.push(fault);
        }
    }
    assert!(unseen.is_empty(), "{unseen:?}");
}

#[test]
fn bad_batches_are_refused_and_hurt_nobody() {
    let Some(device) = device(32) else { return };
    let wanted =
        ["sampling", "window of 20 over F32", "scan, 4", "latent attention over F32", "pool Mean"];
    for case in cases(32).iter().filter(|c| wanted.iter().any(|w| c.name.contains(w))) {
        let refused = endure(&device, Mode::F32, case, 60);
        assert!(refused.as_ref().is_ok_and(|&n| n > 60), "{}: {refused:?}", case.name);
    }
}

/// A mistake, and the cases that must see it.
const FAULTS: [(&str, Fault); 9] = [
    (
        "experts f32",
        Fault { file: "product.cu", from: "first += blocks_y() * MOST", to: "first = count" },
    ),
    (
        "window of 20 over F32",
        Fault {
            file: "seen.cuh",
            from: "place + 1 > n ? place + 1 - n : 0",
            to: "place + 1 > n ? place + 2 - n : 0",
        },
    ),
    (
        "plain over F32",
        Fault { file: "seen.cuh", from: "{0, place + 1}", to: "{0, place + (place == 0)}" },
    ),
    (
        "9 heads on 3 over F32",
        Fault { file: "attend.cu", from: "head / (a.n[0] / a.n[1])", to: "head % a.n[1]" },
    ),
    (
        "plain over F32",
        Fault {
            file: "attend.cu",
            from: "from + table[i / block_tokens] * block_bytes",
            to: "from + table[i / block_tokens & 1] * block_bytes",
        },
    ),
    (
        "rotation of queries alone",
        Fault {
            file: "attend.cu",
            from: "mul_rn((float)position, freq)",
            to: "mul_rn((float)(position + 1), freq)",
        },
    ),
    (
        "plain over F32",
        Fault {
            file: "attend.cu",
            from: "capped(keys.score(q, key) * scale, cap)",
            to: "capped(keys.score(q, key), cap)",
        },
    ),
    (
        "experts q4_k and",
        Fault { file: "experts.cu", from: "fmaf(route[top + s],", to: "fmaf(route[top]," },
    ),
    ("conv", Fault { file: "recurrent.cu", from: "(int)kept + i", to: "-1 - i" }),
];

/// Loads of eight numbers and values that are asked for ahead change no bit: without them, the same.
#[test]
fn long_loads_change_nothing() {
    let plainly = [
        ("for (; c + 8 <= len; c += 8) {", "for (; len == 0xffffffff;) {"),
        ("k + AHEAD <= count; k += AHEAD", "count > 32;"),
    ];
    let all = cases(7);
    for (from, to) in plainly {
        let Some(kernels) = Kernels::with(Fault { file: "attend.cu", from, to }) else { return };
        let Some(device) = device(7) else { return };
        let plain = CudaDevice::new(Arc::new(Emulated::new(kernels)), 7);
        let mut seen = 0;
        for case in all.iter().filter(|c| c.name.contains("attention")) {
            let [found, truth] = [&device, &plain].map(|d| outputs(d, Mode::F32, case));
            let rows = |all: Vec<StepOutput>| -> Vec<Vec<u32>> {
                all.iter().map(|o| o.rows.iter().map(|x| x.to_bits()).collect()).collect()
            };
            assert_eq!(found.map(rows), truth.map(rows), "{}: {from}", case.name);
            seen += 1;
        }
        assert!(seen > 40, "{seen} cases");
    }
}

#[test]
fn planted_mistakes_are_seen() {
    let all = cases(7);
    for (name, fault) in FAULTS {
        let Some(kernels) = Kernels::with(fault) else { return };
        let device = CudaDevice::new(Arc::new(Emulated::new(kernels)), 7);
        let mut seen = false;
        for case in all.iter().filter(|c| c.name.contains(name)) {
            let truth = outputs(&ReferenceDevice::new(7), Mode::F32, case).expect("the reference");
            let found = outputs(&device, Mode::F32, case).expect("runs");
            let limit = checks::promise(case);
            seen |= found.iter().zip(&truth).any(|(f, t)| {
                let error = difference(&f.rows, &t.rows);
                error.map_or(true, |e| e.nmse > limit.nmse || e.max > limit.max)
            });
        }
        assert!(seen, "{fault:?} is not seen by {name}");
    }
}

/// Every way to choose a token, from logits of every kind: the reference's bits.
#[test]
fn tokens_are_those_of_the_definition() {
    let Some(device) = device(32) else { return };
    let count = sampled::check(&device, 2).unwrap();
    assert!(count > 500, "{count} rows");
    // Where a draw depends on the order of additions it is made in that order: always, the same.
    let from = "sure = next - margin > target && before + margin <= target;";
    let slowly = Fault { file: "sample.cu", from, to: "sure = margin < 0.0;" };
    let Some(kernels) = Kernels::with(slowly) else { return };
    sampled::check(&CudaDevice::new(Arc::new(Emulated::new(kernels)), 32), 1).unwrap();
}

/// Mistakes in choosing, each in one place.
const CHOICES: [(&str, &str); 10] = [
    ("(uint32_t)~id;", "id;"),
    ("i >= want.history[2]", "i > want.history[2]"),
    ("x > 0.f ? div_rn(x, want.repetition)", "x < 0.f ? div_rn(x, want.repetition)"),
    ("* ((a.n[0] + 31) / 32) + first / 32;", "* ((a.n[0] + 31) / 32);"),
    (
        "if (at < len && at % threads() == thread()) x[at]",
        "if (at < len && thread() == 0 && i == 0) x[at]",
    ),
    ("if (is_by_id(want) && weight < want.min_p)", "if (is_by_id(want) && weight > want.min_p)"),
    ("i < len; i += 16) sum", "i < len - 1; i += 16) sum"),
    (
        "for (unsigned i = own * t; i < own * (t + 1)",
        "for (unsigned i = own * t + 1; i < own * (t + 1)",
    ),
    ("below = desk.list[n - 1];", "below = desk.list[n / 2];"),
    ("if (mass >= wanted) return true;", "if (mass >= 1.05 * wanted) return true;"),
];

#[test]
fn mistakes_in_choosing_are_seen() {
    let mut unseen = Vec::new();
    for (from, to) in CHOICES {
        let file = if from.contains("~id") { "math.cuh" } else { "sample.cu" };
        let Some(kernels) = Kernels::with(Fault { file, from, to }) else { return };
        let device = CudaDevice::new(Arc::new(Emulated::new(kernels)), 32);
        if sampled::check(&device, 1).is_ok() {
            unseen.push(to);
        }
    }
    assert!(unseen.is_empty(), "{unseen:?}");
}
