//! Rounding of an optimizer's moments, and of weights without masters, to fewer bits than f32.
//!
//! Rounding to nearest would freeze small changes: an average that moves by a twentieth never leaves its code, as there
//! are only eight codes between powers of two; one that moves by a thousandth never leaves a bf16 number, and neither
//! does a weight whose step is less than 1/512 of it. An update therefore rounds up or down by a hash of the weight,
//! the element and the count of updates: unbiased, and the same whichever rank or machine does it.
//!
//! In eight bits, moments are e4m3 codes in blocks of [`BLOCK`] elements with one scale each; second moments store
//! their roots, which have half the range of exponents.
//!
//! Blocks of 128 are those of COAT (Xi et al., 2025); e4m3 codes with powers of two as scales are those of OCP's
//! microscaling formats (2023). With such a scale every first moment and every square of a root is a bf16 number, so a
//! bf16 checkpoint holds moments exactly, and reading it gives the same blocks and values.
//!
//! A nonzero root stays nonzero, because weights are divided by it.
//!
//! All functions are branch-free arithmetic on one element at a time, so that they vectorise where they are inlined.

/// Elements per scale.
pub const BLOCK: usize = 128;

/// Noise with which [`encode`] rounds to the nearest code.
pub const NEAREST: u32 = 1 << 19;

/// Biased exponent of the smallest scale: the squares of its smallest roots, 2^-9 of it, are normal numbers.
const SMALLEST: u32 = 127 - 54;

/// 448, the largest e4m3 magnitude.
const MOST: u32 = 0x43e0_0000;

/// The smallest power of two that divides all magnitudes of a block to at most 448, and its reciprocal.
#[inline(always)]
pub fn scale(block: &[f32]) -> (f32, f32) {
    let most = block.iter().fold(0, |most: u32, x| most.max(x.to_bits() & 0x7fff_ffff));
    // Above 1.75 the mantissa carries: 448 is 1.75 x 2^8.
    let exponent = ((most + 0x1f_ffff) >> 23).max(SMALLEST + 8) - 8;
    (f32::from_bits(exponent << 23), f32::from_bits((254 - exponent) << 23))
}

/// The e4m3 code below or above `x`, a value divided by its block's scale: above if the fraction of `x` between the two
/// plus `noise` / 2^20 reaches one. An exactly representable value is unchanged by the noise.
#[inline(always)]
pub fn encode(x: f32, noise: u32) -> u8 {
    let sign = (x.to_bits() >> 24) & 0x80;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let clipped = magnitude.min(MOST);
    // Keeps three mantissa bits and changes the exponent's bias from 127 to 7.
    let normal = ((clipped + noise) >> 20).wrapping_sub(120 << 3);
    // Below 2^-6 codes are multiples of 2^-9.
    let small = (f32::from_bits(clipped) * 512.0 + noise as f32 / 1_048_576.0) as i32 as u32;
    let code = if clipped < 0x3c80_0000 { small } else { normal };
    (sign | if magnitude < 0x7f80_0000 { code } else { 0x7f }) as u8
}

/// The value of a code.
#[inline(always)]
pub fn decode(code: u8) -> f32 {
    let magnitude = u32::from(code & 0x7f);
    let normal = f32::from_bits((magnitude << 20) + (120 << 23));
    let value = if magnitude < 8 { magnitude as f32 / 512.0 } else { normal };
    let value = if magnitude == 0x7f { f32::NAN } else { value };
    if code < 0x80 { value } else { -value }
}

/// Twenty bits that depend on both numbers (the finaliser of MurmurHash3, Appleby).
#[inline(always)]
pub fn noise(key: u32, element: u32) -> u32 {
    let mut hash = key ^ element.wrapping_mul(0x9e37_79b1);
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    (hash ^ (hash >> 16)) >> 12
}

/// The noise key of one update of a weight's first or second moments.
pub fn key(weight: u32, updates: i32, second: bool) -> u32 {
    (weight ^ (updates as u32).wrapping_mul(0x85eb_ca77)).wrapping_mul(2).wrapping_add(u32::from(second))
}

/// The noise key of one update that rounds a narrow weight without a master (stochastic rounding, Zamirai et al.,
/// 2020).
pub fn weight_key(weight: u32, updates: i32) -> u32 {
    key(weight ^ 0x9e37_79b9, updates, false)
}

/// The bf16 number below or above `x`: above if the sixteen bits of `x` that are dropped and the upper sixteen of
/// `noise` add up to 2^16 or more. bf16 numbers and non-finite values are unchanged.
#[inline(always)]
pub fn round_bf16(x: f32, noise: u32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(noise >> 4);
    let finite = bits & 0x7fff_ffff < 0x7f80_0000;
    // The first bit of the fraction keeps a NaN a NaN.
    let kept = bits | if bits & 0x7fff_ffff > 0x7f80_0000 { 0x40_0000 } else { 0 };
    ((if finite { rounded } else { kept }) >> 16) as u16
}

