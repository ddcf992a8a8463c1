//! The fused loss against its definition: `f = softcap(scale (x W^T + b))`, `lse = log sum exp f`, and a token's loss
//! `lse - f[label] + z lse^2` (z-loss: Chowdhery et al., 2022, section 5; cap: Gemma 2, 2024, section 2).

use std::ops::Range;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_tensor::{Category, DType, Device, Machine, Meta, PoolUsage};

use super::*;
use crate::testing::{Matrix, Stream, assert_close, download, levels, uniform, upload, weights};
use crate::{Counters, Counts, Grads};

/// One head.
#[derive(Clone, Copy, Debug)]
struct Case {
    tokens: usize,
    hidden: usize,
    vocab: usize,
    how: HeadUse,
    weighted: bool,
    bias: bool,
    /// Labels were sampled from some tokens only.
    some: bool,
}

/// Inputs rounded to the type under test.
struct Numbers {
    x: Matrix,
    weight: Matrix,
    /// Zeros without a bias.
    bias: Matrix,
    labels: Vec<i32>,
    weights: Option<Matrix>,
    /// True for the tokens that a label was sampled from.
    kept: Vec<Vec<bool>>,
}

struct Results {
    losses: Matrix,
    dx: Matrix,
    dw: Matrix,
    /// Zeros without a bias.
    db: Matrix,
}

impl Case {
    fn numbers(&self, dtype: DType) -> Numbers {
        let Case { tokens, hidden, vocab, .. } = *self;
        let label = |t: usize| match t % 5 {
            // Every fifth token is not trained on.
            3 => -100,
            _ => (uniform(9, t as u64) * vocab as f64) as i32,
        };
        let weights =
            Matrix::new(1, tokens, |_, t| if t % 7 == 2 { 0.0 } else { uniform(8, t as u64) - 0.3 });
        let keeps = |t: usize, v: usize| uniform(7, (t * vocab + v) as u64) < 0.4 || v as i32 == label(t);
        Numbers {
            x: Matrix::random(tokens, hidden, 1).rounded(dtype),
            weight: Matrix::random(vocab, hidden, 2).times(1.5 / (hidden as f64).sqrt()).rounded(dtype),
            bias: if self.bias {
                Matrix::random(1, vocab, 3).times(0.5).rounded(dtype)
            } else {
                Matrix::zeros(1, vocab)
            },
            labels: (0..tokens).map(label).collect(),
            weights: self.weighted.then(|| weights.rounded(DType::F32)),
            kept: (0..tokens).map(|t| (0..vocab).map(|v| !self.some || keeps(t, v)).collect()).collect(),
        }
    }
}

/// Loss and gradient by the transformed logits of one token, over the kept tokens.
fn token(how: HeadUse, (logits, kept): (&[f64], &[bool]), label: usize) -> (f64, Vec<f64>) {
    let (scale, cap, z) = (f64::from(how.scale), f64::from(how.softcap), f64::from(how.z_loss));
    let transform = |x: f64| if cap == 0.0 { scale * x } else { cap * (scale * x / cap).tanh() };
    let loss = |logits: &[f64]| {
        let f: Vec<f64> = logits.iter().map(|x| transform(*x)).collect();
        let among = || f.iter().zip(kept).filter(|(_, kept)| **kept).map(|(f, _)| *f);
        let most = among().fold(f64::NEG_INFINITY, f64::max);
        let lse = most + among().map(|f| (f - most).exp()).sum::<f64>().ln();
        lse - f[label] + z * lse * lse
    };
    let mut moved = logits.to_vec();
    let slope = |at: usize| {
        let mut at_x = |x: f64| {
            moved[at] = x;
            loss(&moved)
        };
        let slope = (at_x(logits[at] + 1e-5) - at_x(logits[at] - 1e-5)) / 2e-5;
        at_x(logits[at]);
        slope
    };
    (loss(logits), (0..logits.len()).map(slope).collect())
}

/// Losses, and gradients of their weighted sum: by logits through central differences, then through the product.
fn reference(case: &Case, numbers: &Numbers) -> Results {
    let Case { tokens, hidden, vocab, .. } = *case;
    let Numbers { x, weight, bias, labels, weights, kept } = numbers;
    let (mut losses, mut db) = (Matrix::zeros(1, tokens), Matrix::zeros(1, vocab));
    let (mut dx, mut dw) = (Matrix::zeros(tokens, hidden), Matrix::zeros(vocab, hidden));
    for t in (0..tokens).filter(|t| labels[*t] >= 0) {
        let dot = |v: usize| (0..hidden).map(|c| x[(t, c)] * weight[(v, c)]).sum::<f64>();
        let logits: Vec<f64> = (0..vocab).map(|v| dot(v) + bias[(0, v)]).collect();
        let (loss, slopes) = token(case.how, (&logits, &kept[t]), labels[t] as usize);
        losses[(0, t)] = loss;
        for (v, slope) in slopes.iter().enumerate() {
            let slope = slope * weights.as_ref().map_or(1.0, |weights| weights[(0, t)]);
            db[(0, v)] += if case.bias { slope } else { 0.0 };
            for c in 0..hidden {
                dx[(t, c)] += slope * weight[(v, c)];
                dw[(v, c)] += slope * x[(t, c)];
            }
        }
    }
    Results { losses, dx, dw, db }
}

