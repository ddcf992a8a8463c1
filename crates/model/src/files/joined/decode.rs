//! What the elements of a row stand for.

use super::{FourScales, Joined, Layout};

/// What the codes of e2m1 mean, by their low three bits; the highest is the sign.
const FOURS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
/// Where the columns of a word of AWQ lie in it.
const AWQ: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
/// Numbers of MXFP4 under one scale.
const GROUP: usize = 32;

fn word(part: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(part.as_chunks::<4>().0[index])
}

fn float(part: &[u8], index: usize) -> f32 {
    f32::from_bits(word(part, index))
}

/// Code `index` of those in words from word `from` on, the first in the low bits.
fn code(part: &[u8], from: usize, index: usize, bits: usize) -> u32 {
    let each = 32 / bits;
    (word(part, from + index / each) >> (index % each * bits)) & low(bits)
}

fn low(bits: usize) -> u32 {
    (1 << bits) - 1
}

/// A number of e2m1.
fn four(code: u8) -> f32 {
    let size = FOURS[usize::from(code & 7)];
    if code & 8 == 0 { size } else { -size }
}

/// Code `index` of two a byte, the first in the low bits.
fn half(part: &[u8], index: usize) -> u8 {
    (part[index / 2] >> (index % 2 * 4)) & 15
}

/// A number of e4m3 (OCP, without infinities).
fn eight(code: u8) -> f32 {
    let (exponent, rest) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => rest * 2f32.powi(-9),
        _ => (8.0 + rest) * 2f32.powi(exponent - 10),
    };
    if code & 128 == 0 { size } else { -size }
}

/// The code of e4m3 nearest to a number, the even one of two; the largest where it is beyond.
pub(in super::super) fn to_eight(x: f32) -> u8 {
    let (size, sign) = (x.abs(), if x.is_sign_negative() { 128 } else { 0 });
    // Codes are in the order of what they mean.
    let (mut low, mut high) = (0u8, 0x7e);
    while low < high {
        let middle = low.midpoint(high + 1);
        if eight(middle) <= size { low = middle } else { high = middle - 1 }
    }
    let up = low < 0x7e && {
        let (below, above) = (size - eight(low), eight(low + 1) - size);
        above < below || (above == below && low % 2 == 1)
    };
    sign | if up { low + 1 } else { low }
}

/// The code of a number of e2m1.
///
/// # Panics
/// If it is none.
#[track_caller]
pub(in super::super) fn to_four(x: f32) -> u8 {
    let Some(code) = FOURS.iter().position(|four| *four == x.abs()) else {
        panic!("{x} is no number of e2m1")
    };
    code as u8 | if x.is_sign_negative() { 8 } else { 0 }
}

/// `2^(scale - 127)`: the exponent of an f32, but at both ends.
fn power(scale: u8) -> f32 {
    match scale {
        0 => f32::from_bits(1 << 22),
        255 => f32::INFINITY,
        scale => f32::from_bits(u32::from(scale) << 23),
    }
}

