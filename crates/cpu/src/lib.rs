//! The CPU machine: SIMD and matrix-unit kernels over one thread pool.
pub mod attention;
pub mod gemm;
pub mod isa;
pub mod threads;