fn kept(device: &Device, kept: &[Vec<bool>]) -> Tensor {
    let byte = |of: &[bool]| of.iter().rev().fold(0, |byte, kept| byte << 1 | u8::from(*kept));
    let bits: Vec<u8> = kept.iter().flat_map(|row| row.chunks(8).map(byte)).collect();
    let tensor = device.empty(kept.len(), kept[0].len().div_ceil(8), DType::U8, Category::Data);
    device.machine.write(&tensor, &bits);
    tensor
}

fn run(
    case: &Case,
    numbers: &Numbers,
    dtype: DType,
    machine: Arc<dyn Machine>,
) -> (Results, PoolUsage, Counts) {
    let device = &Device::new(machine, 1 << 30);
    let (params, ids) = weights(device, &[numbers.weight.clone(), numbers.bias.clone()], dtype);
    let batch = Stream::documents(&[case.tokens], None, 1).upload(device);
    let mut grads = Grads::zeros(device, &params);
    let counters = Counters::default();
    let scope = &Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
    let x = upload(device, &numbers.x, dtype, Category::Data, false);
    let ids_of_labels = device.from_i32(&numbers.labels, Category::Data);
    let labels =
        Labels { kept: case.some.then(|| kept(device, &numbers.kept)), ..Labels::plain(ids_of_labels) };
    let weights = numbers.weights.as_ref().map(|w| upload(device, w, DType::F32, Category::Data, false));
    let losses = device.empty(1, case.tokens, DType::F32, Category::Data);
    let term = LossTerm { weights, ..LossTerm::cross_entropy(&losses) };
    let head =
        Head { weight: ids[0], bias: case.bias.then_some(ids[1]), how: case.how, first: 0, term: None };
    let dx = head.loss(scope, &x, &labels, std::slice::from_ref(&term), &mut grads);
    let found = Results {
        losses: download(device, &losses),
        dx: download(device, &dx),
        dw: download(device, grads.get(ids[0]).unwrap()),
        db: download(device, grads.get(ids[1]).unwrap()),
    };
    let counted = counters.get();

    // The two halves of the general path give the same bits.
    let again = device.empty(1, case.tokens, DType::F32, Category::Data);
    head.losses(scope, &x, &labels, &[LossTerm::cross_entropy(&again)]);
    assert_eq!(download(device, &again), found.losses);
    grads.clear(device);
    let unwanted = LossTerm { losses: None, ..term };
    let again = head.loss(scope, &x, &labels, &[unwanted], &mut grads);
    assert_eq!(download(device, &again), found.dx);
    assert_eq!(download(device, grads.get(ids[0]).unwrap()), found.dw);
    assert_eq!(download(device, grads.get(ids[1]).unwrap()), found.db);
    drop((dx, again));
    let usage = device.pool.usage();
    assert_eq!(usage.by_category[Category::Activations], 0, "{case:?}: activations are left");
    (found, usage, counted)
}

#[track_caller]
fn check(case: &Case) {
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::Bf16, 2e-2)] {
        let numbers = case.numbers(dtype);
        let expected = reference(case, &numbers);
        for isa in levels() {
            let at = format!("{case:?}, {dtype:?}, {}", isa.name());
            let machine = Arc::new(Cpu::new(2, Some(isa)));
            let plan = Arc::new(Meta::new(machine.profile().clone()));
            let (found, usage, counted) = run(case, &numbers, dtype, machine);
            for (what, found, expected) in [
                ("losses", &found.losses, &expected.losses),
                ("gradient of x", &found.dx, &expected.dx),
                ("gradient of the weight", &found.dw, &expected.dw),
                ("gradient of the bias", &found.db, &expected.db),
            ] {
                assert_close(&at, what, &found.data, &expected.data, tolerance, 0.0);
            }
            let (_, planned, planned_counted) = run(case, &numbers, dtype, plan);
            assert_eq!((usage, counted.hardware_flops), (planned, planned_counted.hardware_flops), "{at}");
        }
    }
}

