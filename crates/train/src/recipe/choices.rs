//! Values of keys that are one of a few words.

use fathom_base::choice;
use fathom_grad::{Place, Sharding};
use fathom_tensor::DType;
use fathom_tensor::spill::Codec;

choice! {
    /// The machine of a run.
    pub enum MachineKind {
        /// A GPU if there is one and CUDA's libraries are found, else the CPU.
        Auto = "auto",
        /// The CPU.
        Cpu = "cpu",
        /// A GPU, through CUDA.
        Cuda = "cuda",
        /// No computation: shapes without data.
        Meta = "meta",
    }
}

choice! {
    /// Family of a randomly initialised model.
    pub enum FamilyName {
        /// Llama.
        Llama = "llama",
        /// Qwen 2: Llama with biases on q, k and v.
        Qwen2 = "qwen2",
        /// Qwen 3: Llama with normalised q and k.
        Qwen3 = "qwen3",
        /// Granite: Llama with a factor on embeddings, and here with biases in attention.
        Granite = "granite",
        /// SmolLM 3: Llama with some layers without rotary embedding.
        Smollm3 = "smollm3",
        /// Mixtral: Llama with experts in every layer.
        Mixtral = "mixtral",
        /// Qwen 3 with experts.
        Qwen3Moe = "qwen3_moe",
        /// DeepSeek-V3: latent attention; experts with sigmoid scores, chosen with biases.
        DeepseekV3 = "deepseek_v3",
        /// Nemotron 3 and 4: LayerNorm, squared ReLU without a gate, rotary embedding in half of each head.
        Nemotron = "nemotron",
        /// Mamba-2: state-space layers alone.
        Mamba2 = "mamba2",
        /// Granite 4: state-space layers with MLPs, and attention without positions in one layer of `model.attention_interval`. With
        /// `model.init = "induction"` the first two layers attend instead, with rotary embedding and biases.
        GraniteHybrid = "granitemoehybrid",
        /// T5 1.1: an encoder and a decoder of `model.layers` blocks each, with as many key and value heads as query heads.
        T5 = "t5",
        /// RETRO: Llama with an encoder of neighbours, and attention to them in some layers.
        Retro = "retro",
    }
}

choice! {
    /// First weights of a randomly initialised model.
    pub enum InitName {
        /// Normal with `model.init_std`, smaller where a sub-layer ends.
        Normal = "normal",
        /// The same with an induction circuit in the first two layers: heads that attend to the token before, and heads that attend
        /// to what followed the same token and copy it, as trained models have. For `granite`, `granitemoehybrid` and `qwen2`.
        Induction = "induction",
    }
}

choice! {
    /// Type of weights and activations.
    pub enum Precision {
        /// bfloat16 with f32 accumulation; f32 master weights and moments unless `optimizer` says otherwise.
        Bf16 = "bf16",
        /// f32 throughout.
        F32 = "f32",
    }
}

impl Precision {
    /// The element type.
    pub fn dtype(self) -> DType {
        match self {
            Precision::Bf16 => DType::Bf16,
            Precision::F32 => DType::F32,
        }
    }
}

choice! {
    /// Activations that the backward pass recomputes (Megatron's `recompute_granularity`).
    pub enum Granularity {
        /// Nothing: everything is kept.
        None = "none",
        /// The modules named in `recompute_modules`.
        Selective = "selective",
        /// The linear parts; attention's results are kept.
        Linear = "linear",
        /// Everything but each block's input.
        Full = "full",
    }
}

choice! {
    /// Layers to which `full` recompute applies (Megatron's `recompute_method`).
    pub enum Method {
        /// All layers: the input of every group of `recompute_num_layers` layers is kept.
        Uniform = "uniform",
        /// The first `recompute_num_layers` layers; the others keep everything.
        Block = "block",
    }
}

choice! {
    /// A place for an activation.
    pub enum PlaceName {
        /// In device memory.
        Keep = "keep",
        /// Recomputed in the backward pass.
        Recompute = "recompute",
        /// In host memory.
        Host = "host",
        /// On disk.
        Disk = "disk",
    }
}

impl PlaceName {
    /// The place.
    pub(crate) fn place(self) -> Place {
        match self {
            PlaceName::Keep => Place::Keep,
            PlaceName::Recompute => Place::Recompute,
            PlaceName::Host => Place::Host,
            PlaceName::Disk => Place::Disk,
        }
    }
}

