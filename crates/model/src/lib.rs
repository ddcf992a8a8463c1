//! Blocks, families as data over blocks, and the names and files of weights.
//!
//! A model's forward pass is written once, over [`fathom_grad::Segments`]. The block and the families are the same on
//! every rank: `portion` decides which layers and which part of each weight a rank has, when weights are declared.
//!
//! This crate knows nothing of places, optimizers or launchers.

mod adapter;
mod attention;
mod batch;
mod block;
mod blocked;
mod config;
mod config_rope;
mod cross;
mod encoder;
mod error;
mod family;
mod files;
mod forward;
mod gated_delta;
mod given;
mod grouped;
mod in_files;
mod init;
mod latent;
mod loaded;
mod made;
mod mamba2;
mod mlp;
mod model;
mod modules;
mod moe;
mod narrow;
mod neighbours;
mod norm;
mod patch;
mod pieces;
mod portion;
mod prune;
mod quantize;
mod rollout;
mod rope;
mod rounded;
mod short_conv;
mod spec;
mod stages;
mod trained;
mod weight;
mod whole;

pub use adapter::{
    EmbedTerm, HoulsbyParams, PeftTensors, PrefixParams, PromptParams, SavedAdapter, TableParams, Targets,
    adapt, begin_as, changes_base, fix_lengths, load_adapted, load_peft, load_scores, merge, open_peft,
    save_peft, share_base, share_untrained, shared_bytes,
};
pub use attention::{AttentionParams, QkvParams, RelativeParams};
pub use batch::{Caps, PackedTokens, causal_pairs, mask};
pub use block::{BlockParams, PartParams, SubParams, block};
pub use blocked::{keep_packed, unpack};
pub use config::Config;
pub use cross::CrossParams;
pub use encoder::{Encoder, EncoderInput, EncoderSpec, Sentence, Task, ranks_by_sigmoid, sigmoid};
pub use error::{Error, Result};
pub use family::{FAMILIES, TARGET_START, Wrapper};
pub use files::{
    Area, BlockTensor, CodeScales, Coder, Export, FileWriter, FolderOptions, FolderWriter, Fp8Save,
    GenerationConfig, GgufType, Header, HfFolder, Hurry, INDEX, LeftOut, QuantisedSave, QuantizedTensor,
    SINGLE, SafeTensors, SaveOptions, Slot, Source, Stream, TensorEntry, TensorInfo, Wholes,
    WithRandomTensor, block_tensors, export_tensors, fuzz_safetensors, group_of, header_bytes, load,
    load_slots, open, open_any, open_any_config, open_config, open_writer, open_writer_config, parse_header,
    rank_file, read_f32, save, save_gguf, save_hf, save_hf_coded, save_hf_quantised, save_hf_rounded,
    write_file, write_private,
};
pub use forward::{SourceStream, Streams};
pub use gated_delta::{DeltaNames, GatedDelta};
pub use grouped::{
    GroupedSave, GroupedTensor, InputMoments, InputSizes, Packing4, ScaledColumns, Zero, gptq,
    scales as awq_scales,
};
pub use init::{Init, initialise, initialise_induction, lacks_for_induction};
pub use latent::LatentParams;
pub use loaded::{LoadedModel, ModelView};
pub use made::LlamaSizes;
pub use mamba2::{Gate, Mamba2, StateSizes};
pub use mlp::DenseParams;
pub use model::Model;
pub use modules::MODULES;
pub use moe::{ExpertsParams, SharedParams};
pub use narrow::{Linears, NarrowLayers};
pub use neighbours::RetrievalOutput;
pub use patch::{Patch, patches};
pub use pieces::{Linear, LinearPart, Piece};
pub use portion::{Holdings, Misfit, Portion, Shard, Weight, WeightPart};
pub use prune::{PrunePlan, prunable, prune};
pub use rollout::{Rollout, RolloutAnswer, RolloutError, RolloutRequest};
pub use rope::{Frequencies, RopeScaling, RopeSpec};
pub use short_conv::ShortConv;
pub use spec::{
    Adapter, AdapterMethod, Biases, Drops, EncoderHead, EncoderParts, ExpertCapacity, Factors, Family,
    Latent, LayerSpec, Mlp, Moe, Own, Part, PartKind, PositionBias, PromptEncoder, QkNorm, Quantization,
    RankExchange, Reach, Relative, Residual, Retrieval, RoundTo, SharedExperts, Sharers, Size, Spec,
    SplitDimension, Stack, StateProjections, StateSpec, SubLayer, SubLayerParams, TrainableWeights,
    scored_at,
};
pub use stages::StageLayers;
pub use weight::{
    AdapterParams, Begins, CrossNames, Cut, DistanceParams, EncoderNames, Experts, InFiles, InputSharing,
    Inside, Kind, LastParams, LatentNames, LinearParams, Module, MoeNames, Names, NormParams, NormSpec,
    Parallel, PrefixEncoder, Projection, Qkv, StoredRows, Term, Up, Walk, WeightSpec,
};
pub use whole::{EmbedParams, PROJECTIONS};
