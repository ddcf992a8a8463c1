//! Quantized weights of GPTQ, AWQ, compressed-tensors, DeepSeek and ModelOpt, laid out for products: a row is its
//! codes, then a scale (f32) per group of neighbours, then for integers a zero point (one byte) per group.
//!
//! `w = scale x (code - zero)` for integers, `w = scale x number(code)` for e2m1 and e4m3, each operation rounded to
//! f32. Codes of 32 neighbours are stored together. In four bits, byte `j` has the elements `j` and, in its upper half,
//! `j + 16`; in two bits `j`, `j + 8`, `j + 16` and `j + 24`.

use std::ops::Range;

/// Neighbours whose codes are stored together.
pub const TOGETHER: usize = 32;

/// The numbers of e2m1 by their low three bits; the highest bit is the sign.
pub const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Type of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codes {
    /// Unsigned integers of two bits.
    Int2,
    /// Unsigned integers of four bits.
    Int4,
    /// Unsigned integers of eight bits.
    Int8,
    /// OCP's floats of four bits.
    E2m1,
    /// OCP's floats of eight bits, without infinities.
    E4m3,
}

/// Layout of rows: their codes, and how many neighbours share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grouped {
    /// Type of the codes.
    pub codes: Codes,
    /// Elements under one scale.
    pub group: usize,
}

impl Codes {
    /// Bits of a code.
    pub fn bits(self) -> usize {
        match self {
            Codes::Int2 => 2,
            Codes::Int4 | Codes::E2m1 => 4,
            Codes::Int8 | Codes::E4m3 => 8,
        }
    }

    /// True if groups have zero points.
    pub fn has_zeros(self) -> bool {
        matches!(self, Codes::Int2 | Codes::Int4 | Codes::Int8)
    }

    /// The value of a code under a scale of one.
    #[inline(always)]
    pub fn number(self, code: u8, zero: u8) -> f32 {
        match self {
            Codes::Int2 | Codes::Int4 | Codes::Int8 => f32::from(code) - f32::from(zero),
            Codes::E2m1 => e2m1(code),
            Codes::E4m3 => e4m3(code),
        }
    }
}

/// A number of e2m1.
#[inline(always)]
pub fn e2m1(code: u8) -> f32 {
    let size = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { size } else { -size }
}

/// A number of e4m3 (OCP, without infinities).
#[inline(always)]
pub fn e4m3(code: u8) -> f32 {
    let (exponent, rest) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => rest * 2f32.powi(-9),
        _ => (8.0 + rest) * 2f32.powi(exponent - 10),
    };
    if code & 128 == 0 { size } else { -size }
}

/// A group's scale and zero point.
pub type Scale = (f32, u8);

impl Grouped {
    /// True if products accept rows of `cols` elements.
    pub fn fits(self, cols: usize) -> bool {
        let halves = self.codes == Codes::E2m1 && self.group == TOGETHER / 2;
        let whole = self.group > 0 && self.group.is_multiple_of(TOGETHER);
        cols > 0 && cols.is_multiple_of(TOGETHER) && (halves || whole) && cols.is_multiple_of(self.group)
    }

