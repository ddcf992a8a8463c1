//! Proofs of the executor on a miniature stack of blocks.

mod chaos;
mod frozen;
mod memory;
mod micro_batches;
mod placements;
mod stack;
