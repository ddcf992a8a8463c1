//! Matrix products with operands in fewer bits: element formats, blocks that share a scale, and the calls.
//!
//! A scale is always a power of two, so an element times its scale has no more significant bits than the element: a
//! machine that multiplies such values in bf16 or f32 (emulation) and one that multiplies elements and applies scales
//! later (a matrix unit) differ only in the order of additions. Micro-scaling requires this (OCP Microscaling Formats
//! 1.0, section 6.3); for FP8 it is Transformer Engine's default for blocks (`Float8BlockScaling`) and its option for
//! tensors. Since the elements are floating-point, a coarser scale costs range but no precision.

use crate::DType;

/// Element formats (OCP 8-bit Floating Point 1.0; OCP Microscaling Formats 1.0, section 5.3). Zeros have signs; an
/// element rounds to nearest, ties to even, and values that are too large saturate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// 8 bits, largest 448.
    E4M3,
    /// 8 bits, largest 57 344.
    E5M2,
    /// 6 bits, largest 7.5.
    E2M3,
    /// 6 bits, largest 28.
    E3M2,
    /// 4 bits, largest 6.
    E2M1,
}

impl Element {
    /// All formats.
    pub const ALL: [Element; 5] = [Element::E4M3, Element::E5M2, Element::E2M3, Element::E3M2, Element::E2M1];

    /// Number of mantissa bits.
    pub const fn mantissa(self) -> i32 {
        match self {
            Element::E4M3 | Element::E2M3 => 3,
            Element::E5M2 | Element::E3M2 => 2,
            Element::E2M1 => 1,
        }
    }

    /// Exponent of the smallest normal number.
    pub const fn low(self) -> i32 {
        match self {
            Element::E4M3 => -6,
            Element::E5M2 => -14,
            Element::E3M2 => -2,
            Element::E2M3 | Element::E2M1 => 0,
        }
    }

    /// Exponent of the largest number.
    pub const fn high(self) -> i32 {
        match self {
            Element::E4M3 => 8,
            Element::E5M2 => 15,
            Element::E3M2 => 4,
            Element::E2M3 | Element::E2M1 => 2,
        }
    }

    /// The largest number.
    pub const fn most(self) -> f32 {
        match self {
            Element::E4M3 => 448.0,
            Element::E5M2 => 57_344.0,
            Element::E2M3 => 7.5,
            Element::E3M2 => 28.0,
            Element::E2M1 => 6.0,
        }
    }

    /// The storage type, if tensors have one for this format.
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Element::E4M3 => Some(DType::F8E4M3),
            Element::E5M2 => Some(DType::F8E5M2),
            _ => None,
        }
    }
}

/// Elements of an operand that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blocks {
    /// The whole operand.
    Tensor,
    /// This many neighbours along the summed index: 32 in micro-scaling, 128 for activations in DeepSeek-V3.
    Line(usize),
    /// This many rows and columns: 128 for weights in DeepSeek-V3 (2024, section 3.3.2).
    Tile(usize),
}

/// Derivation of a block's scale from its largest element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleRule {
    /// `2^(floor(log2 largest) - high)`: the largest element may be clipped to the format's largest number (OCP
    /// Microscaling Formats 1.0, section 6.3).
    Floor,
    /// The smallest power of two that keeps the largest element within the format (Transformer Engine's FP8 scales,
    /// rounded to powers of two).
    Covers,
}

/// Storage of one operand of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Narrow {
    /// Element format.
    pub element: Element,
    /// Elements that share a scale.
    pub blocks: Blocks,
    /// Derivation of scales.
    pub rule: ScaleRule,
}

impl Narrow {
    /// The exponent of the scale for a block whose largest finite magnitude is `largest`, within E8M0's range; 0 if
    /// `largest` is 0, as for a tensor without history.
    pub fn exponent(self, largest: f32) -> i32 {
        if largest == 0.0 {
            return 0;
        }
        let (bits, most) = (largest.to_bits(), self.element.most().to_bits());
        let above = self.rule == ScaleRule::Covers && bits & 0x7f_ffff > most & 0x7f_ffff;
        ((bits >> 23) as i32 - 127 - self.element.high() + i32::from(above)).clamp(-127, 127)
    }

    /// Rows and columns of a block in a matrix whose summed index runs along its columns or not; `None` for the whole
    /// matrix.
    pub fn block(self, along_columns: bool) -> Option<[usize; 2]> {
        match (self.blocks, along_columns) {
            (Blocks::Tensor, _) => None,
            (Blocks::Line(n), true) => Some([1, n]),
            (Blocks::Line(n), false) => Some([n, 1]),
            (Blocks::Tile(n), _) => Some([n, n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_what_their_bits_say() {
        for (element, bits, expected) in [
            (Element::E4M3, 8, 448.0),
            (Element::E5M2, 8, 57_344.0),
            (Element::E2M3, 6, 7.5),
            (Element::E3M2, 6, 28.0),
            (Element::E2M1, 4, 6.0),
        ] {
            let exponents = bits - 1 - element.mantissa();
            let bias = (1 << (exponents - 1)) - 1;
            assert_eq!(element.low(), 1 - bias, "{element:?}");
            // E4M3 gives up one code for NaN, E5M2 a whole exponent for infinities.
            let top = (1 << exponents) - 1 - bias - i32::from(element == Element::E5M2);
            let steps = (1 << (element.mantissa() + 1)) - 1 - i32::from(element == Element::E4M3);
            let most = steps as f32 * 2f32.powi(top - element.mantissa());
            assert_eq!((element.high(), element.most(), most), (top, expected, expected), "{element:?}");
        }
    }

    #[test]
    fn scales_follow_their_rules() {
        for element in Element::ALL {
            for rule in [ScaleRule::Floor, ScaleRule::Covers] {
                let narrow = Narrow { element, blocks: Blocks::Line(32), rule };
                for largest in [1e-30f32, 0.1, 1.0, 1.5, 1.75, 1.76, 448.0, 448.1, 511.9, 6.0, 7.5, 7.6, 1e30]
                {
                    let scale = 2f32.powi(narrow.exponent(largest));
                    let expected = match rule {
                        ScaleRule::Floor => largest.log2().floor() - element.high() as f32,
                        ScaleRule::Covers => (largest / element.most()).log2().ceil(),
                    };
                    assert_eq!(scale.log2(), expected, "{element:?} {rule:?} {largest}");
                    let covers = largest <= element.most() * scale;
                    assert!(covers || rule == ScaleRule::Floor, "{element:?} {largest}");
                }
                assert_eq!(narrow.exponent(0.0), 0);
                assert_eq!(narrow.exponent(f32::from_bits(1)), -127);
            }
        }
    }
}
