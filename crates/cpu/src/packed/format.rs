//! The block types of [`fathom_tensor::ggml`] and [`fathom_tensor::grouped`] as products read them: codes and their
//! factors.
//!
//! An element of a group of 32 is `factor x (code - bias) - offset`; a group has one factor, or one for each half.
//! Numbers of e2m1 are halves of integers; those of e4m3 are sums of two integers with a factor each, and so are those
//! of NF4, to within 2^-23 of their scale.
#![allow(unsafe_code)]

use fathom_tensor::Grouped;
use fathom_tensor::blocks::{INT8_STEP, NF4_VALUES};
use fathom_tensor::ggml::Kind;
#[cfg(test)]
use fathom_tensor::ggml::scale_min;
use fathom_tensor::grouped::Codes;

/// Elements under one scale of the other operand.
pub(super) const GROUP: usize = 32;
/// Columns whose blocks are read together.
pub(super) const OCTET: usize = 8;
/// Groups of the largest block.
pub(super) const MOST_GROUPS: usize = 8;

/// Layout of codes and their factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lies {
    /// In ggml's blocks.
    Within(Kind),
    /// Codes, and behind all codes of a row scales and zero points ([`fathom_tensor::grouped`]).
    Behind(Codes),
    /// The same for NF4 ([`fathom_tensor::blocks`]): neighbours share a byte, the first in its upper half.
    Nf4,
    /// The same for int8: signed, with one scale per row.
    Signed,
}

/// A block type: a number of codes stored together.
pub(super) trait Format: Sync {
    /// Layout.
    const LIES: Lies;
    /// Bytes per block.
    const BYTES: usize;
    /// Groups per block.
    const GROUPS: usize;
    /// Factors per group: one, one for each half, or one for each plane.
    const FACTORS: usize;
    /// True if groups have an offset.
    const OFFSET: bool;
    /// The code of zero, if it is the same for all groups.
    const BIAS: i32;
    /// Number of integers, each with a factor, whose sum represents a number. Those of e4m3 are multiples of 2^-9 up to
    /// 448: 18 bits. Their four-bit significands are shifted by less than eight in the first plane and by the rest in
    /// the second, so that one of the two is zero. Those of NF4 are multiples of 2^-22 up to 1: 23 bits, of which the
    /// second plane has the upper twelve.
    const PLANES: usize = if matches!(Self::LIES, Lies::Behind(Codes::E4m3) | Lies::Nf4) { 2 } else { 1 };
    /// True if factors are stored behind a row's codes.
    const BEHIND: bool = matches!(Self::LIES, Lies::Behind(_) | Lies::Nf4 | Lies::Signed);
    /// True if columns are interleaved by eight.
    const OCTETS: bool = false;
    /// True if each group of a column has its own code of zero.
    const ZEROS: bool = matches!(Self::LIES, Lies::Behind(Codes::Int2 | Codes::Int4 | Codes::Int8));
}

macro_rules! format {
    ($name:ident: $lies:expr, $bytes:literal bytes, $groups:literal groups, $factors:literal factors, $offset:literal, $bias:literal) => {
        /// See [`Lies`].
        pub(super) struct $name;
        impl Format for $name {
            const LIES: Lies = $lies;
            const BYTES: usize = $bytes;
            const GROUPS: usize = $groups;
            const FACTORS: usize = $factors;
            const OFFSET: bool = $offset;
            const BIAS: i32 = $bias;
        }
    };
}

format!(Q8_0: Lies::Within(Kind::Q8_0), 34 bytes, 1 groups, 1 factors, false, 128);
format!(Q4_0: Lies::Within(Kind::Q4_0), 18 bytes, 1 groups, 1 factors, false, 8);
format!(Q4_1: Lies::Within(Kind::Q4_1), 20 bytes, 1 groups, 1 factors, true, 0);
format!(Q5_0: Lies::Within(Kind::Q5_0), 22 bytes, 1 groups, 1 factors, false, 16);
format!(Q5_1: Lies::Within(Kind::Q5_1), 24 bytes, 1 groups, 1 factors, true, 0);
format!(Q4K: Lies::Within(Kind::Q4K), 144 bytes, 8 groups, 1 factors, true, 0);
format!(Q5K: Lies::Within(Kind::Q5K), 176 bytes, 8 groups, 1 factors, true, 0);
format!(Q6K: Lies::Within(Kind::Q6K), 210 bytes, 8 groups, 2 factors, false, 32);
format!(Int2: Lies::Behind(Codes::Int2), 8 bytes, 1 groups, 1 factors, false, 0);
format!(Int4: Lies::Behind(Codes::Int4), 16 bytes, 1 groups, 1 factors, false, 0);
format!(Int8: Lies::Behind(Codes::Int8), 32 bytes, 1 groups, 1 factors, false, 0);
format!(E2m1: Lies::Behind(Codes::E2m1), 16 bytes, 1 groups, 1 factors, false, 12);
format!(E2m1Halves: Lies::Behind(Codes::E2m1), 16 bytes, 1 groups, 2 factors, false, 12);
format!(E4m3: Lies::Behind(Codes::E4m3), 32 bytes, 1 groups, 2 factors, false, 0);
format!(Nf4: Lies::Nf4, 16 bytes, 1 groups, 2 factors, false, 0);
format!(Signed: Lies::Signed, 32 bytes, 1 groups, 1 factors, false, 128);

