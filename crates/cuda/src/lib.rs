//! The CUDA machine. Kernels are source text compiled at run time for the exact chip, and libraries are found at run
//! time, so building and testing this crate needs no part of CUDA.
//!
//! This crate knows nothing above the contract in `tensor`.

mod blas;
mod calls;
pub mod driver;
mod error;
pub mod kernels;
pub mod libs;
mod machine;
mod memory;
pub mod nccl;
mod operand;
mod programs;
pub mod sdpa;

pub use error::{Error, Result};
pub use machine::{Calls, Cuda, Graphs, profile};
