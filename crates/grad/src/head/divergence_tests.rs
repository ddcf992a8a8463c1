//! Divergences compared with TRL (`tests/golden_distill`, written by `oracle/distill.py`) and with finite differences:
//! with the identity as the head's weight, hidden states are logits.

use std::path::PathBuf;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_tensor::{Category, DType, Device, Machine, Meta, PoolUsage};
use serde_json::Value;

use super::*;
use crate::testing::{Matrix, Stream, assert_close, download, levels, upload, weights};
use crate::{Counters, Grads};

/// A divergence.
#[derive(Clone, Copy, Debug)]
struct Case {
    beta: f32,
    temperature: f64,
    /// Number of best tokens, and whether the rest counts.
    best: Option<(usize, bool)>,
    how: HeadUse,
    /// The teacher's transformation.
    of_teacher: HeadUse,
    /// Weight of the divergence in the gradient.
    ratio: f32,
}

const PLAIN: Case = Case {
    beta: 0.0,
    temperature: 1.0,
    best: None,
    how: HeadUse { scale: 1.0, softcap: 0.0, z_loss: 0.0 },
    of_teacher: HeadUse { scale: 1.0, softcap: 0.0, z_loss: 0.0 },
    ratio: 1.0,
};

/// Hidden states, which equal logits, and labels.
struct Numbers {
    student: Matrix,
    teacher: Matrix,
    labels: Vec<i32>,
    weights: Matrix,
}

fn identity(n: usize) -> Matrix {
    Matrix::new(n, n, |r, c| f64::from(u8::from(r == c)))
}

/// The best tokens of a row at a temperature, best first.
fn best_of(row: &[f64], k: usize) -> (Vec<i32>, Vec<f64>) {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
    let logs = log_softmax(row);
    (order[..k].iter().map(|id| *id as i32).collect(), order[..k].iter().map(|id| logs[*id]).collect())
}

fn log_softmax(row: &[f64]) -> Vec<f64> {
    let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let lse = top + row.iter().map(|x| (x - top).exp()).sum::<f64>().ln();
    row.iter().map(|x| x - lse).collect()
}

fn run(case: &Case, numbers: &Numbers, dtype: DType, machine: Arc<dyn Machine>) -> ([Matrix; 3], PoolUsage) {
    let device = &Device::new(machine, 1 << 30);
    let [tokens, vocab] = [numbers.student.rows, numbers.student.cols];
    let (params, ids) = weights(device, &[identity(vocab), identity(numbers.teacher.cols)], dtype);
    let batch = Stream::documents(&[tokens], None, 1).upload(device);
    let (mut grads, counters) = (Grads::zeros(device, &params), Counters::default());
    let scope = &Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
    let load = |m: &Matrix, dtype| upload(device, m, dtype, Category::Data, false);
    let (x, y) = (load(&numbers.student, dtype), load(&numbers.teacher, dtype));
    let given = load(&numbers.weights, DType::F32);
    let [losses, divergences] = [0; 2].map(|_| device.empty(1, tokens, DType::F32, Category::Data));
    let head = Head { weight: ids[0], bias: None, how: case.how, first: 0, term: None };
    let other = Head { weight: ids[1], bias: None, how: case.of_teacher, first: 0, term: None };
    let (best_ids, best_logps) = {
        let k = case.best.map_or(1, |(k, _)| k);
        let row = |t: usize| -> Vec<f64> {
            (0..numbers.teacher.cols).map(|v| numbers.teacher[(t, v)] / case.temperature).collect()
        };
        let all: Vec<_> = (0..tokens).map(|t| best_of(&row(t), k)).collect();
        let ids: Vec<i32> = all.iter().flat_map(|(ids, _)| ids.clone()).collect();
        let logps = Matrix::new(tokens, k, |t, i| all[t].1[i]);
        (device.from_i32(&ids, Category::Data).reshape(tokens, k), load(&logps, DType::F32))
    };
    let teacher = match case.best {
        None => Teacher::Model { head: other, scope, x: &y },
        Some((_, rest)) => Teacher::Best { ids: &best_ids, logps: &best_logps, rest },
    };
    let ids = device.from_i32(&numbers.labels, Category::Data);
    let labels = Labels { teacher: Some(teacher), ..Labels::plain(ids) };
    let divergence = DivergenceLoss { beta: case.beta, temperature: case.temperature };
    let terms = [
        LossTerm {
            weights: Some(given.clone()),
            factor: 1.0 - case.ratio,
            ..LossTerm::cross_entropy(&losses)
        },
        LossTerm { weights: Some(given), factor: case.ratio, ..LossTerm::of(&divergence, &divergences) },
    ];
    let dx = head.loss(scope, &x, &labels, &terms, &mut grads);
    let found = [&losses, &divergences, &dx].map(|tensor| download(device, tensor));
    drop(dx);
    assert_eq!(device.pool.usage().by_category[Category::Activations], 0, "{case:?}");
    (found, device.pool.usage())
}

