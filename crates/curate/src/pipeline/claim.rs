//! Locks the folder of a curation so that it has one process per rank, and ranks of one world size only: two
//! processes working on the same parts would overwrite each other's files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fathom_base::lock::{self, Claim};

use super::env::Rank;
use crate::durable;
use crate::error::Error;

/// Keeps other processes of the same rank, and those of other world sizes, out of `out` while the returned file is
/// open; `None` if the file system has no locks, which is reported to `say`.
///
/// # Errors
/// [`Error::InUse`], or the lock file cannot be opened.
pub(super) fn claim(
    out: &Path,
    rank: Rank,
    patience: Duration,
    say: &dyn Fn(&str),
) -> Result<Option<File>, Error> {
    let in_use = |holder, Rank { rank, world_size }| {
        Err(Error::InUse { folder: out.to_owned(), holder, rank, world_size })
    };
    let path = path_of(out, rank);
    // The lock file is written to, so it must not be a link or special file.
    durable::append(&path).map(drop)?;
    let held = match lock::claim(&path, patience).map_err(|e| Error::write("open", &path, e))? {
        Claim::Held(file) => file,
        Claim::Taken(holder) => return in_use(holder, rank),
        Claim::Impossible(error) => {
            say(&format!(
                "warning: {} cannot be locked, so another run in the same folder would go unnoticed: {error}",
                path.display()
            ));
            return Ok(None);
        }
    };
    // Checked while holding our own lock: if two worlds start together, at least one sees the other.
    let entries = std::fs::read_dir(out).map_err(|e| Error::read(out, e))?;
    for entry in entries.flatten() {
        let other = entry.file_name().to_str().and_then(rank_of);
        let Some(other) = other.filter(|other| other.world_size != rank.world_size) else { continue };
        if let Some(holder) = lock::holder(&entry.path()) {
            return in_use(holder, other);
        }
    }
    Ok(Some(held))
}

/// Path such as `.rank-3-of-16.lock`; hidden, so that table listings skip it.
fn path_of(out: &Path, Rank { rank, world_size }: Rank) -> PathBuf {
    out.join(format!(".rank-{rank}-of-{world_size}.lock"))
}

fn rank_of(name: &str) -> Option<Rank> {
    let (rank, world_size) = name.strip_prefix(".rank-")?.strip_suffix(".lock")?.split_once("-of-")?;
    Some(Rank { rank: rank.parse().ok()?, world_size: world_size.parse().ok()? })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A failed helper is a failed test.

    use super::*;

    #[test]
    fn a_rank_is_one_process_and_all_ranks_are_of_one_world() {
        let out = tempfile::tempdir().unwrap();
        let of = |rank, world_size| {
            claim(out.path(), Rank { rank, world_size }, Duration::ZERO, &|said| panic!("{said}"))
        };
        let first = of(0, 2).unwrap();
        let second = of(1, 2).unwrap();
        let refused = of(0, 2).unwrap_err().to_string();
        let me = format!("process {} on ", std::process::id());
        assert!(refused.contains(&me) && refused.contains("as rank 0 of 2"), "{refused}");
        drop(first);
        let refused = of(0, 1).unwrap_err().to_string();
        assert!(refused.contains("as rank 1 of 2") && refused.contains("out="), "{refused}");
        drop(second);
        let alone = of(0, 1).unwrap();
        assert!(alone.is_some() && of(1, 2).is_err());
    }
}
