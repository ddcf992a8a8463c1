//! The allocator of the binary: it counts what the pool does not see.

use fathom_cpu::Counting;

#[global_allocator]
static HEAP: Counting = Counting;