fn golden() -> (Value, PathBuf) {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_distill");
    (serde_json::from_slice(&std::fs::read(root.join("distill.json")).unwrap()).unwrap(), root)
}

/// A tensor of a safetensors file of f32.
fn tensor(bytes: &[u8], name: &str) -> Matrix {
    let header_bytes = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header_bytes]).unwrap();
    let at = |i: usize| header[name]["data_offsets"][i].as_u64().unwrap() as usize + 8 + header_bytes;
    let size = |i: usize| header[name]["shape"][i].as_u64().unwrap() as usize;
    let data = bytes[at(0)..at(1)].as_chunks().0.iter().map(|x| f64::from(f32::from_le_bytes(*x)));
    Matrix { rows: size(0), cols: size(1), data: data.collect() }
}

/// Terms to 1e-6, gradients to 1e-6 of the largest. Those over the student's best tokens are TRL's self-distillation,
/// which recipes do not have.
#[test]
fn divergences_are_those_of_trl() {
    let (golden, root) = golden();
    let bytes = std::fs::read(root.join("distill.safetensors")).unwrap();
    let labels: Vec<i32> = serde_json::from_value(golden["labels"].clone()).unwrap();
    let valid = labels.iter().filter(|label| **label >= 0).count() as f64;
    let mut seen = 0;
    for (name, of) in golden["cases"].as_object().unwrap().iter().filter(|(_, of)| of["support"] != "student")
    {
        let best = of["best"].as_u64().map(|k| (k as usize, of["rest"] == true));
        let (beta, temperature) =
            (of["beta"].as_f64().unwrap() as f32, of["temperature"].as_f64().unwrap_or(1.0));
        let case = Case { beta, temperature, best, ..PLAIN };
        let numbers = Numbers {
            student: tensor(&bytes, "student"),
            teacher: tensor(&bytes, "teacher"),
            weights: Matrix::new(1, labels.len(), |_, _| 1.0),
            labels: labels.clone(),
        };
        let ([_, losses, dx], _) = run(&case, &numbers, DType::F32, Arc::new(Cpu::new(1, None)));
        let (loss, want) = (losses.data.iter().sum::<f64>() / valid, of["loss"].as_f64().unwrap());
        assert!((loss - want).abs() <= 1e-6 * want.abs().max(1.0), "{name}: {loss} {want}");
        let gradient = tensor(&bytes, &format!("{name}.grad"));
        let found: Vec<f64> = dx.data.iter().map(|x| x / valid).collect();
        let top = gradient.data.iter().fold(0.0f64, |top, x| top.max(x.abs()));
        for (a, b) in found.iter().zip(&gradient.data) {
            assert!((a - b).abs() <= 1e-6 * top.max(1.0), "{name}: {a} {b}");
        }
        seen += 1;
    }
    assert_eq!(seen, 16);
}