const PLAIN: Case = Case {
    tokens: 23,
    hidden: 16,
    vocab: 61,
    how: HeadUse { scale: 1.0, softcap: 0.0, z_loss: 0.0 },
    weighted: false,
    bias: false,
    some: false,
};

#[test]
fn sizes() {
    for (tokens, hidden, vocab) in [(1, 8, 3), (130, 17, 33), (7, 48, 129), (300, 5, 7)] {
        check(&Case { tokens, hidden, vocab, ..PLAIN });
        check(&Case { tokens, hidden, vocab, bias: true, ..PLAIN });
        check(&Case { tokens, hidden, vocab, some: true, ..PLAIN });
    }
}

#[test]
fn every_transform() {
    for scale in [1.0, 0.25] {
        for softcap in [0.0, 2.5] {
            for z_loss in [0.0, 0.01] {
                for weighted in [false, true] {
                    let how = HeadUse { scale, softcap, z_loss };
                    for (bias, some) in [(false, false), (true, false), (true, true)] {
                        check(&Case { how, weighted, bias, some, ..PLAIN });
                    }
                }
            }
        }
    }
}

#[test]
fn inspected_logits_are_those_of_the_loss() {
    let case = Case { how: HeadUse { scale: 0.5, softcap: 3.0, z_loss: 0.0 }, bias: true, ..PLAIN };
    let numbers = case.numbers(DType::F32);
    let device = &Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    let (params, ids) = weights(device, &[numbers.weight.clone(), numbers.bias.clone()], DType::F32);
    let batch = Stream::documents(&[case.tokens], None, 1).upload(device);
    let counters = Counters::default();
    let scope = &Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
    let x = upload(device, &numbers.x, DType::F32, Category::Data, false);
    let head = Head { weight: ids[0], bias: Some(ids[1]), how: case.how, first: 0, term: None };
    let logits = download(device, &head.logits(scope, &x));
    let expected = Matrix::new(case.tokens, case.vocab, |t, v| {
        let dot: f64 = (0..case.hidden).map(|c| numbers.x[(t, c)] * numbers.weight[(v, c)]).sum();
        3.0 * (0.5 * (dot + numbers.bias[(0, v)]) / 3.0).tanh()
    });
    assert_close("logits", "logits", &logits.data, &expected.data, 1e-5, 0.0);
}

/// A head with a low-rank term equals one with the term in its weight: losses, and by the chain rule the gradients of
/// both factors.
#[test]
fn low_rank_terms() {
    let (case, rank, scale) = (Case { tokens: 300, vocab: 61, ..PLAIN }, 3, 0.5f32);
    let mut numbers = case.numbers(DType::F32);
    let (a, b) = (Matrix::random(rank, case.hidden, 40), Matrix::random(case.vocab, rank, 41));
    let base = numbers.weight.clone();
    let low = |v: usize, c: usize| (0..rank).map(|r| b[(v, r)] * a[(r, c)]).sum::<f64>();
    numbers.weight = Matrix::new(case.vocab, case.hidden, |v, c| base[(v, c)] + f64::from(scale) * low(v, c));
    let expected = reference(&case, &numbers);
    let device = &Device::new(Arc::new(Cpu::new(2, None)), 1 << 30);
    let (params, ids) = weights(device, &[base, a.clone(), b.clone()], DType::F32);
    let batch = Stream::documents(&[case.tokens], None, 1).upload(device);
    let (mut grads, counters) = (Grads::zeros(device, &params), Counters::default());
    let scope = &Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
    let x = upload(device, &numbers.x, DType::F32, Category::Data, false);
    let labels = Labels::plain(device.from_i32(&numbers.labels, Category::Data));
    let losses = device.empty(1, case.tokens, DType::F32, Category::Data);
    let low = Some(HeadTerm { a: ids[1], b: ids[2], scale });
    let head = Head { weight: ids[0], bias: None, how: case.how, first: 0, term: low };
    let dx = head.loss(scope, &x, &labels, &[LossTerm::cross_entropy(&losses)], &mut grads);
    let sum = |n: usize, f: &dyn Fn(usize) -> f64| f64::from(scale) * (0..n).map(f).sum::<f64>();
    let dw = &expected.dw;
    let da = Matrix::new(rank, case.hidden, |r, c| sum(case.vocab, &|v| b[(v, r)] * dw[(v, c)]));
    let db = Matrix::new(case.vocab, rank, |v, r| sum(case.hidden, &|c| dw[(v, c)] * a[(r, c)]));
    let of = |id| download(device, grads.get(id).unwrap());
    for (what, found, expected) in [
        ("losses", download(device, &losses), &expected.losses),
        ("x", download(device, &dx), &expected.dx),
        ("weight", of(ids[0]), &expected.dw),
        ("A", of(ids[1]), &da),
        ("B", of(ids[2]), &db),
    ] {
        assert_close("head with a term", what, &found.data, &expected.data, 1e-5, 0.0);
    }
}

