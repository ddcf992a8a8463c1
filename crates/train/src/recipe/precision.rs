//! What numbers are kept as and multiplied as: the keys of `precision`, and the type of moments.

use fathom_base::{choice, recipe};

choice! {
    /// What moments are kept as (Megatron's `exp_avg_dtype` and `exp_avg_sq_dtype`).
    pub enum MomentType {
        /// bfloat16.
        Bf16 = "bf16",
        /// f32.
        F32 = "f32",
        /// e4m3 in blocks of 128 with a scale each; of second moments the roots.
        Fp8 = "fp8",
    }
}

choice! {
    /// What the operands of linear layers' products become when they meet; sums are f32 throughout.
    pub enum GemmName {
        /// Nothing else: they are of `model.precision`.
        Bf16 = "bf16",
        /// FP8, a scale a tensor by the largest elements of earlier steps: E4M3, gradients E5M2.
        Fp8Delayed = "fp8_delayed",
        /// FP8, a scale a tensor by its own largest element: E4M3, gradients E5M2.
        Fp8Current = "fp8_current",
        /// FP8 in blocks (DeepSeek-V3): E4M3, weights 128 x 128, the others 1 x 128.
        Fp8Block = "fp8_block",
        /// Micro-scaling in blocks of 32: 8 bits, E4M3.
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
    /// Numbers that products of linear layers are made of. Never those of the embedding, the head, routers and experts, nor attention.
    pub struct PrecisionTable {
        /// What operands become when they meet: each product rounds both of its own along its summed index.
        pub gemm: GemmName = GemmName::Bf16,
        /// Which linear layers.
        pub linears: LinearsName = LinearsName::All,
        /// Layers at the beginning whose products stay as they are (Megatron's key).
        pub num_layers_at_start_in_bf16: usize = 0,
        /// Layers at the end whose products stay as they are (Megatron's key).
        pub num_layers_at_end_in_bf16: usize = 0,
        /// For `fp8_delayed`: steps that it looks back on (Transformer Engine's `amax_history_len`).
        pub amax_history: usize = 16,
    }
}
