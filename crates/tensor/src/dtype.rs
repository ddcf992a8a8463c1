//! Element types of tensors and of stored weights.

use serde::{Deserialize, Serialize};

/// Element type. bf16 and the 8-bit floats have no Rust type of their own; they are stored as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE single.
    F32,
    /// bfloat16: the upper half of an IEEE single.
    Bf16,
    /// IEEE half.
    F16,
    /// 8-bit float, 4 exponent bits.
    F8E4M3,
    /// 8-bit float, 5 exponent bits.
    F8E5M2,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Signed byte, in files only.
    I8,
    /// Unsigned byte.
    U8,
    /// Unsigned 32-bit integer.
    U32,
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            DType::I64 => 8,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::Bf16 | DType::F16 => 2,
            DType::F8E4M3 | DType::F8E5M2 | DType::I8 | DType::U8 => 1,
        }
    }

    /// Name in safetensors headers.
    pub fn safetensors_name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::Bf16 => "BF16",
            DType::F16 => "F16",
            DType::F8E4M3 => "F8_E4M3",
            DType::F8E5M2 => "F8_E5M2",
            DType::I32 => "I32",
            DType::I64 => "I64",
            DType::I8 => "I8",
            DType::U8 => "U8",
            DType::U32 => "U32",
        }
    }

    /// The type with this safetensors name.
    pub fn from_safetensors_name(name: &str) -> Option<DType> {
        use DType::*;
        [F32, Bf16, F16, F8E4M3, F8E5M2, I32, I64, I8, U8, U32]
            .into_iter()
            .find(|dtype| dtype.safetensors_name() == name)
    }

    /// True if gradients may have this type.
    pub fn is_float(self) -> bool {
        !matches!(self, DType::I32 | DType::I64 | DType::I8 | DType::U8 | DType::U32)
    }
}
