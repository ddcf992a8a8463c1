//! e4m3 codes in blocks with a scale each (OCP 8-bit floating point, 2023: bias 7, no infinities, 0x7f is NaN).
//!
//! Plain arithmetic on one element at a time, so that every processor gives the same bits.

use super::layout::{BLOCK, Layout, SCALE};
use crate::DType;

/// The largest e4m3 magnitude.
const MOST: f32 = 448.0;

/// The nearest e4m3 code, ties to even; magnitudes above 448 saturate, non-finite values become NaN.
pub fn encode_one(x: f32) -> u8 {
    let bits = x.to_bits();
    let sign = (bits >> 24) as u8 & 0x80;
    let magnitude = f32::from_bits(bits & 0x7fff_ffff);
    let clipped = magnitude.min(MOST);
    // Round to three mantissa bits, then move the exponent's bias from 127 to 7.
    let bits_in = clipped.to_bits();
    let rounded = bits_in + 0x7_ffff + ((bits_in >> 20) & 1);
    let normal = (rounded >> 20).wrapping_sub(120 << 3);
    // Below 2^-6 codes are multiples of 2^-9, which is the spacing of f32 at 2^14.
    let small = (clipped + 16384.0).to_bits() & 0xff;
    let code = if clipped < 1.0 / 64.0 { small } else { normal };
    let code = if magnitude < f32::INFINITY { code } else { 0x7f };
    sign | code as u8
}

/// The values of the 256 codes.
pub static VALUES: [f32; 256] = values();

const fn values() -> [f32; 256] {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = ((code >> 3) & 15, (code & 7) as u32);
        let magnitude = match (exponent, mantissa) {
            (15, 7) => f32::NAN,
            (0, _) => mantissa as f32 / 512.0,
            _ => f32::from_bits(((exponent as u32 + 120) << 23) | (mantissa << 20)),
        };
        values[code] = if code < 128 { magnitude } else { -magnitude };
        code += 1;
    }
    values
}

/// The largest finite magnitude over 448, but never subnormal, so that it can be divided by.
fn scale_of(block: &[f32]) -> f32 {
    let finite = |x: f32| if x.abs() < f32::INFINITY { x.abs() } else { 0.0 };
    let most = block.iter().fold(0.0, |most: f32, &x| most.max(finite(x)));
    (most / MOST).max(f32::MIN_POSITIVE)
}

/// Calls `each(near, far, width)` with each block's positions, relative to the first block's.
fn walk(layout: &Layout, blocks: std::ops::Range<u64>, mut each: impl FnMut(usize, usize, usize)) {
    let (mut near, mut far) = (0, 0);
    for block in blocks {
        let width = layout.width(block) as usize;
        each(near, far, width);
        near += width * layout.dtype.bytes();
        far += width + SCALE as usize;
    }
}

/// Encodes the elements of these blocks to codes and scales.
pub(super) fn encode(layout: &Layout, blocks: std::ops::Range<u64>, near: &[u8], out: &mut [u8]) {
    let mut values = [0.0f32; BLOCK as usize];
    walk(layout, blocks, |from, to, width| {
        let values = &mut values[..width];
        match layout.dtype {
            DType::F32 => {
                for (value, bytes) in values.iter_mut().zip(near[from..].as_chunks::<4>().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            _ => {
                for (value, bytes) in values.iter_mut().zip(near[from..].as_chunks::<2>().0) {
                    *value = f32::from_bits((u16::from_le_bytes(*bytes) as u32) << 16);
                }
            }
        }
        let scale = scale_of(values);
        let (head, codes) = out[to..to + SCALE as usize + width].split_at_mut(SCALE as usize);
        head.copy_from_slice(&scale.to_le_bytes());
        for (code, value) in codes.iter_mut().zip(values) {
            *code = encode_one(*value / scale);
        }
    });
}

/// The nearest bf16, ties to even; NaN stays NaN.
fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    if x.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded }
}