/// Twice the numbers of e2m1, by their codes, and 12.
pub(super) const DOUBLED: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// Units of the integers in e4m3's planes: 2^-9, and 2^8 times that.
const PLANES: [f32; 2] = [1.0 / 512.0, 0.5];

/// Units of the integers in NF4's planes: 2^-22, and 2^11 times that.
const NF4_PLANES: [f32; 2] = [1.0 / 4_194_304.0, 1.0 / 2048.0];

/// Integers of NF4's numbers by code, in each plane: at most 2048 in magnitude, so that sums of 32 products with 16-bit
/// integers stay below 2^31.
pub(super) const NF4: [[i16; 16]; 2] = {
    let mut planes = [[0; 16]; 2];
    let mut code = 0;
    while code < 16 {
        let all = NF4_VALUES[code] * 4_194_304.0;
        let all = (if all < 0.0 { all - 0.5 } else { all + 0.5 }) as i32;
        let upper = (if all < 0 { all - 1024 } else { all + 1024 }) / 2048;
        planes[0][code] = (all - 2048 * upper) as i16;
        planes[1][code] = upper as i16;
        code += 1;
    }
    planes
};

/// Evaluates an expression with the type for a block type.
macro_rules! by_format {
    ($format:expr, $type:ident => $call:expr) => {
        match $format {
            BlockFormat::Ggml(Kind::Q8_0) => by_format!(@ Q8_0, $type => $call),
            BlockFormat::Ggml(Kind::Q4_0) => by_format!(@ Q4_0, $type => $call),
            BlockFormat::Ggml(Kind::Q4_1) => by_format!(@ Q4_1, $type => $call),
            BlockFormat::Ggml(Kind::Q5_0) => by_format!(@ Q5_0, $type => $call),
            BlockFormat::Ggml(Kind::Q5_1) => by_format!(@ Q5_1, $type => $call),
            BlockFormat::Ggml(Kind::Q4K) => by_format!(@ Q4K, $type => $call),
            BlockFormat::Ggml(Kind::Q5K) => by_format!(@ Q5K, $type => $call),
            BlockFormat::Ggml(Kind::Q6K) => by_format!(@ Q6K, $type => $call),
            BlockFormat::Octets(Kind::Q4_0) => by_format!(@@ Q4_0, $type => $call),
            BlockFormat::Octets(Kind::Q4_1) => by_format!(@@ Q4_1, $type => $call),
            BlockFormat::Octets(Kind::Q5_0) => by_format!(@@ Q5_0, $type => $call),
            BlockFormat::Octets(Kind::Q5_1) => by_format!(@@ Q5_1, $type => $call),
            BlockFormat::Octets(Kind::Q4K) => by_format!(@@ Q4K, $type => $call),
            BlockFormat::Octets(Kind::Q5K) => by_format!(@@ Q5K, $type => $call),
            BlockFormat::Octets(Kind::Q6K) => by_format!(@@ Q6K, $type => $call),
            BlockFormat::Grouped(grouped) => match (grouped.codes, grouped.group) {
                (Codes::Int2, _) => by_format!(@ Int2, $type => $call),
                (Codes::Int4, _) => by_format!(@ Int4, $type => $call),
                (Codes::Int8, _) => by_format!(@ Int8, $type => $call),
                (Codes::E2m1, ..GROUP) => by_format!(@ E2m1Halves, $type => $call),
                (Codes::E2m1, _) => by_format!(@ E2m1, $type => $call),
                (Codes::E4m3, _) => by_format!(@ E4m3, $type => $call),
            },
            BlockFormat::Nf4 => by_format!(@ Nf4, $type => $call),
            BlockFormat::Int8 => by_format!(@ Signed, $type => $call),
            plain => panic!("no products with {}", plain.name()),
        }
    };
    (@ $name:ident, $type:ident => $call:expr) => {{
        type $type = format::$name;
        $call
    }};
    (@@ $name:ident, $type:ident => $call:expr) => {{
        type $type = octets::Octets<format::$name>;
        $call
    }};
}
pub(super) use by_format;

