//! Four-bit weights with a scale for each block of a row, as inference servers load them: the number that a weight
//! becomes when it is stored and read again. Quantization-aware training computes with these numbers and checkpoint
//! writers store their codes, so both use this definition; machines have kernels with the same bits
//! ([`crate::Machine::round_weights`]).
//!
//! - MXFP4 (OCP Microscaling Formats 1.0): 32 e2m1 numbers under a power of two, chosen as in compressed-tensors so
//!   that the largest is rounded, not clipped.
//! - NVFP4 (NVIDIA, 2025): 16 e2m1 numbers under an e4m3 scale, and all scales of a weight under an f32,
//!   `448 x 6 / largest`.
//! - int4 (compressed-tensors' `pack-quantized`): -8 to 7 under `largest / 7.5`, by groups.
//!
//! Elements round to the nearest, ties to even.

use half::{bf16, f16};

use crate::{DType, Element, Tensor};

/// Blocks and weights with nothing larger are zeros, so that no product below is denormal.
const LEAST: f32 = 1e-30;
/// The largest number of e2m1.
const MOST: f32 = Element::E2M1.most();
/// The largest scale of NVFP4.
const MOST_SCALE: f32 = Element::E4M3.most();
/// The least scale of NVFP4 above 0: no block has a scale of 0.
const LEAST_SCALE: f32 = 1.0 / 512.0;

/// Format of four-bit weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FourBits {
    /// Blocks of 32.
    Mxfp4,
    /// Blocks of 16, and a factor for the whole weight.
    Nvfp4,
    /// Groups of this many columns.
    Int4(usize),
}

/// The scale of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockScale {
    /// The scale as stored: a power of two, an e4m3 number, or one exact in both bf16 and f16.
    pub stored: f32,
    /// Factor of the block's numbers.
    pub times: f32,
}

/// Rounds a magnitude up to 448 to the nearest number with this many mantissa bits and an exponent no less than that of
/// `least`. Adding 1.5 x 2^(23 - mantissa) times the number's power of two makes the format's last bit the sum's own.
#[inline(always)]
fn nearest(x: f32, mantissa: u32, least: f32) -> f32 {
    let exponent = f32::from_bits(x.to_bits() & 0x7f80_0000).max(least);
    let addend = exponent * (1.5 * (1 << (23 - mantissa)) as f32);
    (x + addend) - addend
}

impl FourBits {
    /// Elements under one scale.
    pub fn block(self) -> usize {
        match self {
            FourBits::Mxfp4 => 32,
            FourBits::Nvfp4 => 16,
            FourBits::Int4(group) => group,
        }
    }

    /// True if the scales of a weight are multiplied by a factor that depends on its largest magnitude.
    pub fn has_factor(self) -> bool {
        self == FourBits::Nvfp4
    }

    /// The factor of a weight with this largest magnitude; 1 for formats without one.
    #[inline(always)]
    pub fn factor(self, largest: f32) -> f32 {
        if self.has_factor() && largest >= LEAST { MOST_SCALE * MOST / largest } else { 1.0 }
    }

    /// The scale of a block in a weight with this factor.
    #[inline(always)]
    pub fn scale(self, block: &[f32], factor: f32) -> BlockScale {
        let bits = block.iter().fold(0, |most: u32, x| most.max(x.to_bits() & 0x7fff_ffff));
        let largest = f32::from_bits(bits);
        match self {
            FourBits::Mxfp4 => {
                // The power of two of the largest magnitude, once rounded to e2m1's one mantissa bit, maps to 4.
                let power = (bits + (1 << 21)) & 0x7f80_0000;
                let stored = if largest < LEAST { 1.0 } else { f32::from_bits(power) / 4.0 };
                BlockScale { stored, times: stored }
            }
            FourBits::Nvfp4 => {
                let exact = (factor * (largest / MOST)).min(MOST_SCALE);
                let stored = nearest(exact, 3, 1.0 / 64.0).max(LEAST_SCALE);
                BlockScale { stored, times: stored / factor }
            }
            FourBits::Int4(_) => {
                let stored = int4_scale(largest);
                BlockScale { stored, times: stored }
            }
        }
    }

    /// The number stored for a weight in a block whose factor is `times`.
    #[inline(always)]
    pub fn number(self, x: f32, times: f32) -> f32 {
        let y = x / times;
        match self {
            FourBits::Mxfp4 | FourBits::Nvfp4 => nearest(y.abs().min(MOST), 1, 1.0).copysign(x),
            FourBits::Int4(_) => {
                const ADDEND: f32 = 1.5 * (1 << 23) as f32;
                (y.clamp(-8.0, 7.0) + ADDEND) - ADDEND
            }
        }
    }

    /// The rounded values of whole blocks of a weight with this factor (reference definition).
    ///
    /// # Panics
    /// If `x` is not whole blocks.
    #[track_caller]
    pub fn round(self, x: &[f32], factor: f32) -> Vec<f32> {
        assert!(x.len().is_multiple_of(self.block()), "{} elements as {self:?}", x.len());
        let block = |block: &[f32]| {
            let times = self.scale(block, factor).times;
            block.iter().map(|x| self.number(*x, times) * times).collect::<Vec<f32>>()
        };
        x.chunks_exact(self.block()).flat_map(block).collect()
    }
}

/// The scale of an int4 group with this largest magnitude. It is exact in both bf16 and f16, since scales are stored in
/// either, and is not 0.
#[inline(always)]
pub fn int4_scale(largest: f32) -> f32 {
    let scale = bf16::from_f32((largest / 7.5).min(bf16::from_f32(60_000.0).to_f32()));
    let scale = f16::from_f32(scale.to_f32()).to_f32();
    if scale > 0.0 { scale } else { f16::MIN_POSITIVE_SUBNORMAL.to_f32() }
}