choice! {
    /// Format of offloaded values.
    pub enum OffloadCodec {
        /// Unchanged.
        AsIs = "as_is",
        /// One e4m3 byte per value and a scale per 128 values; statistics unchanged. Changes the gradients.
        Fp8 = "fp8",
    }
}

impl OffloadCodec {
    /// The codec.
    pub(crate) fn codec(self) -> Codec {
        match self {
            OffloadCodec::AsIs => Codec::AsIs,
            OffloadCodec::Fp8 => Codec::Fp8Block,
        }
    }
}

choice! {
    /// Choice of the places of activations.
    pub enum Memory {
        /// The recipe.
        Manual = "manual",
        /// The solver, for the fastest step within the budgets; the other keys of `activations` are ignored.
        Auto = "auto",
    }
}

choice! {
    /// Exchange of keys and values between context parallel ranks (Megatron's `cp_comm_type`).
    pub enum CpCommType {
        /// From rank to rank around a ring, overlapped with attention over the previous block.
        P2p = "p2p",
        /// Gathered on every rank before attention.
        AllGather = "all_gather",
        /// Heads instead of tokens (Ulysses).
        A2a = "a2a",
        /// `a2a` within groups of `cp_inner` neighbouring ranks, `p2p` between the groups.
        A2aP2p = "a2a+p2p",
    }
}

choice! {
    /// Exchange between context parallel ranks in layers that read rows in order: state-space layers, convolutions.
    pub enum CpScanCommType {
        /// The way that sends fewer bytes.
        Auto = "auto",
        /// Heads instead of tokens, and back.
        A2a = "a2a",
        /// States, as maps of the pieces of documents, each gathered by the ranks that need it.
        States = "states",
    }
}

choice! {
    /// State to shard over ranks with the same weights (Megatron-FSDP's `data_parallel_sharding_strategy`).
    pub enum ShardingName {
        /// Nothing.
        NoShard = "no_shard",
        /// The optimizer's state: ZeRO-1, the distributed optimizer.
        Optim = "optim",
        /// Also gradients: ZeRO-2.
        OptimGrads = "optim_grads",
        /// Also weights, which are gathered for each block: ZeRO-3.
        OptimGradsParams = "optim_grads_params",
    }
}

impl ShardingName {
    /// The sharding.
    pub(crate) fn sharding(self) -> Sharding {
        match self {
            ShardingName::NoShard => Sharding::NoShard,
            ShardingName::Optim => Sharding::Optim,
            ShardingName::OptimGrads => Sharding::OptimGrads,
            ShardingName::OptimGradsParams => Sharding::OptimGradsParams,
        }
    }
}

choice! {
    /// The optimizer.
    pub enum OptimizerKind {
        /// AdamW (Loshchilov and Hutter, 2019).
        Adamw = "adamw",
        /// SGD with momentum and decoupled decay (SGDW).
        Sgd = "sgd",
    }
}

choice! {
    /// The schedule of micro batches in a pipeline.
    pub enum PipelineSchedule {
        /// One forward, one backward; interleaved with `virtual_stages`.
        OneByOne = "1f1b",
        /// 1F1B with weight gradients deferred to where a rank would wait (ZB-H1).
        ZeroBubble = "zero_bubble",
    }
}

choice! {
    /// Slots that an expert drops beyond its capacity (Megatron's `moe_token_drop_policy`).
    pub enum DropPolicy {
        /// Those with the smallest weights.
        Probs = "probs",
        /// Those that come last.
        Position = "position",
    }
}

choice! {
    /// How the learning rate falls after warm-up.
    pub enum Decay {
        /// Half a cosine to the final rate.
        Cosine = "cosine",
        /// A straight line to the final rate.
        Linear = "linear",
        /// Warm-up, stable, decay: flat, then a straight line over the last part (Hu et al., 2024).
        Wsd = "wsd",
        /// Flat after warm-up.
        Constant = "constant",
    }
}

choice! {
    /// `rope_scaling` of a stage, with Hugging Face's names.
    pub enum RopeType {
        /// That of the model.
        Keep = "keep",
        /// None.
        Default = "default",
        /// Every frequency divided.
        Linear = "linear",
        /// NTK-aware, by the current length.
        Dynamic = "dynamic",
        /// YaRN.
        Yarn = "yarn",
        /// Llama 3.1's bands.
        Llama3 = "llama3",
        /// Factors per frequency.
        Longrope = "longrope",
    }
}