/// Byte offsets of the factors behind a row's codes.
#[derive(Clone, Copy, Default)]
pub(super) struct Behind {
    /// Offset of the first scale.
    pub scales: usize,
    /// Offset of the first zero point.
    pub zeros: usize,
    /// Groups of 32 under one scale; 0 if there is one for each half.
    pub span: usize,
}

/// Adjacent columns of a weight, from one of their blocks on.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// Address of the first column.
    pub first: *const u8,
    /// Bytes from one column to the next.
    pub apart: usize,
    /// Offsets in the whole columns.
    pub behind: Behind,
}

impl Columns {
    /// Address of a column.
    #[inline(always)]
    pub fn at(self, col: usize) -> *const u8 {
        self.first.wrapping_add(col.wrapping_mul(self.apart))
    }

    /// The columns from block `index` on.
    #[inline(always)]
    pub fn block<F: Format>(self, index: usize) -> Columns {
        Columns { first: self.first.wrapping_add(index.wrapping_mul(F::BYTES)), ..self }
    }

    /// Addresses of the first `count` columns, with the last repeated.
    #[inline(always)]
    pub fn each(self, count: usize) -> [*const u8; OCTET] {
        std::array::from_fn(|col| self.at(col.min(count - 1)))
    }
}

/// Factors of the groups of a block, for eight columns.
pub(super) struct Table {
    /// Factors, by group and factor.
    pub factors: [[f32; OCTET]; 2 * MOST_GROUPS],
    /// Offsets, by group.
    pub offsets: [[f32; OCTET]; MOST_GROUPS],
    /// Codes of zero.
    pub zeros: [i32; OCTET],
}

impl Table {
    /// An empty table.
    #[inline(always)]
    pub fn new() -> Table {
        Table {
            factors: [[0.0; OCTET]; 2 * MOST_GROUPS],
            offsets: [[0.0; OCTET]; MOST_GROUPS],
            zeros: [0; OCTET],
        }
    }

    /// Sets the factors of a group from its scales (one per half, if it has two).
    #[inline(always)]
    pub fn scaled<F: Format>(&mut self, scales: [[f32; OCTET]; 2]) {
        self.factors[0] = scales[0];
        match F::LIES {
            Lies::Behind(Codes::E4m3) => {
                for plane in 0..2 {
                    self.factors[plane] = scales[0].map(|scale| scale * PLANES[plane]);
                }
            }
            Lies::Nf4 => {
                for plane in 0..2 {
                    self.factors[plane] = scales[0].map(|scale| scale * NF4_PLANES[plane]);
                }
            }
            Lies::Signed => self.factors[0] = scales[0].map(|scale| scale * INT8_STEP),
            // Codes are twice the numbers.
            Lies::Behind(Codes::E2m1) => {
                for half in 0..F::FACTORS {
                    self.factors[half] = scales[half].map(|scale| 0.5 * scale);
                }
            }
            _ => {}
        }
    }
}

/// Number of consecutive blocks with the same factors.
#[inline(always)]
pub(super) fn span<F: Format>(columns: Columns) -> usize {
    if F::BEHIND { columns.behind.span.max(1) } else { 1 }
}

/// Factors of block `index`, for columns that store them behind their codes.
///
/// # Safety
/// They exist.
#[inline(always)]
unsafe fn behind<F: Format>(rows: &[*const u8; OCTET], (of, index): (Behind, usize), out: &mut Table) {
    // SAFETY: the caller's promise.
    unsafe {
        let scale = |at: usize| rows.map(|row| row.add(of.scales + 4 * at).cast::<f32>().read_unaligned());
        if of.span == 0 {
            return out.scaled::<F>([scale(2 * index), scale(2 * index + 1)]);
        }
        let at = index / of.span;
        out.scaled::<F>([scale(at); 2]);
        if F::ZEROS {
            out.zeros = rows.map(|row| i32::from(*row.add(of.zeros + at)));
        }
    }
}

