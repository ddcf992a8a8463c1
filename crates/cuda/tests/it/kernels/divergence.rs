//! Divergences from a teacher: whole distributions and best tokens, the vocabulary on one rank and on two.

use fathom_tensor::{
    Category, CrossEntropy, DType, Device, Distance, Divergence, DivergenceOutput, Dropout, RowDistance,
    TeacherLogits, Tensor, VocabularyShare,
};

use super::{blank, random, same};

const ROWS: usize = 4;
const K: usize = 5;

/// Statistics of each rank's columns, for one rank or two.
fn statistics(device: &Device, sides: &[Tensor], labels: &Tensor, [scale, softcap]: [f32; 2]) -> Tensor {
    let all = device.zeros(2 * sides.len(), ROWS, DType::F32, Category::Data);
    let mut first = 0;
    for (rank, logits) in sides.iter().enumerate() {
        device.machine.cross_entropy(&CrossEntropy {
            logits,
            labels,
            weights: None,
            loss: &device.zeros(1, ROWS, DType::F32, Category::Data),
            dlogits: None,
            scale,
            softcap,
            z_loss: 0.0,
            spread: Some(VocabularyShare {
                first,
                stats: Some(&all.view_rows(2 * rank..2 * rank + 2)),
                all: None,
            }),
            measures: None,
        });
        first += logits.cols();
    }
    all
}

fn run(device: &Device, widths: &[usize], beta: f32, softcap: f32, best: Option<bool>) -> Vec<Tensor> {
    let labels = device.from_i32(&[3, -1, 0, 7], Category::Data);
    let weights = device.from_f32(1, ROWS, &[0.5, 1.0, 2.0, 1.0], Category::Data);
    let side = |seed: u64| -> Vec<Tensor> {
        let of =
            |(rank, width): (usize, &usize)| random(device, [ROWS, *width], DType::F32, seed + rank as u64);
        widths.iter().enumerate().map(of).collect()
    };
    let (students, teachers) = (side(1), side(11));
    let how = [1.3, softcap];
    let stats = statistics(device, &students, &labels, how);
    let of_teacher = statistics(device, &teachers, &labels, [0.8, 0.0]);
    let ids = [0, 2, 9, 17, 40].repeat(ROWS);
    let ids = device.from_i32(&ids, Category::Data).reshape(ROWS, K);
    let logps: Vec<f32> =
        (0..ROWS * K).map(|at| -1.2 - (at % K) as f32 * 0.9 - (at / K) as f32 * 0.1).collect();
    let logps = device.from_f32(ROWS, K, &logps, Category::Data);
    let parts: Vec<Tensor> = widths
        .iter()
        .map(|_| device.zeros(if best.is_some() { K } else { 2 }, ROWS, DType::F32, Category::Data))
        .collect();
    let mut results = Vec::new();
    for round in 0..2 {
        let mut first = 0;
        for rank in 0..widths.len() {
            let teacher = match best {
                None => TeacherLogits::Whole {
                    logits: &teachers[rank],
                    stats: &of_teacher,
                    scale: 0.8,
                    softcap: 0.0,
                },
                Some(rest) => TeacherLogits::Best { ids: &ids, logps: &logps, rest },
            };
            let loss = device.zeros(1, ROWS, DType::F32, Category::Data);
            let dlogits = blank(device, [ROWS, widths[rank]], DType::F32);
            // In place of the teacher's logits, if there are any.
            let dlogits = if best.is_none() && rank == 0 { teachers[0].clone() } else { dlogits };
            let out = DivergenceOutput { loss: &loss, dlogits: &dlogits, weights: &weights, factor: 0.7 };
            device.machine.divergence(&Divergence {
                logits: &students[rank],
                stats: &stats,
                scale: how[0],
                softcap,
                teacher,
                labels: &labels,
                first,
                beta,
                parts: &parts[rank],
                out: (round == 1).then_some(out),
            });
            first += widths[rank];
            if round == 1 {
                results.extend([loss.clone(), dlogits.clone()]);
            }
        }
        // The sum over the ranks.
        if round == 0 && widths.len() == 2 {
            device.machine.add(&parts[0], &parts[1], &parts[0]);
            device.machine.copy(&parts[0], &parts[1]);
        }
    }
    results.extend(parts);
    results
}

#[test]
fn divergences_agree_with_the_cpu() {
    for widths in [&[1003][..], &[40, 33]] {
        for beta in [0.0, 0.3, 1.0] {
            for softcap in [0.0, 3.0] {
                for best in [None, Some(true), Some(false)] {
                    same("divergence", |device| run(device, widths, beta, softcap, best));
                }
            }
        }
    }
}

/// Distances of hidden states, with the gradient in place of the target and in a separate tensor.
#[test]
fn distances_of_hidden_states_agree_with_the_cpu() {
    for dtype in [DType::F32, DType::Bf16] {
        for (distance, in_place) in [
            (Distance::Mse, false),
            (Distance::Mse, true),
            (Distance::Cosine, false),
            (Distance::Cosine, true),
        ] {
            same("row distance", |device| {
                let [x, target] = [1, 2].map(|seed| random(device, [ROWS, 300], dtype, seed));
                let dx = if in_place { target.clone() } else { blank(device, [ROWS, 300], dtype) };
                let loss = device.zeros(1, ROWS, DType::F32, Category::Data);
                device.machine.row_distance(&RowDistance {
                    distance,
                    x: &x,
                    target: &target,
                    labels: &device.from_i32(&[3, -1, 0, 7], Category::Data),
                    weights: &device.from_f32(1, ROWS, &[0.5, 1.0, 2.0, 1.0], Category::Data),
                    factor: 0.7,
                    loss: &loss,
                    dx: &dx,
                });
                vec![loss, dx]
            });
        }
    }
}

/// Noise on rows has the bits of the CPU machine's.
#[test]
fn noise_has_the_bits_of_the_cpu() {
    for dtype in [DType::F32, DType::Bf16] {
        same("jitter", |device| {
            let x = random(device, [ROWS, 300], dtype, 1);
            let keys = device.from_i32(&[0, 7, -9, i32::MAX], Category::Data);
            let scales = device.from_f32(1, ROWS, &[0.5, 0.0, 3.0, 1e-3], Category::Data);
            device.machine.jitter(&x, &keys, &scales);
            vec![x]
        });
    }
}

/// Dropout has the bits of the CPU machine's.
#[test]
fn dropout_has_the_bits_of_the_cpu() {
    for dtype in [DType::F32, DType::Bf16] {
        same("dropout", |device| {
            let x = random(device, [ROWS, 300], dtype, 1);
            let keys = device.from_i32(&[0, 7, -9, i32::MAX], Category::Data);
            device.machine.dropout(&x, &keys, Dropout::new(0.3, 0x9e37_79b1, 40));
            vec![x]
        });
    }
}
