//! The CPU machine: SIMD and matrix-unit kernels over one thread pool.
//!
//! This crate knows nothing above the contract in `tensor`.
mod arena;
pub mod attention;
mod counting;
pub mod elementwise;
pub mod gemm;
pub mod grouped;
pub mod isa;
mod machine;
pub mod mat;
pub mod threads;

pub use counting::Counting;
pub use machine::{Cpu, Packed, profile};
