//! Fused operations with their gradients, segments, places, and optimizer updates.
//!
//! A block's forward function names operations on a [`Ctx`]; that records a small graph. A [`schedule::Schedule`] turns
//! the graph and a table of [`Places`] into explicit steps, and one executor runs them on any machine: forward, recomputation
//! of missing values, backward. On `meta` the same steps are the plan.
//!
//! This crate knows nothing of layers, checkpoints or training algorithms.

mod batch;
mod cache;
mod context;
mod counters;
mod disk;
mod gather;
mod grads;
mod graph;
mod head;
mod held;
mod low_rank;
mod memo;
mod narrow;
mod op;
mod optimizer;
mod owed;
mod packed;
mod param_id;
mod params;
mod parted;
mod places;
mod rounding;
mod row_terms;
mod run;
mod scope;
mod shares;
mod tape;
#[cfg(test)]
mod testing;
mod tiles;
mod value;
mod visit;

pub mod ops;
pub mod schedule;

pub use batch::{Batch, Rotation, Tables, VIRTUAL};
pub use context::{
    Context, ContextLayout, CpComm, LayoutSizes, PIECES, SharedStream, causal_pairs, dealable, mask,
};
pub use counters::{Counters, Counts, Span};
pub use disk::{CHUNK, OnDisk, StateDisk};
pub use fathom_tensor::{DocumentRun, DocumentRuns};
pub use grads::Grads;
pub use graph::{Ctx, Graph, Info, Node, Spread, Val};
pub use head::{
    CrossEntropyLoss, DivergenceLoss, EntropyLoss, Head, HeadTerm, HeadUse, Labels, LossTerm, Measures,
    ProjectedState, Projections, ResidentProjections, Scores, Teacher, Tile, TileLoss,
};
pub use held::Offload;
pub use low_rank::{Drops, LinearCut, LoraUse, ProjectionWeights, Runs};
pub use memo::{Alike, Which};
pub use narrow::{GemmFormat, NarrowLinear, NarrowWeights, Pass};
pub use op::{Backward, Desc, Dx, Exec, Flops, LayerMemory, Op, OptGrads, Out, SavedValues, Saves, Want};
pub use ops::attention::{AttentionUse, Keys};
pub use ops::balance::RouterCosts;
pub use ops::conv::ConvUse;
pub use ops::deal::HeadColumns;
pub use ops::delta::DeltaUse;
pub use ops::expert_mlp::ExpertMlp;
pub use ops::experts::{ExpertTerm, ExpertWeights, ExpertsUse};
pub use ops::gated_norm::GatedNormUse;
pub use ops::latent::LatentUse;
pub use ops::lora::{RowCut, length_factors};
pub use ops::relative::{Distances, RelativeUse};
pub use ops::rope::RopeUse;
pub use ops::ssd::SsdUse;
pub use optimizer::{AdamW, AdamWSettings, Moments, State, StepReport, Update};
pub use owed::DeferredGrads;
pub use packed::Rescale;
pub use param_id::ParamId;
pub use params::deal_buckets;
pub use params::{Param, Params, Weights};
pub use places::{Modules, Place, Places, Rule};
pub use rounding::Rounding;
pub use row_terms::{RowTerm, RowTerms, Terms};
pub use scope::Scope;
pub use shares::{ParamShares, SLOT, Sharding, Shares, deal};
pub use tape::{Body, Eval, Jitter, Memory, Pull, Segments, Tape};
pub use value::Value;
