//! The machine through the contract's own checks.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod denormals;
mod mesh;
