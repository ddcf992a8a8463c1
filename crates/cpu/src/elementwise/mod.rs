//! Kernels over rows: norms, activations, rotations, lookups, cross-entropy, the optimizer, and copies.
//!
//! Storage is f32 or bf16, arithmetic f32. Each loop is written once in plain Rust and compiled for each instruction
//! set (see [`level`]). An output row depends only on its input rows, and its sums over columns run in fixed lanes;
//! sums over rows run per column in ascending chunks of [`fathom_tensor::SUM_CHUNK`] rows. Results therefore do not
//! depend on the number of threads or on how rows are cut (at multiples of the chunk, for sums over rows).
//!
//! Functions take raw [`crate::mat::Mat`] descriptors and are unsafe: every operand must be readable and every output
//! writable for the given rows and columns, and outputs overlap nothing unless documented otherwise. They panic, before
//! anything is written, if storage types do not fit.
#![allow(unsafe_code)]

mod activate;
mod clamped;
mod coded;
mod combine;
mod conv;
mod dispatch;
mod distance;
mod divergence;
mod dropout;
mod embed;
mod gated_norm;
mod jitter;
pub(crate) mod level;
mod loss;
pub(crate) mod math;
mod narrow;
mod norm;
mod norm_backward;
mod optimizer;
mod rope;
mod round_weights;
mod route;
mod simple;
mod sinks;
mod sums;
#[cfg(test)]
mod tests;
mod update;

pub use activate::{Activate, ActivateBackward, activate, activate_backward};
pub use clamped::{clamped, clamped_backward};
pub use combine::{Combine, CombineBackward, ExpertRows, combine, combine_backward, gather, scatter};
pub use conv::{Conv, ConvBackward, ConvOperands, MOST_TAPS, conv, conv_backward};
pub use dispatch::{Dispatch, balance_bias, dispatch, limit_experts};
pub use distance::{RowDistance, row_distance};
pub use divergence::{Divergence, DivergenceOutput, Side, TeacherLogits, divergence};
pub use dropout::dropout;
pub use embed::{Embed, EmbedBackward, embed, embed_backward};
pub use gated_norm::{
    GatedNormBackward, GatedNormOperands, gated_norm, gated_norm_backward, gated_norm_workspace,
};
pub use jitter::jitter;
pub use loss::{CrossEntropy, VocabShard, cross_entropy};
pub use narrow::{Round, Scale, largest, largest_by_column, narrow};
pub use norm::{Norm, norm};
pub use norm_backward::{NormBackward, norm_backward_input, norm_backward_weight};
pub use optimizer::{StepScale, adamw, step_scale};
pub use rope::{Rope, RopeTable, rope, rope_table};
pub use round_weights::round_weights;
pub use route::{Route, RouteBackward, RouterLosses, count_experts, route, route_backward, router_losses};
pub use simple::{add, add_bias, copy, multiply, rsqrt, scale, softcap, zero};
pub use sinks::{SinksBackward, sinks_backward};
pub use sums::{bias_backward, sum, sum_squares};
pub use update::AdamW;
pub use update::MomentScales;

use crate::isa::Isa;
use crate::threads::Threads;

/// Execution context of a kernel.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The thread pool.
    pub threads: &'a Threads,
    /// The instruction set, which the processor supports.
    pub isa: Isa,
}
