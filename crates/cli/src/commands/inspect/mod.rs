//! `fathom inspect`: looks inside a model or a plan.

mod activations;
mod gradients;
mod logits;
mod subject;

use anyhow::Result;

use crate::args::Inspect;

/// Runs the verb.
pub fn run(what: &Inspect) -> Result<()> {
    match what {
        Inspect::Logits(args) => logits::run(args),
        Inspect::Gradients(args) => gradients::run(args),
        Inspect::Activations(args) => activations::run(args),
    }
}
