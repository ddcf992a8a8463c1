//! `fathom score`: a model's likelihoods or rewards of rows.

use anyhow::Result;
use fathom_app::Machine;
use fathom_app::score::{Request, score};
use fathom_base::human;

use crate::args::Score;
use crate::listen::Plain;

/// Runs the verb.
pub fn run(args: &Score) -> Result<()> {
    let listener = Plain::default();
    let request = Request {
        model: args.model.clone(),
        adapter: args.adapter.clone(),
        data: args.data.clone(),
        out: args.out.clone(),
        precision: args.precision,
        best: args.top_k.map(|k| (k, args.temperature)),
        labels: args.labels.clone(),
        responses: args.responses.map(|which| (which, args.deviation)),
    };
    let machine = Machine::of_kind(args.machine.kind(), 0, &listener);
    let rows = score(&request, &machine, &listener)?;
    closing!("{} scored, {}", human::counted(rows as u64, "row"), request.out.display());
    Ok(())
}
