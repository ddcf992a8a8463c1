//! Number formats: the keys of `precision`, and the type of moments.

use super::limits::Whole;
use fathom_base::{choice, recipe};

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
