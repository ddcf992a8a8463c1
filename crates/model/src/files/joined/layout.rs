//! How a tensor's elements lie in the tensors that it is read out of.

use fathom_tensor::DType;

/// One tensor that is stored as several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::files) struct Joined {
    /// What it is read out of. The first stands for all in the file's order.
    pub parts: Vec<JoinedPart>,
    /// [out, in] of a linear, [experts, in, out] of experts.
    pub shape: Vec<usize>,
    /// The type that it is read as.
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

/// How a tensor's elements lie in its parts, which are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) enum Layout {
    /// Blocks U8 [experts, out, groups, 16] of 32 e2m1 numbers along the input, scales e8m0 [experts, out, groups].
    Experts,
    /// Codes I32 [in x bits / 32, out], zeros I32 [groups, out x bits / 32] (lower by `less`), scales [groups, out], and maybe the group of
    /// each input, which counts if `ordered`; the first in the low bits. `w = scale (code - zero)`.
    Gptq { bits: usize, less: u32, ordered: bool },
    /// Codes I32 [in, out / 8], zeros I32 [groups, out / 8], scales [groups, out]; columns of a word in AWQ's order. As GPTQ's.
    Awq,
    /// Codes I32 [out, in x bits / 32], scales [out, groups], zeros I32 [out x bits / 32, groups] if `zeros`, and maybe the group of each
    /// input, which counts if `ordered`. Without zeros codes are higher by half their range.
    Integers { bits: usize, zeros: bool, ordered: bool },
    /// Codes I8 or e4m3 [out, in], a scale for each block, a zero for each (I8) if `zeros`.
    Bytes { float: bool, block: [usize; 2], zeros: bool },
    /// e2m1 U8 [out, in / 2], scales [out, in / group] in e4m3, with one for all (multiplied, or divided by), or in e8m0.
    Fours { group: usize, scales: FourScales },
}

/// How four bits are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) enum FourScales {
    PowersOfTwo,
    Times,
    Over,
}

/// Numbers of MXFP4 under one scale.
pub(super) const GROUP: usize = 32;
