//! Folder of a run: used by one process at a time, and by one recipe.

use std::fs::{self, File};
use std::path::Path;

use fathom_base::lock::{self, Claim};
use fathom_base::metrics::{Event, read_events};
use fathom_base::recipe::{Difference, Layers, Loaded, Row, diff};
use fathom_model::write_file;
use fathom_train::recipe::{OffloadCodec, Recipe};
use fathom_train::{Checkpoint, Checkpoints, Progress};
use serde_json::Value;

use crate::error::{Context, Error, Result};
use crate::events::Events;

/// Keys that may differ between a run and its resumption, since they do not affect the training's numbers; `mesh.`
/// affects them by rounding only. `*` matches any index; a dot at the end matches everything below.
const FREE: [&str; 16] = [
    "machine.",
    "mesh.",
    "checkpoint.",
    "eval.",
    "data.ahead",
    "run.out",
    "run.profile",
    "run.tensorboard",
    "run.wandb",
    "run.trackio",
    "run.mlflow",
    "run.otlp",
    "rl.sequences",
    "rl.shown",
    "scale.",
    "stage.*.max_docs",
];
/// Keys whose values may grow, in the current stage and later ones: training continues with its optimizer state.
const STEPS: &str = "stage.*.steps";
const MINUTES: &str = "run.minutes";
/// Keys that may change if every place returns activations bit for bit.
const PLACES: [&str; 3] = ["activations.", "stage.*.recompute_granularity", "stage.*.tile_rows"];

/// Creates a run's folder unless it exists.
///
/// # Errors
/// The folder cannot be created.
pub fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

/// Locks a run's folder for as long as the file is open; `None` if the file system has no locks.
///
/// # Errors
/// Another process has locked it, which is named.
pub fn claim(folder: &Path, events: &dyn Events) -> Result<Option<File>> {
    let path = folder.join(".lock");
    match lock::claim(&path, lock::PATIENCE).with_context(|| format!("cannot open {}", path.display()))? {
        Claim::Held(file) => Ok(Some(file)),
        Claim::Taken(holder) => Err(Error::InUse { folder: folder.to_path_buf(), holder }),
        Claim::Impossible(error) => {
            events.warn(&format!(
                "{} cannot be locked, so another run in the same folder would go unnoticed: {error}",
                path.display()
            ));
            Ok(None)
        }
    }
}

/// Refuses a folder that belongs to another recipe; writes the recipe into a new one, atomically.
///
/// # Errors
/// The keys that differ.
pub fn same_recipe(folder: &Path, loaded: &Loaded<Recipe>) -> Result<()> {
    let path = folder.join("recipe.toml");
    let before = match fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    if before.as_deref() == Some(loaded.text()) {
        return Ok(());
    }
    if before.is_some()
        && let Some(said) = untrained(folder)?
    {
        // For example a misspelt path: the old run produced nothing, and the first line of its log would list the old
        // keys.
        remove(folder, "metrics.jsonl")?;
        remove(folder, "steps.json")?;
        let has_text = said.iter().any(|event| matches!(Event::from_value(event), Some(Event::Data(_))));
        if !has_text {
            // Nothing was made from its curated text either.
            remove(folder, "data/curated")?;
        }
    } else if before.is_some() {
        let before: Loaded<Recipe> = Loaded::load(Layers::new().file(&path))?;
        let exact =
            [&before, loaded].iter().all(|of| of.value.activations.offload_codec == OffloadCodec::AsIs);
        let differences = diff(before.rows(), loaded.rows());
        let trained = Checkpoints::new(&folder.join("checkpoints"), 1).found()?;
        let position = trained.as_ref().map(Checkpoint::progress);
        let changes = differences.iter().filter(|change| !is_free(&change.path, exact));
        let refused = changes.filter_map(|change| match grows(change, position) {
            Growth::Allowed => None,
            Growth::Impossible(why) => Some(format!("  {change} ({why})")),
            Growth::None => Some(format!("  {change}")),
        });
        let differences: Vec<String> = refused.collect();
        if !differences.is_empty() {
            let (path, differences) = (folder.to_path_buf(), differences.join("\n"));
            return Err(fathom_train::Error::OtherRecipe { path, differences }.into());
        }
    }
    Ok(write_file(&path, loaded.text().as_bytes())?)
}

