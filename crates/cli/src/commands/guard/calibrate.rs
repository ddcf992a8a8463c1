//! `fathom guard calibrate`: the threshold of a rail by labelled texts.

use anyhow::Result;
use fathom_app::{Machine, guardrails};

use super::files;
use crate::args::GuardCalibrate;
use crate::listen::Plain;

/// Runs the verb.
pub fn run(args: &GuardCalibrate) -> Result<()> {
    files::check(&[args.figures.page.as_deref()])?;
    let machine = Machine::of_kind(args.figures.machine.kind(), 0, &Plain::default());
    let needs = guardrails::needs(&machine);
    let found = guardrails::calibrated(&args.config, &args.rail, &args.set, args.false_positives, &needs)?;
    files::write(args.figures.page.as_deref(), || guardrails::calibration_page(&args.rail, &found))?;
    if args.figures.json {
        outln!("{}", serde_json::to_string(&found)?);
        return Ok(());
    }
    match found.chosen {
        Some(point) => outln!("threshold = {}", point.threshold),
        None => outln!("no threshold keeps the false positive rate at {}", args.false_positives),
    }
    outln!("recall           {}", found.recall);
    outln!("false positives  {}", found.false_positives);
    outln!("area             {:.4}", found.area);
    Ok(())
}
