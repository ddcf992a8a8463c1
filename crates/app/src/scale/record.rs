//! A ladder as its folder keeps it: its recipe, its rungs and the prediction of the held-out one.

use std::fs;
use std::path::Path;

use fathom_base::files;
use fathom_base::recipe::{Layers, Loaded, diff};
use fathom_train::recipe::Recipe;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::rungs::Ladder;
use crate::error::{Context, Result, refuse};

/// File of the recipe.
const RECIPE: &str = "scale.toml";
/// File of the rungs.
const LADDER: &str = "ladder.json";
/// File of the prediction.
const EXPECTED: &str = "prediction.json";
/// Keys that may change while a ladder goes on, as they shape no rung.
const FREE: [&str; 4] = ["run.out", "scale.gpu", "scale.gpu_hours", "scale.resamples"];

/// Reads the rungs of a ladder's folder; `None` if it has none yet. Writes the recipe into a new folder.
///
/// # Errors
/// A folder that belongs to another ladder, with the keys that differ.
pub(super) fn open(folder: &Path, loaded: &Loaded<Recipe>) -> Result<Option<Ladder>> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join(RECIPE);
    let known: Option<Ladder> = read(&folder.join(LADDER))?;
    if known.is_some() {
        let before: Loaded<Recipe> = Loaded::load(Layers::new().file(&path))?;
        let differences = diff(before.rows(), loaded.rows());
        let changed: Vec<String> = differences
            .iter()
            .filter(|change| !FREE.iter().any(|free| change.path.starts_with(free)))
            .map(|change| format!("  {change}"))
            .collect();
        if !changed.is_empty() {
            refuse!(
                "{} holds the ladder of another recipe; give another folder (--out), or what it was:\n{}",
                folder.display(),
                changed.join("\n")
            );
        }
    } else {
        write(&path, loaded.text().as_bytes())?;
    }
    Ok(known)
}

/// Keeps the rungs.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn keep_ladder(folder: &Path, ladder: &Ladder) -> Result<()> {
    keep(&folder.join(LADDER), ladder)
}

/// Keeps a prediction, unless there is one.
///
/// # Errors
/// A file that cannot be read or written.
pub(super) fn keep_expected<T: Serialize + DeserializeOwned>(folder: &Path, expected: T) -> Result<T> {
    let path = folder.join(EXPECTED);
    if let Some(known) = read(&path)? {
        return Ok(known);
    }
    keep(&path, &expected)?;
    Ok(expected)
}

/// Writes a value as JSON.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn keep<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    write(path, format!("{}\n", serde_json::to_string_pretty(value)?).as_bytes())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    let written = files::write(&part, bytes).and_then(|()| fs::rename(&part, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => {
            let value = serde_json::from_slice(&bytes);
            value.map(Some).with_context(|| {
                format!("{}: is damaged; remove it to begin the ladder again", path.display())
            })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}
