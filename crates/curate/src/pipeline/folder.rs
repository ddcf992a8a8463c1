//! The output folder: its ownership, and removal of tables that no stage produces any more.

use std::path::{Path, PathBuf};

use super::env::Env;
use super::manifest;
use super::plan::Pipeline;
use super::units::split_name;
use fathom_base::secrets::redacted;

use crate::durable;
use crate::error::Error;

impl Pipeline {
    /// Takes ownership of the folder: writes the recipe there, and removes the tables of stages that it no longer
    /// has, which would otherwise look like its own.
    ///
    /// # Errors
    /// The folder holds the curation of other inputs, or folders that no curation made and this one would empty; or a
    /// file cannot be written or removed.
    pub(super) fn take_over(&self, env: &Env) -> Result<(), Error> {
        let recipe = self.out().join("recipe.toml");
        let before = paths_of(&recipe);
        let is_ours = before.is_some();
        if let Some(before) = before {
            // A recipe of an older version may contain secrets, which are not part of an input's identity.
            let before: Vec<String> = before.iter().map(|path| redacted(path).into_owned()).collect();
            let (now, old) = (locations(&self.recipe.input.paths), locations(&before));
            if !old.is_empty() && !now.is_empty() && !old.iter().any(|path| now.contains(path)) {
                let (folder, held) = (self.out().to_owned(), before.join(", "));
                return Err(Error::OtherCuration { folder, held });
            }
        }
        let wanted: Vec<&Path> = self.segments.iter().map(|s| s.folder.as_path()).collect();
        if !is_ours {
            // The recipe file marks a curation: in a folder without one, nothing is emptied because of its name.
            let made = wanted.iter().copied().chain([env.spill.as_path()]);
            if let Some(folder) = made.into_iter().find(|folder| !is_table(folder) && !is_empty(folder)) {
                return Err(Error::ForeignFolder { folder: folder.to_owned() });
            }
        }
        durable::write_whole(&recipe, self.resolved().as_bytes())?;
        // A folder without an earlier curation has no leftovers.
        let stale = if is_ours { leftovers(self.out(), &wanted) } else { Vec::new() };
        for folder in &stale {
            env.say(&format!("removed {}: no stage of the recipe makes it any more", folder.display()));
            std::fs::remove_dir_all(folder).map_err(|e| Error::write("remove", folder, e))?;
        }
        if !stale.is_empty() {
            // These describe the removed tables.
            ["stats.json", "report.html"]
                .iter()
                .try_for_each(|name| durable::remove(&self.out().join(name)))?;
        }
        Ok(())
    }
}

/// `input.paths` of a recipe left by an earlier run; `None` if there is no readable one.
fn paths_of(recipe: &Path) -> Option<Vec<String>> {
    let table: toml::Table = std::fs::read_to_string(recipe).ok()?.parse().ok()?;
    let paths = table.get("input")?.get("paths")?.as_array()?;
    Some(paths.iter().filter_map(|path| path.as_str().map(str::to_owned)).collect())
}

/// Paths without their name prefixes.
fn locations(paths: &[String]) -> Vec<&str> {
    paths.iter().map(|path| split_name(path).map_or(path.as_str(), |(_, location)| location)).collect()
}

/// Table folders, such as `03-fuzzy`, that are not among `wanted`.
fn leftovers(out: &Path, wanted: &[&Path]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(out).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut stale: Vec<PathBuf> = entries
        .filter(|path| is_table(path) && !wanted.iter().any(|folder| folder.file_name() == path.file_name()))
        .collect();
    stale.sort();
    stale
}

/// Returns true if a folder is empty or does not exist.
fn is_empty(path: &Path) -> bool {
    std::fs::read_dir(path).map_or(true, |mut entries| entries.next().is_none())
}

/// Returns true if a folder is named like a stage's and contains output of a stage.
fn is_table(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let numbered = name
        .split_once('-')
        .is_some_and(|(number, _)| number.len() >= 2 && number.bytes().all(|b| b.is_ascii_digit()));
    let holds = |path: &Path| {
        std::fs::read_dir(path).into_iter().flatten().flatten().any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            is_part(name.trim_start_matches('.')) || entry.path() == manifest::table_path(path)
        })
    };
    numbered && path.is_dir() && holds(path)
}

/// Returns true if a file is named like a part of a table: `part-00012.parquet`, its manifest, or a file derived from
/// it.
fn is_part(name: &str) -> bool {
    let number = name.strip_prefix("part-").and_then(|rest| rest.split_once('.')).map(|(number, _)| number);
    number.is_some_and(|number| number.len() >= 5 && number.bytes().all(|b| b.is_ascii_digit()))
}