impl Joined {
    /// Row `row` of the parts that were read.
    pub(super) fn decode_row(&self, parts: &[Vec<u8>], row: usize, out: &mut [f32]) {
        let width = out.len();
        match self.layout {
            Layout::Experts => {
                let inner = self.shape[1];
                for (col, out) in out.iter_mut().enumerate() {
                    let at = col * inner + row;
                    *out = four(half(&parts[0], at)) * power(parts[1][at / GROUP]);
                }
            }
            Layout::Gptq { bits, less, ordered } => {
                let (rows, each) = (self.shape[0], 32 / bits);
                let size = width.div_ceil(parts[2].len() / 4 / rows);
                for (input, out) in out.iter_mut().enumerate() {
                    let group = if ordered { word(&parts[3], input) as usize } else { input / size };
                    let found =
                        word(&parts[0], input / each * rows + row) >> (input % each * bits) & low(bits);
                    let zero = code(&parts[1], group * (rows / each), row, bits);
                    let zero = zero.wrapping_add(less) & low(bits);
                    *out = float(&parts[2], group * rows + row) * (found as f32 - zero as f32);
                }
            }
            Layout::Awq => {
                let rows = self.shape[0];
                let (words, shift) = (rows / 8, 4 * AWQ[row % 8]);
                let size = width.div_ceil(parts[2].len() / 4 / rows);
                let at = |part: &[u8], row_of: usize| word(part, row_of * words + row / 8) >> shift & 15;
                for (input, out) in out.iter_mut().enumerate() {
                    let group = input / size;
                    let (found, zero) = (at(&parts[0], input), at(&parts[1], group));
                    *out = float(&parts[2], group * rows + row) * (found as f32 - zero as f32);
                }
            }
            Layout::Integers { bits, zeros, ordered } => {
                self.integers(parts, row, (bits, zeros, ordered), out)
            }
            Layout::Bytes { float: is_float, block: [tall, wide], zeros } => {
                let across = width.div_ceil(wide);
                for (col, out) in out.iter_mut().enumerate() {
                    let (found, block) = (parts[0][row * width + col], row / tall * across + col / wide);
                    let zero = if zeros { f32::from(parts[2][block] as i8) } else { 0.0 };
                    let value = if is_float { eight(found) } else { f32::from(found as i8) - zero };
                    *out = value * float(&parts[1], block);
                }
            }
            Layout::Fours { group, scales } => {
                for (col, out) in out.iter_mut().enumerate() {
                    let scale = parts[1][row * (width / group) + col / group];
                    let scale = match scales {
                        FourScales::PowersOfTwo => power(scale),
                        FourScales::Times => eight(scale) * float(&parts[2], 0),
                        FourScales::Over => eight(scale) / float(&parts[2], 0),
                    };
                    *out = four(half(&parts[0], row * width + col)) * scale;
                }
            }
        }
    }

    fn integers(
        &self,
        parts: &[Vec<u8>],
        row: usize,
        (bits, zeros, ordered): (usize, bool, bool),
        out: &mut [f32],
    ) {
        let (rows, width, each) = (self.shape[0], out.len(), 32 / bits);
        let groups = parts[1].len() / 4 / rows;
        let size = width.div_ceil(groups);
        let order = ordered.then(|| &parts[2 + usize::from(zeros)]);
        for (input, out) in out.iter_mut().enumerate() {
            let group = order.map_or(input / size, |order| word(order, input) as usize);
            let found = code(&parts[0], row * width.div_ceil(each), input, bits);
            let zero = if zeros {
                word(&parts[2], row / each * groups + group) >> (row % each * bits) & low(bits)
            } else {
                1 << (bits - 1)
            };
            *out = float(&parts[1], row * groups + group) * (found as f32 - zero as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_e2m1_and_scales_powers_of_two() {
        let values: Vec<f32> = (0..16).map(|code| four(code) * power(127)).collect();
        assert_eq!(values[..8], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert!(values[8..].iter().zip(FOURS).all(|(x, y)| *x == -y && x.is_sign_negative()));
        assert!((0..16).all(|code| to_four(four(code)) == code));
        assert_eq!([four(7) * power(120), four(9) * power(130)], [6.0 / 128.0, -4.0]);
    }

    #[test]
    fn eight_bits_are_e4m3() {
        assert_eq!(
            [0x00, 0x01, 0x38, 0x7e, 0xfe, 0xc0].map(eight),
            [0.0, 1.0 / 512.0, 1.0, 448.0, -448.0, -2.0]
        );
        assert!(eight(0x7f).is_nan() && eight(0xff).is_nan());
        let all: Vec<f32> = (0..0x7f).map(eight).collect();
        assert!(all.is_sorted());
        assert!(
            (0..=0x7eu8).all(|code| to_eight(eight(code)) == code && to_eight(-eight(code)) == code | 128)
        );
        assert_eq!([449.0, 1e9, 1.0625, 1.1875, 1.07].map(to_eight), [0x7e, 0x7e, 0x38, 0x3a, 0x39]);
    }
}
