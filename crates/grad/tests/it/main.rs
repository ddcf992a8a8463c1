//! Tests of the executor on a miniature stack of blocks.

mod chaos;
mod codec;
mod context;
mod context_layout;
mod deal;
mod frozen;
mod memory;
mod micro_batches;
mod outside;
mod placements;
mod ranks;
mod stack;
mod streams;
