//! Distribution of a whole-table stage's per-part work among ranks: each rank writes a file for each of its parts,
//! and the rank that runs the stage uses these files instead of doing that work itself.
//!
//! The files are hidden in the stage's folder until it is done. Each has the contents that [`Job::export`] would
//! write, so the results do not reveal which rank made them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::barrier::Job;
use super::env::Env;
use super::manifest::{KeyHasher, TablePart, has_size};
use super::share_files::{ShareOf, hidden, path};
use super::verify::FileFacts;
use crate::durable;
use crate::error::Error;

/// Sidecar of a share file.
#[derive(Serialize, Deserialize)]
struct ShareManifest {
    key: String,
    file: FileFacts,
}

/// Writes the files for those of `parts` (number, part) that belong to this rank and do not exist yet.
///
/// # Errors
/// A part cannot be read, a file cannot be written, or `share` fails.
pub(super) fn make(
    folder: &Path,
    key: &str,
    parts: &[(usize, &TablePart)],
    share: &ShareOf<'_>,
    env: &Env,
) -> Result<(), Error> {
    let mine = parts.iter().filter(|(number, _)| env.options.rank.owns(*number));
    let missing: Vec<&(usize, &TablePart)> =
        mine.filter(|(n, part)| !made(folder, key, (*n, part), env)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let hidden = hidden(folder);
    std::fs::create_dir_all(&hidden).map_err(|e| Error::write("create", &hidden, e))?;
    for (number, _) in &missing {
        durable::remove(&account(folder, *number))?;
    }
    let parts: Vec<TablePart> = missing.iter().map(|(_, part)| (*part).clone()).collect();
    let job = Job::new(&parts, folder, key, env);
    job.export(&|index| path(folder, missing[index].0), share)?;
    for (number, part) in &missing {
        let path = path(folder, *number);
        let file = env.hashes.facts(&path).map_err(|e| Error::read(&path, e))?;
        durable::save(&account(folder, *number), &ShareManifest { key: key_of(key, part), file })?;
    }
    Ok(())
}

/// Returns true if the file of a part (number, part) exists and was made from this part by this stage. Its producer
/// and its consumer verify every byte, other ranks only its size.
pub(super) fn made(folder: &Path, key: &str, (number, part): (usize, &TablePart), env: &Env) -> bool {
    let Some(manifest) = durable::load::<ShareManifest>(&account(folder, number)) else { return false };
    let path = path(folder, number);
    let looks = env.options.rank.owns(number) || env.options.rank.rank == 0;
    let whole = || if looks { env.is_whole(&path, &manifest.file) } else { has_size(&path, &manifest.file) };
    manifest.key == key_of(key, part) && whole()
}

/// Removes the share files once they are no longer needed.
pub(super) fn remove(folder: &Path) -> Result<(), Error> {
    let hidden = hidden(folder);
    match std::fs::remove_dir_all(&hidden) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::write("remove", &hidden, error))
        }
        _ => Ok(()),
    }
}

fn account(folder: &Path, number: usize) -> PathBuf {
    path(folder, number).with_extension("json")
}

fn key_of(key: &str, part: &TablePart) -> String {
    KeyHasher::new().with(key).with(&part.facts.hash).finish()
}
