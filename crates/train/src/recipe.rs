//! The recipe of a run: every key once, with its meaning, type and default.

use std::path::PathBuf;

use fathom_base::{choice, recipe};

use crate::error::Error;
use crate::schedule::Decay;

mod data;
mod precision;

pub use data::{Blend, Data, LengthWeight};
pub use precision::{GemmName, LinearsName, MomentType, PrecisionTable};

choice! {
    /// Where a run computes.
    pub enum MachineKind {
        /// A GPU if there is one and CUDA's libraries are found, else the processor.
        Auto = "auto",
        /// The processor.
        Cpu = "cpu",
        /// A GPU, by CUDA.
        Cuda = "cuda",
        /// Nowhere: shapes and no data.
        Meta = "meta",
    }
}

choice! {
    /// Where weights and optimizer state are while they are not at work.
    pub enum OffloadTo {
        /// In a file.
        Disk = "disk",
        /// In the host's memory.
        Host = "host",
    }
}

choice! {
    /// Family of a model that is made from nothing.
    pub enum FamilyName {
        /// Llama.
        Llama = "llama",
        /// Qwen 2: Llama with biases on q, k and v.
        Qwen2 = "qwen2",
        /// Qwen 3: Llama with normalised q and k.
        Qwen3 = "qwen3",
        /// SmolLM 3: Llama in which some layers do not rotate.
        Smollm3 = "smollm3",
        /// Mixtral: Llama with experts in every layer.
        Mixtral = "mixtral",
        /// Qwen 3 with experts.
        Qwen3Moe = "qwen3_moe",
        /// DeepSeek-V3: latent attention, experts that are weighed by sigmoids and chosen with biases.
        DeepseekV3 = "deepseek_v3",
        /// Nemotron 3 and 4: LayerNorm, squared ReLU without a gate, half of each head rotates.
        Nemotron = "nemotron",
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

choice! {
    /// How much is computed again in the backward pass (Megatron's `recompute_granularity`).
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
    /// Which layers `full` recompute means (Megatron's `recompute_method`).
    pub enum Method {
        /// All: kept is the input of every group of `recompute_num_layers` layers.
        Uniform = "uniform",
        /// The first `recompute_num_layers` layers; the others keep everything.
        Block = "block",
    }
}

choice! {
    /// A place for an activation.
    pub enum PlaceName {
        /// In the machine's memory.
        Keep = "keep",
        /// Nowhere: computed again.
        Recompute = "recompute",
        /// In the host's memory.
        Host = "host",
        /// On disk.
        Disk = "disk",
    }
}

choice! {
    /// How values are written that leave memory.
    pub enum OffloadCodec {
        /// As they are.
        AsIs = "as_is",
        /// One e4m3 byte a value and a scale for 128 of them; statistics as they are. Changes the gradients.
        Fp8 = "fp8",
    }
}

choice! {
    /// Who says where activations live.
    pub enum Memory {
        /// The recipe.
        Manual = "manual",
        /// The solver, for the fastest step within the budgets; the other keys of `activations` are not looked at.
        Auto = "auto",
    }
}

choice! {
    /// How keys and values travel between context parallel ranks (Megatron's `cp_comm_type`).
    pub enum CpCommType {
        /// From rank to rank, behind the attention with what came before.
        P2p = "p2p",
        /// All to everybody, before attention.
        AllGather = "all_gather",
        /// Heads instead of tokens (Ulysses).
        A2a = "a2a",
        /// `a2a` among `cp_inner` ranks next to each other, `p2p` among such groups.
        A2aP2p = "a2a+p2p",
    }
}

choice! {
    /// What ranks with the same weights share (Megatron-FSDP's `data_parallel_sharding_strategy`).
    pub enum ShardingName {
        /// Nothing.
        NoShard = "no_shard",
        /// The optimizer's state: ZeRO-1, the distributed optimizer.
        Optim = "optim",
        /// And gradients: ZeRO-2.
        OptimGrads = "optim_grads",
        /// And weights, which are gathered for each block: ZeRO-3.
        OptimGradsParams = "optim_grads_params",
    }
}

choice! {
    /// What an update does with a gradient.
    pub enum OptimizerKind {
        /// AdamW (Loshchilov and Hutter, 2019).
        Adamw = "adamw",
        /// SGD with momentum and decoupled decay (SGDW).
        Sgd = "sgd",
    }
}

choice! {
    /// The order in which micro batches go through a pipeline.
    pub enum PipelineSchedule {
        /// One forward, one backward; interleaved with `virtual_stages`.
        OneByOne = "1f1b",
        /// The same with gradients of weights made where a rank would wait (ZB-H1).
        ZeroBubble = "zero_bubble",
    }
}

choice! {
    /// Which slots an expert beyond its capacity does without (Megatron's `moe_token_drop_policy`).
    pub enum DropPolicy {
        /// Those with the smallest weights.
        Probs = "probs",
        /// Those that come last.
        Position = "position",
    }
}

choice! {
    /// How documents are laid into samples.
    pub enum Packing {
        /// End to end, cut at the sample's length.
        Cut = "cut",
        /// Best fit, no document cut that fits a sample.
        BestFit = "best_fit",
    }
}

choice! {
    /// `rope_scaling` of a stage, with Hugging Face's names.
    pub enum RopeType {
        /// As the model has it.
        Keep = "keep",
        /// None.
        Default = "default",
        /// Every frequency divided.
        Linear = "linear",
        /// NTK-aware by current length.
        Dynamic = "dynamic",
        /// YaRN.
        Yarn = "yarn",
        /// Llama 3.1's bands.
        Llama3 = "llama3",
        /// Factors per frequency.
        Longrope = "longrope",
    }
}

recipe! {
    /// Everything a run is.
    pub struct Recipe {
        /// The run itself.
        pub run: Run,
        /// What it computes on.
        pub machine: Machine,
        /// Over how many ranks, and along which axes.
        pub mesh: MeshTable,
        /// What it trains.
        pub model: ModelTable,
        /// Its experts.
        pub moe: MoeTable,
        /// Numbers that its products are made of.
        pub precision: PrecisionTable,
        /// What it trains on.
        pub data: Data,
        /// The update.
        pub optimizer: Optimizer,
        /// The learning rate over steps.
        pub schedule: ScheduleTable,
        /// Where activations live between forward and backward.
        pub activations: Activations,
        /// The stages, in order.
        pub stage: Vec<Stage>,
        /// Short form of `stage`: the sequence lengths alone. The last of `stage` is repeated with each of these.
        pub stages: Vec<usize>,
        /// Saves.
        pub checkpoint: Checkpoint,
        /// Measurements.
        pub eval: Eval,
    }

    /// The run itself.
    pub struct Run {
        /// Its name in reports.
        pub name: String = "train".into(),
        /// Key of all randomness.
        pub seed: u64 = 0,
        /// Folder for checkpoints, metrics, report and model.
        pub out: PathBuf = PathBuf::from("out"),
        /// Time for everything; stages share what is left by `minutes_share`. None: stages say their steps.
        pub minutes: Option<f64>,
        /// Writes a Chrome trace of one step of each stage.
        pub profile: bool = false,
        /// Writes TensorBoard event files.
        pub tensorboard: bool = false,
    }

    /// What a run computes on.
    pub struct Machine {
        /// `cpu`, `cuda` for a GPU, `auto` for a GPU if there is one, or `meta` for a plan.
        pub kind: MachineKind = MachineKind::Auto,
        /// Threads; 0 for all cores.
        pub threads: usize = 0,
        /// Folder for what is on disk instead of in memory; none for the run's own.
        pub spill: Option<PathBuf>,
        /// Keeps each block's weights, the embedding's and the head's on disk while they are not at work.
        pub offload_weights: bool = false,
        /// Keeps the moments and master weights on disk between updates.
        pub offload_optimizer: bool = false,
        /// Where `offload_weights` and `offload_optimizer` keep things: `disk`, or `host` for the host's memory beside a GPU.
        pub offload_to: OffloadTo = OffloadTo::Disk,
        /// With `offload_optimizer`: hundredths of its state that stay with the machine all the same.
        pub optimizer_stays_percent: u32 = 0,
        /// Seed of an adversary between memory and disk, for tests: delays, short operations, any order.
        pub chaos: Option<u64>,
        /// With `chaos`: one operation in about this many fails; 0 for none.
        pub chaos_faults: u32 = 0,
        /// Faults for tests, like `kill rank 1 at step 3, flip rank 2 at step 5`: `kill`, `hang`, `slow`, `term`, `nan`,
        /// `flip`; each happens once.
        pub fault: Option<String>,
        /// Memory budget in bytes; none for what the machine has.
        pub memory_bytes: Option<u64>,
        /// Folders of CUDA's libraries with colons between them, looked in before those of `FATHOM_CUDA_LIBS`.
        pub cuda_libs: Option<String>,
        /// On a GPU, captures what a block issues as a graph and replays it where it comes again.
        pub graphs: bool = false,
        /// Most bytes of activations on disk; none for most of what is free.
        pub disk_bytes: Option<u64>,
        /// Whose rates predict times: `cpu` (nominal ones), a file of `fathom bench profile --out`, or, for plans, `h100`,
        /// `h200`, `b200`, and with what connects them `dgx-h100`, `dgx-h200`, `dgx-b200`.
        pub profile: String = "cpu".into(),
    }

    /// Ranks: `pp x dp x cp x tp` of them, which on one machine are threads that share its cores.
    pub struct MeshTable {
        /// Tensor parallel: each rank has a part of every block's weights.
        pub tp: usize = 1,
        /// Context parallel: each rank has a part of every sequence.
        pub cp: usize = 1,
        /// How keys and values travel between them.
        pub cp_comm_type: CpCommType = CpCommType::P2p,
        /// Ranks of an inner group of `a2a+p2p`.
        pub cp_inner: usize = 1,
        /// Each document lies on as few of those ranks as balance allows, and only keys that are attended to travel (dynamic context
        /// parallel); with `p2p`.
        pub cp_dynamic: bool = false,
        /// Data parallel: each rank has a part of the micro batches.
        pub dp: usize = 1,
        /// Pipeline parallel: each rank has some of the layers.
        pub pp: usize = 1,
        /// Expert parallel: each rank has some of the experts; folded, with `etp`, over the ranks of `dp`, `cp` and `tp`.
        pub ep: usize = 1,
        /// Tensor parallel inside an expert: each rank has a part of an expert's columns.
        pub etp: usize = 1,
        /// Stages of the pipeline on each rank (interleaved schedule); the step's micro batches are then a multiple of `pp`.
        pub virtual_stages: usize = 1,
        /// In which order micro batches go through the stages.
        pub schedule: PipelineSchedule = PipelineSchedule::OneByOne,
        /// Layers of each stage of the pipeline, in the order of a forward pass; none: so that the stages take equally long, the
        /// head counted.
        pub layout: Vec<usize>,
        /// Tensor parallel ranks share the rows of what lies between their sub-layers.
        pub sequence_parallel: bool = true,
        /// What ranks with the same weights share.
        pub sharding: ShardingName = ShardingName::Optim,
        /// How long a rank waits for another before it gives up.
        pub timeout_s: f64 = 600.0,
        /// The same during steps; none for `timeout_s`.
        pub step_timeout_s: Option<f64>,
        /// Failures of ranks after which the run goes back to the last step that all have, and on; of ranks that are
        /// processes NaN and flipped bits alone.
        pub restarts: u64 = 0,
        /// Steps between comparisons of the weights of ranks that should have the same; 0 for none.
        pub check_every_steps: u64 = 0,
    }

    /// What a run trains: a Hugging Face folder, or a decoder of these sizes from nothing.
    pub struct ModelTable {
        /// Folder to start from; the sizes below are then not looked at.
        pub from: Option<PathBuf>,
        /// What the blocks are made of.
        pub family: FamilyName = FamilyName::Llama,
        /// For `smollm3`: every so many layers one does not rotate.
        pub no_rope_layer_interval: usize = 4,
        /// Type of weights and activations.
        pub precision: Precision = Precision::Bf16,
        /// Columns of the residual stream.
        pub hidden: usize = 256,
        /// Blocks.
        pub layers: usize = 6,
        /// Query heads.
        pub heads: usize = 4,
        /// Key and value heads.
        pub kv_heads: usize = 2,
        /// Columns of one head.
        pub head_dim: usize = 64,
        /// Columns inside the MLP, or inside an expert.
        pub ffn: usize = 704,
        /// Rows of the embedding; the tokenizer's size when it is trained here.
        pub vocab: usize = 4096,
        /// Base of the rotary frequencies.
        pub rope_theta: f64 = 10000.0,
        /// The head is the embedding.
        pub tied: bool = true,
        /// For `deepseek_v3`: columns of a head that are rotated, and the same for all keys.
        pub rope_dim: usize = 16,
        /// For `deepseek_v3`: columns of the latent of keys and values.
        pub kv_latent: usize = 128,
        /// Deviation of the first weights.
        pub init_std: f64 = 0.02,
    }

    /// Experts: their sizes in a model from nothing, and what training adds to those of any model.
    pub struct MoeTable {
        /// Experts of a layer.
        pub experts: usize = 8,
        /// Experts of a token.
        pub top_k: usize = 2,
        /// Columns inside one expert; none for `model.ffn`.
        pub ffn: Option<usize>,
        /// For `deepseek_v3`: experts that every token goes through as well.
        pub shared: usize = 0,
        /// Layers at the beginning that have an ordinary MLP.
        pub dense_layers: usize = 0,
        /// Weight of the loss that balances experts over each micro batch (Megatron's `moe_aux_loss_coeff`).
        pub aux_loss: f64 = 0.0,
        /// Weight of the routers' z-loss.
        pub z_loss: f64 = 0.0,
        /// How far a step moves each bias of the choice of experts towards even loads, without a loss.
        pub bias_update_rate: f64 = 0.0,
        /// Most slots of an expert, in even shares of a rank's tokens of a micro batch; none drops nothing.
        pub capacity_factor: Option<f64>,
        /// Which slots are dropped.
        pub drop_policy: DropPolicy = DropPolicy::Probs,
    }

    /// The update.
    pub struct Optimizer {
        /// AdamW, or SGD with momentum.
        pub kind: OptimizerKind = OptimizerKind::Adamw,
        /// Type of the moments.
        pub moments: MomentType = MomentType::F32,
        /// bf16 weights have f32 masters. Without, 4 bytes less for each, an update rounds the weight itself up or down at random, right on
        /// average (stochastic rounding; torchao's `bf16_stochastic_round`).
        pub master_weights: bool = true,
        /// Highest learning rate.
        pub lr: f64 = 1e-3,
        /// Decay of the first moment; the momentum of `sgd`.
        pub beta1: f64 = 0.9,
        /// Decay of the second moment.
        pub beta2: f64 = 0.95,
        /// Added to the root of the second moment.
        pub eps: f64 = 1e-8,
        /// Decoupled decay of matrices; not of norms and biases.
        pub weight_decay: f64 = 0.1,
        /// Largest global gradient norm; none does not clip.
        pub clip: Option<f64> = Some(1.0),
        /// Weight of the squared log-partition in the loss.
        pub z_loss: f64 = 0.0,
    }

    /// The learning rate over steps; each stage has its own run of it.
    pub struct ScheduleTable {
        /// Shape after warm-up.
        pub decay: Decay = Decay::Cosine,
        /// Steps of linear warm-up.
        pub warmup_steps: u64 = 20,
        /// Last rate as a share of the highest.
        pub final_share: f64 = 0.1,
        /// Share of a stage's steps after warm-up over which `wsd` decays.
        pub decay_share: f64 = 0.2,
    }

    /// Where activations live between forward and backward.
    pub struct Activations {
        /// Who says where activations live and how high tiles are: `manual` (the keys below), or `auto` (the plan).
        pub memory: Memory = Memory::Manual,
        /// How much is computed again.
        pub recompute_granularity: Granularity = Granularity::None,
        /// For `selective`: core_attn, layernorm, mlp, mlp_act, and of experts and latent attention moe, moe_act, shared_experts, mla_up_proj.
        pub recompute_modules: Vec<String>,
        /// For `full`: which layers.
        pub recompute_method: Method = Method::Uniform,
        /// For `full`: layers of a group, or the number of layers.
        pub recompute_num_layers: usize = 1,
        /// Rules that are asked before all of these; the first that matches decides.
        pub places: Vec<PlaceRule>,
        /// What of the kept leaves memory: the modules of `recompute_modules`, block (each block's input), all.
        pub offload_modules: Vec<String>,
        /// Where it goes: `disk`, or `host` on machines with memory of their own.
        pub offload_place: PlaceName = PlaceName::Disk,
        /// Share of the tokens that leave.
        pub offload_fraction: f64 = 1.0,
        /// How it is written.
        pub offload_codec: OffloadCodec = OffloadCodec::AsIs,
        /// Groups of key and value heads that attention runs over, one after the other.
        pub head_groups: usize = 1,
        /// Tokens of a tile of everything that works token by token; a multiple of 128; none for no tiles.
        pub tile_rows: Option<usize>,
    }

    /// A place for some activations of some layers.
    pub struct PlaceRule {
        /// The first layer, and the one after the last; none for all.
        pub layers: Vec<usize>,
        /// An activation's name, as `fathom inspect activations` prints it; a prefix ending in `*`; or `*`.
        pub name: String = "*".into(),
        /// Its place.
        pub place: PlaceName = PlaceName::Keep,
    }

    /// One stage of a run.
    pub struct Stage {
        /// Its name; where an earlier stage has it, a number follows.
        pub name: String = "pretrain".into(),
        /// Tokens of a sample.
        pub seq_tokens: usize = 2048,
        /// Samples of a micro batch, packed into one stream.
        pub samples_per_micro_batch: usize = 1,
        /// Micro batches of a step.
        pub micro_batches: usize = 4,
        /// Steps; none with `run.minutes`.
        pub steps: Option<u64>,
        /// Share of the run's training time, when that is given.
        pub minutes_share: f64 = 1.0,
        /// Multiplies `optimizer.lr`.
        pub lr_scale: f64 = 1.0,
        /// Replaces `schedule.warmup_steps`.
        pub warmup_steps: Option<u64>,
        /// How documents are laid into samples.
        pub packing: Packing = Packing::Cut,
        /// Documents do not see each other.
        pub masked: bool = false,
        /// Replaces `data.blend`.
        pub blend: Vec<Blend>,
        /// Shortest document drawn.
        pub min_doc_tokens: usize = 0,
        /// Draws documents more or less often by their length.
        pub length_weights: Vec<LengthWeight>,
        /// Most documents of a sample, for masks; a micro batch has room for those of all its samples.
        pub max_docs: usize = 64,
        /// New base of the rotary frequencies; none keeps it.
        pub rope_theta: Option<f64>,
        /// `rope_scaling` of the stage.
        pub rope_type: RopeType = RopeType::Keep,
        /// New over old length; none takes `seq_tokens` over the model's length.
        pub rope_factor: Option<f64>,
        /// Replaces `activations.recompute_granularity`.
        pub recompute_granularity: Option<Granularity>,
        /// Replaces `activations.tile_rows`.
        pub tile_rows: Option<usize>,
    }

    /// Saves.
    pub struct Checkpoint {
        /// Time between saves; none saves at stage ends only.
        pub every_s: Option<f64> = Some(60.0),
        /// Steps between saves.
        pub every_steps: Option<u64>,
        /// Steps between copies of every rank's state in its own memory and in that of another; none makes no copies.
        pub memory_every_steps: Option<u64>,
        /// Folder on each machine's own disk that those copies are written to as well; a run goes on from them if they are newer
        /// than its last checkpoint. Of the same mesh only.
        pub local: Option<PathBuf>,
        /// Newest saves that are kept; the last of each stage is kept whatever this says.
        pub keep: usize = 2,
    }

    /// Measurements.
    pub struct Eval {
        /// Tokens of held-out text scored for loss by position.
        pub tokens: usize = 256 << 10,
        /// Trials of each cell of the needle test.
        pub needle_trials: usize = 5,
        /// Depths of the needle test.
        pub needle_depths: usize = 5,
        /// Measures before and after context extension.
        pub enabled: bool = true,
    }
}

impl Recipe {
    /// Replaces the short form `stages` by stages proper, and numbers those whose name an earlier one has.
    ///
    /// # Errors
    /// If there is no stage at all.
    pub fn expand_stages(&mut self) -> Result<(), Error> {
        if !self.stages.is_empty() {
            let model = self.stage.last().cloned().unwrap_or_default();
            let name = |tokens: usize| fathom_base::tokens::format(tokens as u64);
            self.stage = std::mem::take(&mut self.stages)
                .into_iter()
                .map(|seq_tokens| Stage { name: name(seq_tokens), seq_tokens, ..model.clone() })
                .collect();
        }
        for index in 1..self.stage.len() {
            let name = &self.stage[index].name;
            let taken = |name: &str| self.stage.iter().any(|stage| stage.name == name);
            let again = self.stage[..index].iter().any(|stage| stage.name == *name);
            let numbered = (2..).map(|number| format!("{name}-{number}")).find(|name| !taken(name));
            if let (true, Some(name)) = (again, numbered) {
                self.stage[index].name = name;
            }
        }
        match self.stage.is_empty() {
            true => Err(Error::Recipe {
                key: "stage".into(),
                message: "a run needs at least one [[stage]]".into(),
            }),
            false => Ok(()),
        }
    }
}