/// Rounds master weights to the weights that a step computes with.
#[derive(Clone, Copy, Debug)]
pub struct RoundWeights<'a> {
    /// Target format.
    pub format: FourBits,
    /// f32 [1, n], whole blocks.
    pub x: &'a Tensor,
    /// f32 [1, 1]: the largest magnitude of the whole weight, for formats with a factor.
    pub largest: Option<&'a Tensor>,
    /// f32 or bf16 [1, n]: rounded once more to its type.
    pub out: &'a Tensor,
}

impl RoundWeights<'_> {
    /// # Panics
    /// If shapes or types do not fit.
    #[track_caller]
    pub fn check(&self) {
        let RoundWeights { format, x, largest, out } = self;
        let fits = x.rows() == 1 && x.shape() == out.shape() && x.cols().is_multiple_of(format.block());
        let typed = x.dtype() == DType::F32 && matches!(out.dtype(), DType::F32 | DType::Bf16);
        assert!(fits && typed && largest.is_some() == format.has_factor(), "round_weights: {self:?}");
    }

    /// The bytes written, for machines without a kernel.
    pub(crate) fn bytes(&self, x: &[f32], largest: f32) -> Vec<u8> {
        let rounded = self.format.round(x, self.format.factor(largest)).into_iter();
        match self.out.dtype() {
            DType::Bf16 => rounded.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
            _ => rounded.flat_map(f32::to_le_bytes).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: [FourBits; 3] = [FourBits::Mxfp4, FourBits::Nvfp4, FourBits::Int4(32)];

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|at| (at as f32 * 0.37).sin() * [0.1, 3e-4, 40.0][at / 64 % 3]).collect()
    }

    /// Compares with every representable number.
    fn slowly(format: FourBits, x: f32, times: f32) -> f32 {
        let all: Vec<f32> = match format {
            FourBits::Int4(_) => (-8..8).map(|code| code as f32).collect(),
            _ => [-6.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0].into(),
        };
        let apart = |y: &f32| (y * times - x).abs();
        all.iter().copied().min_by(|a, b| apart(a).total_cmp(&apart(b))).unwrap()
    }

    #[test]
    fn numbers_are_the_nearest_there_are() {
        let x = numbers(192);
        for format in FORMATS {
            let factor = format.factor(40.0);
            for block in x.chunks(format.block()) {
                let BlockScale { times, .. } = format.scale(block, factor);
                for x in block {
                    let (found, nearest) = (format.number(*x, times), slowly(format, *x, times));
                    // Both candidates of a tie are equally near.
                    let [a, b] = [found, nearest].map(|y| (y * times - x).abs());
                    assert!((a - b).abs() <= 1e-6 * times, "{format:?} {x}: {found}, {nearest}");
                }
            }
        }
    }

    #[test]
    fn ties_are_even() {
        let fours = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -5.0, 7.0];
        let expected = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -0.0, -4.0, 6.0];
        assert_eq!(fours.map(|x| FourBits::Mxfp4.number(x, 1.0)), expected);
        let int4 = FourBits::Int4(32);
        assert_eq!(
            [0.5, 1.5, -2.5, 7.4, 7.6, -9.0].map(|x| int4.number(x, 1.0)),
            [0.0, 2.0, -2.0, 7.0, 7.0, -8.0]
        );
    }

    #[test]
    fn scales_are_what_files_hold() {
        let mx = FourBits::Mxfp4;
        assert_eq!([6.0, 7.9, 8.0, 0.75].map(|x| mx.scale(&[x, -0.1], 1.0).stored), [1.0, 2.0, 2.0, 0.125]);
        // A weight's largest block has the largest scale.
        let nv = FourBits::Nvfp4;
        let factor = nv.factor(0.3);
        assert_eq!(factor, 2688.0 / 0.3);
        assert_eq!(nv.scale(&[0.3; 16], factor).stored, 448.0);
        // 448 / 7 = 64; between 64 and 72, the nearest.
        assert_eq!([0.3 / 7.0, 0.3 / 6.7].map(|x| nv.scale(&[x; 16], factor).stored), [64.0, 64.0]);
        assert_eq!(nv.scale(&[1e-9; 16], factor).stored, LEAST_SCALE);
        for largest in [0.1, 1e-3, 3e-5, 1e-7, 0.0, 1e9] {
            let scale = int4_scale(largest);
            let same = [bf16::from_f32(scale).to_f32(), f16::from_f32(scale).to_f32()];
            assert!(scale > 0.0 && same == [scale; 2], "{largest} {scale}");
        }
    }

    #[test]
    fn nothing_stays_nothing_and_what_is_rounded_has_few_values() {
        for format in FORMATS {
            for factor in [1.0, format.factor(0.0), format.factor(2.0)] {
                assert!(format.round(&[0.0; 32], factor).iter().all(|x| *x == 0.0));
                assert!(format.round(&[1e-38; 32], factor).iter().all(|x| *x == 0.0), "{format:?}");
            }
            let rounded = format.round(&numbers(192), format.factor(40.0));
            for block in rounded.chunks(format.block()) {
                let mut seen: Vec<u32> = block.iter().map(|x| (x + 0.0).to_bits()).collect();
                seen.sort_unstable();
                seen.dedup();
                assert!(seen.len() <= 16, "{format:?}");
            }
        }
        // Rounding is idempotent if the scale is that of the largest number.
        let once = FourBits::Mxfp4.round(&numbers(192), 1.0);
        assert_eq!(FourBits::Mxfp4.round(&once, 1.0), once);
    }
}
