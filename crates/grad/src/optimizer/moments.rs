//! Types of an optimizer's state.

use fathom_tensor::DType;

/// Types of an optimizer's moments and masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moments {
    /// f32; or bf16, or e4m3 in blocks with a scale each ([`fathom_tensor::moments`]): the types of Megatron's
    /// precision-aware optimizer.
    pub dtype: DType,
    /// True if moments of squares are kept too; otherwise the update is SGD with momentum.
    pub second: bool,
    /// True if weights narrower than f32 have f32 masters; otherwise an update rounds them stochastically.
    pub masters: bool,
}

impl Default for Moments {
    fn default() -> Moments {
        Moments { dtype: DType::F32, second: true, masters: true }
    }
}

impl Moments {
    /// Their type in files, which represents them exactly.
    pub fn stored(self) -> DType {
        if self.coded() { DType::Bf16 } else { self.dtype }
    }

    /// True if they are codes in blocks.
    pub fn coded(self) -> bool {
        self.dtype == DType::F8E4M3
    }
}
