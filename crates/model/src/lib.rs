//! Blocks, families as data over blocks, and the names and files of weights.
//!
//! A model's forward pass is written once, over [`fathom_grad::Segments`]; it knows nothing of ranks, places or losses.
#![deny(missing_docs)]

mod batch;
mod block;
mod model;
mod rope;
mod spec;

pub use batch::{Caps, Packed, causal_pairs, mask};
pub use block::{BlockParams, LinearParams, NormParams, block};
pub use model::Model;
pub use rope::{Frequencies, RopeScaling, RopeSpec};
pub use spec::{Biases, LayerSpec, LlamaSizes, Mlp, QkNorm, Residual, Spec};
