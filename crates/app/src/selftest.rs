//! Self-test of a machine: kernels against plain sums in f64.

use fathom_model::mask;
use fathom_tensor::{Attention, Category, DType, Device, MatMul, Slice, Tensor};

/// Sizes of the matrix product; none is a multiple of a tile.
const SIZES: [usize; 3] = [67, 83, 211];
/// Tokens, query and key heads, and head size of the attention test.
const TOKENS: usize = 150;
const HEADS: [usize; 2] = [4, 2];
const HEAD_DIM: usize = 32;

/// Name of a check, its largest error as a share of the largest value, and the tolerance.
pub type Line = (&'static str, f64, f64);

/// Runs the checks on a machine.
pub fn errors(device: &Device) -> [Line; 4] {
    let (wide, narrow) = (DType::F32, DType::Bf16);
    // A bf16 result has 8 bits; an f32 result is limited by its sums.
    [
        ("f32 product", product(device, wide), 1e-5),
        ("bf16 product", product(device, narrow), 8e-3),
        ("f32 attention", attention(device, wide), 1e-4),
        ("bf16 attention", attention(device, narrow), 2e-2),
    ]
}

/// Returns a tensor of pseudo-random numbers in [-1, 1), and its values as rounded to `dtype`.
fn numbers(device: &Device, rows: usize, cols: usize, dtype: DType, seed: u32) -> (Tensor, Vec<f64>) {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..rows * cols).map(|_| next()).collect();
    let plain = device.from_f32(rows, cols, &values, Category::Data);
    let tensor = device.empty(rows, cols, dtype, Category::Data);
    device.machine.copy(&plain, &tensor);
    let rounded = device.to_f32(&tensor).into_iter().map(f64::from).collect();
    (tensor, rounded)
}

fn scratch(device: &Device, bytes: u64) -> Tensor {
    device.empty(1, bytes as usize, DType::U8, Category::Workspace)
}

fn error(found: &[f32], expected: &[f64]) -> f64 {
    let largest = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    let differences = found.iter().zip(expected).map(|(x, y)| (f64::from(*x) - y).abs());
    // A NaN counts as an infinite error.
    differences.fold(0.0f64, |worst, x| if x.is_nan() { f64::INFINITY } else { worst.max(x) }) / largest
}

fn product(device: &Device, dtype: DType) -> f64 {
    let [m, n, k] = SIZES;
    let (a, a_numbers) = numbers(device, m, k, dtype, 1);
    let (b, b_numbers) = numbers(device, n, k, dtype, 2);
    let c = device.empty(m, n, dtype, Category::Data);
    let op = MatMul { a: &a, a_trans: false, b: &b, b_trans: true, c: &c, accumulate: false };
    device.machine.matmul(&op, &scratch(device, device.machine.profile().workspace(&op.desc())));
    let expected: Vec<f64> = a_numbers
        .chunks_exact(k)
        .flat_map(|a| b_numbers.chunks_exact(k).map(move |b| a.iter().zip(b).map(|(x, y)| x * y).sum()))
        .collect();
    error(&device.to_f32(&c), &expected)
}

fn attention(device: &Device, dtype: DType) -> f64 {
    let ([heads, kv_heads], d) = (HEADS, HEAD_DIM);
    let (q_cols, kv_cols) = (heads * d, kv_heads * d);
    let (q, q_numbers) = numbers(device, TOKENS, q_cols, dtype, 3);
    let (k, k_numbers) = numbers(device, TOKENS, kv_cols, dtype, 4);
    let (v, v_numbers) = numbers(device, TOKENS, kv_cols, dtype, 5);
    let positions: Vec<i32> = (0..TOKENS as i32).collect();
    let positions = device.from_i32(&positions, Category::Data);
    let slices = [Slice::causal(0..TOKENS, 0..TOKENS, None)];
    let mask = mask(device, &slices, 1, [&positions, &positions], 0);
    let out = device.empty(TOKENS, q_cols, dtype, Category::Data);
    let lse = device.empty(TOKENS, heads, DType::F32, Category::Data);
    let op = Attention::plain([&q, &k, &v], [&out, &lse], &mask, d);
    device.machine.attention(&op, &scratch(device, device.machine.profile().workspace(&op.desc(false))));
    let mut expected = vec![0.0f64; TOKENS * q_cols];
    for head in 0..heads {
        let (at_q, at_k) = (head * d, head / (heads / kv_heads) * d);
        for token in 0..TOKENS {
            let row = |all: &[f64], cols: usize, row: usize, at: usize| {
                all[row * cols + at..row * cols + at + d].to_vec()
            };
            let query = row(&q_numbers, q_cols, token, at_q);
            let weights: Vec<f64> = (0..=token)
                .map(|key| {
                    let key = row(&k_numbers, kv_cols, key, at_k);
                    let score: f64 = query.iter().zip(&key).map(|(x, y)| x * y).sum();
                    (score * f64::from(op.scale)).exp()
                })
                .collect();
            let sum: f64 = weights.iter().sum();
            for (key, weight) in weights.iter().enumerate() {
                for (column, value) in row(&v_numbers, kv_cols, key, at_k).iter().enumerate() {
                    expected[token * q_cols + at_q + column] += weight / sum * value;
                }
            }
        }
    }
    error(&device.to_f32(&out), &expected)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fathom_cpu::Cpu;
    use fathom_cpu::isa::Isa;

    use super::*;

    #[test]
    fn every_level_passes() {
        for isa in Isa::ALL {
            let device = Device::new(Arc::new(Cpu::new(2, Some(isa))), 64 << 20);
            for (name, error, bound) in errors(&device) {
                assert!(error <= bound && error > 0.0, "{} {name}: {error}", isa.name());
            }
        }
    }
}