/// Decodes codes and scales of these blocks to elements.
pub(super) fn decode(layout: &Layout, blocks: std::ops::Range<u64>, far: &[u8], out: &mut [u8]) {
    walk(layout, blocks, |to, from, width| {
        let (head, codes) = far[from..from + SCALE as usize + width].split_at(SCALE as usize);
        let scale = f32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        match layout.dtype {
            DType::F32 => {
                for (bytes, code) in out[to..].as_chunks_mut::<4>().0.iter_mut().zip(codes) {
                    *bytes = (VALUES[*code as usize] * scale).to_le_bytes();
                }
            }
            _ => {
                for (bytes, code) in out[to..].as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                    *bytes = bf16(VALUES[*code as usize] * scale).to_le_bytes();
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spill::Codec;

    #[test]
    fn every_code_comes_back() {
        for code in 0..=255u8 {
            let value = VALUES[code as usize];
            assert!(value.is_nan() == (code & 0x7f == 0x7f), "{code:#x}");
            assert_eq!(encode_one(value), code, "{code:#x} {value}");
        }
        assert_eq!((VALUES[0x7e], VALUES[0x01], VALUES[0x08]), (448.0, 1.0 / 512.0, 1.0 / 64.0));
    }

    #[test]
    fn codes_are_the_nearest_ties_to_even() {
        let positive = &VALUES[..0x7f];
        for (low, pair) in positive.windows(2).enumerate() {
            let middle = (pair[0] + pair[1]) / 2.0;
            let even = if low % 2 == 0 { low } else { low + 1 };
            assert_eq!(encode_one(middle) as usize, even, "{middle}");
            assert_eq!(encode_one(middle.next_down()) as usize, low, "{middle}");
            assert_eq!(encode_one(middle.next_up()) as usize, low + 1, "{middle}");
            assert_eq!(encode_one(-middle) as usize, even + 128, "{middle}");
        }
        assert_eq!((encode_one(1e30), encode_one(-449.0)), (0x7e, 0xfe));
        assert_eq!((encode_one(f32::NAN) & 0x7f, encode_one(f32::INFINITY)), (0x7f, 0x7f));
    }

    /// The error bound promised by [`Codec::Fp8Block`], at magnitudes from subnormal to the largest.
    #[test]
    fn the_error_is_bounded() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        for power in [-149, -130, -126, -60, -3, 0, 9, 100, 127] {
            let values: Vec<f32> = (0..300).map(|_| random() * (power as f32).exp2() * random()).collect();
            check(DType::F32, &values, 1.0 / 16.0);
            // Rounding to bf16 adds half a unit in its last place.
            check(DType::Bf16, &values, 1.0 / 16.0 + 1.0 / 256.0 + 1.0 / 256.0);
        }
        let mut values = vec![0.0; 300];
        check(DType::F32, &values, 0.0);
        (values[3], values[200], values[299]) = (f32::NAN, f32::NEG_INFINITY, 5.0);
        check(DType::F32, &values, 1.0 / 16.0);
    }

    fn check(dtype: DType, values: &[f32], relative: f32) {
        let layout = Layout::new(Codec::Fp8Block, 1, values.len(), dtype, 4096);
        let near: Vec<u8> = match dtype {
            DType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => values.iter().flat_map(|x| bf16(*x).to_le_bytes()).collect(),
        };
        let mut far = vec![0; Codec::Fp8Block.bytes(1, values.len(), dtype) as usize];
        encode(&layout, 0..layout.row_blocks(), &near, &mut far);
        let mut back = vec![0; near.len()];
        decode(&layout, 0..layout.row_blocks(), &far, &mut back);
        let back: Vec<f32> = match dtype {
            DType::F32 => back.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            _ => back.chunks_exact(2).map(|b| f32::from_le_bytes([0, 0, b[0], b[1]])).collect(),
        };
        for (block, (values, back)) in values.chunks(128).zip(back.chunks(128)).enumerate() {
            let scale = scale_of(values);
            for (x, y) in values.iter().zip(back) {
                let bound =
                    (x.abs() * relative).max(scale / 1024.0) * (1.0 + 1e-5) + f32::MIN_POSITIVE / 64.0;
                let fine = if x.is_finite() { (x - y).abs() <= bound } else { y.is_nan() };
                assert!(fine, "{dtype:?} block {block}: {x} came back as {y}, scale {scale}");
            }
        }
    }
}
