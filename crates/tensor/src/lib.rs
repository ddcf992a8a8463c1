//! The machine contract: memory and compute as all other crates see them.
//!
//! A [`Machine`] offers coarse operations over opaque addresses. The caller allocates outputs and workspace
//! from a [`Pool`], so every byte is charged in program order on one thread, and the same program on [`Meta`],
//! which has shapes and no data, reports its memory to the byte.
//!
//! This crate knows nothing of gradients or layers.

mod arrivals;
mod attend;
mod best_fit;
pub mod blocks;
pub mod choice;
mod clock;
mod device;
mod distance;
mod divergence;
mod documents;
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
mod matmul;
pub mod mesh;
mod meta;
pub mod moments;
mod moves;
mod narrow;
mod narrow_matmul;
mod pack;
mod pool;
mod profile;
mod scan;
mod share;
mod span;
pub mod spill;
mod stop;
mod summary;
mod sums;
mod tables;
mod tensor;
mod term;
mod tick;
mod times;
mod usage;

pub use attend::{Attention, AttentionBackward, Buckets, DistanceBias, DistanceTerms, SinksBackward};
pub use blocks::{BlockFormat, Packing};
pub use clock::{Clock, Way};
pub use device::Device;
pub use distance::{Distance, RowDistance};
pub use divergence::{CLOSEST, Divergence, DivergenceOutput, TeacherLogits};
pub use documents::{DocumentRun, DocumentRuns, RunPlaces};
pub use dropout::Dropout;
pub use dtype::DType;
pub use experts::{
    BalanceBias, Combine, CombineBackward, Dispatch, GroupedMatMul, GroupedWeight, Groups, LimitExperts,
    MOST_EXPERTS, Route, RouteBackward, RouterLosses, RouterScores, Routing,
};
pub use fabric::{Fabric, Line, Ride, Ring};
pub use four_bits::{BlockScale, FourBits, RoundWeights, int4_scale};
pub use grouped::Grouped;
pub use in_flight::InFlight;
pub use loan::LoanedTensor;
pub use machine::{
    Activate, ActivateBackward, Activation, AdamW, CrossEntropy, Embed, Machine, MomentScales, Norm,
    NormBackward, NormKind, Rope, RopeTable, StepScale, VocabularyShare,
};
pub use mask::{
    Band, Extent, Mask, PAGE_ROWS, PackPages, PackedMask, PageFormat, PageTable, Sequence, Slice,
};
pub use matmul::{MatMul, PackedMatMul};
pub use meta::Meta;
pub use narrow::{Blocks, Element, Narrow, ScaleRule};
pub use narrow_matmul::{AmaxHistory, NarrowMatMul, NarrowOperand};
pub use pack::{Pack, Unpack};
pub use pool::Arena;
pub use pool::Pool;
pub use profile::TERMS;
pub use profile::{AttentionSizes, Hardware, OpDesc, Portions, Profile, Rates, Sheet, host_share};
pub use scan::{
    Conv, ConvBackward, ConvOperands, Delta, DeltaAdvance, DeltaBackward, DeltaBegins, DeltaEnds,
    DeltaOperands, GatedNorm, GatedNormBackward, GatedNormOperands, RunStates, SCAN_CHUNK, SCAN_SPAN,
    SCAN_STEPS, Ssd, SsdBackward, SsdBegins, SsdEnds, SsdOperands, delta_flops, ssd_flops, state_cols,
    state_slot,
};
pub use share::{Pass, Reader, Share};
pub use stop::{GivenUp, Revocable};
pub use summary::Summary;
pub use sums::{SUM_CHUNK, SUM_UNIT, is_whole_chunks};
pub use tensor::Tensor;
pub use term::ProductTerm;
pub use times::Times;
pub use usage::{ByCategory, Category, Label, Mark, OutOfMemory, PoolUsage, live_at_peak};
