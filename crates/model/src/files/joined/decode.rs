//! Decodes the elements of a row.

use fathom_tensor::grouped::{Codes, E2M1, Scale, e4m3};

use super::layout::{FourScales, GROUP, Layout, PackedTensor};

/// Positions of the columns within a word of AWQ.
const AWQ: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
fn word(part: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(part.as_chunks::<4>().0[index])
}

fn float(part: &[u8], index: usize) -> f32 {
    f32::from_bits(word(part, index))
}

/// Code `index` of those packed in words from word `from` on, low bits first.
fn code(part: &[u8], from: usize, index: usize, bits: usize) -> u32 {
    let each = 32 / bits;
    (word(part, from + index / each) >> (index % each * bits)) & low(bits)
}

fn low(bits: usize) -> u32 {
    (1 << bits) - 1
}

/// Code `index` of those packed two per byte, low bits first.
fn half(part: &[u8], index: usize) -> u8 {
    (part[index / 2] >> (index % 2 * 4)) & 15
}

/// The nearest e4m3 code, ties to even; saturates at the largest.
pub(in super::super) fn to_eight(x: f32) -> u8 {
    let (size, sign) = (x.abs(), if x.is_sign_negative() { 128 } else { 0 });
    // Codes are in the order of their values.
    let (mut low, mut high) = (0u8, 0x7e);
    while low < high {
        let middle = low.midpoint(high + 1);
        if e4m3(middle) <= size { low = middle } else { high = middle - 1 }
    }
    let up = low < 0x7e && {
        let (below, above) = (size - e4m3(low), e4m3(low + 1) - size);
        above < below || (above == below && low % 2 == 1)
    };
    sign | if up { low + 1 } else { low }
}

/// The code of an e2m1 value.
#[track_caller]
pub(in super::super) fn to_four(x: f32) -> u8 {
    let Some(code) = E2M1.iter().position(|size| *size == x.abs()) else {
        panic!("{x} is no number of e2m1")
    };
    code as u8 | if x.is_sign_negative() { 8 } else { 0 }
}

/// `2^(scale - 127)`: the exponent of an f32, except at both ends.
fn power(scale: u8) -> f32 {
    match scale {
        0 => f32::from_bits(1 << 22),
        255 => f32::INFINITY,
        scale => f32::from_bits(u32::from(scale) << 23),
    }
}

impl PackedTensor {
    /// Kind of the codes.
    pub(super) fn codes(&self) -> Codes {
        match self.layout {
            Layout::Gptq { bits: 2, .. } | Layout::Integers { bits: 2, .. } => Codes::Int2,
            Layout::Gptq { bits: 4, .. } | Layout::Integers { bits: 4, .. } | Layout::Awq => Codes::Int4,
            Layout::Gptq { .. } | Layout::Integers { .. } | Layout::Bytes { float: false, .. } => Codes::Int8,
            Layout::Bytes { float: true, .. } => Codes::E4m3,
            Layout::Experts | Layout::Fours { .. } => Codes::E2m1,
        }
    }

    /// Decodes row `row` from the parts.
    pub(super) fn decode_row(&self, parts: &[Vec<u8>], row: usize, out: &mut [f32]) {
        let codes = self.codes();
        for (input, out) in out.iter_mut().enumerate() {
            let (scale, zero) = self.scale(parts, row, input);
            *out = scale * codes.number(self.code(parts, row, input), zero);
        }
    }

    /// The code of an element. Signed integers are offset by 128.
    #[inline(always)]
    pub(super) fn code(&self, parts: &[Vec<u8>], row: usize, input: usize) -> u8 {
        let width = self.width();
        match self.layout {
            Layout::Experts => half(&parts[0], input * self.shape[1] + row),
            Layout::Gptq { bits, .. } => {
                let each = 32 / bits;
                (word(&parts[0], input / each * self.shape[0] + row) >> (input % each * bits) & low(bits))
                    as u8
            }
            Layout::Awq => self.awq(&parts[0], input, row),
            Layout::Integers { bits, .. } => {
                code(&parts[0], row * width.div_ceil(32 / bits), input, bits) as u8
            }
            Layout::Bytes { float, .. } => parts[0][row * width + input] ^ if float { 0 } else { 0x80 },
            Layout::Fours { .. } => half(&parts[0], row * width + input),
        }
    }