/// With a very wide vocabulary a tile is 128 tokens: tiles change no bit.
#[test]
fn tiles_change_nothing() {
    let vocab = 100_000;
    let cpu = Cpu::new(1, None);
    assert_eq!([vocab, 61].map(|vocab| Head::tile_rows(&cpu, vocab)), [128, 137_472]);
    let case = Case { tokens: 200, hidden: 4, vocab, ..PLAIN };
    let numbers = case.numbers(DType::F32);
    let half = |range: Range<usize>| Numbers {
        x: Matrix::new(range.len(), case.hidden, |t, c| numbers.x[(range.start + t, c)]),
        weight: numbers.weight.clone(),
        bias: numbers.bias.clone(),
        labels: numbers.labels[range].to_vec(),
        weights: None,
        kept: numbers.kept.clone(),
    };
    let machine: Arc<dyn Machine> = Arc::new(Cpu::new(2, None));
    let whole = run(&case, &numbers, DType::F32, machine.clone()).0;
    let parts = [0..128, 128..200]
        .map(|range| run(&Case { tokens: range.len(), ..case }, &half(range), DType::F32, machine.clone()).0);
    let dx: Vec<f64> = parts.iter().flat_map(|part| part.dx.data.iter().copied()).collect();
    assert_eq!(whole.dx.data, dx);
    let losses: Vec<f64> = parts.iter().flat_map(|part| part.losses.data.iter().copied()).collect();
    assert_eq!(whole.losses.data, losses);
}

/// A GPU's tiles are thousands of tokens.
#[test]
fn tiles_are_the_machine_s() {
    let h200 = Meta::new(fathom_tensor::gpu::named("h200").unwrap());
    for (vocab, tile, gradient) in [(128_256, 2048, 4096), (32_000, 8320, 16_640)] {
        let rows = [DType::F32, DType::Bf16].map(|dtype| Head::gradient_rows(&h200, vocab, dtype));
        assert_eq!((Head::tile_rows(&h200, vocab), rows), (tile, [tile, gradient]));
    }
}

/// A second head compared with its definition: values, and gradients that are added to existing ones.
#[test]
fn scores_and_their_gradients() {
    let (tokens, hidden, k) = (37, 24, 3);
    let matrix = |rows, cols, key: usize| {
        Matrix::new(rows, cols, |r, c| ((r * 31 + c * 17 + key * 7) % 23) as f64 / 8.0 - 1.25)
    };
    let [x, weight, bias] = [matrix(tokens, hidden, 1), matrix(k, hidden, 2), matrix(1, k, 3)];
    let [dvalues, before] = [matrix(tokens, k, 4), matrix(tokens, hidden, 5)];
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::Bf16, 2e-2)] {
        let device = &Device::new(Arc::new(Cpu::new(2, None)), 1 << 28);
        let (params, ids) = weights(device, &[weight.clone(), bias.clone()], dtype);
        let batch = Stream::documents(&[tokens], None, 1).upload(device);
        let (mut grads, counters) = (Grads::zeros(device, &params), Counters::default());
        let scope = &Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
        let load = |m: &Matrix, dtype| upload(device, m, dtype, Category::Data, false);
        let (x_t, dx) = (load(&x, dtype), load(&before, dtype));
        let head = Scores { weight: ids[0], bias: Some(ids[1]) };
        let values = download(device, &head.values(scope, &x_t));
        head.backward(scope, &x_t, &load(&dvalues, DType::F32), &dx, &mut grads);
        let sum = |n: usize, f: &dyn Fn(usize) -> f64| (0..n).map(f).sum::<f64>();
        let expected = [
            Matrix::new(tokens, k, |t, v| bias[(0, v)] + sum(hidden, &|c| x[(t, c)] * weight[(v, c)])),
            Matrix::new(tokens, hidden, |t, c| {
                before[(t, c)] + sum(k, &|v| dvalues[(t, v)] * weight[(v, c)])
            }),
            Matrix::new(k, hidden, |v, c| sum(tokens, &|t| dvalues[(t, v)] * x[(t, c)])),
            Matrix::new(1, k, |_, v| sum(tokens, &|t| dvalues[(t, v)])),
        ];
        let of = |id| download(device, grads.get(id).unwrap());
        for (found, expected) in [values, download(device, &dx), of(ids[0]), of(ids[1])].iter().zip(&expected)
        {
            assert_close("scores", &format!("{dtype:?}"), &found.data, &expected.data, tolerance, 0.0);
        }
    }
}
