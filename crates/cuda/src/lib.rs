//! The CUDA machine: the same binary, a GPU if there is one. Kernels are text, compiled at run time for the chip that is
//! there; libraries are found at run time. Nothing of CUDA is needed to build this crate or to test it.
//!
//! This crate knows nothing above the contract in `tensor`.
#![deny(missing_docs)]

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