    /// The scale of an element, and its zero point.
    #[inline(always)]
    pub(super) fn scale(&self, parts: &[Vec<u8>], row: usize, input: usize) -> Scale {
        let width = self.width();
        match self.layout {
            Layout::Experts => (power(parts[1][(input * self.shape[1] + row) / GROUP]), 0),
            Layout::Gptq { bits, less, ordered } => {
                let rows = self.shape[0];
                let group =
                    if ordered { word(&parts[3], input) as usize } else { input / self.inputs(&parts[2]) };
                let zero = code(&parts[1], group * (rows * bits / 32), row, bits);
                (float(&parts[2], group * rows + row), (zero.wrapping_add(less) & low(bits)) as u8)
            }
            Layout::Awq => {
                let group = input / self.inputs(&parts[2]);
                (float(&parts[2], group * self.shape[0] + row), self.awq(&parts[1], group, row))
            }
            Layout::Integers { bits, zeros, ordered } => {
                let groups = parts[1].len() / 4 / self.shape[0];
                let order = ordered.then(|| &parts[2 + usize::from(zeros)]);
                let group =
                    order.map_or_else(|| input / self.inputs(&parts[1]), |order| word(order, input) as usize);
                let zero = if zeros {
                    let each = 32 / bits;
                    word(&parts[2], row / each * groups + group) >> (row % each * bits) & low(bits)
                } else {
                    1 << (bits - 1)
                };
                (float(&parts[1], row * groups + group), zero as u8)
            }
            Layout::Bytes { block: [tall, wide], zeros, .. } => {
                let block = row / tall * width.div_ceil(wide) + input / wide;
                (float(&parts[1], block), if zeros { parts[2][block] } else { 0 } ^ 0x80)
            }
            Layout::Fours { group, scales } => {
                let scale = parts[1][row * (width / group) + input / group];
                let scale = match scales {
                    FourScales::PowersOfTwo => power(scale),
                    FourScales::Times => e4m3(scale) * float(&parts[2], 0),
                    FourScales::Over => e4m3(scale) / float(&parts[2], 0),
                };
                (scale, 0)
            }
        }
    }

    /// One code of AWQ's words.
    fn awq(&self, part: &[u8], row_of: usize, row: usize) -> u8 {
        (word(part, row_of * (self.shape[0] / 8) + row / 8) >> (4 * AWQ[row % 8]) & 15) as u8
    }

    fn inputs(&self, scales: &[u8]) -> usize {
        self.width().div_ceil(scales.len() / 4 / self.shape[0])
    }
}

#[cfg(test)]
mod tests {
    use fathom_tensor::grouped::e2m1;

    use super::*;

    #[test]
    fn codes_are_e2m1_and_scales_powers_of_two() {
        let values: Vec<f32> = (0..16).map(|code| e2m1(code) * power(127)).collect();
        assert_eq!(values[..8], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert!(values[8..].iter().zip(E2M1).all(|(x, y)| *x == -y && x.is_sign_negative()));
        assert!((0..16).all(|code| to_four(e2m1(code)) == code));
        assert_eq!([e2m1(7) * power(120), e2m1(9) * power(130)], [6.0 / 128.0, -4.0]);
    }

    #[test]
    fn eight_bits_are_e4m3() {
        assert_eq!(
            [0x00, 0x01, 0x38, 0x7e, 0xfe, 0xc0].map(e4m3),
            [0.0, 1.0 / 512.0, 1.0, 448.0, -448.0, -2.0]
        );
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        let all: Vec<f32> = (0..0x7f).map(e4m3).collect();
        assert!(all.is_sorted());
        assert!((0..=0x7eu8).all(|code| to_eight(e4m3(code)) == code && to_eight(-e4m3(code)) == code | 128));
        assert_eq!([449.0, 1e9, 1.0625, 1.1875, 1.07].map(to_eight), [0x7e, 0x7e, 0x38, 0x3a, 0x39]);
    }
}
