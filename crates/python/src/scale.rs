//! Scaling laws: a ladder of runs, and the laws that they follow.

use std::sync::Arc;

use fathom_app::scale::{LadderOutcome, Request, climb, dry_run};
use fathom_app::train::Order;
use fathom_app::{Error, library};
use pyo3::prelude::*;

use crate::edge::interruptible;
use crate::events::Channel;
use crate::recipe::{Base, Setting, layers};

/// Options of [`scale`], as Python gives them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct ScaleOptions {
    budget_s: f64,
    only_ladder: bool,
    command: String,
}

/// Trains a ladder of sizes within a budget, and fits laws; returns `scale.json`, or with `only_ladder` the ladder.
#[pyfunction]
pub fn scale(
    py: Python<'_>,
    base: Base,
    settings: Vec<Setting>,
    options: ScaleOptions,
    channel: &Channel,
) -> PyResult<String> {
    let ScaleOptions { budget_s, only_ladder, command } = options;
    let events = channel.0.clone();
    interruptible(py, "scale", move |stop| {
        // A ladder gives every rung its steps.
        let of = layers(&base, &settings);
        let of = of.flag("the ladder", "run.minutes", "none").flag("the ladder", "stage.0.steps", "1");
        let request = Request { loaded: library::load(of)?, budget_s };
        if only_ladder {
            return Ok(serde_json::to_string(&dry_run(&request, &events)?)?);
        }
        let order = Order { command, stop: Arc::clone(stop), ..Order::default() };
        match climb(&request, &order, &events)? {
            LadderOutcome::Finished(found) => Ok(serde_json::to_string(&found)?),
            LadderOutcome::Interrupted => Err(Error::Stopped),
        }
    })
}
