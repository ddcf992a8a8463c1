//! Compares products with f64 sums of the documented formulas.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::device::{Ready, submit_when};

/// op(A) op(B) element by element, with a factor for each pair of elements.
fn reference(
    [a, b]: [&Side; 2],
    transposed: [bool; 2],
    [m, n, k]: [usize; 3],
    factor: impl Fn(usize, usize, usize) -> f64,
) -> Vec<f64> {
    let mut all = vec![0.0; m * n];
    for col in 0..n {
        for row in 0..m {
            let pair = |inner: usize| {
                let left = if transposed[0] { a.at(inner, row) } else { a.at(row, inner) };
                let right = if transposed[1] { b.at(col, inner) } else { b.at(inner, col) };
                left * right * factor(row, col, inner)
            };
            all[col * m + row] = (0..k).map(pair).sum();
        }
    }
    all
}

/// Half a unit in the last place of a type: relative, and absolute for the smallest numbers.
fn unit(kind: Kind) -> [f64; 2] {
    let [relative, absolute] = match kind {
        Kind::F32 => [-24, -150],
        Kind::F16 => [-11, -25],
        Kind::Bf16 => [-8, -134],
        Kind::E4m3 => [-4, -10],
        Kind::E5m2 => [-3, -17],
    };
    [2f64.powi(relative), 2f64.powi(absolute)]
}

fn near(found: &[f32], expected: &[f64], kind: Kind, k: usize) {
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let [relative, absolute] = unit(kind);
        let most = 1.01 * relative * expected.abs() + absolute + 4.0 * k as f64 * 2f64.powi(-24);
        let off = (f64::from(*found) - expected).abs();
        assert!(off <= most, "element {index}: {found}, expected {expected}, off by {off}, at most {most}");
    }
}

struct Sides {
    a: Side,
    b: Side,
    c: Side,
    d: Side,
    random: Random,
}

fn sides(kinds: [Kind; 4], transposed: [bool; 2], [m, n, k]: [usize; 3], gaps: [usize; 4]) -> Sides {
    let mut random = Random((m * 31 + n * 7 + k) as u64 | 1 << 40);
    let mut side = |index: usize, shape: [usize; 2], turned: bool| {
        let shape = if turned { [shape[1], shape[0]] } else { shape };
        Side::new(kinds[index], shape, shape[0] + gaps[index], &mut random)
    };
    let (a, b) = (side(0, [m, k], transposed[0]), side(1, [k, n], transposed[1]));
    let (c, d) = (side(2, [m, n], false), side(3, [m, n], false));
    Sides { a, b, c, d, random }
}

fn check(
    kinds: [Kind; 4],
    transposed: [bool; 2],
    shape: [usize; 3],
    gaps: [usize; 4],
    [alpha, beta]: [f32; 2],
) {
    let Sides { a, b, c, d, .. } = sides(kinds, transposed, shape, gaps);
    let mut call = Call::new([&a, &b, &c, &d], transposed, stream());
    (call.alpha, call.beta) = (alpha, beta);
    let [m, n, k] = shape;
    let product = reference([&a, &b], transposed, shape, |_, _, _| 1.0);
    let expected: Vec<f64> = (0..m * n)
        .map(|at| f64::from(alpha) * product[at] + f64::from(beta) * f64::from(c.values[at]))
        .collect();
    for pick in 0..5 {
        call.pick = Some(pick);
        call.run();
        near(&d.read(), &expected, d.kind, k);
    }
    // The gaps between columns are unchanged.
    for col in 0..n - 1 {
        let gap: &[u8] = {
            let start = d.column(col) + m as u64 * d.kind.size();
            let from = std::ptr::with_exposed_provenance(start as usize);
            // SAFETY: within the allocation.
            unsafe { std::slice::from_raw_parts(from, gaps[3] * d.kind.size() as usize) }
        };
        assert!(gap.iter().all(|byte| *byte == 0xff));
    }
}

const WAYS: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

#[test]
fn floats_of_all_ways_and_odd_shapes() {
    use Kind::{Bf16, F16, F32};
    for way in WAYS {
        for kinds in [[F32; 4], [Bf16; 4], [F16; 4], [Bf16, Bf16, F32, F32], [F16, F16, F32, F32]] {
            check(kinds, way, [5, 7, 3], [1, 2, 3, 4], [1.0, 0.0]);
            check(kinds, way, [33, 18, 65], [3, 0, 5, 1], [0.75, -1.5]);
            check(kinds, way, [1, 1, 1], [0; 4], [2.0, 1.0]);
        }
    }
    check([Bf16, Bf16, F32, F32], [true, false], [200, 130, 300], [8; 4], [1.0, 1.0]);
}

