//! Support for narrow operands: which products a chip's matrix units compute, and which are emulated.
//!
//! One scale per tensor from sm_89 on, blocks of 128 only on sm_90, lines of 32 from sm_100 on (cuBLAS manual, "Scaling
//! Mode Support Overview"). All use one layout here, both operands with their summed index along the bytes of a line,
//! the only one that sm_89, sm_90 and sm_120 have.

use fathom_tensor::{Blocks, Narrow};

/// cuBLASLt's scale modes for an operand (`cublasLtMatmulMatrixScale_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scales {
    /// One f32 for the tensor.
    Tensor,
    /// E8M0 bytes, one per line of 32.
    Lines32,
    /// f32, one per line of 128.
    Lines128,
    /// f32, one per tile of 128 x 128.
    Tiles128,
}

impl Scales {
    /// The mode for an operand, if the library has one.
    pub fn of(how: Narrow) -> Option<Scales> {
        match how.blocks {
            Blocks::Tensor => Some(Scales::Tensor),
            Blocks::Line(32) => Some(Scales::Lines32),
            Blocks::Line(128) => Some(Scales::Lines128),
            Blocks::Tile(128) => Some(Scales::Tiles128),
            Blocks::Line(_) | Blocks::Tile(_) => None,
        }
    }
}

/// Checks whether cuBLASLt is used for a product of operands in these formats on a chip of this instruction set
/// (`sm_90a`).
///
/// # Errors
/// The reason that the product is emulated.
pub fn fp8_units(isa: &str, how: [Narrow; 2]) -> Result<(), String> {
    let digits: String = isa.chars().filter(char::is_ascii_digit).collect();
    let chip: u32 = digits.parse().unwrap_or(0);
    let emulated = |why: String| Err(format!("{why}: emulated on {isa}"));
    let [a, b] = how.map(|how| how.element.dtype());
    // E5M2 with E5M2 is the one pair that the library has no product for.
    if a.is_none() || b.is_none() || (a == b && a == Some(fathom_tensor::DType::F8E5M2)) {
        return emulated(format!("no unit multiplies {:?} with {:?}", how[0].element, how[1].element));
    }
    match how.map(Scales::of) {
        [Some(Scales::Tensor), Some(Scales::Tensor)] => match chip {
            89.. => Ok(()),
            _ => emulated("FP8 units start with sm_89".into()),
        },
        [Some(Scales::Lines32), Some(Scales::Lines32)] => match chip {
            100.. => Ok(()),
            _ => emulated("units for micro-scaling start with sm_100".into()),
        },
        [Some(Scales::Tiles128), Some(Scales::Tiles128)] => {
            emulated("no unit has tiles on both sides".into())
        }
        [Some(Scales::Lines128 | Scales::Tiles128), Some(Scales::Lines128 | Scales::Tiles128)] => {
            match chip {
                90 => Ok(()),
                _ => emulated("scales of blocks of 128 are those of sm_90 alone".into()),
            }
        }
        _ => emulated(format!("no unit has scales of {:?} and {:?}", how[0].blocks, how[1].blocks)),
    }
}

#[cfg(test)]
mod tests {
    use fathom_tensor::{Element, ScaleRule};

    use super::*;

    #[test]
    fn chips_have_units_or_a_reason() {
        let of = |element, blocks| Narrow { element, blocks, rule: ScaleRule::Covers };
        let whole = |element| of(element, Blocks::Tensor);
        let forward = [whole(Element::E4M3); 2];
        let [line, tile, micro] =
            [Blocks::Line(128), Blocks::Tile(128), Blocks::Line(32)].map(|blocks| of(Element::E4M3, blocks));
        for isa in ["sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120"] {
            assert_eq!(fp8_units(isa, forward), Ok(()), "{isa}");
            assert_eq!(fp8_units(isa, [whole(Element::E5M2), whole(Element::E4M3)]), Ok(()), "{isa}");
            assert!(fp8_units(isa, [whole(Element::E5M2); 2]).is_err_and(|why| why.contains("E5M2")));
        }
        for how in [[line, tile], [tile, line], [line, line]] {
            assert_eq!(fp8_units("sm_90", how), Ok(()));
        }
        assert_eq!(fp8_units("sm_100", [micro; 2]), Ok(()));
        for (isa, how, words) in [
            ("sm_80", forward, "sm_89"),
            ("sm_90a", [micro; 2], "sm_100"),
            ("sm_100a", [line, tile], "sm_90"),
            ("sm_89", [line, line], "sm_90"),
            ("sm_90", [tile; 2], "both sides"),
            ("sm_90", [line, micro], "Line(32)"),
            ("sm_100a", [of(Element::E5M2, Blocks::Line(32)); 2], "E5M2"),
            ("sm_100a", [whole(Element::E2M1); 2], "E2M1"),
        ] {
            let why = fp8_units(isa, how).unwrap_err();
            assert!(why.contains(words) && why.ends_with(&format!("emulated on {isa}")), "{why}");
        }
    }
}
