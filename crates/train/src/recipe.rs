//! The recipe of a run: every key once, with its meaning, type and default.

use std::path::PathBuf;

use fathom_base::recipe;

use limits::{
    Above0, Any, BYTES, Below1, COLUMNS, MANY, MOST_DOCS, MOST_TOKENS, NO_END, Real, SECONDS, Whole,
};

mod adapter;
mod choices;
mod data;
pub(crate) mod limits;
mod objective;
mod precision;
mod rl;
mod rounds;
mod scale;

pub use adapter::{AdapterName, AdapterTable, EncoderName, NamedAdapter};
pub use choices::{
    CpCommType, CpScanCommType, Decay, DropPolicy, FamilyName, Granularity, InitName, MachineKind, Memory,
    Method, OffloadCodec, OptimizerKind, PipelineSchedule, PlaceName, Precision, RopeType, ShardingName,
};
pub use data::{Blend, ColumnsTable, Data, FormatName, LengthWeight, Packing, SuperviseName, TruncationName};
pub use objective::{
    DivergenceName, HiddenLossName, KlOverName, LossName, MaskingName, MethodName, ObjectiveTable,
    PoolingName, ReferenceName,
};
pub use precision::{
    GemmName, LinearsName, MomentType, OffloadTo, PrecisionTable, QatName, QuantizationName,
};
pub use rl::{EnvironmentTable, EstimatorName, ImportanceName, KlIn, NanName, PolicyName, RlTable};
pub use rounds::{RoundsTable, WriteName};
pub use scale::ScaleTable;

