//! exp, ln, sigmoid, tanh and the normal distribution for vector loops: no branch, no table, errors of a few
//! units in the last place. Polynomials are Chebyshev fits made for this file.

use super::level::{Level, madd};

/// The polynomial with these coefficients, highest power first.
#[inline(always)]
fn horner<L: Level, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut y = c[0];
    for i in 1..N {
        y = madd::<L>(y, x, c[i]);
    }
    y
}

/// e^x; 0 below -87, e^88 above 88, NaN stays NaN.
#[inline(always)]
pub(crate) fn exp<L: Level>(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts; the first has 15 bits, so that its multiples are exact.
    const LN2_HIGH: f32 = 0.693_145_75;
    const LN2_LOW: f32 = 1.428_606_8e-6;
    // 1.5 x 2^23: adding it leaves the nearest integer in the low bits of the mantissa.
    const SHIFT: f32 = 12_582_912.0;
    let low = x < -87.0;
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = madd::<L>(x, LOG2_E, SHIFT);
    let n = shifted - SHIFT;
    let r = madd::<L>(n, -LN2_LOW, madd::<L>(n, -LN2_HIGH, x));
    let p = horner::<L, 7>(r, [1.394_141_1e-3, 8.375_368e-3, 4.166_635e-2, 1.666_641_3e-1, 0.5, 1.0, 1.0]);
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    if low { 0.0 } else { p * power }
}

/// ln x of a normal number above 0, by `ln m = 2 artanh((m - 1) / (m + 1))` of its mantissa.
#[inline(always)]
pub(crate) fn ln<L: Level>(x: f32) -> f32 {
    let bits = x.to_bits();
    let m = f32::from_bits((bits & 0x007f_ffff) | 1.0f32.to_bits());
    let up = m > std::f32::consts::SQRT_2;
    let (m, n) = (if up { 0.5 * m } else { m }, (bits >> 23) as i32 - 127 + i32::from(up));
    let s = (m - 1.0) / (m + 1.0);
    let series = horner::<L, 5>(s * s, [2.0 / 9.0, 2.0 / 7.0, 0.4, 2.0 / 3.0, 2.0]);
    madd::<L>(n as f32, std::f32::consts::LN_2, s * series)
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<L: Level>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<L>(-x))
}

/// The hyperbolic tangent: a polynomial near zero, otherwise from e^-2|x|.
#[inline(always)]
pub(super) fn tanh<L: Level>(x: f32) -> f32 {
    let size = x.abs();
    let z = x * x;
    let odd = horner::<L, 6>(
        z,
        [-5.599_785e-3, 2.053_697_2e-2, -5.370_427_7e-2, 1.333_091_7e-1, -0.333_332_5, 1.0],
    );
    let e = exp::<L>(-2.0 * size);
    let far = ((1.0 - e) / (1.0 + e)).copysign(x);
    if size < 0.625 { x * odd } else { far }
}

/// The normal distribution function and its density at `x`.
#[inline(always)]
pub(super) fn normal<L: Level>(x: f32) -> (f32, f32) {
    const INV_SQRT_2PI: f32 = 0.398_942_3;
    // erfc(y) = e^(-y^2) Q(t) with t = 1 / (1 + 0.4 y) and y = |x| / sqrt 2.
    let t = 1.0 / madd::<L>(0.4 * std::f32::consts::FRAC_1_SQRT_2, x.abs(), 1.0);
    let q = horner::<L, 9>(
        t,
        [
            0.087_484_74,
            -0.463_458,
            0.838_868_74,
            -0.567_799_06,
            0.557_412_4,
            0.068_476_97,
            0.257_197_7,
            0.221_584_1,
            2.324_23e-4,
        ],
    );
    let e = exp::<L>(-0.5 * x * x);
    let tail = 0.5 * q * e;
    (if x < 0.0 { tail } else { 1.0 - tail }, INV_SQRT_2PI * e)
}

#[cfg(test)]
mod tests {
    use super::super::level::Plain;
    use super::*;

    /// The largest error of `f` against `exact` over a range, relative to `max(|exact|, floor)`.
    fn worst(from: f64, to: f64, floor: f64, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> f64 {
        (0..200_001)
            .map(|i| (from + (to - from) * i as f64 / 200_000.0) as f32)
            .map(|x| (f(x) as f64 - exact(x as f64)).abs() / exact(x as f64).abs().max(floor))
            .fold(0.0, f64::max)
    }

    #[test]
    fn functions_are_close_to_f64() {
        assert!(worst(-86.9, 88.0, 0.0, exp::<Plain>, f64::exp) < 2e-7);
        assert!(worst(1e-6, 3.0, 1e-3, ln::<Plain>, f64::ln) < 3e-7);
        assert!(worst(1.0, 1e9, 1e-3, ln::<Plain>, f64::ln) < 3e-7);
        assert!(worst(-30.0, 30.0, 0.0, sigmoid::<Plain>, |x| 1.0 / (1.0 + (-x).exp())) < 4e-7);
        assert!(worst(-12.0, 12.0, 0.0, tanh::<Plain>, f64::tanh) < 4e-7);
        // The distribution function by Simpson's rule.
        let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        for i in -60..=60 {
            let x = i as f64 / 10.0;
            let step = x / 2000.0;
            let area: f64 = (0..1000)
                .map(|j| 2.0 * j as f64 * step)
                .map(|a| (density(a) + 4.0 * density(a + step) + density(a + 2.0 * step)) * step / 3.0)
                .sum();
            let (phi, pdf) = normal::<Plain>(x as f32);
            assert!((phi as f64 - 0.5 - area).abs() < 1.5e-7, "{x}");
            assert!((pdf as f64 - density(x)).abs() < 2e-7, "{x}");
        }
    }

    #[test]
    fn the_ends_of_exp_hold() {
        assert_eq!(exp::<Plain>(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp::<Plain>(0.0), 1.0);
        assert!(exp::<Plain>(f32::NAN).is_nan());
        assert!(exp::<Plain>(1e9).is_finite());
        assert_eq!(tanh::<Plain>(-0.0).to_bits(), (-0.0f32).to_bits());
    }
}
