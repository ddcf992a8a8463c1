//! The binary's allocator, which counts memory outside the pool.

use fathom_cpu::Counting;

#[global_allocator]
static HEAP: Counting = Counting;
