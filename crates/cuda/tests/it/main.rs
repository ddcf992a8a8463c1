//! Tests of the CUDA machine that need no GPU.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

// They need the simulated GPU.
#[cfg(target_os = "linux")]
mod kernels;
#[cfg(target_os = "linux")]
mod ranks;
