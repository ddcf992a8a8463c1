//! Tests of the crate through its public surface, mostly against files from PyTorch and Transformers.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod config;
mod encoder_decoders;
mod encoders;
mod few_bits;
mod gguf;
mod golden;
mod golden_files;
mod induction;
mod keys;
mod masked;
mod moe;
mod multimodal;
mod mxfp4;
mod parts;
mod pieces;
mod pretend;
mod prune;
mod quantised;
mod retrieval;
mod round_trip;