/// The gradient of weighted losses and weighted entropies, with a cap, a temperature and every instruction set;
/// entropies per token; memory as on `meta`.
#[test]
fn entropies_and_their_gradient_are_their_definition() {
    let (tokens, vocab) = (7, 70);
    let x = Matrix::random(tokens, vocab, 5).times(2.0).rounded(DType::F32);
    let labels: Vec<i32> = (0..tokens).map(|t| if t == 3 { -100 } else { (t * 13 % vocab) as i32 }).collect();
    let [weights, of_entropy] =
        [0.25, -0.75].map(|first| Matrix::new(1, tokens, |_, t| first + t as f64 / 8.0).rounded(DType::F32));
    let capped = HeadUse { scale: 0.7, softcap: 2.5, z_loss: 0.0 };
    let run = |how: HeadUse, temperature: f64, machine: Arc<dyn Machine>| {
        let device = &Device::new(machine, 1 << 30);
        let (params, ids) = self::weights(device, &[identity(vocab)], DType::F32);
        let batch = Stream::documents(&[tokens], None, 1).upload(device);
        let (mut grads, counters) = (Grads::zeros(device, &params), Counters::default());
        let scope = &Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
        let load = |m: &Matrix| upload(device, m, DType::F32, Category::Data, false);
        let (x, by, of_entropy) = (load(&x), load(&weights), load(&of_entropy));
        let [losses, each] = [0; 2].map(|_| device.empty(1, tokens, DType::F32, Category::Data));
        let labels = Labels::plain(device.from_i32(&labels, Category::Data));
        let head = Head { weight: ids[0], bias: None, how, first: 0, term: None };
        let (cross, entropy) = (CrossEntropyLoss { temperature }, EntropyLoss { temperature });
        let terms = [
            LossTerm { weights: Some(by), ..LossTerm::of(&cross, &losses) },
            LossTerm { weights: Some(of_entropy), ..LossTerm::of(&entropy, &each) },
        ];
        head.losses(scope, &x, &labels, &terms);
        let unwanted = terms.map(|term| LossTerm { losses: None, ..term });
        let dx = head.loss(scope, &x, &labels, &unwanted, &mut grads);
        let found = [&each, &dx].map(|tensor| download(device, tensor));
        drop(dx);
        assert_eq!(device.pool.usage().by_category[Category::Activations], 0);
        (found, device.pool.usage())
    };
    for (how, temperature) in [(PLAIN.how, 1.0), (PLAIN.how, 0.5), (capped, 1.5)] {
        let logs = |row: &[f64]| {
            let (scale, cap) = (f64::from(how.scale), f64::from(how.softcap));
            let f = |x: &f64| if cap == 0.0 { scale * x } else { cap * (scale * x / cap).tanh() };
            log_softmax(&row.iter().map(|x| f(x) / temperature).collect::<Vec<_>>())
        };
        let entropy = |row: &[f64]| -logs(row).iter().map(|log| log.exp() * log).sum::<f64>();
        let mut expected = [Matrix::zeros(1, tokens), Matrix::zeros(tokens, vocab)];
        for t in (0..tokens).filter(|t| labels[*t] >= 0) {
            let mut row: Vec<f64> = (0..vocab).map(|v| x[(t, v)]).collect();
            expected[0][(0, t)] = entropy(&row);
            for v in 0..vocab {
                let mut at = |x: f64| {
                    let before = std::mem::replace(&mut row[v], x);
                    let loss = -logs(&row)[labels[t] as usize];
                    let sum = weights[(0, t)] * loss + of_entropy[(0, t)] * entropy(&row);
                    row[v] = before;
                    sum
                };
                expected[1][(t, v)] = (at(x[(t, v)] + 1e-5) - at(x[(t, v)] - 1e-5)) / 2e-5;
            }
        }
        for isa in levels() {
            let at = format!("{how:?}, {temperature}, {}", isa.name());
            let machine = Arc::new(Cpu::new(2, Some(isa)));
            let meta = Arc::new(Meta::new(machine.profile().clone()));
            let ([each, dx], usage) = run(how, temperature, machine);
            assert_close(&at, "entropy", &each.data, &expected[0].data, 2e-5, 0.0);
            assert_close(&at, "gradient", &dx.data, &expected[1].data, 2e-5, 0.0);
            assert_eq!(run(how, temperature, meta).1, usage, "{at}");
        }
    }
}

/// The divergence of a row, in f64.
fn definition(case: &Case, student: &[f64], teacher: &[f64]) -> f64 {
    let through = |how: &HeadUse, x: f64| {
        let (scale, cap) = (f64::from(how.scale), f64::from(how.softcap));
        (if cap == 0.0 { scale * x } else { cap * (scale * x / cap).tanh() }) / case.temperature
    };
    let q = log_softmax(&student.iter().map(|x| through(&case.how, *x)).collect::<Vec<_>>());
    let p = match case.best {
        None => log_softmax(&teacher.iter().map(|x| through(&case.of_teacher, *x)).collect::<Vec<_>>()),
        Some(_) => log_softmax(&teacher.iter().map(|x| x / case.temperature).collect::<Vec<_>>()),
    };
    let [q, p] = match case.best {
        None => [q, p],
        Some((k, rest)) => {
            let (ids, _) = best_of(teacher, k);
            [q, p].map(|logs| {
                let kept: Vec<f64> = ids.iter().map(|id| logs[*id as usize]).collect();
                let mass = kept.iter().map(|log| log.exp()).sum::<f64>();
                let tail = (1.0 - mass).ln();
                if rest { [kept, vec![tail]].concat() } else { kept.iter().map(|x| x - mass.ln()).collect() }
            })
        }
    };
    let beta = f64::from(case.beta);
    let term = |(q, p): (&f64, &f64)| match beta {
        0.0 => p.exp() * (p - q),
        1.0 => q.exp() * (q - p),
        _ => {
            let m = (beta * p.exp() + (1.0 - beta) * q.exp()).ln();
            beta * p.exp() * (p - m) + (1.0 - beta) * q.exp() * (q - m)
        }
    };
    q.iter().zip(&p).map(term).sum()
}

