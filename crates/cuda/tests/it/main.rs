//! Tests of the CUDA machine that need no GPU.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod kernels;
mod ranks;
