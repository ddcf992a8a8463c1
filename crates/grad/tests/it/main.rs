//! Proofs of the executor on a miniature stack of blocks.

mod frozen;
mod memory;
mod micro_batches;
mod placements;
mod stack;
