//! A simulated GPU, for tests on machines without one.
//!
//! This is a shared library with the functions of CUDA's driver, NVRTC, cuBLASLt, cuDNN and NCCL that Fathom calls. A
//! program that finds it under those libraries' file names ([`install`]) runs as on a device: kernels are compiled for
//! the CPU by a C++ compiler, products and attention are computed by slow loops from the descriptors that the libraries
//! are given. Calls that CUDA's documentation forbids fail, with a line on standard error that says why, whether or not
//! a device would have noticed.
//!
//! Work is queued on streams. `FATHOM_REHEARSAL_SCHEDULE` decides when it runs: `late`, the default, when something waits for it;
//! `early`, at once; or a number, the seed of a random order. Fresh memory is NaN. With `FATHOM_REHEARSAL=dry` nothing is
//! computed or copied and memory costs nothing, so programs can run at full size to show what they allocate and call.
//!
//! | variable | value | default | |---|---|---| | `FATHOM_REHEARSAL_SCHEDULE` | `late`, `early` or a seed | `late` | |
//! `FATHOM_REHEARSAL` | `dry`: nothing is computed | everything is computed | | `FATHOM_REHEARSAL_DEVICES` | number of
//! devices | 1 | | `FATHOM_REHEARSAL_MEMORY` | bytes of a device | those of an H200 | | `FATHOM_REHEARSAL_REFUSED` |
//! driver functions to report as unsupported, such as `cuMemCreate,cuMemHostAlloc` | none | | `FATHOM_REHEARSAL_CUBLAS`
//! | cuBLAS' version in its header's encoding | 131000: 13.10.0 |
//!
//! The simulation says nothing about speed, nor about calls that a library refuses for undocumented reasons. Linux only.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

mod blas;
// Functions of CUDA's headers, which document them; likewise those of `driver` and `nccl`.
#[allow(missing_docs)]
pub mod compiler;
pub mod device;
mod dnn;
#[allow(missing_docs)]
pub mod driver;
mod install;
#[allow(missing_docs)]
pub mod nccl;

pub use install::{install, is_possible};
