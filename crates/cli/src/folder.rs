//! A run's folder: one process at a time works in it, and one recipe made it.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result, bail};
use fathom_base::lock::{self, Claim};
use fathom_base::metrics::{Event, read_events};
use fathom_base::recipe::{Layers, Recipe as Loaded, diff};
use fathom_model::write_file;
use fathom_train::recipe::{OffloadCodec, Recipe};
use serde_json::Value;

use crate::live::Live;

/// Keys that may differ between a run and its resumption: they change no number of the training; the mesh, none but by rounding.
/// `*` stands for any index, a dot at the end for everything below.
const FREE: [&str; 9] = [
    "machine.",
    "mesh.",
    "checkpoint.",
    "eval.",
    "data.ahead",
    "run.out",
    "run.profile",
    "run.tensorboard",
    "stage.*.max_docs",
];
/// So may these, where every place gives back the bits that it was given.
const PLACES: [&str; 3] = ["activations.", "stage.*.recompute_granularity", "stage.*.tile_rows"];

/// Keeps other processes out of a run's folder for as long as the file is open; `None` where the file system has no locks.
///
/// # Errors
/// If another process is in it, which is named.
pub fn claim(folder: &Path, live: &Live) -> Result<Option<File>> {
    let path = folder.join(".lock");
    match lock::claim(&path, lock::PATIENCE).with_context(|| format!("cannot open {}", path.display()))? {
        Claim::Held(file) => Ok(Some(file)),
        Claim::Taken(holder) => bail!(
            "{} is in use by {holder}; wait for its end, end it, or give another folder (--out)",
            folder.display()
        ),
        Claim::Impossible(error) => {
            live.say(&format!(
                "warning: {} cannot be locked, so another run in the same folder would go unnoticed: {error}",
                path.display()
            ));
            Ok(None)
        }
    }
}

/// Refuses a folder that another recipe made; writes the recipe into a new one, whole or not at all.
///
/// # Errors
/// What differs, by key.
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
        // Such as a path that was misspelt: nothing came of it, and its first line would name the old keys.
        remove(folder, "metrics.jsonl")?;
        remove(folder, "steps.json")?;
        let has_text = said.iter().any(|event| matches!(Event::from_value(event), Some(Event::Data(_))));
        if !has_text {
            // Nothing was made of what it curated either.
            remove(folder, "data/curated")?;
        }
    } else if before.is_some() {
        let before: Loaded<Recipe> = Loaded::load(Layers::new().file(&path))?;
        let exact =
            [&before, loaded].iter().all(|of| of.value.activations.offload_codec == OffloadCodec::AsIs);
        let differences = diff(before.rows(), loaded.rows());
        let changes = differences.iter().filter(|change| !is_free(&change.path, exact));
        let differences: Vec<String> = changes.map(|change| format!("  {change}")).collect();
        if !differences.is_empty() {
            let (path, differences) = (folder.to_path_buf(), differences.join("\n"));
            bail!(fathom_train::Error::OtherRecipe { path, differences });
        }
    }
    Ok(write_file(&path, loaded.text().as_bytes())?)
}

/// Removes what another recipe left, if it is there.
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

/// The log of a run that has trained nothing: no step, no checkpoint. Text that it made is made again where that has to be.
fn untrained(folder: &Path) -> Result<Option<Vec<Value>>> {
    let log = folder.join("metrics.jsonl");
    // A recipe without a log is nobody's run, so not ours to replace.
    if !log.exists() || folder.join("checkpoints").exists() {
        return Ok(None);
    }
    let said = read_events(log)?;
    let is_step = |event: &Value| matches!(Event::from_value(event), Some(Event::Step(_)));
    Ok((!said.iter().any(is_step)).then_some(said))
}

/// Whether a key may change; `exact`: every place of activations gives back the bits that it was given.
fn is_free(key: &str, exact: bool) -> bool {
    let places = if exact { &PLACES[..] } else { &[] };
    FREE.iter().chain(places).any(|pattern| {
        let (wanted, parts) = (pattern.split('.'), key.split('.'));
        let same = |(wanted, part): (&str, &str)| ["*", "", part].contains(&wanted);
        parts.clone().count() >= wanted.clone().count() && wanted.zip(parts).all(same)
    })
}
