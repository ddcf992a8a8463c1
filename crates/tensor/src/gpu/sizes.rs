//! Sizes of a GPU's memory.

/// Granularity of charges on a device: the size that CUDA's allocators round to.
pub const GRANULE: u64 = 512;

/// Workspace that NVIDIA recommends for cuBLASLt on Hopper and later.
pub const MATMUL_SCRATCH: u64 = 32 << 20;