/// Converts f16 to f32 by integer arithmetic: denormals are exact whatever the processor's setting.
#[inline(always)]
fn widen(half: u16) -> f32 {
    let (sign, rest) = (u32::from(half & 0x8000) << 16, u32::from(half & 0x7fff));
    let normal = (rest << 13) + (112 << 23);
    // 2^-24 of the mantissa, exact.
    let denormal = (rest as f32 * f32::from_bits((127 - 24) << 23)).to_bits();
    let special = normal + (112 << 23);
    let bits = if rest < 0x400 {
        denormal
    } else if rest >= 0x7c00 {
        special
    } else {
        normal
    };
    f32::from_bits(sign | bits)
}

/// The f16 at `at` of each block.
///
/// # Safety
/// The blocks have it.
#[inline(always)]
unsafe fn halves(blocks: &[*const u8; OCTET], at: usize) -> [f32; OCTET] {
    // SAFETY: the caller's promise.
    let half = |block: &*const u8| unsafe { block.add(at).cast::<u16>().read_unaligned() };
    let words: [u16; OCTET] = std::array::from_fn(|col| u16::from_le(half(&blocks[col])));
    words.map(widen)
}

/// Bytes `at..at + N` of each block, transposed: `[byte][column]`.
///
/// # Safety
/// The blocks have them.
#[inline(always)]
unsafe fn turned<const N: usize>(blocks: &[*const u8; OCTET], at: usize) -> [[u8; OCTET]; N] {
    let mut out = [[0; OCTET]; N];
    for (col, block) in blocks.iter().enumerate() {
        // SAFETY: the caller's promise.
        let bytes = unsafe { block.add(at).cast::<[u8; N]>().read_unaligned() };
        for (row, byte) in out.iter_mut().zip(bytes) {
            row[col] = byte;
        }
    }
    out
}

/// Computes the table of block `index` of eight columns, in f32 like ggml: `d x scale` and `dmin x min`, each rounded
/// once.
///
/// # Safety
/// The columns have this type and the block.
#[inline(always)]
pub(super) unsafe fn table<F: Format>(
    columns: &[*const u8; OCTET],
    (of, index): (Behind, usize),
    out: &mut Table,
) {
    let blocks = &columns.map(|column| column.wrapping_add(index * F::BYTES));
    // SAFETY: the caller's promise, and the layout of the type.
    unsafe {
        match F::LIES {
            Lies::Behind(_) | Lies::Nf4 | Lies::Signed => behind::<F>(columns, (of, index), out),
            Lies::Within(Kind::Q4K | Kind::Q5K) => {
                let (d, least) = (halves(blocks, 0), halves(blocks, 2));
                let bytes = turned::<12>(blocks, 4);
                for group in 0..MOST_GROUPS {
                    for col in 0..OCTET {
                        let of = [0, 4, 8].map(|at| bytes[group % 4 + at][col]);
                        let (scale, min) = if group < 4 {
                            (of[0] & 63, of[1] & 63)
                        } else {
                            (of[2] & 15 | of[0] >> 6 << 4, of[2] >> 4 | of[1] >> 6 << 4)
                        };
                        out.factors[group][col] = d[col] * f32::from(scale);
                        out.offsets[group][col] = least[col] * f32::from(min);
                    }
                }
            }
            Lies::Within(Kind::Q6K) => {
                let (d, bytes) = (halves(blocks, 208), turned::<16>(blocks, 192));
                for half in 0..2 * MOST_GROUPS {
                    for col in 0..OCTET {
                        out.factors[half][col] = d[col] * f32::from(bytes[half][col].cast_signed());
                    }
                }
            }
            Lies::Within(kind) => {
                out.factors[0] = halves(blocks, 0);
                if matches!(kind, Kind::Q4_1 | Kind::Q5_1) {
                    // In these types offsets are added.
                    out.offsets[0] = halves(blocks, 2).map(|offset| -offset);
                }
            }
        }
    }
}