recipe! {
    /// Everything that a run depends on.
    pub struct Recipe {
        /// The run itself.
        pub run: Run,
        /// The machine that computes.
        pub machine: Machine,
        /// The ranks and their axes.
        pub mesh: MeshTable,
        /// The model.
        pub model: ModelTable,
        /// Its experts.
        pub moe: MoeTable,
        /// Adapter to train in place of the model's own weights.
        pub adapter: AdapterTable,
        /// Several adapters over one base, each with its lessons, trained in turns: a step of each, then the next of each.
        pub adapters: Vec<NamedAdapter>,
        /// Number formats of matrix products.
        pub precision: PrecisionTable,
        /// The training data.
        pub data: Data,
        /// The training objective.
        pub objective: ObjectiveTable,
        /// Learning from rewards.
        pub rl: RlTable,
        /// The environment that replies to answers.
        pub environment: EnvironmentTable,
        /// Rounds over pairs that the model writes.
        pub rounds: RoundsTable,
        /// The ladder of `fathom scale`.
        pub scale: ScaleTable,
        /// The optimizer.
        pub optimizer: Optimizer,
        /// The learning rate schedule.
        pub schedule: ScheduleTable,
        /// Places of activations between the forward and the backward pass.
        pub activations: Activations,
        /// The stages, in order.
        pub stage: Vec<Stage>,
        /// Short form of `stage`: sequence lengths. The last `stage` is repeated with each of them.
        pub stages: Vec<usize> [Whole(2, MOST_TOKENS)],
        /// Checkpoints.
        pub checkpoint: Checkpoint,
        /// Evaluation.
        pub eval: Eval,
    }

    /// The run itself.
    pub struct Run {
        /// The run's name in reports.
        pub name: String = "train".into(),
        /// Seed of all randomness.
        pub seed: u64 [Any] = 0,
        /// Folder for checkpoints, metrics, report and model.
        pub out: PathBuf = PathBuf::from("out"),
        /// Minutes for the whole run; stages share the training time by `minutes_share`. None: stages give their steps.
        pub minutes: Option<f64> [Above0(SECONDS / 60.0)],
        /// Writes a Chrome trace of one step of each stage.
        pub profile: bool = false,
        /// Writes TensorBoard event files.
        pub tensorboard: bool = false,
        /// Writes an offline run of Weights & Biases, for `wandb sync`.
        pub wandb: bool = false,
        /// Writes `trackio.jsonl`, a JSON line of scalars a step.
        pub trackio: bool = false,
        /// MLflow server to send scalars to, as `http://localhost:5000`.
        pub mlflow: Option<String>,
        /// OpenTelemetry collector to send metrics to (OTLP over HTTP), as `http://localhost:4318`.
        pub otlp: Option<String>,
    }

    /// The machine that computes.
    pub struct Machine {
        /// `cpu`, `cuda` for a GPU, `auto` for a GPU if there is one, or `meta` for a plan.
        pub kind: MachineKind = MachineKind::Auto,
        /// Threads; 0 for all cores.
        pub threads: usize [Whole(0, 4096)] = 0,
        /// Folder for what is offloaded to disk, on each machine's own disk; none for the run's folder, which all ranks share.
        pub spill: Option<PathBuf>,
        /// Offloads the weights of each block, of the embedding and of the head while no operation needs them.
        pub offload_weights: bool = false,
        /// Offloads the moments and master weights between updates.
        pub offload_optimizer: bool = false,
        /// Target of `offload_weights` and `offload_optimizer`: `disk`, or `host` for host memory (GPU runs).
        pub offload_to: OffloadTo = OffloadTo::Disk,
        /// With `offload_optimizer`: percent of the optimizer state that stays in device memory.
        pub optimizer_stays_percent: u32 [Real(0.0, 100.0)] = 0,
        /// For tests: seed of injected disk disorder (delays, short operations, reordering).
        pub chaos: Option<u64> [Any],
        /// For tests: with `chaos`, about one disk operation in this many fails; 0 for none.
        pub chaos_faults: u32 [Any] = 0,
        /// For tests: injected faults, such as `kill rank 1 at step 3, flip rank 2 at step 5`; `kill`, `hang`, `slow`, `term`,
        /// `nan` or `flip`, once each.
        pub fault: Option<String>,
        /// Memory budget in bytes, shared by the ranks that compute in the same memory (of a GPU, or of the machine); none for what
        /// there is.
        pub memory_bytes: Option<u64> [Whole(1, BYTES)],
        /// Host memory in bytes for what GPU runs offload to it, shared by the ranks of one machine; none for most of what there is.
        pub host_bytes: Option<u64> [Whole(0, BYTES)],
        /// Folders of CUDA's libraries, separated by colons, searched before those of `FATHOM_CUDA_LIBS`.
        pub cuda_libs: Option<String>,
        /// On a GPU: captures each block as a CUDA graph and replays it.
        pub graphs: bool = false,
        /// Maximum bytes of activations on disk, shared by the ranks that use it; none for most of the free space.
        pub disk_bytes: Option<u64> [Whole(0, BYTES)],
        /// The rates that predict times: `cpu` (nominal), a file of `fathom bench profile --out`, or for plans `h100`, `h200`,
        /// `b200`, and with their interconnect `dgx-h100`, `dgx-h200`, `dgx-b200`.
        pub profile: String = "cpu".into(),
    }

    /// The mesh: `pp x dp x cp x tp` ranks. On one machine they are threads that share its cores.
    pub struct MeshTable {
        /// Tensor parallel: each rank has a shard of every block's weights.
        pub tp: usize [Whole(1, MANY)] = 1,
        /// Context parallel: each rank has a part of every sequence.
        pub cp: usize [Whole(1, MANY)] = 1,
        /// Exchange of keys and values between context parallel ranks.
        pub cp_comm_type: CpCommType = CpCommType::P2p,
        /// Exchange between context parallel ranks in state-space layers and convolutions: heads for tokens (`a2a`), or states of
        /// documents at borders of ranks, of a size that does not grow with length; `auto`: what takes fewer bytes.
        pub cp_scan_comm_type: CpScanCommType = CpScanCommType::Auto,
        /// Ranks per `a2a` group of `a2a+p2p`.
        pub cp_inner: usize [Whole(1, MANY)] = 1,
        /// Dynamic context parallel, with `p2p`: each document is on as few ranks as load balance allows, and only keys that are
        /// attended to travel.
        pub cp_dynamic: bool = false,
        /// Data parallel: each rank has some of the micro batches.
        pub dp: usize [Whole(1, MANY)] = 1,
        /// Pipeline parallel: each rank has some of the layers.
        pub pp: usize [Whole(1, MANY)] = 1,
        /// Expert parallel: each rank has some of the experts; folded, with `etp`, over the ranks of `dp`, `cp` and `tp`.
        pub ep: usize [Whole(1, MANY)] = 1,
        /// Tensor parallel within an expert: each rank has some of an expert's columns.
        pub etp: usize [Whole(1, MANY)] = 1,
        /// Pipeline stages per rank (interleaved schedule); with more than 1, the micro batches of a step must be a multiple of `pp`.
        pub virtual_stages: usize [Whole(1, 4096)] = 1,
        /// The pipeline schedule.
        pub schedule: PipelineSchedule = PipelineSchedule::OneByOne,
        /// Layers of each pipeline stage, in forward order; empty: balanced so that all stages take equally long, counting the
        /// head.
        pub layout: Vec<usize> [Whole(0, 4096)],
        /// Sequence parallel: tensor parallel ranks shard the activations between sub-layers by rows.
        pub sequence_parallel: bool = true,
        /// State to shard over ranks with the same weights.
        pub sharding: ShardingName = ShardingName::Optim,
        /// Seconds that a rank waits for another before the run fails.
        pub timeout_s: f64 [Above0(SECONDS)] = 600.0,
        /// The same limit during steps; none for `timeout_s`.
        pub step_timeout_s: Option<f64> [Above0(SECONDS)],
        /// How many rank failures to survive by going back to the last common step. Ranks as processes survive NaN and bit flips
        /// only.
        pub restarts: u64 [Any] = 0,
        /// Steps between comparisons of replicated weights; they are compared before each checkpoint too. 0 for none.
        pub check_every_steps: u64 [Any] = 100,
    }

    /// The model: a Hugging Face folder, or a randomly initialised decoder of these sizes.
    pub struct ModelTable {
        /// Hugging Face folder to start from; the sizes below are then ignored.
        pub from: Option<PathBuf>,
        /// Family of the model.
        pub family: FamilyName = FamilyName::Llama,
        /// For `smollm3`: one layer in this many has no rotary embedding.
        pub no_rope_layer_interval: usize [Whole(1, MANY)] = 4,
        /// For `granite` and `granitemoehybrid`: factor on embeddings. With one over `init_std` the residual stream begins at a deviation of one.
        pub embedding_multiplier: f64 [Above0(NO_END)] = 12.0,
        /// For `granitemoehybrid`: one layer in this many has attention.
        pub attention_interval: usize [Whole(1, MANY)] = 8,
        /// For `retro`: numbers, from 1, of the layers that attend to neighbours. Empty: every third layer from the 6th (from the 9th
        /// if there are more than 15); the last one if there are fewer.
        pub retro_layers: Vec<usize> [Whole(1, 4096)],
        /// For `mamba2` and `granitemoehybrid`: columns of a head of the state-space layers, whose heads have twice `model.hidden` together.
        pub ssm_head_dim: usize [Whole(1, COLUMNS)] = 64,
        /// For these: columns of a head's state per column of the head.
        pub ssm_state: usize [Whole(1, 1024)] = 128,
        /// For these: groups of heads that share the projections to and from the state; tensor parallel ranks divide them.
        pub ssm_groups: usize [Whole(1, MANY)] = 1,
        /// Type of weights and activations. Unless it is set, that of the weights of `model.from`, where most of them are f32.
        pub precision: Precision = Precision::Bf16,
        /// Columns of the residual stream.
        pub hidden: usize [Whole(1, COLUMNS)] = 256,
        /// Blocks.
        pub layers: usize [Whole(1, 4096)] = 6,
        /// Query heads.
        pub heads: usize [Whole(1, MANY)] = 4,
        /// Key and value heads.
        pub kv_heads: usize [Whole(1, MANY)] = 2,
        /// Columns of one head.
        pub head_dim: usize [Whole(8, 512)] = 64,
        /// Columns inside the MLP, or inside an expert.
        pub ffn: usize [Whole(1, COLUMNS)] = 704,
        /// Rows of the embedding; also the size of a tokenizer that the run trains.
        pub vocab: usize [Whole(2, 1 << 24)] = 4096,
        /// Base of the rotary frequencies.
        pub rope_theta: f64 [Above0(NO_END)] = 10000.0,
        /// Ties the head to the embedding.
        pub tied: bool = true,
        /// For `deepseek_v3`: rotated columns of a head, shared by all keys.
        pub rope_dim: usize [Whole(2, MANY)] = 16,
        /// For `deepseek_v3`: columns of the key-value latent.
        pub kv_latent: usize [Whole(1, COLUMNS)] = 128,
        /// Standard deviation of the initial weights.
        pub init_std: f64 [Above0(NO_END)] = 0.02,
        /// muP (Yang and others, 2022): the width for which `init_std` and `optimizer.lr` were chosen. At another `hidden`, initial
        /// values and learning rates of matrices follow it, so that the best learning rate stays; `head_dim` stays too, and the head is
        /// not tied. Unset: `init_std` and one learning rate for all.
        pub mup_width: Option<usize> [Whole(1, COLUMNS)],
        /// Additional initialisation.
        pub init: InitName = InitName::Normal,
        /// Train only weights whose names in files contain a match of one of these regular expressions, as `layers\\.3[01]\\.` or
        /// `lm_head`; the others are frozen. Empty: train all, or with an adapter it alone. A new head of scores is trained in any case.
        pub trained: Vec<String>,
        /// Hold projections and experts that are not trained in fewer bits than the model computes in. A folder of bitsandbytes in this
        /// format is taken as it is; other weights are quantized while they are loaded.
        pub quantization: QuantizationName = QuantizationName::None,
        /// For `nf4`: weights that are quantized while they are loaded get the values of double quantization, whose scales have eight
        /// bits in files; in memory they have 32.
        pub double_quant: bool = true,
    }

    /// Experts: their sizes in a randomly initialised model, and the training settings of any model with experts.
    pub struct MoeTable {
        /// Experts per layer.
        pub experts: usize [Whole(1, MANY)] = 8,
        /// Experts per token.
        pub top_k: usize [Whole(1, MANY)] = 2,
        /// Columns inside one expert; none for `model.ffn`.
        pub ffn: Option<usize> [Whole(1, COLUMNS)],
        /// For `deepseek_v3`: shared experts, which process every token.
        pub shared: usize [Whole(0, 4096)] = 0,
        /// First layers with a dense MLP.
        pub dense_layers: usize [Whole(0, 4096)] = 0,
        /// Weight of the load-balancing loss over each micro batch (Megatron's `moe_aux_loss_coeff`).
        pub aux_loss: f64 [Real(0.0, NO_END)] = 0.0,
        /// Weight of the router z-loss.
        pub z_loss: f64 [Real(0.0, NO_END)] = 0.0,
        /// Step size of each expert's selection bias towards a balanced load, without a loss.
        pub bias_update_rate: f64 [Real(0.0, NO_END)] = 0.0,
        /// Capacity of an expert, as a multiple of its even share of a rank's slots in a micro batch; none for no limit.
        pub capacity_factor: Option<f64> [Above0(NO_END)],
        /// Slots to drop beyond the capacity.
        pub drop_policy: DropPolicy = DropPolicy::Probs,
    }

    /// The optimizer.
    pub struct Optimizer {
        /// AdamW, or SGD with momentum.
        pub kind: OptimizerKind = OptimizerKind::Adamw,
        /// Type of the moments.
        pub moments: MomentType = MomentType::F32,
        /// Keeps f32 masters of bf16 weights. Without them a weight takes 4 bytes less, and updates round it stochastically
        /// (torchao's `bf16_stochastic_round`).
        pub master_weights: bool = true,
        /// Peak learning rate.
        pub lr: f64 [Real(0.0, NO_END)] = 1e-3,
        /// Decay of the first moment; the momentum of `sgd`.
        pub beta1: f64 [Below1] = 0.9,
        /// Decay of the second moment.
        pub beta2: f64 [Below1] = 0.95,
        /// Added to the root of the second moment.
        pub eps: f64 [Real(0.0, NO_END)] = 1e-8,
        /// Decoupled weight decay of matrices; norms and biases have none.
        pub weight_decay: f64 [Real(0.0, NO_END)] = 0.1,
        /// Maximum global gradient norm; none for no clipping.
        pub clip: Option<f64> [Above0(NO_END)] = Some(1.0),
        /// Weight of the squared log-partition in the loss.
        pub z_loss: f64 [Real(0.0, NO_END)] = 0.0,
    }

    /// The learning rate schedule, which restarts with each stage.
    pub struct ScheduleTable {
        /// Shape after warm-up.
        pub decay: Decay = Decay::Cosine,
        /// Steps of linear warm-up; none for 20, or those of `warmup_share`.
        pub warmup_steps: Option<u64> [Any],
        /// In place of `warmup_steps`: fraction of a stage's steps that are warm-up, rounded up to a step.
        pub warmup_share: Option<f64> [Below1],
        /// Final learning rate, as a fraction of the peak.
        pub final_share: f64 [Real(0.0, 1.0)] = 0.1,
        /// Fraction of a stage's steps after warm-up over which `wsd` decays.
        pub decay_share: f64 [Real(0.0, 1.0)] = 0.2,
    }

    /// Places of activations between the forward and the backward pass.
    pub struct Activations {
        /// Choice of the places of activations and of the tile size: `manual` (the keys below) or `auto` (the solver).
        pub memory: Memory = Memory::Manual,
        /// Activations that the backward pass recomputes.
        pub recompute_granularity: Granularity = Granularity::None,
        /// For `selective`: core_attn, layernorm, mlp, mlp_act, of experts and latent attention moe, moe_act, shared_experts, mla_up_proj, and mixer of other mixers.
        pub recompute_modules: Vec<String>,
        /// For `full`: which layers.
        pub recompute_method: Method = Method::Uniform,
        /// For `full`: layers per group (`uniform`), or number of layers (`block`).
        pub recompute_num_layers: usize [Whole(1, MANY)] = 1,
        /// Rules that take precedence over the other keys; the first match decides.
        pub places: Vec<PlaceRule>,
        /// Kept activations to offload: modules as in `recompute_modules`, block (each block's input), or all.
        pub offload_modules: Vec<String>,
        /// Target of offloaded activations: `disk`, or `host` (GPU runs).
        pub offload_place: PlaceName = PlaceName::Disk,
        /// Fraction of the tokens whose activations are offloaded.
        pub offload_fraction: f64 [Above0(1.0)] = 1.0,
        /// Format of offloaded values.
        pub offload_codec: OffloadCodec = OffloadCodec::AsIs,
        /// Groups of key and value heads that attention processes one after the other.
        pub head_groups: usize [Whole(1, MANY)] = 1,
        /// Tokens per tile of token-wise operations, a multiple of 128; none for no tiling.
        pub tile_rows: Option<usize> [Any],
    }

    /// The place of some activations of some layers.
    pub struct PlaceRule {
        /// First layer and end of the range (exclusive); empty for all layers.
        pub layers: Vec<usize> [Any],
        /// An activation's name, as `fathom inspect activations` prints it; a prefix ending in `*`; or `*`.
        pub name: String = "*".into(),
        /// Its place.
        pub place: PlaceName = PlaceName::Keep,
    }

    /// One stage of a run.
    pub struct Stage {
        /// Its name; a number is appended if an earlier stage has the same name.
        pub name: String = "pretrain".into(),
        /// Tokens per sample.
        pub seq_tokens: usize [Whole(2, MOST_TOKENS)] = 2048,
        /// Samples per micro batch, packed into one stream.
        pub samples_per_micro_batch: usize [Whole(1, MANY)] = 1,
        /// Micro batches per step.
        pub micro_batches: usize [Whole(1, COLUMNS)] = 4,
        /// Number of steps; none if `run.minutes` or `epochs` is given.
        pub steps: Option<u64> [Whole(1, u64::MAX)],
        /// In place of `steps`: passes over all samples of the stage's one source. The last step of a pass may have
        /// fewer samples.
        pub epochs: Option<u64> [Whole(1, COLUMNS)],
        /// With `run.minutes`: weight of this stage in the run's training time.
        pub minutes_share: f64 [Real(0.0, NO_END)] = 1.0,
        /// Multiplies `optimizer.lr`.
        pub lr_scale: f64 [Real(0.0, NO_END)] = 1.0,
        /// Overrides `schedule.warmup_steps` and `schedule.warmup_share`.
        pub warmup_steps: Option<u64> [Any],
        /// Packing of documents into samples.
        pub packing: Packing = Packing::Cut,
        /// Restricts attention to a token's own document.
        pub masked: bool = false,
        /// Overrides `data.blend`.
        pub blend: Vec<Blend>,
        /// Minimum length of a document, in tokens.
        pub min_doc_tokens: usize [Any] = 0,
        /// Draws documents more or less often by their length.
        pub length_weights: Vec<LengthWeight>,
        /// Maximum number of documents per sample, which sizes the masks.
        pub max_docs: usize [Whole(1, MOST_DOCS)] = 64,
        /// New base of the rotary frequencies; none for that of the model.
        pub rope_theta: Option<f64> [Above0(NO_END)],
        /// `rope_type` of the stage's rotary scaling.
        pub rope_type: RopeType = RopeType::Keep,
        /// New length over old length; none for `seq_tokens` over the model's length.
        pub rope_factor: Option<f64> [Real(1.0, NO_END)],
        /// Overrides `activations.recompute_granularity`.
        pub recompute_granularity: Option<Granularity>,
        /// Overrides `activations.tile_rows`.
        pub tile_rows: Option<usize> [Any],
    }

    /// Checkpoints.
    pub struct Checkpoint {
        /// Seconds between checkpoints; none for the end of each stage only.
        pub every_s: Option<f64> [Real(0.0, SECONDS)] = Some(60.0),
        /// Steps between checkpoints.
        pub every_steps: Option<u64> [Whole(1, u64::MAX)],
        /// Steps between in-memory copies of every rank's state, on the rank itself and on a partner; none for no copies.
        pub memory_every_steps: Option<u64> [Whole(1, u64::MAX)],
        /// Folder on each machine's local disk to which these copies are also written. A run on the same mesh resumes from them if
        /// they are newer than its last checkpoint.
        pub local: Option<PathBuf>,
        /// Leave frozen weights out of checkpoints, which name and hash `model.from` instead.
        pub trained_only: bool = false,
        /// Number of checkpoints to keep; the last of each stage is always kept.
        pub keep: usize [Any] = 2,
    }

    /// Evaluation.
    pub struct Eval {
        /// Tokens of held-out text to score for loss by position.
        pub tokens: usize [Whole(0, BYTES)] = 256 << 10,
        /// Trials per length and depth of the needle test.
        pub needle_trials: usize [Whole(0, MANY)] = 5,
        /// Number of depths of the needle test.
        pub needle_depths: usize [Whole(1, MANY)] = 5,
        /// Evaluates before and after context extension.
        pub enabled: bool = true,
        /// Lengths in tokens at which RULER's tasks are asked before and after context extension; none of them without a length.
        pub ruler: Vec<usize> [Whole(1, MOST_TOKENS)],
        /// Rows of each of RULER's tasks at each length; RULER has 500.
        pub ruler_rows: usize [Whole(1, MANY)] = 20,
        /// Folder with RULER's files (`ruler/PaulGrahamEssays.json` and the others); none: the six tasks that need no file.
        pub ruler_data: Option<PathBuf>,
    }
}
