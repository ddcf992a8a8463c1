//! Inspection of a model or a plan.

mod activations;
mod gradients;
mod logits;
mod subject;

pub use activations::{Activations, activations};
pub use gradients::{Gradient, Gradients, check_targets, gradients};
pub use logits::{Logits, largest, logits};
pub use subject::{Streams, Subject};
