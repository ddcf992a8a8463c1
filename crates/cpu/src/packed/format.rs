//! The block types of [`fathom_tensor::ggml`] as products read them: unsigned codes, and what they are multiplied with.
//!
//! An element of a group of 32 is `factor x (code - bias) - offset`; a group has one factor, or one for each half of it.
#![allow(unsafe_code)]

use fathom_tensor::ggml::Kind;
#[cfg(test)]
use fathom_tensor::ggml::scale_min;

/// Elements under one scale of the other operand.
pub(super) const GROUP: usize = 32;
/// Columns whose blocks are read together.
pub(super) const OCTET: usize = 8;
/// Groups of the largest block.
pub(super) const MOST_GROUPS: usize = 8;

/// A block type.
pub(super) trait Format: Sync {
    /// Which.
    const KIND: Kind;
    /// Bytes of a block.
    const BYTES: usize;
    /// Groups of a block.
    const GROUPS: usize;
    /// Factors of a group: one, or one for each half.
    const FACTORS: usize;
    /// Groups have an offset.
    const OFFSET: bool;
    /// The code of zero.
    const BIAS: i32;
}

macro_rules! format {
    ($name:ident: $bytes:literal bytes, $groups:literal groups, $factors:literal factors, $offset:literal, $bias:literal) => {
        /// See [`Kind`].
        pub(super) struct $name;
        impl Format for $name {
            const KIND: Kind = Kind::$name;
            const BYTES: usize = $bytes;
            const GROUPS: usize = $groups;
            const FACTORS: usize = $factors;
            const OFFSET: bool = $offset;
            const BIAS: i32 = $bias;
        }
    };
}

format!(Q8_0: 34 bytes, 1 groups, 1 factors, false, 128);
format!(Q4_0: 18 bytes, 1 groups, 1 factors, false, 8);
format!(Q4K: 144 bytes, 8 groups, 1 factors, true, 0);
format!(Q5K: 176 bytes, 8 groups, 1 factors, true, 0);
format!(Q6K: 210 bytes, 8 groups, 2 factors, false, 32);

/// Calls a function with the type of a block type.
macro_rules! by_kind {
    ($kind:expr, $format:ident => $call:expr) => {
        match $kind {
            Kind::Q8_0 => {
                type $format = format::Q8_0;
                $call
            }
            Kind::Q4_0 => {
                type $format = format::Q4_0;
                $call
            }
            Kind::Q4K => {
                type $format = format::Q4K;
                $call
            }
            Kind::Q5K => {
                type $format = format::Q5K;
                $call
            }
            Kind::Q6K => {
                type $format = format::Q6K;
                $call
            }
            plain @ (Kind::F32 | Kind::F16 | Kind::Bf16) => panic!("{} is no block type", plain.name()),
        }
    };
}
pub(super) use by_kind;

/// Neighbouring columns of a weight, or a block of each.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// The first one's bytes.
    pub first: *const u8,
    /// Bytes from one to the next.
    pub apart: usize,
}

impl Columns {
    /// The bytes of a column.
    #[inline(always)]
    pub fn at(self, col: usize) -> *const u8 {
        self.first.wrapping_add(col * self.apart)
    }

    /// The first `count` of them, of which the last is repeated.
    #[inline(always)]
    pub fn each(self, count: usize) -> [*const u8; OCTET] {
        std::array::from_fn(|col| self.at(col.min(count - 1)))
    }
}

/// What the groups of a block of each of some columns are multiplied with.
pub(super) struct Table {
    /// By group and factor.
    pub factors: [[f32; OCTET]; 2 * MOST_GROUPS],
    /// By group.
    pub offsets: [[f32; OCTET]; MOST_GROUPS],
}

impl Table {
    /// Room for one.
    #[inline(always)]
    pub fn new() -> Table {
        Table { factors: [[0.0; OCTET]; 2 * MOST_GROUPS], offsets: [[0.0; OCTET]; MOST_GROUPS] }
    }
}

/// f16 to f32, by integer arithmetic: denormal ones are exact whatever the processor does with denormals.
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

/// Bytes `at..at + N` of each block, turned: `[byte][column]`.
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

/// Makes the table of eight columns' blocks, in f32 as ggml does it: `d x scale` and `dmin x min`, each rounded once.
///
/// # Safety
/// The blocks are of this type.
#[inline(always)]
pub(super) unsafe fn table<F: Format>(blocks: &[*const u8; OCTET], out: &mut Table) {
    // SAFETY: the caller's promise, and where the type has its parts.
    unsafe {
        match F::KIND {
            Kind::Q4K | Kind::Q5K => {
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
            Kind::Q6K => {
                let (d, bytes) = (halves(blocks, 208), turned::<16>(blocks, 192));
                for half in 0..2 * MOST_GROUPS {
                    for col in 0..OCTET {
                        out.factors[half][col] = d[col] * f32::from(bytes[half][col].cast_signed());
                    }
                }
            }
            _ => out.factors[0] = halves(blocks, 0),
        }
    }
}

/// The codes of a group of a block, in their order.
#[inline(always)]
pub(super) fn codes<F: Format>(block: &[u8], group: usize) -> [u8; GROUP] {
    match F::KIND {
        Kind::Q8_0 => std::array::from_fn(|at| block[2 + at] ^ 0x80),
        Kind::Q4_0 => std::array::from_fn(|at| block[2 + at % 16] >> (at / 16 * 4) & 15),
        Kind::Q4K => std::array::from_fn(|at| block[16 + group / 2 * 32 + at] >> (group % 2 * 4) & 15),
        Kind::Q5K => std::array::from_fn(|at| {
            let fifth = block[16 + at] >> group & 1;
            block[48 + group / 2 * 32 + at] >> (group % 2 * 4) & 15 | fifth << 4
        }),
        Kind::Q6K => {
            let (half, part) = (group / 4, group % 4);
            let (low, high) = (&block[64 * half + part % 2 * 32..][..32], &block[128 + 32 * half..][..32]);
            std::array::from_fn(|at| low[at] >> (part / 2 * 4) & 15 | (high[at] >> (2 * part) & 3) << 4)
        }
        Kind::F32 | Kind::F16 | Kind::Bf16 => [0; GROUP],
    }
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
    fn scales_are_those_of_the_definition() {
        let bytes: [u8; 12] = std::array::from_fn(|at| (at * 89 + 37) as u8);
        let mut block = [0u8; Q4K::BYTES];
        (block[1], block[3]) = (0x3c, 0x3c);
        block[4..16].copy_from_slice(&bytes);
        let mut found = Table { factors: [[0.0; 8]; 16], offsets: [[0.0; 8]; 8] };
        // SAFETY: eight times a block of the type.
        unsafe { table::<Q4K>(&[block.as_ptr(); OCTET], &mut found) };
        for group in 0..MOST_GROUPS {
            let (scale, min) = scale_min(&bytes, group);
            assert_eq!((found.factors[group][3], found.offsets[group][3]), (scale.into(), min.into()));
        }
    }
}
