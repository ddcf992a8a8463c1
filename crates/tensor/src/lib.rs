//! The machine contract: memory and compute as all other crates see them.
//!
//! A [`Machine`] offers coarse operations over opaque addresses. The caller allocates outputs and workspace
//! from a [`Pool`], so every byte is charged in program order on one thread, and the same program on [`Meta`],
//! which has shapes and no data, reports its memory to the byte.
//!
//! This crate knows nothing of gradients or layers.

mod attend;
mod best_fit;
pub mod blocks;
pub mod choice;
mod clock;
mod distance;
mod divergence;
mod dropout;
mod dtype;
mod experts;
mod fabric;
mod four_bits;
pub mod ggml;
pub mod gpu;
pub mod grouped;
mod in_flight;
mod lines;
mod loan;
mod machine;
mod mask;
pub mod mesh;
mod meta;
pub mod moments;
mod moves;
mod narrow;
mod pool;
mod profile;
mod share;
pub mod spill;
mod stop;
mod summary;
mod tensor;
mod term;

pub use attend::{Attention, AttentionBackward, SinksBackward};
pub use blocks::{BlockFormat, Pack, Packing, Unpack};
pub use clock::{Clock, Times, Way};
pub use distance::{Distance, RowDistance};
pub use divergence::{CLOSEST, Diverged, Divergence, Known};
pub use dropout::Dropout;
pub use dtype::DType;
pub use experts::{
    BalanceBias, Combine, CombineBackward, Dispatch, GroupedMatMul, GroupedWeight, Groups, LimitExperts,
    MOST_EXPERTS, Route, RouteBackward, RouterLosses, Routing, Scores,
};
pub use fabric::{Fabric, Line, Ride, Ring};
pub use four_bits::{BlockScale, FourBits, RoundWeights, int4_scale};
pub use grouped::Grouped;
pub use in_flight::InFlight;
pub use loan::Lent;
pub use machine::{
    Activate, ActivateBackward, Activation, AdamW, Arena, CrossEntropy, Embed, Machine, MatMul, MomentScales,
    Norm, NormBackward, NormKind, PackedMatMul, Rope, RopeTable, SUM_CHUNK, SUM_UNIT, Spread, StepScale,
    is_whole_chunks,
};
pub use mask::{
    Band, Extent, Mask, PAGE_ROWS, PackPages, PackedMask, PageFormat, PageTable, Sequence, Slice,
};
pub use meta::Meta;
pub use narrow::{Blocks, Delayed, Element, Narrow, NarrowMatMul, NarrowOperand, Rule};
pub use pool::{ByCategory, Category, Label, Mark, OutOfMemory, Pool, Usage, live_at_peak};
pub use profile::{Hardware, OpDesc, Portions, Profile, Rates, Sheet, host_share};
pub use share::{Pass, Reader, Share};
pub use stop::{GivenUp, Revocable};
pub use summary::Summary;
pub use tensor::{Device, Tensor};
pub use term::{TERMS, Term};
