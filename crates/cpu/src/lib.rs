//! The CPU machine: SIMD and matrix-unit kernels over one thread pool.
//!
//! This crate knows nothing above the contract in `tensor`.
//!
//! The public interface is the machine and its instruction sets. Items hidden from the documentation are public only
//! for this crate's examples, which time individual kernels.

mod arena;
#[doc(hidden)]
pub mod attention;
#[doc(hidden)]
pub mod blocks;
mod counting;
mod denormals;
#[doc(hidden)]
pub mod elementwise;
#[doc(hidden)]
pub mod gemm;
mod grouped;
pub mod isa;
mod machine;
#[doc(hidden)]
pub mod mat;
mod packed;
pub mod scan;
#[doc(hidden)]
pub mod threads;

pub use counting::CountingAllocator;
pub use machine::{Cpu, PackedPanels, profile};
