//! Gradients of the mean next-token loss, by Hugging Face name.

use anyhow::Result;
use fathom_app::inspect::{check_targets, gradients};

use crate::args::InspectModel;

/// Runs the verb.
pub fn run(args: &InspectModel) -> Result<()> {
    check_targets(&args.ids)?;
    let subject = super::subject::subject(args)?;
    let gradients = gradients(&subject)?;
    if let Some(path) = &args.out {
        return Ok(gradients.write(&subject, path)?);
    }
    outln!("mean loss {:.6} over {} targets", gradients.loss, gradients.targets);
    outln!("{:<56} {:>16} {:>12} {:>12}", "tensor", "shape", "norm", "largest");
    for shown in gradients.shown(&subject) {
        let shape = format!("{:?}", shown.shape);
        outln!("{:<56} {shape:>16} {:>12.4e} {:>12.4e}", shown.name, shown.norm, shown.largest);
    }
    Ok(())
}
