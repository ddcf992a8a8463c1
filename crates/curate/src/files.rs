//! Expands a path to its files, in an order that depends only on names.

use std::path::{Path, PathBuf};

use walkdir::{DirEntry, WalkDir};

use crate::counters::{Counters, Damage, Reason};
use crate::error::{Error, may_pass};
use crate::kinds::Kind;

/// One file to read.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub path: PathBuf,
    /// Name used in documents and messages.
    pub name: String,
    pub group: u64,
    pub kind: Kind,
    pub bytes: u64,
    /// True if the user named this very file; a failure to read it then stops the run.
    pub named: bool,
}

/// A file below a folder, not yet selected for reading.
pub(crate) struct CandidateFile {
    pub path: PathBuf,
    /// Path relative to the folder, with `/` on every system.
    pub relative: String,
    pub kind: Kind,
    pub bytes: u64,
}

/// Policy for symbolic links below a folder. Links named by the user are always followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// No links.
    Never,
    /// Links whose target is in the same folder, so that the contents of a data folder cannot select other files of
    /// the machine.
    Within,
    /// All links.
    Anywhere,
}

/// [`below_of`] with the kinds of [`Kind::of`].
pub(crate) fn below(
    root: &Path,
    links: Links,
    skip: fn(&str) -> bool,
    counters: &mut Counters,
) -> Result<Vec<CandidateFile>, Error> {
    below_of(root, links, skip, Kind::of, counters)
}

/// Lists every file below `root` that has a `kind`, sorted by name within each folder; hidden names and those that
/// `skip` matches are left out with everything below them. Symbolic links are followed according to `links`; links
/// out of the folder, link cycles and unlistable entries are counted.
///
/// # Errors
/// [`Error::Read`] if `root` itself cannot be listed, [`Error::Unavailable`] if a transient failure occurs below it.
pub(crate) fn below_of(
    root: &Path,
    links: Links,
    skip: fn(&str) -> bool,
    kind: impl Fn(&Path) -> Option<Kind>,
    counters: &mut Counters,
) -> Result<Vec<CandidateFile>, Error> {
    let unlisted = |e| Error::access(&root.display().to_string(), None, e);
    std::fs::read_dir(root).map_err(unlisted)?;
    let home = if links == Links::Within { Some(root.canonicalize().map_err(unlisted)?) } else { None };
    let refused = |name: &str| name.starts_with('.') || skip(name);
    let mut walk = WalkDir::new(root).follow_links(links != Links::Never).sort_by_file_name().into_iter();
    let mut found = Vec::new();
    while let Some(entry) = walk.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                unlistable(root, &error, counters)?;
                continue;
            }
        };
        let hidden = entry.depth() > 0 && refused(&entry.file_name().to_string_lossy());
        let leads_out = || home.as_ref().is_some_and(|home| leads_out(&entry, home));
        if hidden || leads_out() {
            if !hidden {
                link_out(entry.path(), counters);
            }
            if entry.file_type().is_dir() {
                walk.skip_current_dir();
            }
            continue;
        }
        if !entry.file_type().is_file() {
            continue;
        }
        let bytes = match entry.metadata() {
            Ok(metadata) => metadata.len(),
            Err(error) => {
                unlistable(root, &error, counters)?;
                continue;
            }
        };
        let Some(kind) = kind(entry.path()) else {
            counters.without_reader(entry.path(), bytes);
            continue;
        };
        let relative = relative_name(root, entry.path());
        found.push(CandidateFile { path: entry.into_path(), relative, kind, bytes });
    }
    Ok(found)
}

/// Returns true if an entry is a link to a place outside `home`.
fn leads_out(entry: &DirEntry, home: &Path) -> bool {
    let stays = || entry.path().canonicalize().is_ok_and(|target| target.starts_with(home));
    entry.depth() > 0 && entry.path_is_symlink() && !stays()
}

/// Counts a link that is not followed.
fn link_out(path: &Path, counters: &mut Counters) {
    let target = std::fs::read_link(path).map_or(String::new(), |target| format!(" to {}", target.display()));
    let detail = format!(
        "a link out of its folder{target}; name what it leads to as an input, or set `input.follow_links` of a curation"
    );
    let (file, place, reason) = (path.display().to_string(), String::new(), Reason::UnsafePath);
    counters.damaged(Damage { file, place, reason, detail }, 1, 0);
}

/// Counts an unlistable entry, or returns an error if the failure may be transient.
fn unlistable(root: &Path, error: &walkdir::Error, counters: &mut Counters) -> Result<(), Error> {
    let file = error.path().unwrap_or(root).display().to_string();
    if error.io_error().is_some_and(may_pass) {
        return Err(Error::Unavailable { location: file, offset: None, detail: error.to_string() });
    }
    let (place, reason) = (String::new(), Reason::Unreadable);
    counters.damaged(Damage { file, place, reason, detail: error.to_string() }, 1, 0);
    Ok(())
}

/// Path relative to `root`, its components joined by `/`.
fn relative_name(root: &Path, path: &Path) -> String {
    let relative = path.strip_prefix(root).unwrap_or(path);
    let parts: Vec<_> = relative.components().map(|c| c.as_os_str().to_string_lossy()).collect();
    parts.join("/")
}

/// Formats paths for a message: the first few and the number of others.
pub(crate) fn list_of(paths: &[PathBuf]) -> String {
    const SHOWN: usize = 8;
    if paths.is_empty() {
        return "no path at all".to_string();
    }
    let mut list: Vec<String> = paths.iter().take(SHOWN).map(|p| p.display().to_string()).collect();
    if paths.len() > SHOWN {
        list.push(format!("{} more", paths.len() - SHOWN));
    }
    list.join(", ")
}
