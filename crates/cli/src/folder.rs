//! A run's folder: one process at a time works in it, and one recipe made it.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fathom_base::recipe::{Layers, Recipe as Loaded, diff};
use fathom_model::write_file;
use fathom_train::recipe::{OffloadCodec, Recipe};

use crate::live::Live;

/// Keys that may differ between a run and its resumption: they change no number; the mesh, none but by rounding. `*` stands for
/// any index, a dot at the end for everything below.
const FREE: [&str; 8] = [
    "machine.",
    "mesh.",
    "checkpoint.",
    "data.ahead",
    "run.out",
    "run.profile",
    "run.tensorboard",
    "stage.*.max_docs",
];
/// So may these, where every place gives back the bits that it was given.
const PLACES: [&str; 3] = ["activations.", "stage.*.recompute_granularity", "stage.*.tile_rows"];

/// A job that was killed may take a moment to be gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// Keeps other processes out of a run's folder for as long as the file is open.
///
/// # Errors
/// If another process is in it, which is named.
pub fn claim(folder: &Path, live: &Live) -> Result<File> {
    let path = folder.join(".lock");
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = file.with_context(|| format!("cannot open {}", path.display()))?;
    let until = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < until => sleep(PAUSE),
            Err(TryLockError::WouldBlock) => {
                let holder = fs::read_to_string(&path).unwrap_or_default();
                let holder = if holder.is_empty() { "another process" } else { holder.trim() };
                bail!(
                    "{} is in use by {holder}; wait for its end, end it, or give another folder (--out)",
                    folder.display()
                );
            }
            // Some file systems of clusters have no locks.
            Err(TryLockError::Error(error)) => {
                live.say(&format!(
                    "warning: {} cannot be locked, so another run in the same folder would go unnoticed: {error}",
                    path.display()
                ));
                break;
            }
        }
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let holder = format!("process {} on {}\n", std::process::id(), host.trim());
    // A message's words: a full disk is no reason to end here.
    let _ = file.set_len(0).and_then(|()| file.write_all(holder.as_bytes()));
    Ok(file)
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
    if before.is_some() {
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

/// Whether a key may change; `exact`: every place of activations gives back the bits that it was given.
fn is_free(key: &str, exact: bool) -> bool {
    let places = if exact { &PLACES[..] } else { &[] };
    FREE.iter().chain(places).any(|pattern| {
        let (wanted, parts) = (pattern.split('.'), key.split('.'));
        let same = |(wanted, part): (&str, &str)| ["*", "", part].contains(&wanted);
        parts.clone().count() >= wanted.clone().count() && wanted.zip(parts).all(same)
    })
}