/// Removes a file or folder of another recipe, if it exists.
fn remove(folder: &Path, name: &str) -> Result<()> {
    let path = folder.join(name);
    let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the log of a run that has trained nothing: no step, no checkpoint. Text that it prepared is remade if
/// necessary.
fn untrained(folder: &Path) -> Result<Option<Vec<Value>>> {
    let log = folder.join("metrics.jsonl");
    // Without a log, a recipe may belong to something other than a run, and is not replaced.
    if !log.exists() || folder.join("checkpoints").exists() {
        return Ok(None);
    }
    let said = read_events(log)?;
    let is_step = |event: &Value| matches!(Event::from_value(event), Some(Event::Step(_)));
    Ok((!said.iter().any(is_step)).then_some(said))
}

/// Returns whether a key may change; `exact` means that every place of activations returns them bit for bit.
fn is_free(key: &str, exact: bool) -> bool {
    let places = if exact { &PLACES[..] } else { &[] };
    FREE.iter().chain(places).any(|pattern| matches(pattern, key))
}

fn matches(pattern: &str, key: &str) -> bool {
    let (wanted, parts) = (pattern.split('.'), key.split('.'));
    let same = |(wanted, part): (&str, &str)| ["*", "", part].contains(&wanted);
    parts.clone().count() >= wanted.clone().count() && wanted.zip(parts).all(same)
}

/// Extension of a run by more steps or minutes, as requested by a changed key.
#[derive(Debug, PartialEq)]
enum Growth {
    /// Not an extension of the run.
    None,
    Allowed,
    /// An extension of something that the run has already passed.
    Impossible(&'static str),
}

/// Classifies a change, for a run whose newest checkpoint is at `position`.
fn grows(change: &Difference, position: Option<&Progress>) -> Growth {
    let number = |row: &Option<Row>| row.as_ref()?.value.parse::<f64>().ok();
    let (Some(before), Some(now)) = (number(&change.left), number(&change.right)) else {
        return Growth::None;
    };
    let steps = matches(STEPS, &change.path);
    if now <= before || !(steps || change.path == MINUTES) {
        return Growth::None;
    }
    let Some(progress) = position else { return Growth::Allowed };
    let index = change.path.split('.').nth(1).and_then(|index| index.parse::<usize>().ok());
    // A timed run can grow only once it is done, which the stage that ended shows.
    let at_end = progress.stage_step == 0 && index.is_none_or(|index| index + 1 == progress.stage);
    match index {
        Some(index) if index >= progress.stage => Growth::Allowed,
        Some(_) if !at_end => Growth::Impossible("a later stage has started"),
        _ if at_end && progress.stage > 0 && progress.ended.is_none() => {
            Growth::Impossible("an earlier version ended the stage, and did not keep where its data was")
        }
        _ => Growth::Allowed,
    }
}

#[cfg(test)]
mod tests {
    use fathom_train::StageEnd;

    use super::*;

    #[track_caller]
    fn check(path: &str, [before, now]: [&str; 2], [stage, stage_step]: [usize; 2], expected: Growth) {
        let row = |value: &str| Some(Row { path: path.into(), value: value.into(), source: String::new() });
        let change = Difference { path: path.into(), left: row(before), right: row(now) };
        let ended = (stage > 0 && stage_step == 0).then(StageEnd::default);
        let progress = Progress { stage, stage_step: stage_step as u64, ended, ..Progress::default() };
        assert_eq!(grows(&change, Some(&progress)), expected, "{path} {before} {now}");
        if expected == Growth::Allowed {
            assert_eq!(grows(&change, None), expected);
        }
    }

    #[test]
    fn steps_and_minutes_may_grow_where_the_run_is() {
        check("stage.1.steps", ["4", "8"], [1, 2], Growth::Allowed);
        check("stage.1.steps", ["4", "8"], [2, 0], Growth::Allowed);
        check("stage.1.steps", ["4", "8"], [0, 0], Growth::Allowed);
        check("stage.1.steps", ["8", "4"], [1, 2], Growth::None);
        check("stage.1.steps", ["none", "4"], [1, 2], Growth::None);
        check("stage.1.steps", ["4", "8"], [2, 1], Growth::Impossible("a later stage has started"));
        check("stage.0.steps", ["4", "8"], [2, 0], Growth::Impossible("a later stage has started"));
        check("run.minutes", ["3.0", "6.0"], [2, 0], Growth::Allowed);
        check("run.minutes", ["3.0", "6.0"], [1, 5], Growth::Allowed);
        check("run.minutes", ["6.0", "3.0"], [1, 5], Growth::None);
        check("run.seed", ["3", "6"], [1, 5], Growth::None);
    }

    #[test]
    fn what_an_earlier_version_ended_does_not_go_on() {
        let row = |value: &str| Some(Row { path: String::new(), value: value.into(), source: String::new() });
        let progress = Progress { step: 9, stage: 2, ..Progress::default() };
        for path in ["stage.1.steps", "run.minutes"] {
            let change = Difference { path: path.into(), left: row("4"), right: row("8") };
            assert!(
                matches!(grows(&change, Some(&progress)), Growth::Impossible(why) if why.contains("earlier version"))
            );
        }
    }
}
