//! Number formats: the keys of `precision`, and the type of moments.

use super::limits::Whole;
use fathom_base::{choice, recipe};
use fathom_grad::GemmFormat;
use fathom_model::{Linears, RoundTo};
use fathom_tensor::{BlockFormat, DType, Element};

choice! {
    /// Storage of weights and optimizer state while no operation needs them.
    pub enum OffloadTo {
        /// In a file.
        Disk = "disk",
        /// In host memory.
        Host = "host",
    }
}

choice! {
    /// Format of frozen projections.
    pub enum QuantizationName {
        /// The model's own type.
        None = "none",
        /// NF4: four bits, and a scale for 64 weights, with bitsandbytes' bits.
        Nf4 = "nf4",
        /// int8, and a scale for a row, with bitsandbytes' bits.
        Int8 = "int8",
    }
}

impl QuantizationName {
    /// The format; `None` for none.
    pub fn format(self) -> Option<BlockFormat> {
        match self {
            QuantizationName::None => None,
            QuantizationName::Nf4 => Some(BlockFormat::Nf4),
            QuantizationName::Int8 => Some(BlockFormat::Int8),
        }
    }
}

choice! {
    /// Type of the moments (Megatron's `exp_avg_dtype` and `exp_avg_sq_dtype`).
    pub enum MomentType {
        /// bfloat16.
        Bf16 = "bf16",
        /// f32.
        F32 = "f32",
        /// e4m3 in blocks of 128 with a scale each; second moments as their square roots.
        Fp8 = "fp8",
    }
}

impl MomentType {
    /// The element type.
    pub(crate) fn dtype(self) -> DType {
        match self {
            MomentType::Bf16 => DType::Bf16,
            MomentType::F32 => DType::F32,
            MomentType::Fp8 => DType::F8E4M3,
        }
    }
}

choice! {
    /// Number format of the GEMM operands of linear layers; sums are f32.
    pub enum GemmName {
        /// That of `model.precision`.
        Bf16 = "bf16",
        /// FP8 with one scale per tensor, from the largest elements of earlier steps: E4M3, gradients E5M2.
        Fp8Delayed = "fp8_delayed",
        /// FP8 with one scale per tensor, from its own largest element: E4M3, gradients E5M2.
        Fp8Current = "fp8_current",
        /// FP8 in blocks (DeepSeek-V3): E4M3, weights 128 x 128, other operands 1 x 128.
        Fp8Block = "fp8_block",
        /// Microscaling in blocks of 32: 8 bits, E4M3.
        Mxfp8 = "mxfp8",
        /// 8 bits, E5M2.
        Mxfp8E5m2 = "mxfp8_e5m2",
        /// 6 bits, E2M3.
        Mxfp6E2m3 = "mxfp6_e2m3",
        /// 6 bits, E3M2.
        Mxfp6E3m2 = "mxfp6_e3m2",
        /// 4 bits, E2M1.
        Mxfp4 = "mxfp4",
    }
}

impl GemmName {
    /// The format of operands in low precision; `None` for those of `model.precision`.
    pub(crate) fn format(self) -> Option<GemmFormat> {
        Some(match self {
            GemmName::Bf16 => return None,
            GemmName::Fp8Delayed => GemmFormat::Fp8Delayed,
            GemmName::Fp8Current => GemmFormat::Fp8Current,
            GemmName::Fp8Block => GemmFormat::Fp8Block,
            GemmName::Mxfp8 => GemmFormat::Micro(Element::E4M3),
            GemmName::Mxfp8E5m2 => GemmFormat::Micro(Element::E5M2),
            GemmName::Mxfp6E2m3 => GemmFormat::Micro(Element::E2M3),
            GemmName::Mxfp6E3m2 => GemmFormat::Micro(Element::E3M2),
            GemmName::Mxfp4 => GemmFormat::Micro(Element::E2M1),
        })
    }
}

choice! {
    /// Formats of quantization-aware training.
    pub enum QatName {
        /// Weights are not rounded.
        None = "none",
        /// Blocks of 32 numbers of E2M1 under a power of two.
        Mxfp4 = "mxfp4",
        /// Blocks of 16 under a number of E4M3, and an f32 for the whole weight.
        Nvfp4 = "nvfp4",
        /// -8 to 7 by groups of 128, 64 or 32 columns, the first that all projections have.
        Int4 = "int4",
    }
}

impl QatName {
    const FORMATS: [(QatName, RoundTo); 3] =
        [(QatName::Mxfp4, RoundTo::Mxfp4), (QatName::Nvfp4, RoundTo::Nvfp4), (QatName::Int4, RoundTo::Int4)];

    /// The format; `None` for none.
    pub fn format(self) -> Option<RoundTo> {
        QatName::FORMATS.iter().find(|(name, _)| *name == self).map(|(_, format)| *format)
    }

    /// The name of a format.
    pub fn of(format: RoundTo) -> QatName {
        QatName::FORMATS.iter().find(|(_, of)| *of == format).map_or(QatName::None, |(name, _)| *name)
    }
}

choice! {
    /// Linear layers of the blocks.
    pub enum LinearsName {
        /// All of them.
        All = "all",
        /// Attention's projections.
        Attention = "attention",
        /// The MLP's.
        Mlp = "mlp",
    }
}

impl LinearsName {
    /// The layers.
    pub(crate) fn linears(self) -> Linears {
        match self {
            LinearsName::All => Linears::All,
            LinearsName::Attention => Linears::Attention,
            LinearsName::Mlp => Linears::Mlp,
        }
    }
}

recipe! {
    /// Number formats of the GEMMs of linear layers. The embedding, the head, routers, experts and attention are not affected.
    pub struct PrecisionTable {
        /// Number format of GEMM operands; each is quantized along the reduction dimension.
        pub gemm: GemmName = GemmName::Bf16,
        /// Linear layers in low precision.
        pub linears: LinearsName = LinearsName::All,
        /// First layers that are not affected (Megatron's key).
        pub num_layers_at_start_in_bf16: usize [Whole(0, 4096)] = 0,
        /// Last layers that are not affected (Megatron's key).
        pub num_layers_at_end_in_bf16: usize [Whole(0, 4096)] = 0,
        /// For `fp8_delayed`: steps of history that set the scale (Transformer Engine's `amax_history_len`).
        pub amax_history: usize [Whole(1, 1 << 20)] = 16,
        /// Quantization-aware training: projections of the blocks are what this format makes of their f32 masters, and gradients go to the masters. `fathom export` writes that format.
        pub qat: QatName = QatName::None,
    }
}