/// Encodes a block and returns its scale. With `root`, elements are squares whose roots are stored. `noise` gives each
/// element's rounding.
///
/// # Panics
/// If the lengths differ.
#[inline(always)]
pub fn encode_block(block: &mut [f32], root: bool, noise: impl Fn(usize) -> u32, codes: &mut [u8]) -> f32 {
    assert_eq!(block.len(), codes.len(), "encode_block");
    if root {
        block.iter_mut().for_each(|x| *x = x.sqrt());
    }
    let (scale, inverse) = scale(block);
    for (at, (code, x)) in codes.iter_mut().zip(block.iter()).enumerate() {
        let nearest = encode(x * inverse, noise(at));
        let least = u8::from(root & (*x > 0.0));
        *code = nearest.max(least);
    }
    scale
}

/// Decodes a block.
///
/// # Panics
/// If the lengths differ.
#[inline(always)]
pub fn decode_block(codes: &[u8], scale: f32, root: bool, block: &mut [f32]) {
    assert_eq!(block.len(), codes.len(), "decode_block");
    for (x, code) in block.iter_mut().zip(codes) {
        let value = decode(*code) * scale;
        *x = if root { value * value } else { value };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An average that shrinks by a thousandth, less than half the gap between two bf16 numbers, does shrink.
    #[test]
    fn small_changes_of_bf16_are_kept_on_average() {
        let wide = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        let mut v = vec![wide(round_bf16(1.0, 0)); 4096];
        for update in 0..1000 {
            let key = key(7, update, true);
            for (at, v) in v.iter_mut().enumerate() {
                *v = wide(round_bf16(*v * 0.999, noise(key, at as u32)));
            }
        }
        let mean = v.iter().sum::<f32>() / v.len() as f32;
        assert!((mean / 0.999f32.powi(1000) - 1.0).abs() < 5e-3, "{mean}");
        for (x, noise) in [(1.5, 0), (1.5, (1 << 20) - 1), (-0.0, 1 << 19), (f32::INFINITY, (1 << 20) - 1)] {
            assert_eq!(wide(round_bf16(x, noise)).to_bits(), x.to_bits());
        }
        assert!(wide(round_bf16(f32::from_bits(0x7f80_0001), 5)).is_nan());
    }

    #[test]
    fn codes_come_back_whatever_the_noise() {
        for code in (0..=255u8).filter(|code| code & 0x7f != 0x7f && *code != 0x80) {
            for noise in [0, 1, NEAREST, (1 << 20) - 1] {
                assert_eq!(encode(decode(code), noise), code, "{code:#x} {noise}");
            }
        }
        assert!(decode(0x7f).is_nan());
        assert_eq!(
            (decode(0x7e), decode(0x01), decode(0x08), decode(0x81)),
            (448.0, 0.001953125, 0.015625, -0.001953125)
        );
        assert_eq!(
            (encode(1e9, 7), encode(f32::NAN, 7) & 0x7f, encode(f32::INFINITY, 7)),
            (0x7e, 0x7f, 0x7f)
        );
    }

    #[test]
    fn rounding_is_right_on_average() {
        for x in [0.0007, 0.0041, 0.01, 0.3, 1.1, 17.3, 440.0, -5.2] {
            let mean = (0..1 << 20).step_by(16).map(|noise| f64::from(decode(encode(x, noise)))).sum::<f64>();
            let mean = mean / f64::from(1 << 16);
            assert!((mean / f64::from(x) - 1.0).abs() < 1e-3, "{x}: {mean}");
            let nearest = decode(encode(x, NEAREST));
            assert!((nearest - x).abs() <= (x.abs() / 16.0).max(1.0 / 1024.0), "{x}: {nearest}");
        }
        let hashes: Vec<u32> = (0..4096).map(|element| noise(key(77, 3, true), element)).collect();
        let mean = hashes.iter().map(|x| f64::from(*x)).sum::<f64>() / 4096.0 / f64::from(1 << 20);
        assert!((mean - 0.5).abs() < 0.02 && hashes.iter().all(|x| *x < 1 << 20), "{mean}");
    }

    /// A checkpoint's requirement: bf16 holds every value, and its codes give the same values again.
    #[test]
    fn values_are_bf16_and_come_back() {
        let mut state = 9u32;
        let mut random = || {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        for power in [-140, -60, -30, -8, 0, 12, 60] {
            for root in [false, true] {
                let mut block: Vec<f32> =
                    (0..BLOCK).map(|_| random() * random() * (power as f32).exp2()).collect();
                if root {
                    block.iter_mut().for_each(|x| *x = x.abs());
                }
                let given = block.clone();
                let (mut codes, mut values) = ([0; BLOCK], [0.0; BLOCK]);
                let scale = encode_block(&mut block, root, |at| noise(5, at as u32), &mut codes);
                decode_block(&codes, scale, root, &mut values);
                assert!(values.iter().all(|x| x.to_bits() & 0xffff == 0), "{power} {root}");
                assert!(!root || given.iter().zip(&values).all(|(x, y)| (*x > 0.0) == (*y > 0.0)), "{power}");
                let (mut again, mut codes_again) = (values, [0; BLOCK]);
                let scale = encode_block(&mut again, root, |_| NEAREST, &mut codes_again);
                decode_block(&codes_again, scale, root, &mut again);
                assert_eq!(again, values, "{power} {root}");
            }
        }
        assert_eq!((scale(&[448.0, -1.0]), scale(&[449.0])), ((1.0, 1.0), (2.0, 0.5)));
    }
}
