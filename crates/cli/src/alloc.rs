//! The binary's allocator, which counts memory outside the pool.

use fathom_cpu::CountingAllocator;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator;
