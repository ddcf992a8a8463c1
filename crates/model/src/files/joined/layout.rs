//! Layouts of a tensor stored as several.

use fathom_tensor::DType;

/// One tensor that is stored as several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::files) struct PackedTensor {
    /// The stored tensors. The first determines its place in the file's order.
    pub parts: Vec<JoinedPart>,
    /// [out, in] for a linear layer, [experts, in, out] for experts.
    pub shape: Vec<usize>,
    /// The type to decode to.
    pub dtype: DType,
    pub layout: Layout,
}

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::files) struct JoinedPart {
    pub name: String,
    pub dtype: DType,
    pub bytes: u64,
}

/// Layout of the elements in the parts, listed in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) enum Layout {
    /// Blocks U8 [experts, out, groups, 16] of 32 e2m1 numbers along the input, scales e8m0 [experts, out, groups].
    Experts,
    /// Codes I32 [in x bits / 32, out], zeros I32 [groups, out x bits / 32] (stored lower by `less`), scales [groups,
    /// out], and optionally the group of each input, used if `ordered`; low bits first. `w = scale (code - zero)`.
    Gptq { bits: usize, less: u32, ordered: bool },
    /// Codes I32 [in, out / 8], zeros I32 [groups, out / 8], scales [groups, out]; a word's columns are in AWQ's
    /// order. Otherwise like GPTQ.
    Awq,
    /// Codes I32 [out, in x bits / 32], scales [out, groups], zeros I32 [out x bits / 32, groups] if `zeros`, and
    /// optionally the group of each input, used if `ordered`. Without zeros, codes are offset by half their range.
    Integers { bits: usize, zeros: bool, ordered: bool },
    /// Codes I8 or e4m3 [out, in], a scale per block, and a zero per block (I8) if `zeros`.
    Bytes { float: bool, block: [usize; 2], zeros: bool },
    /// e2m1 U8 [out, in / 2], scales [out, in / group] in e4m3 with a global one (multiplied or divided by), or in
    /// e8m0.
    Fours { group: usize, scales: FourScales },
}

/// Scaling of a four-bit format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) enum FourScales {
    PowersOfTwo,
    Times,
    Over,
}

/// MXFP4 values per scale.
pub(super) const GROUP: usize = 32;
