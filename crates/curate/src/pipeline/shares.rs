//! What a stage over the whole table does to one part alone, shared out among ranks: each leaves a file for each of its parts,
//! and the one that runs the stage takes them where it would have done that work itself.
//!
//! The files lie hidden in the stage's folder until it is done. Each is what [`Job::export`] would write, so nothing of the
//! results tells who made them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::barrier::Job;
use super::batch::Batch;
use super::env::Env;
use super::manifest::{KeyHasher, TablePart, has_size};
use super::verify::FileFacts;
use crate::durable;
use crate::error::Error;

/// What a batch gives to the file of its part.
pub type ShareOf<'a> = dyn Fn(&Batch) -> Result<Vec<u8>, Error> + Sync + 'a;

/// The account of a file.
#[derive(Serialize, Deserialize)]
struct Made {
    key: String,
    file: FileFacts,
}

/// Makes the files of those of `parts` (number, part) that are this rank's and not made yet.
///
/// # Errors
/// A part that cannot be read, a file that cannot be written, or what `share` says.
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
        let file = env.verified.facts(&path).map_err(|e| Error::read(&path, e))?;
        durable::save(&account(folder, *number), &Made { key: key_of(key, part), file })?;
    }
    Ok(())
}

/// Whether the file of a part (number, part) is there, made from this part by this stage. Who made it and who takes it look at
/// every byte.
pub(super) fn made(folder: &Path, key: &str, (number, part): (usize, &TablePart), env: &Env) -> bool {
    let Some(made) = durable::load::<Made>(&account(folder, number)) else { return false };
    let path = path(folder, number);
    let looks = env.options.rank.owns(number) || env.options.rank.rank == 0;
    let whole = || if looks { env.is_whole(&path, &made.file) } else { has_size(&path, &made.file) };
    made.key == key_of(key, part) && whole()
}

/// Gives a file its name among the results; it stays until all are there, so that a run that is killed meanwhile need not ask
/// its rank again.
pub(super) fn hand_over(made: &Path, name: &Path) -> Result<(), Error> {
    let copied = || {
        std::fs::copy(made, name)?;
        std::fs::File::open(name)?.sync_all()
    };
    std::fs::hard_link(made, name).or_else(|_| copied()).map_err(|e| Error::write("create", name, e))
}

/// The files are not needed any more.
pub(super) fn remove(folder: &Path) -> Result<(), Error> {
    let hidden = hidden(folder);
    match std::fs::remove_dir_all(&hidden) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::write("remove", &hidden, error))
        }
        _ => Ok(()),
    }
}

/// The folder of the files.
pub(super) fn hidden(folder: &Path) -> PathBuf {
    folder.join(".shares")
}

pub(super) fn path(folder: &Path, number: usize) -> PathBuf {
    hidden(folder).join(format!("part-{number:05}"))
}

fn account(folder: &Path, number: usize) -> PathBuf {
    path(folder, number).with_extension("json")
}

fn key_of(key: &str, part: &TablePart) -> String {
    KeyHasher::new().with(key).with(&part.facts.hash).finish()
}
