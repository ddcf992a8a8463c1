//! Blocks, families as data over blocks, and the names and files of weights.
//!
//! A model's forward pass is written once, over [`fathom_grad::Segments`]. The block and the families are the same on every
//! rank: which layers and which part of each weight a rank holds is decided in `portion`, and used where weights are declared.
//!
//! This crate knows nothing of places, optimizers or launchers.

mod adapter;
mod attention;
mod batch;
mod block;
mod blocked;
mod config;
mod config_rope;
mod encoder;
mod error;
mod family;
mod files;
mod grouped;
mod init;
mod latent;
mod made;
mod model;
mod modules;
mod moe;
mod narrow;
mod patch;
mod pieces;
mod portion;
mod prune;
mod quantize;
mod rollout;
mod rope;
mod rounded;
mod spec;
mod spec_check;
mod stages;
mod sublayer;
mod trained;
mod walk;

pub use adapter::{
    Adapter, AdapterMethod, AdapterParams, EmbedTerm, HoulsbyParams, PeftTensors, PrefixEncoder,
    PrefixParams, PromptEncoder, PromptParams, SavedAdapter, Size, TableParams, Targets, adapt, begin_as,
    changes_base, fix_lengths, load_adapted, load_peft, load_scores, merge, open_peft, save_peft, share_base,
    share_untrained, shared_bytes,
};
pub use attention::{AttentionParams, DistanceParams, QkvParams, RelativeParams};
pub use batch::{Caps, PackedTokens, causal_pairs, mask};
pub use block::{BlockParams, DenseParams, FfnParams, LinearParams, MixerParams, NormParams, block};
pub use blocked::{keep_packed, unpack};
pub use config::Config;
pub use encoder::{
    Encoder, EncoderInput, EncoderNames, EncoderParts, EncoderSpec, Relative, Sentence, Task,
    ranks_by_sigmoid, sigmoid,
};
pub use error::{Error, Result};
pub use family::{Experts, FAMILIES, Family, LatentNames, MoeNames, Names, Qkv, Up, Wrapper};
pub use files::{
    Area, BlockTensor, Coded, Coder, Export, FileWriter, FolderOptions, FolderWriter, Fp8Save,
    GenerationConfig, GgufType, Header, HfFolder, Hurry, INDEX, LeftOut, Quantised, QuantisedSave, SINGLE,
    SafeTensors, SaveOptions, Scored, Slot, Source, Stored, Stream, TensorInfo, Wholes, block_tensors,
    export_tensors, fuzz_safetensors, group_of, header_bytes, load, load_slots, open, open_config,
    parse_header, rank_file, read_f32, save, save_gguf, save_hf, save_hf_coded, save_hf_quantised,
    save_hf_rounded, write_file, write_private,
};
pub use grouped::{
    Grouped, GroupedSave, InputSizes, Moments, Packing4, Scaled, Zero, gptq, scales as awq_scales,
};
pub use init::{Init, initialise, initialise_induction, lacks_for_induction};
pub use latent::{Latent, LatentParams};
pub use model::{EmbedParams, LastParams, Model, PROJECTIONS};
pub use modules::MODULES;
pub use moe::{Capacity, Drops, ExpertsParams, Moe, Shared, SharedParams};
pub use narrow::{Linears, NarrowLayers};
pub use patch::{Patch, patches};
pub use pieces::{Linear, LinearPart, Piece};
pub use portion::{Cut, Holding, Holdings, Inside, Misfit, Portion, Seen, Shard, Weight};
pub use prune::{Kept, prunable, prune};
pub use quantize::Quantized;
pub use rollout::{Asked, Failed, Rollout, Weights, Written};
pub use rope::{Frequencies, RopeScaling, RopeSpec};
pub use rounded::RoundTo;
pub use spec::{
    Biases, Ffn, LayerSpec, LlamaSizes, Mixer, Mlp, QkNorm, Reach, Residual, Spec, StateProjections,
    scored_at,
};
pub use stages::StageLayers;
pub use sublayer::{Custom, SubLayer, SubLayerParams};
pub use trained::Trained;
pub use walk::{Begins, InFiles, Kind, Module, Normed, Parallel, Projection, Term, Walk, WeightSpec};
