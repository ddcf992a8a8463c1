//! Plans.

use std::sync::atomic::Ordering;

use fathom_app::plan::{PlanOptions, plan as plan_job};
use fathom_app::several::planned;
use fathom_app::stored::Footprint;
use fathom_app::{Error, Result, Silent};
use fathom_base::human;
use pyo3::prelude::*;
use serde_json::Value;

use crate::edge::interruptible;
use crate::recipe::{Base, Setting, load};

/// Options of [`plan`], as Python gives them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Options {
    memory: Option<String>,
    gpus: Option<usize>,
    longest: bool,
    page: Option<std::path::PathBuf>,
}

/// Plans the stages of a recipe; returns a JSON list of them. `page` is written with the charts of the plan.
#[pyfunction]
pub fn plan(py: Python<'_>, base: Base, settings: Vec<Setting>, options: Options) -> PyResult<String> {
    let Options { memory, gpus, longest, page } = options;
    interruptible(py, "plan", move |stop| {
        let mut settings = settings;
        if let Some(memory) = memory {
            let bytes =
                human::parse_bytes(&memory).map_err(|why| Error::Refused(format!("memory: {why}")))?;
            settings.push(("memory".into(), "machine.memory_bytes".into(), bytes.to_string()));
        }
        let job = planned(load(&base, &settings)?, &Silent)?;
        let (plans, stored) = (plan_job(&job, gpus)?, Footprint::of(&job)?);
        if let Some(page) = &page {
            plans.page("fathom.plan", page)?;
        }
        let stages = plans.stages(PlanOptions { longest_of_all: longest, why: true }, &Silent);
        let wanted = stages.take_while(|_| !stop.load(Ordering::Relaxed));
        let rows = wanted.map(|stage| Ok(stage?.to_json(&stored))).collect::<Result<Vec<Value>>>()?;
        Ok(Value::Array(rows).to_string())
    })
}