#[test]
fn a_beta_of_zero_does_not_read_c() {
    let Sides { a, b, c, d, .. } = sides([Kind::F32; 4], [false; 2], [8, 8, 8], [0; 4]);
    // SAFETY: within the allocation.
    unsafe { Kind::F32.write(&[f32::NAN; 64], c.address) };
    let mut call = Call::new([&a, &b, &c, &d], [false; 2], stream());
    call.run();
    assert!(d.read().iter().all(|value| value.is_finite()));
    // The address need not even be valid.
    call.places[2].address = 256;
    call.run();
    call.places[2].address = 0;
    call.run();
    call.beta = 1.0;
    assert_eq!(call.make(), (OK, Status::CUBLAS_STATUS_INVALID_VALUE));
}

#[test]
fn accumulates_in_place_and_again() {
    let Sides { a, b, c, .. } =
        sides([Kind::Bf16, Kind::Bf16, Kind::F32, Kind::F32], [false, true], [16, 12, 20], [0; 4]);
    let mut call = Call::new([&a, &b, &c, &c], [false, true], stream());
    call.beta = 1.0;
    let product = reference([&a, &b], [false, true], [16, 12, 20], |_, _, _| 1.0);
    call.make();
    call.make();
    drive(call.stream);
    let expected: Vec<f64> =
        product.iter().zip(&c.values).map(|(new, old)| 2.0 * new + f64::from(*old)).collect();
    near(&c.read(), &expected, Kind::F32, 40);
}

#[test]
fn scalars_of_the_device_are_read_when_the_product_runs() {
    let Sides { a, b, c, d, .. } = sides([Kind::F32; 4], [false; 2], [8, 8, 8], [0; 4]);
    let mut call = Call::new([&a, &b, &c, &d], [false; 2], stream());
    let (alpha, beta) = (floats(&[2.0]), floats(&[-1.0]));
    call.device_scalars = Some([alpha, beta]);
    // Device scalars with the pointer mode for the host; then vice versa.
    assert_eq!(call.make(), (OK, Status::CUBLAS_STATUS_INVALID_VALUE));
    call.set(Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE, 1, 4);
    call.run();
    let product = reference([&a, &b], [false; 2], [8, 8, 8], |_, _, _| 2.0);
    let expected: Vec<f64> = product.iter().zip(&c.values).map(|(new, old)| new - f64::from(*old)).collect();
    near(&d.read(), &expected, Kind::F32, 8);
    call.device_scalars = None;
    assert_eq!(call.make(), (OK, Status::CUBLAS_STATUS_INVALID_VALUE));
}

#[test]
fn rounded_products_round_what_they_multiply() {
    let Sides { mut a, mut b, c, d, .. } = sides([Kind::F32; 4], [true, false], [9, 6, 40], [0; 4]);
    let mut call = Call::new([&a, &b, &c, &d], [true, false], stream());
    for (compute, bits) in [
        (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, 10),
        (Compute::CUBLAS_COMPUTE_32F_FAST_16F, 10),
        (Compute::CUBLAS_COMPUTE_32F_FAST_16BF, 7),
    ] {
        call.compute = compute;
        call.run();
        let found = d.read();
        let whole = (a.values.clone(), b.values.clone());
        for side in [&mut a, &mut b] {
            for value in &mut side.values {
                let unit = 2f32.powi((value.to_bits() >> 23 & 0xff) as i32 - 127 - bits);
                *value = (*value / unit).round_ties_even() * unit;
            }
        }
        let expected = reference([&a, &b], [true, false], [9, 6, 40], |_, _, _| 1.0);
        near(&found, &expected, Kind::F32, 80);
        (a.values, b.values) = whole;
    }
}

#[test]
fn scalars_and_factors_are_read_when_the_product_runs() {
    let Sides { a, b, c, d, .. } =
        sides([Kind::E4m3, Kind::E4m3, Kind::F32, Kind::F32], [true, false], [16, 8, 32], [0; 4]);
    let mut call = Call::new([&a, &b, &c, &d], [true, false], stream());
    let factor = floats(&[f32::NAN]);
    call.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, factor, 8);
    let gate = Arc::new(AtomicBool::new(false));
    let open = gate.clone();
    let ready: Ready = Arc::new(move || open.load(Ordering::SeqCst));
    submit_when(call.stream, "a gate", Some(ready), Arc::new(|| Ok(()))).unwrap();
    assert_eq!(call.make(), (OK, OK));
    // SAFETY: of an allocation.
    unsafe { Kind::F32.write(&[-0.5], factor) };
    gate.store(true, Ordering::SeqCst);
    drive(call.stream);
    let expected = reference([&a, &b], [true, false], [16, 8, 32], |_, _, _| -0.5);
    near(&d.read(), &expected, Kind::F32, 32);
}