    /// The format's name.
    pub fn name(self) -> &'static str {
        match self.codes {
            Codes::Int2 => "grouped int2",
            Codes::Int4 => "grouped int4",
            Codes::Int8 => "grouped int8",
            Codes::E2m1 => "grouped e2m1",
            Codes::E4m3 => "grouped e4m3",
        }
    }

    /// Byte offset of a row's scales.
    pub fn scales_at(self, cols: usize) -> usize {
        cols * self.codes.bits() / 8
    }

    /// Byte offset of a row's zero points, if there are any.
    pub fn zeros_at(self, cols: usize) -> usize {
        self.scales_at(cols) + 4 * (cols / self.group)
    }

    /// Bytes of a row.
    pub fn row_bytes(self, cols: usize) -> usize {
        let zeros = if self.codes.has_zeros() { cols / self.group } else { 0 };
        self.zeros_at(cols) + zeros
    }

    /// Writes a row of `cols` elements; `scale` is called with the first element of each group. A group with a NaN has
    /// the scale NaN.
    ///
    /// # Panics
    /// If the format does not fit such rows, or the size of `out` is wrong.
    #[track_caller]
    pub fn write_row(
        self,
        cols: usize,
        code: impl Fn(usize) -> u8,
        scale: impl Fn(usize) -> Scale,
        out: &mut [u8],
    ) {
        assert!(self.fits(cols) && out.len() == self.row_bytes(cols), "{self:?}: {cols} columns");
        let bits = self.codes.bits();
        let (codes, rest) = out.split_at_mut(self.scales_at(cols));
        let (scales, zeros) = rest.split_at_mut(4 * (cols / self.group));
        codes.fill(0);
        for (at, codes) in codes.chunks_exact_mut(4 * bits).enumerate() {
            for index in 0..TOGETHER {
                codes[index % (4 * bits)] |= code(at * TOGETHER + index) << (index / (4 * bits) * bits);
            }
        }
        for (at, to) in scales.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let first = at * self.group;
            let (mut scale, zero) = scale(first);
            let lost = |at: usize| self.codes == Codes::E4m3 && code(at) & 127 == 127;
            if (first..first + self.group).any(lost) {
                scale = f32::NAN;
            }
            *to = scale.to_le_bytes();
            if let Some(to) = zeros.get_mut(at) {
                *to = zero;
            }
        }
    }

    /// Copies columns of a row of `cols`, in whole groups, to a row of their own.
    pub(crate) fn take_columns(self, row: &[u8], (cols, part): (usize, Range<usize>), out: &mut [u8]) {
        let (groups, len) = (part.start / self.group..part.end / self.group, part.len());
        let mut copy = |from: usize, to: usize, bytes: usize| {
            out[to..to + bytes].copy_from_slice(&row[from..from + bytes]);
        };
        copy(self.scales_at(part.start), 0, self.scales_at(len));
        copy(self.scales_at(cols) + 4 * groups.start, self.scales_at(len), 4 * groups.len());
        if self.codes.has_zeros() {
            copy(self.zeros_at(cols) + groups.start, self.zeros_at(len), groups.len());
        }
    }

    /// The code of an element of a row.
    #[inline(always)]
    pub fn code(self, row: &[u8], at: usize) -> u8 {
        let (bits, index) = (self.codes.bits(), at % TOGETHER);
        let byte = row[at / TOGETHER * 4 * bits + index % (4 * bits)];
        let kept = if bits == 8 { 255 } else { (1 << bits) - 1 };
        byte >> (index / (4 * bits) * bits) & kept
    }

    /// Values of a row's elements from `first` on, in a row of `cols`.
    pub fn unpack(self, row: &[u8], (cols, first): (usize, usize), out: &mut [f32]) {
        let (scales_at, zeros_at) = (self.scales_at(cols), self.zeros_at(cols));
        for (at, out) in (first..).zip(out) {
            let group = at / self.group;
            let scale = f32::from_le_bytes(std::array::from_fn(|byte| row[scales_at + 4 * group + byte]));
            let zero = if self.codes.has_zeros() { row[zeros_at + group] } else { 0 };
            *out = scale * self.codes.number(self.code(row, at), zero);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back_from_where_they_are_put() {
        for codes in [Codes::Int2, Codes::Int4, Codes::Int8, Codes::E2m1, Codes::E4m3] {
            let how = Grouped { codes, group: 32 };
            let code = |at: usize| (((at * 89 + 3) % 127) & ((1 << codes.bits()) - 1)) as u8;
            let scale = |at: usize| (1.0 + at as f32, (at / 32 + 1) as u8);
            let mut row = vec![0xaa; how.row_bytes(96)];
            how.write_row(96, code, scale, &mut row);
            assert!((0..96).all(|at| how.code(&row, at) == code(at)), "{codes:?}");
            let mut part = vec![0xaa; how.row_bytes(64)];
            how.take_columns(&row, (96, 32..96), &mut part);
            let (mut of_part, mut of_row) = ([0.0; 64], [0.0; 64]);
            how.unpack(&part, (64, 0), &mut of_part);
            how.unpack(&row, (96, 32), &mut of_row);
            assert_eq!(of_part, of_row, "{codes:?}");
            let mut out = [0.0; 50];
            how.unpack(&row, (96, 40), &mut out);
            for (at, out) in (40..).zip(out) {
                let (scale, zero) = scale(at / 32 * 32);
                assert_eq!(out, scale * codes.number(code(at), zero), "{codes:?}, {at}");
            }
        }
    }

    #[test]
    fn rows_have_their_bytes() {
        let bytes = |codes, group, cols| Grouped { codes, group }.row_bytes(cols);
        assert_eq!(bytes(Codes::Int4, 128, 256), 128 + 8 + 2);
        assert_eq!(bytes(Codes::Int2, 64, 128), 32 + 8 + 2);
        assert_eq!(bytes(Codes::E4m3, 4096, 4096), 4096 + 4);
        assert_eq!(bytes(Codes::E2m1, 16, 32), 16 + 8);
        assert!(!Grouped { codes: Codes::Int4, group: 16 }.fits(64));
        assert!(!Grouped { codes: Codes::Int4, group: 128 }.fits(192));
    }

    #[test]
    fn a_nan_is_one_of_its_group() {
        let (how, mut out) = (Grouped { codes: Codes::E4m3, group: 32 }, [0.0; 64]);
        let mut row = vec![0; how.row_bytes(64)];
        how.write_row(64, |at| if at == 40 { 0xff } else { 0x38 }, |_| (2.0, 0), &mut row);
        how.unpack(&row, (64, 0), &mut out);
        assert!(out[..32].iter().all(|x| *x == 2.0) && out[32..].iter().all(|x| x.is_nan()));
    }
}
