//! Random numbers, and the choice of tokens against sorting.

use fathom_cuda::kernels::{argmax, draw, random_uniform};
use fathom_tensor::{Category, DType, Device};

use super::{blank, devices, emulator::run, floats, ints, random, set};

/// As the engine's sampler has it.
fn uniform(seed: u64, counter: u64) -> f64 {
    let mut z = seed.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[test]
fn random_numbers_are_functions_of_their_place() {
    let Some([_, device]) = devices() else { return };
    let out = blank(&device, [7, 33], DType::F32);
    run(&random_uniform(&out, 9, 1 << 40));
    for (at, got) in floats(&device, &out).iter().enumerate() {
        assert_eq!(*got, uniform(9, (1 << 40) + at as u64) as f32);
    }
}

#[test]
fn the_first_of_the_largest() {
    let Some([_, device]) = devices() else { return };
    let logits = random(&device, [3, 1300], DType::Bf16, 1);
    set(&device, &logits.view_rows(0..1).view_cols(700..702), &[9.0, 9.0]);
    set(&device, &logits.view_rows(1..2), &[-3.0; 1300]);
    let ids = device.from_i32(&[-1; 3], Category::Data);
    run(&argmax(&logits, &ids));
    let row = &floats(&device, &logits)[2600..];
    let best = (0..1300).fold(0, |best, at| if row[at] > row[best] { at } else { best });
    assert_eq!(ints(&device, &ids), [700, 0, best as i32]);
}

/// The engine's sampler, from sorted logits.
fn choose(logits: &[f32], [temperature, top_p, min_p]: [f64; 3], top_k: usize, number: f64) -> i32 {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    if top_k > 0 {
        order.truncate(top_k);
    }
    let top = f64::from(logits[order[0]]);
    let mut weights: Vec<f64> =
        order.iter().map(|id| ((f64::from(logits[*id]) - top) / temperature).exp()).collect();
    if top_p < 1.0 {
        let (total, mut sum) = (weights.iter().sum::<f64>(), 0.0);
        let last = weights.iter().position(|weight| {
            sum += weight;
            sum >= top_p * total
        });
        weights.truncate(last.unwrap() + 1);
    }
    weights.retain(|weight| *weight >= min_p);
    let mut left = number * weights.iter().sum::<f64>();
    let chosen = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    order[chosen.unwrap()] as i32
}

fn doubles(device: &Device, values: [f64; 4]) -> fathom_tensor::Tensor {
    let tensor = device.empty(1, 8, DType::F32, Category::Data);
    device.machine.write(&tensor, &values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    tensor
}

#[test]
fn tokens_are_those_of_the_engine() {
    let Some([_, device]) = devices() else { return };
    let (rows, vocab) = (6, 333);
    let logits = random(&device, [rows, vocab], DType::F32, 4);
    let values = floats(&device, &logits);
    let counters = device.empty(2, rows, DType::I64, Category::Data);
    let numbers: Vec<u64> = (0..rows as u64).chain(0..rows as u64).collect();
    device.machine.write(&counters, &numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    for (settings, top_k) in [
        ([1.0, 1.0, 0.0], 0),
        ([0.5, 1.0, 0.0], 5),
        ([1.5, 0.7, 0.0], 0),
        ([1.0, 0.9, 0.2], 40),
        ([0.0, 1.0, 0.0], 0),
    ] {
        let ids = device.from_i32(&vec![-1; rows], Category::Data);
        let [temperature, top_p, min_p] = settings;
        run(&draw(&logits, &ids, &doubles(&device, [temperature, top_p, min_p, 0.0]), top_k, &counters));
        let expected: Vec<i32> = (0..rows)
            .map(|row| {
                let logits = &values[row * vocab..(row + 1) * vocab];
                let settings = if temperature == 0.0 { [1.0, 1.0, 1.0] } else { settings };
                choose(logits, settings, top_k, uniform(row as u64, row as u64))
            })
            .collect();
        assert_eq!(ints(&device, &ids), expected, "{settings:?} {top_k}");
    }
}
