//! First events of a log, and the report of a run or a plan.

use std::path::Path;

use fathom_base::machine_facts::MachineFacts;
use fathom_base::metrics::events;
use fathom_base::recipe::Loaded;
use fathom_model::Spec;
use fathom_report::{RunLog, html};
use fathom_train::recipe::{InitName, Recipe};

use crate::error::{Result, refuse};
use crate::output;

/// Returns the first event of a run's or a plan's log; `command` is the command line to show.
pub(crate) fn run_event(loaded: &Loaded<Recipe>, command: &str) -> events::Run {
    events::Run {
        name: loaded.value.run.name.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        start_unix_s: unix_s() as u64,
        command: command.into(),
        recipe: loaded.rows().to_vec(),
        machine: MachineFacts::read(),
        least_tokens: 0,
    }
}

/// Returns the event that describes a model of `params` parameters.
pub(crate) fn model_event(s: &Spec, params: u64, init: Option<InitName>) -> events::Model {
    let row = |name: &str, value: String| events::NameValue { name: name.into(), value };
    let config = vec![
        row("layers", s.layers.len().to_string()),
        row("hidden", s.hidden.to_string()),
        row("heads", s.heads.to_string()),
        row("key-value heads", s.kv_heads.to_string()),
        row("head size", s.head_dim.to_string()),
        row("ffn", s.ffn.to_string()),
        row("vocabulary", s.vocab.to_string()),
        row("tied embedding", s.tied.to_string()),
    ];
    let init = match init {
        Some(InitName::Induction) => "induction",
        Some(InitName::Normal) | None => "",
    };
    events::Model { family: s.family.to_string(), params, config, init: init.into() }
}

/// Writes the report of a run from its log so far, and returns the log.
///
/// # Errors
/// A log that cannot be read; a report that cannot be written.
pub(crate) fn write(run: &Path, page: &Path) -> Result<RunLog> {
    let log = RunLog::read(run)?;
    html::write_page(&log, page)?;
    Ok(log)
}

/// Writes the report of a run from its log alone, also while the run is in progress or after it failed. Returns the
/// log.
///
/// # Errors
/// Not a run's folder; a report that cannot be written.
pub fn report(run: &Path, page: &Path) -> Result<RunLog> {
    if !run.join("metrics.jsonl").is_file() {
        refuse!("{}: no run's folder (no metrics.jsonl)", run.display());
    }
    output::regular(page)?;
    write(run, page)
}

/// Returns the seconds since 1970.
pub(crate) fn unix_s() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