#[test]
fn tensors_of_eight_bits_have_factors() {
    use Kind::{Bf16, E4m3, E5m2, F16, F32};
    let cases = [
        [E4m3, E4m3, Bf16, Bf16],
        [E4m3, E5m2, F16, F16],
        [E5m2, E4m3, F32, F32],
        [E4m3, E4m3, Bf16, E4m3],
        [E5m2, E4m3, F16, E5m2],
    ];
    for kinds in cases {
        let shape @ [m, n, k] = [48, 20, 64];
        let Sides { a, b, c, d, .. } = sides(kinds, [true, false], shape, [16, 32, 16, 16]);
        let mut call = Call::new([&a, &b, &c, &d], [true, false], stream());
        (call.alpha, call.beta) = (0.5, 2.0);
        let factors = [0.25f32, 3.0, -0.125, 1.5];
        call.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, floats(&factors[..1]), 8);
        call.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, floats(&factors[1..2]), 8);
        call.set(Attribute::CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, floats(&factors[2..3]), 8);
        call.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1, 1);
        let most = floats(&[-7.0]);
        if d.kind.is_narrow() {
            call.set(Attribute::CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, floats(&factors[3..]), 8);
            call.set(Attribute::CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, most, 8);
        }
        call.run();
        let product = reference([&a, &b], [true, false], shape, |_, _, _| 0.75);
        let before: Vec<f64> =
            product.iter().zip(&c.values).map(|(new, old)| 0.5 * new - 0.25 * f64::from(*old)).collect();
        let last = if d.kind.is_narrow() { 1.5 } else { 1.0 };
        let expected: Vec<f64> = before.iter().map(|value| last * value).collect();
        assert_eq!(expected.len(), m * n);
        near(&d.read(), &expected, d.kind, k);
        if d.kind.is_narrow() {
            let largest = before.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
            assert!((f64::from(float(most)) - largest).abs() < 1e-5);
        }
    }
}

/// A factor for each documented place, with all padding left as NaN.
fn blocks(
    mode: u64,
    outer: usize,
    k: usize,
    random: &mut Random,
) -> (u64, impl Fn(usize, usize) -> f64 + use<>) {
    let length = k.div_ceil(128);
    let stride = length.div_ceil(4) * 4;
    let count = match mode {
        3 => outer,
        4 => outer * length,
        _ => stride * outer.div_ceil(128),
    };
    let values: Vec<f32> = (0..count).map(|_| random.next() + 1.5).collect();
    let mut kept = values.clone();
    if mode == 5 {
        for (index, value) in kept.iter_mut().enumerate() {
            if index % stride >= length {
                *value = f32::NAN;
            }
        }
    }
    let address = floats(&kept);
    let get = move |outside: usize, inner: usize| {
        let block = inner / 128;
        f64::from(match mode {
            3 => values[outside],
            // Contiguous along the outer dimension.
            4 => values[block * outer + outside],
            // Contiguous along the inner dimension, in columns padded to a multiple of four.
            _ => values[outside / 128 * stride + block],
        })
    };
    (address, get)
}

#[test]
fn blocks_of_eight_bits_have_factors() {
    for modes in [[3, 3], [4, 4], [4, 5], [5, 4]] {
        for shape @ [m, n, k] in [[160, 136, 400], [16, 8, 128], [264, 264, 16], [32, 136, 1040]] {
            for kinds in [
                [Kind::E4m3, Kind::E4m3, Kind::Bf16, Kind::Bf16],
                [Kind::E5m2, Kind::E4m3, Kind::F32, Kind::F32],
            ] {
                let Sides { a, b, c, d, mut random } = sides(kinds, [true, false], shape, [16, 0, 8, 16]);
                let mut call = Call::new([&a, &b, &c, &d], [true, false], stream());
                (call.alpha, call.beta) = (0.75, 1.0);
                let (at_a, left) = blocks(modes[0], m, k, &mut random);
                let (at_b, right) = blocks(modes[1], n, k, &mut random);
                call.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, modes[0], 4);
                call.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, modes[1], 4);
                call.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, at_a, 8);
                call.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, at_b, 8);
                call.run();
                let factor = |row, col, inner| left(row, inner) * right(col, inner);
                let product = reference([&a, &b], [true, false], shape, factor);
                let expected: Vec<f64> =
                    product.iter().zip(&c.values).map(|(new, old)| 0.75 * new + f64::from(*old)).collect();
                near(&d.read(), &expected, d.kind, 8 * k);
            }
        }
    }
}

#[test]
fn a_part_of_a_wider_buffer_can_be_written() {
    // Rows of D next to those of A, in shared columns.
    let Sides { mut a, b, c, mut d, .. } = sides([Kind::Bf16; 4], [true, false], [12, 12, 12], [20; 4]);
    let whole = room(32 * 12 * 2 + 512);
    (a.address, d.address) = (whole, whole + 32);
    for col in 0..12 {
        // SAFETY: within the allocation.
        unsafe { Kind::Bf16.write(&a.values[col * 12..(col + 1) * 12], a.column(col)) };
    }
    let mut call = Call::new([&a, &b, &c, &d], [true, false], stream());
    call.alignments = [32; 4];
    call.run();
    let expected = reference([&a, &b], [true, false], [12; 3], |_, _, _| 1.0);
    near(&d.read(), &expected, Kind::Bf16, 12);
    assert_eq!(a.read(), a.values);
}
