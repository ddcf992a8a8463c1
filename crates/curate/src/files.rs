//! Which files a path stands for, in an order that only names decide.

use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use crate::counters::{Counters, Damage, Reason};
use crate::error::Error;

/// The extensions that have a reader, for messages.
pub(crate) const READABLE: &str = ".txt .md .rs .html .jsonl .jsonl.gz .jsonl.zst .parquet";

/// How a file is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The file is the text.
    Text,
    /// The text between the tags.
    Html,
    /// One JSON object a line.
    Jsonl(Packing),
    /// A column of strings.
    Parquet,
}

/// How a JSON lines file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Kind {
    /// The kind by file name, `None` where no reader exists. Case does not matter.
    pub(crate) fn of(path: &Path) -> Option<Kind> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        let ends = |suffix: &str| name.len() > suffix.len() && name.ends_with(suffix);
        match () {
            () if ends(".txt") || ends(".md") || ends(".rs") => Some(Kind::Text),
            () if ends(".html") => Some(Kind::Html),
            () if ends(".jsonl") => Some(Kind::Jsonl(Packing::Plain)),
            () if ends(".jsonl.gz") => Some(Kind::Jsonl(Packing::Gzip)),
            () if ends(".jsonl.zst") => Some(Kind::Jsonl(Packing::Zstd)),
            () if ends(".parquet") => Some(Kind::Parquet),
            () => None,
        }
    }
}

/// One file to read.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub path: PathBuf,
    /// The name that documents and messages carry.
    pub name: String,
    pub group: u64,
    pub kind: Kind,
    pub bytes: u64,
    /// The user named this very file: a failure to read it stops the run.
    pub named: bool,
}

/// A file below a folder, before anybody decided to read it.
pub(crate) struct Found {
    pub path: PathBuf,
    /// Relative to the folder, with `/` on every system.
    pub relative: String,
    pub kind: Kind,
    pub bytes: u64,
}

/// Every readable file below `root`, sorted by name folder by folder; hidden names and those that `skip`
/// refuses are left out with all below them. Symbolic links are followed only with `links`; a loop of them and
/// anything that cannot be listed is counted.
///
/// # Errors
/// [`Error::Read`] if `root` itself cannot be listed.
pub(crate) fn below(
    root: &Path,
    links: bool,
    skip: fn(&str) -> bool,
    counters: &mut Counters,
) -> Result<Vec<Found>, Error> {
    std::fs::read_dir(root).map_err(|e| Error::read(root, e))?;
    let refused = |name: &str| name.starts_with('.') || skip(name);
    let walk = WalkDir::new(root).follow_links(links).sort_by_file_name().into_iter();
    let mut found = Vec::new();
    for entry in walk.filter_entry(|e| e.depth() == 0 || !refused(&e.file_name().to_string_lossy())) {
        let item = entry.and_then(|entry| {
            if !entry.file_type().is_file() {
                return Ok(None);
            }
            let bytes = entry.metadata()?.len();
            let Some(kind) = Kind::of(entry.path()) else {
                counters.drop_documents(Reason::NoReader, 1, bytes);
                return Ok(None);
            };
            let relative = relative_name(root, entry.path());
            Ok(Some(Found { path: entry.into_path(), relative, kind, bytes }))
        });
        match item {
            Ok(file) => found.extend(file),
            Err(error) => {
                let file = error.path().unwrap_or(root).display().to_string();
                let (place, reason) = (String::new(), Reason::Unreadable);
                counters.damaged(Damage { file, place, reason, detail: error.to_string() }, 1, 0);
            }
        }
    }
    Ok(found)
}

/// `path` relative to `root`, its parts joined by `/`.
fn relative_name(root: &Path, path: &Path) -> String {
    let relative = path.strip_prefix(root).unwrap_or(path);
    let parts: Vec<_> = relative.components().map(|c| c.as_os_str().to_string_lossy()).collect();
    parts.join("/")
}

/// Paths as a sentence shows them: the first few and how many more there are.
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