/// Both losses and their gradient, with caps, weights, two types of storage and every instruction set; memory as on `meta`.
#[test]
fn divergences_are_their_definition() {
    let (tokens, vocab) = (7, 70);
    let capped = HeadUse { scale: 0.7, softcap: 2.5, z_loss: 0.0 };
    let numbers = |dtype: DType| Numbers {
        student: Matrix::random(tokens, vocab, 1).times(2.0).rounded(dtype),
        teacher: Matrix::random(tokens, vocab, 2).times(2.0).rounded(dtype),
        labels: (0..tokens).map(|t| if t == 3 { -100 } else { (t * 13 % vocab) as i32 }).collect(),
        weights: Matrix::new(1, tokens, |_, t| 0.5 + t as f64 / 4.0).rounded(DType::F32),
    };
    for beta in [0.0, 0.25, 1.0] {
        for best in [None, Some((6, true)), Some((6, false))] {
            for (how, of_teacher) in [(PLAIN.how, PLAIN.how), (capped, PLAIN.how), (capped, capped)] {
                for (dtype, tolerance) in [(DType::F32, 2e-5), (DType::Bf16, 2e-2)] {
                    let case = Case { beta, temperature: 1.5, best, how, of_teacher, ratio: 0.4 };
                    let numbers = numbers(dtype);
                    let row = |m: &Matrix, t: usize| (0..vocab).map(|v| m[(t, v)]).collect::<Vec<f64>>();
                    let mut expected = [Matrix::zeros(1, tokens), Matrix::zeros(tokens, vocab)];
                    for t in (0..tokens).filter(|t| numbers.labels[*t] >= 0) {
                        let teacher = row(&numbers.teacher, t);
                        let mut student = row(&numbers.student, t);
                        let entropy = |student: &[f64]| {
                            let of = Case { temperature: 1.0, ..case };
                            let (scale, cap) = (f64::from(of.how.scale), f64::from(of.how.softcap));
                            let f =
                                |x: &f64| if cap == 0.0 { scale * x } else { cap * (scale * x / cap).tanh() };
                            -log_softmax(&student.iter().map(f).collect::<Vec<_>>())
                                [numbers.labels[t] as usize]
                        };
                        expected[0][(0, t)] = definition(&case, &student, &teacher);
                        for v in 0..vocab {
                            let mut at = |x: f64| {
                                let before = std::mem::replace(&mut student[v], x);
                                let sum =
                                    0.4 * definition(&case, &student, &teacher) + 0.6 * entropy(&student);
                                student[v] = before;
                                sum
                            };
                            let x = numbers.student[(t, v)];
                            let slope = (at(x + 1e-5) - at(x - 1e-5)) / 2e-5;
                            expected[1][(t, v)] = slope * numbers.weights[(0, t)];
                        }
                    }
                    for isa in levels() {
                        let at = format!("{case:?}, {dtype:?}, {}", isa.name());
                        let machine = Arc::new(Cpu::new(2, Some(isa)));
                        let meta = Arc::new(Meta::new(machine.profile().clone()));
                        let ([_, divergences, dx], usage) = run(&case, &numbers, dtype, machine);
                        assert_close(&at, "divergence", &divergences.data, &expected[0].data, 2e-5, 0.0);
                        assert_close(&at, "gradient", &dx.data, &expected[1].data, tolerance, 0.0);
                        assert_eq!(run(&case, &numbers, dtype, meta).1, usage, "{at}");
                    }
                }
            }
        }
    }
}
