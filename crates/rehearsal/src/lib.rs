//! A pretended GPU, for tests and rehearsals on machines without one.
//!
//! Built as a shared library with the functions of CUDA's driver, NVRTC, cuBLASLt, cuDNN and NCCL that Fathom calls, under the
//! names of their headers. A program that finds it under those libraries' file names ([`install`]) runs as it would on a device:
//! kernels are compiled for the processor by a C++ compiler and run there, products and attention are made by slow loops from
//! the descriptors that the libraries are given. Everything is held to the documents of CUDA: what they forbid fails here, and
//! fails with a line on standard error that says why, whether or not a device would have noticed.
//!
//! Work is queued by streams and runs when the schedule says so (`FATHOM_REHEARSAL_SCHEDULE`): `late`, the default, as late as
//! somebody waits for it; `early`, at once; or a number, which is the seed of any order in between. Fresh memory is NaN.
//! With `FATHOM_REHEARSAL=dry` nothing is computed or copied and memory costs nothing, so that programs run at full size for the
//! sake of what they ask for.
//!
//! | variable | is | if absent |
//! |---|---|---|
//! | `FATHOM_REHEARSAL_SCHEDULE` | `late`, `early` or a seed | `late` |
//! | `FATHOM_REHEARSAL` | `dry`: nothing is computed | all is computed |
//! | `FATHOM_REHEARSAL_DEVICES` | how many devices | 1 |
//! | `FATHOM_REHEARSAL_MEMORY` | bytes of a device | those of an H200 |
//! | `FATHOM_REHEARSAL_REFUSED` | calls of the driver that it does not support, as `cuMemCreate,cuMemHostAlloc` | none |
//! | `FATHOM_REHEARSAL_CUBLAS` | cuBLAS' version, as its header writes it | 131000: 13.10.0 |
//!
//! It cannot tell how fast anything is, nor what a library refuses for reasons of its own.
//!
//! Linux alone has it.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

pub mod blas;
pub mod compiler;
pub mod device;
pub mod dnn;
pub mod driver;
mod install;
pub mod nccl;

pub use install::{install, is_possible};
