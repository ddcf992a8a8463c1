//! Weights in four bits per group: codes 0 to 15 with a scale and a zero for each group of a row's columns, `w =
//! scale (code - zero)`. Rounded to nearest ([`GroupedTensor::round`]), with errors compensated in later columns
//! ([`gptq`]), or after scaling up important columns ([`scales`]). Packed in the layouts of compressed-tensors, GPTQ
//! and AWQ.

mod awq;
mod gptq;
mod write;

pub use awq::{InputSizes, ScaledColumns, scales};
pub use gptq::{InputMoments, gptq};
pub use write::{GroupedSave, Packing4};

use fathom_tensor::int4_scale;
use half::f16;

/// Codes of a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedTensor {
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Columns per group.
    pub group: usize,
    /// One code per element.
    pub codes: Vec<u8>,
    /// One scale per group of each row, representable in f16.
    pub scales: Vec<f32>,
    /// One zero per scale.
    pub zeros: Vec<u8>,
}

/// Placement of the zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zero {
    /// In the middle: 8.
    Middle,
    /// At the group's smallest weight, or 0, which gets code 0.
    Lowest,
}

/// The scale and the zero of a group.
fn range(values: &[f32], zero: Zero) -> (f32, u8) {
    let low = values.iter().fold(0f32, |low, x| low.min(*x));
    let high = values.iter().fold(0f32, |high, x| high.max(*x));
    let scale = match zero {
        // Representable in the other weights' stored type, bf16 or f16.
        Zero::Middle => int4_scale(high.max(-low)),
        Zero::Lowest => {
            // Rounded as stored, finite and not zero.
            let scale = f16::from_f32(((high - low) / 15.0).min(f16::MAX.to_f32())).to_f32();
            if scale > 0.0 { scale } else { f16::MIN_POSITIVE_SUBNORMAL.to_f32() }
        }
    };
    let zero = match zero {
        Zero::Middle => 8.0,
        Zero::Lowest => (-low / scale).round_ties_even().clamp(0.0, 15.0),
    };
    (scale, zero as u8)
}

/// The nearest code.
fn code(x: f32, (scale, zero): (f32, u8)) -> u8 {
    ((x / scale).round_ties_even() + f32::from(zero)).clamp(0.0, 15.0) as u8
}

fn value(code: u8, (scale, zero): (f32, u8)) -> f32 {
    scale * (f32::from(code) - f32::from(zero))
}

impl GroupedTensor {
    /// Rounds each weight to the nearest code.
    ///
    /// # Panics
    /// If rows are not whole groups.
    #[track_caller]
    pub fn round(values: &[f32], shape: [usize; 2], group: usize, zero: Zero) -> GroupedTensor {
        assert!(shape[1].is_multiple_of(group), "groups of {group} columns of {}", shape[1]);
        let (mut codes, mut scales, mut zeros) = (Vec::with_capacity(values.len()), Vec::new(), Vec::new());
        for part in values.chunks_exact(group) {
            let how = range(part, zero);
            codes.extend(part.iter().map(|x| code(*x, how)));
            scales.push(how.0);
            zeros.push(how.1);
        }
        GroupedTensor { shape, group, codes, scales, zeros }
    }

    /// Dequantized values.
    pub fn values(&self) -> Vec<f32> {
        let how = self.scales.iter().copied().zip(self.zeros.iter().copied());
        let groups = self.codes.chunks_exact(self.group).zip(how);
        groups.flat_map(|(codes, how)| codes.iter().map(move |code| value(*code, how))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_within_half_a_scale() {
        let x: Vec<f32> = (0..256).map(|i| (i as f32 * 0.37).sin() * 0.1 + 0.03).collect();
        for zero in [Zero::Middle, Zero::Lowest] {
            let coded = GroupedTensor::round(&x, [4, 64], 32, zero);
            for ((x, y), at) in x.iter().zip(coded.values()).zip(0..) {
                let scale = coded.scales[at / 32];
                // The highest code of a symmetric range is half a step below the largest weight, and scales have
                // eight bits.
                assert!((x - y).abs() <= 0.516 * scale, "{x} {y} {scale}");
            }
        }
    }

    #[test]
    fn nothing_stays_nothing() {
        for zero in [Zero::Middle, Zero::Lowest] {
            assert_eq!(GroupedTensor::round(&[0.0; 32], [1, 32], 32, zero).values(), [0.0; 32]);
        }
    }
}
