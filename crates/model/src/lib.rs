//! Blocks, families as data over blocks, and the names and files of weights.
//!
//! A model's forward pass is written once, over [`fathom_grad::Segments`]. The block and the families are the same on every
//! rank: which layers and which part of each weight a rank holds is decided in `portion`, and used where weights are declared.
//!
//! This crate knows nothing of places, optimizers or launchers.

mod batch;
mod block;
mod config;
mod config_rope;
mod encoder;
mod error;
mod family;
mod files;
mod init;
mod latent;
mod made;
mod model;
mod moe;
mod narrow;
mod patch;
mod pieces;
mod portion;
mod rope;
mod spec;
mod spec_check;
mod stages;

pub use batch::{Caps, Packed, causal_pairs, mask};
pub use block::{BlockParams, DenseParams, FfnParams, LinearParams, NormParams, QkvParams, block};
pub use config::Config;
pub use encoder::{Encoder, EncoderSpec, Pool, Positions, Relative, Task};
pub use error::{Error, Result};
pub use family::{Experts, FAMILIES, Family, LatentNames, MoeNames, Names, Qkv, Up, Wrapper};
pub use files::{
    Area, Coded, Export, FileWriter, FolderOptions, FolderWriter, GenerationConfig, Header, HfFolder, Hurry,
    INDEX, LeftOut, SINGLE, SafeTensors, SaveOptions, Slot, Source, Stored, Stream, TensorInfo, Wholes,
    export_tensors, fuzz_safetensors, header_bytes, load, load_slots, open, open_config, parse_header,
    rank_file, read_f32, save, save_hf, write_file, write_private,
};
pub use init::{Init, initialise};
pub use latent::{Latent, LatentParams};
pub use model::{EmbedParams, LastParams, Model};
pub use moe::{Capacity, Drops, ExpertsParams, Moe, Shared, SharedParams};
pub use narrow::{Linears, NarrowLayers};
pub use patch::{Patch, patches};
pub use pieces::Piece;
pub use portion::{Holding, Holdings, Misfit, Portion, Shard, Weight};
pub use rope::{Frequencies, RopeScaling, RopeSpec};
pub use spec::{Biases, LayerSpec, LlamaSizes, Mlp, QkNorm, Residual, Spec};
pub use stages::StageLayers;
