//! The CPU machine: SIMD and matrix-unit kernels over one thread pool.
pub mod attention;
pub mod elementwise;
pub mod gemm;
pub mod isa;
pub mod mat;
pub mod threads;
