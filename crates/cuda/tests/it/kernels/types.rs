//! Conversions between storage types, compared with arithmetic in f64.

use fathom_tensor::{Category, DType};

use super::{devices, floats};

/// The nearest number with `mantissa` bits, where `least` is the exponent of the least normal number and `most` the
/// largest number; ties to even.
fn nearest(x: f64, mantissa: i32, least: i32, most: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let exponent = (x.abs().log2().floor() as i32).max(least);
    let quantum = 2f64.powi(exponent - mantissa);
    ((x / quantum).round_ties_even() * quantum).clamp(-most, most)
}

#[test]
fn small_floats_are_the_nearest() {
    let Some([_, device]) = devices() else { return };
    let mut values: Vec<f32> = super::numbers(4000, 1);
    values.iter_mut().enumerate().for_each(|(at, x)| *x *= 2f32.powi(at as i32 % 34 - 24));
    values.extend([
        0.0,
        -0.0,
        448.0,
        464.0,
        464.1,
        480.0,
        0.0009765625,
        0.00097656,
        65504.0,
        -57344.0,
        61440.0,
        1e30,
        f32::NAN,
    ]);
    let x = device.from_f32(1, values.len(), &values, Category::Data);
    for (dtype, mantissa, least, most) in [
        (DType::F8E4M3, 3, -6, 448.0),
        (DType::F8E5M2, 2, -14, 57_344.0),
        (DType::F16, 10, -14, f64::INFINITY),
    ] {
        let narrow = device.empty(1, values.len(), dtype, Category::Data);
        device.machine.copy(&x, &narrow);
        for (got, x) in floats(&device, &narrow).iter().zip(&values) {
            let expected = nearest(f64::from(*x), mantissa, least, most);
            let expected = if dtype == DType::F16 && expected.abs() > 65_504.0 {
                expected.signum() * f64::INFINITY
            } else {
                expected
            };
            let same = f64::from(*got) == expected || got.is_nan() && expected.is_nan();
            assert!(
                same && got.is_sign_negative() == x.is_sign_negative() || x.is_nan(),
                "{dtype:?} of {x}: {got}, not {expected}"
            );
        }
    }
}

#[test]
fn half_is_that_of_the_crate() {
    let Some([_, device]) = devices() else { return };
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let bits = device.empty(1, 1 << 16, DType::F16, Category::Data);
    device.machine.write(&bits, &all);
    for (got, bits) in floats(&device, &bits).iter().zip(0..=u16::MAX) {
        let expected = half::f16::from_bits(bits).to_f32();
        assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(), "{bits:#x}: {got}");
    }
}
