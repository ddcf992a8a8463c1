//! Curations.

use std::collections::BTreeMap;
use std::sync::Arc;

use fathom_app::curate::{Curation, CurationOutcome, Order};
use fathom_app::{Error, Events, Result};
use fathom_base::recipe::Loaded;
use fathom_curate::pipeline::{Functions, Rank, Recipe};
use fathom_curate::tables::TableEngine;
use pyo3::prelude::*;
use serde_json::json;

use crate::edge::{detached, interruptible};
use crate::events::Channel;
use crate::functions::{Calls, Message, Questions};
use crate::recipe::{Base, Setting, layers};

/// Values of a curation's recipe as JSON, its text, and its rows (path, value, source).
#[pyfunction]
pub fn curation_load(
    py: Python<'_>,
    base: Base,
    settings: Vec<Setting>,
) -> PyResult<(String, String, Vec<Setting>)> {
    detached(py, || {
        let loaded: Loaded<Recipe> = Loaded::load(layers(&base, &settings))?;
        let row = |row: &fathom_base::recipe::Row| (row.path.clone(), row.value.clone(), row.source.clone());
        let values = serde_json::to_string(&loaded.value)?;
        Ok((values, loaded.text().to_string(), loaded.rows().iter().map(row).collect()))
    })
}

/// Stages of Python, by name.
struct Stages(BTreeMap<String, Arc<Questions>>);

impl Functions for Stages {
    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn call(&self, name: &str, batch: Vec<u8>) -> std::result::Result<Vec<u8>, String> {
        let stage = self.0.get(name).ok_or("no function of this name")?;
        match stage.ask(Message::Bytes(batch))? {
            Message::Bytes(answer) => Ok(answer),
            _ => Err("answered no batch".into()),
        }
    }
}

/// Runs a curation; returns its account as JSON. `stages` are the functions of stages with `use = "function"`.
#[pyfunction]
pub fn curate(
    py: Python<'_>,
    base: Base,
    settings: Vec<Setting>,
    stages: Vec<(String, PyRef<'_, Calls>)>,
    channel: &Channel,
) -> PyResult<String> {
    let stages = stages.into_iter().map(|(name, calls)| (name, calls.0.clone())).collect();
    let functions: Arc<dyn Functions> = Arc::new(Stages(stages));
    let events: Arc<dyn Events> = Arc::new(channel.0.clone());
    interruptible(py, "curate", move |stop| {
        let loaded: Loaded<Recipe> = Loaded::load(layers(&base, &settings))?;
        let curation = Curation::new(&loaded)?;
        let order = Order {
            rank: Rank::default(),
            engine: TableEngine::default(),
            wait_s: 0.0,
            stop: stop.clone(),
            functions: Some(functions),
        };
        match curation.run(&order, &events)? {
            CurationOutcome::Done(stats) => Ok(json!({"out": curation.out(), "stats": stats}).to_string()),
            CurationOutcome::Interrupted(said) => Err(Error::Refused(said)),
            CurationOutcome::Waiting { missing, .. } => {
                let result: Result<String> =
                    Err(Error::Refused(format!("other processes have not finished: {}", missing.join(", "))));
                result
            }
        }
    })
}
