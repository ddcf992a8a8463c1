//! `fathom inspect`: looks inside a model or a plan.

mod activations;
mod gradients;
mod logits;

use anyhow::Result;
use fathom_app::inspect::Subject;
use fathom_app::{Machine, models, output};

use crate::args::{Inspect, InspectModel};
use crate::listen::Plain;

/// Runs the verb.
pub fn run(what: &Inspect) -> Result<()> {
    match what {
        Inspect::Logits(args) => logits::run(args),
        Inspect::Gradients(args) => gradients::run(args),
        Inspect::Activations(args) => activations::run(args),
    }
}

/// The model and document given by the arguments.
fn subject(args: &InspectModel) -> Result<Subject> {
    args.out.as_deref().map_or(Ok(()), output::regular)?;
    let listener = Plain::default();
    let machine = Machine::of_kind(args.machine.kind(), 0, &listener);
    let model = (args.model.as_path(), args.adapter.as_deref());
    Ok(Subject::new(model, &args.ids, args.precision.dtype(), &machine, &listener)?)
}
