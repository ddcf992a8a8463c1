//! Results do not depend on where tokens are cut, on threads, or on other rows, and equal plain sums.

use std::sync::Arc;

use fathom_tensor::{Category, DType, Device, GroupedMatMul, GroupedWeight, Tensor};

use crate::Cpu;
use crate::isa::Isa;

const TOKENS: usize = 300;
const SLOTS: usize = 2;
const EXPERTS: usize = 5;
const INNER: usize = 19;
const OUT: usize = 23;

fn levels() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| *isa <= Isa::detect())
}

/// Numbers between -1 and 1 that are exact in bf16.
fn numbers(count: usize, step: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * step + i / 7) % 129) as f32 / 64.0 - 1.0).collect()
}

/// An expert or none for each slot; the last expert has no slots.
fn index() -> Vec<i32> {
    (0..TOKENS * SLOTS).map(|i| (i * 7 + i / 11 + i * i % 5) as i32 % EXPERTS as i32 - 1).collect()
}

fn upload(device: &Device, rows: usize, values: &[f32], dtype: DType) -> Tensor {
    let wide = device.from_f32(rows, values.len() / rows, values, Category::Data);
    let tensor = device.empty(rows, wide.cols(), dtype, Category::Data);
    device.machine.copy(&wide, &tensor);
    tensor
}

fn index_tensor(device: &Device) -> Tensor {
    device.from_i32(&index(), Category::Data).reshape(TOKENS, SLOTS)
}

/// The weights' gradient, with the tokens cut at these places.
fn weight(isa: Isa, threads: usize, dtype: DType, cuts: &[usize]) -> Vec<f32> {
    let device = Device::new(Arc::new(Cpu::new(threads, Some(isa))), 1 << 28);
    let a = upload(&device, TOKENS, &numbers(TOKENS * SLOTS * OUT, 29), dtype);
    let b = upload(&device, TOKENS, &numbers(TOKENS * INNER, 31), dtype);
    let (index, c) = (index_tensor(&device), device.zeros(EXPERTS * OUT, INNER, DType::F32, Category::Grads));
    for range in cuts.windows(2).map(|pair| pair[0]..pair[1]) {
        let [a, b, index] = [&a, &b, &index].map(|tensor| tensor.view_rows(range.clone()));
        let op = GroupedWeight { a: &a, b: &b, index: &index, experts: EXPERTS, c: &c };
        let bytes = device.machine.profile().workspace(&op.desc()) as usize;
        device.machine.grouped_weight(&op, &device.empty(1, bytes, DType::U8, Category::Workspace));
    }
    device.to_f32(&c)
}

/// The product for a range of tokens.
fn product(isa: Isa, threads: usize, dtype: DType, tokens: std::ops::Range<usize>) -> Vec<f32> {
    let device = Device::new(Arc::new(Cpu::new(threads, Some(isa))), 1 << 28);
    let a = upload(&device, TOKENS, &numbers(TOKENS * INNER, 31), dtype).view_rows(tokens.clone());
    let weights = upload(&device, EXPERTS * OUT, &numbers(EXPERTS * OUT * INNER, 37), dtype);
    let index = index_tensor(&device).view_rows(tokens.clone());
    let c = device.empty(tokens.len(), SLOTS * OUT, DType::F32, Category::Data);
    let op = GroupedMatMul { a: &a, weights: &weights, experts: EXPERTS, trans: true, index: &index, c: &c };
    let bytes = device.machine.profile().workspace(&op.desc()) as usize;
    device.machine.grouped_matmul(&op, &device.empty(1, bytes, DType::U8, Category::Workspace));
    device.to_f32(&c)
}

#[test]
fn weights_gradients_do_not_depend_on_cuts_and_threads() {
    for isa in levels() {
        for dtype in [DType::F32, DType::Bf16] {
            let whole = weight(isa, 1, dtype, &[0, TOKENS]);
            for cuts in [vec![0, 128, TOKENS], vec![0, 256, TOKENS], vec![0, 128, 256, TOKENS]] {
                assert_eq!(whole, weight(isa, 3, dtype, &cuts), "{} {dtype:?} {cuts:?}", isa.name());
            }
        }
    }
}

#[test]
fn rows_do_not_depend_on_other_rows() {
    for isa in levels() {
        for dtype in [DType::F32, DType::Bf16] {
            let all = product(isa, 2, dtype, 0..TOKENS);
            for tokens in [0..1, 7..20, 100..229] {
                let some = product(isa, 1, dtype, tokens.clone());
                let of = &all[tokens.start * SLOTS * OUT..tokens.end * SLOTS * OUT];
                assert_eq!(some, of, "{} {dtype:?} {tokens:?}", isa.name());
            }
        }
    }
}

#[test]
fn sums_are_right() {
    let (index, x) = (index(), numbers(TOKENS * INNER, 31));
    let (dy, w) = (numbers(TOKENS * SLOTS * OUT, 29), numbers(EXPERTS * OUT * INNER, 37));
    let close = |found: &[f32], expected: &[f64]| {
        assert_eq!(found.len(), expected.len());
        let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let off = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() > 1e-5 * largest;
        assert!(!found.iter().zip(expected).any(off));
    };
    let mut gradient = vec![0.0; EXPERTS * OUT * INNER];
    let mut result = vec![0.0; TOKENS * SLOTS * OUT];
    for (slot, expert) in index.iter().enumerate().filter(|(_, expert)| **expert >= 0) {
        for (o, i) in (0..OUT).flat_map(|o| (0..INNER).map(move |i| (o, i))) {
            let (at, x) = ((*expert as usize * OUT + o) * INNER + i, f64::from(x[slot / SLOTS * INNER + i]));
            gradient[at] += f64::from(dy[slot * OUT + o]) * x;
            result[slot * OUT + o] += f64::from(w[at]) * x;
        }
    }
    for isa in levels() {
        for dtype in [DType::F32, DType::Bf16] {
            close(&weight(isa, 2, dtype, &[0, TOKENS]), &gradient);
            close(&product(isa, 2, dtype, 0..TOKENS), &result);
        }
    }
}
