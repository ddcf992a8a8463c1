//! Kernels as source text, and their launches. Compiled at run time to machine code for one chip, without CUDA's
//! headers.
//!
//! Every method of the machine contract that is not left to a library has a function here that turns the operation into
//! [`Launch`]es: entry point, grid, arguments. These functions need no device, so tests run the same launches on a CPU
//! (the emulation header of `fathom-rehearsal`) and compare with the CPU machine. The signature of an entry point is in
//! its `.cu` file, the meaning of its operation in the contract.
//!
//! The order of additions is fixed: a row's sums depend only on its width, sums over rows run in ascending chunks of
//! 128, and no float is added atomically. Element offsets have 64 bits.

mod activate;
mod attention;
mod blocks;
mod conv;
mod distance;
mod divergence;
mod embed;
mod experts;
mod gated;
mod gemm;
mod group;
mod launch;
mod lists;
mod loss;
mod narrow;
mod norm;
pub mod nvrtc;
mod optimizer;
mod plain;
mod rope;
mod sample;
mod scan;
mod sums;
mod table;

pub use activate::{activate, activate_backward};
pub use attention::{attention, attention_backward, attention_join, attention_scratch_bytes, sinks_backward};
pub use blocks::{pack, unpack};
pub use conv::{conv, conv_backward};
pub use distance::row_distance;
pub use divergence::divergence;
pub use embed::{embed, embed_backward};
pub use experts::{
    combine, combine_backward, grouped_matmul, grouped_weight, route, route_backward, router_losses,
};
pub use gated::{gated_norm, gated_norm_backward};
pub use gemm::matmul;
pub(crate) use group::{GroupPlan, groups_matmul, groups_weight};
pub use launch::{Args, Grid, Launch, Scratch};
pub use lists::{balance_bias, count_experts, dispatch, grouped_scratch_bytes, limit_experts};
pub use loss::cross_entropy;
pub use narrow::{Fp8Operand, coded, largest, narrow, narrow_matmul, narrowed};
pub use norm::{norm, norm_backward_input, norm_backward_weight};
pub use optimizer::{adamw, step_scale};
pub use plain::{add, add_bias, copy, multiply, rsqrt, scale, softcap, transpose, zero};
pub use rope::{rope, rope_table};
pub use sample::{choose, dropout, jitter, leave_out, random_uniform};
pub use scan::{
    delta, delta_advance, delta_backward, delta_begins, delta_ends, ssd, ssd_advance, ssd_backward,
    ssd_begins, ssd_ends,
};
pub use sums::{bias_backward, sum, sum_squares, sum_squares_slots};
pub use table::{Entry, HEADERS, SOURCES, Source};

/// Scratch that a machine keeps for launches that add partial sums, of any shape.
pub const SCRATCH_BYTES: u64 = 4 << 20;

/// The chips that kernels are checked for.
pub const CHIPS: [&str; 3] = ["sm_80", "sm_90a", "sm_100a"];

/// NVRTC's options for a chip. Products and sums are not contracted, so that kernels have the bits of the CPU machine
/// wherever they do the same operations in the same order; fused operations are written as `fmaf`.
pub fn options(chip: &str) -> Vec<String> {
    let chip = format!("--gpu-architecture={chip}");
    let fixed = ["--std=c++17", "--device-as-default-execution-space", "--fmad=false", "--diag-suppress=177"];
    std::iter::once(chip).chain(fixed.map(String::from)).chain(["--ptxas-options=-v".to_string()]).collect()
}
