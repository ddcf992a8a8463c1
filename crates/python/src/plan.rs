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

/// Plans the stages of a recipe; returns a JSON list of them. `page` is written with the charts of the plan.
#[pyfunction]
#[pyo3(signature = (base, settings, memory=None, gpus=None, longest=false, why=true, page=None))]
pub fn plan(
    py: Python<'_>,
    base: Base,
    settings: Vec<Setting>,
    memory: Option<String>,
    gpus: Option<usize>,
    longest: bool,
    why: bool,
    page: Option<std::path::PathBuf>,
) -> PyResult<String> {
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
        let stages = plans.stages(PlanOptions { longest_of_all: longest, why }, &Silent);
        let wanted = stages.take_while(|_| !stop.load(Ordering::Relaxed));
        let rows = wanted.map(|stage| Ok(stage?.to_json(&stored))).collect::<Result<Vec<Value>>>()?;
        Ok(Value::Array(rows).to_string())
    })
}