/// The codes of a plane of a block's group, in element order.
#[inline(always)]
pub(super) fn codes<F: Format>(block: &[u8], (group, plane): (usize, usize)) -> [i16; GROUP] {
    let of = |code: &dyn Fn(usize) -> u8| std::array::from_fn(|at| i16::from(code(at)));
    match F::LIES {
        Lies::Within(Kind::Q8_0) => of(&|at| block[2 + at] ^ 0x80),
        Lies::Within(Kind::Q4_0) => of(&|at| block[2 + at % 16] >> (at / 16 * 4) & 15),
        Lies::Within(Kind::Q4_1) => of(&|at| block[4 + at % 16] >> (at / 16 * 4) & 15),
        Lies::Within(kind @ (Kind::Q5_0 | Kind::Q5_1)) => {
            let (fifths, fours) = block[if kind == Kind::Q5_0 { 2 } else { 4 }..].split_at(4);
            of(&|at| fours[at % 16] >> (at / 16 * 4) & 15 | (fifths[at / 8] >> (at % 8) & 1) << 4)
        }
        Lies::Within(Kind::Q4K) => of(&|at| block[16 + group / 2 * 32 + at] >> (group % 2 * 4) & 15),
        Lies::Within(Kind::Q5K) => of(&|at| {
            let fifth = block[16 + at] >> group & 1;
            block[48 + group / 2 * 32 + at] >> (group % 2 * 4) & 15 | fifth << 4
        }),
        Lies::Within(Kind::Q6K) => {
            let (half, part) = (group / 4, group % 4);
            let (low, high) = (&block[64 * half + part % 2 * 32..][..32], &block[128 + 32 * half..][..32]);
            of(&|at| low[at] >> (part / 2 * 4) & 15 | (high[at] >> (2 * part) & 3) << 4)
        }
        Lies::Within(Kind::F32 | Kind::F16 | Kind::Bf16) => [0; GROUP],
        Lies::Signed => of(&|at| block[at] ^ 0x80),
        Lies::Nf4 => std::array::from_fn(|at| {
            let code = if at % 2 == 0 { block[at / 2] >> 4 } else { block[at / 2] & 15 };
            NF4[plane][usize::from(code)]
        }),
        Lies::Behind(Codes::E4m3) => std::array::from_fn(|at| e4m3(block[at], plane)),
        Lies::Behind(codes) => {
            let code = |at| Grouped { codes, group: GROUP }.code(block, at);
            if codes == Codes::E2m1 { of(&|at| DOUBLED[usize::from(code(at))]) } else { of(&code) }
        }
    }
}

/// The integer of an e4m3 number in a plane.
#[inline(always)]
fn e4m3(code: u8, plane: usize) -> i16 {
    let (exponent, rest) = (usize::from(code >> 3 & 15), i16::from(code & 7));
    let (size, shift) = if exponent == 0 { (rest, 0) } else { (8 + rest, exponent - 1) };
    let size = if shift / 8 == plane { size << (shift % 8) } else { 0 };
    if code & 128 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (widen(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn numbers_of_eight_and_four_bits_are_integers() {
        for code in (0..=255u8).filter(|code| code & 127 != 127) {
            let planes: f32 = (0..2).map(|plane| f32::from(e4m3(code, plane)) * PLANES[plane]).sum();
            assert_eq!(planes, Codes::E4m3.number(code, 0), "{code}");
        }
        for (code, twice) in DOUBLED.into_iter().enumerate() {
            assert_eq!(f32::from(twice) - 12.0, 2.0 * Codes::E2m1.number(code as u8, 0));
        }
        // Sums of 32 products with 16-bit integers are below 2^31.
        let most = (0..=255u8).flat_map(|code| [e4m3(code, 0), e4m3(code, 1)]).max().map(i64::from);
        assert!(most.is_some_and(|most| 32 * most * 32767 < 1 << 31));
        let most = NF4.as_flattened().iter().map(|number| i64::from(number.abs())).max();
        assert!(most.is_some_and(|most| 32 * most * 32767 < 1 << 31));
        for (code, number) in NF4_VALUES.into_iter().enumerate() {
            let planes: f64 =
                (0..2).map(|plane| f64::from(NF4[plane][code]) * f64::from(NF4_PLANES[plane])).sum();
            assert!((planes - f64::from(number)).abs() <= 2f64.powi(-23), "{code}");
        }
        assert!([0, 7, 15].map(|code| NF4[1][code]) == [-2048, 0, 2048] && NF4[0][7] == 0);
    }

    #[test]
    fn scales_are_those_of_the_definition() {
        let bytes: [u8; 12] = std::array::from_fn(|at| (at * 89 + 37) as u8);
        let mut block = [0u8; Q4K::BYTES];
        (block[1], block[3]) = (0x3c, 0x3c);
        block[4..16].copy_from_slice(&bytes);
        let mut found = Table::new();
        // SAFETY: eight copies of a block of the type.
        unsafe { table::<Q4K>(&[block.as_ptr(); OCTET], (Behind::default(), 0), &mut found) };
        for group in 0..MOST_GROUPS {
            let (scale, min) = scale_min(&bytes, group);
            assert_eq!((found.factors[group][3], found.offsets[group][3]), (scale.into(), min.into()));
        }
    }
}
