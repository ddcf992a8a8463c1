//! The default corpus: sources and documentation of the crates that Fathom was built from, or of one repository.
//!
//! Every machine that has compiled Fathom has this text in cargo's registry folder. The files of a crate are
//! contiguous in path order and form one group, so that joining them gives documents of realistic length.

use std::path::{Path, PathBuf};

use fathom_prose::filter::{is_generated, longest_line};
use twox_hash::XxHash3_64;

use crate::counters::{Counters, Reason};
use crate::document::group_of;
use crate::error::Error;
use crate::files::{CandidateFile, Entry, Links, below, list_of};
use crate::kinds::Kind;
use crate::read::packed::Codec;
use crate::read::{Documents, ReadOptions};

/// Size limit; larger files are tables and bundles, not writing.
const MAX_FILE_BYTES: u64 = 2 << 20;
/// Line length limit; longer lines are data or minified code.
const MAX_LINE_CHARS: usize = 10_000;
/// In the first round no crate gets more than the budget divided by this, so that one giant cannot fill it ...
const CRATE_SHARE: u64 = 16;
/// ... but always enough for a long document.
const CRATE_LEAST_BYTES: u64 = 512 << 10;

/// Limits of gathering.
#[derive(Clone, Copy, Debug)]
pub struct GatherOptions {
    /// Maximum total size of the selected files.
    pub max_bytes: u64,
    /// Seed that ranks the crates when not all fit.
    pub seed: u64,
}

impl Default for GatherOptions {
    fn default() -> Self {
        GatherOptions { max_bytes: u64::MAX, seed: 0 }
    }
}

/// Folders of unpacked crates below a cargo home, `registry/src/*`, sorted; empty if there are none.
pub fn default_roots(cargo_home: &Path) -> Vec<PathBuf> {
    child_folders(&cargo_home.join("registry").join("src")).unwrap_or_default()
}

/// Non-hidden subfolders of `path`, sorted.
fn child_folders(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if !hidden && entry.path().is_dir() {
            folders.push(entry.path());
        }
    }
    folders.sort();
    Ok(folders)
}

/// Collects the texts (.rs, .md, .txt, .html) of all crates below `roots`, crates sorted by name, files by path. If
/// the roots hold no text, `fallback` (a repository, without its build folders) is read as one crate.
///
/// With a budget, crates are visited in the order of a seeded hash of their name and contribute files in path order,
/// in a first round at most a sixteenth of the budget each, then without that limit; a crate stops at its first file
/// that does not fit. Files that are larger than 2 MiB, binary, generated code, or have lines over 10 000 characters
/// are dropped and counted. Sources are named `crate-version/path`.
///
/// # Errors
/// [`Error::Read`] if a root, or a fallback that is needed, cannot be listed.
pub fn gather(
    roots: &[PathBuf],
    fallback: Option<&Path>,
    options: &GatherOptions,
) -> Result<Documents, Error> {
    let FileSelection { looked_at, entries, counters } = files(roots, fallback, options)?;
    let read = ReadOptions { max_document_bytes: 2 * MAX_FILE_BYTES as usize, ..ReadOptions::default() };
    Ok(Documents::new(looked_at, entries, read, screen, counters))
}

/// Files selected by [`gather`], not yet read.
pub(crate) struct FileSelection {
    /// Searched folders, for messages.
    pub looked_at: String,
    pub entries: Vec<Entry>,
    /// Counters of skipped files.
    pub counters: Counters,
}

/// Selects the files of [`gather`].
pub(crate) fn files(
    roots: &[PathBuf],
    fallback: Option<&Path>,
    options: &GatherOptions,
) -> Result<FileSelection, Error> {
    let mut counters = Counters::default();
    let mut looked_at = roots.to_vec();
    let mut crates = Vec::new();
    for root in roots {
        for folder in child_folders(root).map_err(|e| Error::read(root, e))? {
            crates.extend(Crate::list(&folder, |_| false, &mut counters)?);
        }
    }
    if let (true, Some(repository)) = (crates.is_empty(), fallback) {
        looked_at.push(repository.to_path_buf());
        crates.extend(Crate::list(repository, is_build_folder, &mut counters)?);
    }
    crates.sort_by(|a, b| (&a.name, &a.folder).cmp(&(&b.name, &b.folder)));
    let taken = choose(&crates, options);
    let mut entries = Vec::new();
    for (krate, taken) in crates.into_iter().zip(taken) {
        let left: u64 = krate.files[taken..].iter().map(|f| f.bytes).sum();
        if taken < krate.files.len() {
            counters.drop_documents(Reason::OverBudget, (krate.files.len() - taken) as u64, left);
        }
        entries.extend(krate.entries(taken));
    }
    Ok(FileSelection { looked_at: list_of(&looked_at), entries, counters })
}

/// Matches the build folders of Cargo and Fathom inside a repository.
fn is_build_folder(name: &str) -> bool {
    name == "target" || name.starts_with("target-")
}

/// Files of one crate in path order.
struct Crate {
    folder: PathBuf,
    name: String,
    files: Vec<CandidateFile>,
}

impl Crate {
    /// Lists the files of the crate in `folder`; `None` if it has no text.
    fn list(folder: &Path, skip: fn(&str) -> bool, counters: &mut Counters) -> Result<Option<Crate>, Error> {
        let mut files = below(folder, Links::Never, skip, counters)?;
        files.retain(|file| {
            match file.kind {
                Kind::Text(Codec::Plain) | Kind::Html(Codec::Plain) if file.bytes <= MAX_FILE_BYTES => {
                    return true;
                }
                Kind::Text(Codec::Plain) | Kind::Html(Codec::Plain) => {
                    counters.drop_documents(Reason::TooLarge, 1, file.bytes);
                }
                _ => counters.without_reader(&file.path, file.bytes),
            }
            false
        });
        let name = match folder.file_name() {
            Some(name) => name.to_string_lossy().into_owned(),
            None => "repository".to_string(), // `.` or `/`
        };
        Ok((!files.is_empty()).then(|| Crate { folder: folder.to_path_buf(), name, files }))
    }

    /// The first `count` files as entries to read.
    fn entries(self, count: usize) -> impl Iterator<Item = Entry> {
        let Crate { name, files, .. } = self;
        let group = group_of(&name);
        files.into_iter().take(count).map(move |file| Entry {
            path: file.path,
            name: format!("{name}/{}", file.relative),
            group,
            kind: file.kind,
            bytes: file.bytes,
            named: false,
        })
    }
}

/// Number of files taken from each crate.
fn choose(crates: &[Crate], options: &GatherOptions) -> Vec<usize> {
    let mut order: Vec<usize> = (0..crates.len()).collect();
    order.sort_by_key(|&i| (XxHash3_64::oneshot_with_seed(options.seed, crates[i].name.as_bytes()), i));
    let mut taken = vec![0; crates.len()];
    let mut given = vec![0u64; crates.len()];
    let mut left = options.max_bytes;
    for share in [(options.max_bytes / CRATE_SHARE).max(CRATE_LEAST_BYTES), u64::MAX] {
        for &i in &order {
            for file in &crates[i].files[taken[i]..] {
                if file.bytes > left || given[i].saturating_add(file.bytes) > share {
                    break;
                }
                taken[i] += 1;
                given[i] += file.bytes;
                left -= file.bytes;
            }
        }
    }
    taken
}

/// Reason to reject the file `name` of the default corpus; `None` if it is good text.
fn screen(name: &str, text: &str) -> Option<Reason> {
    if memchr::memchr(0, text.as_bytes()).is_some() {
        return Some(Reason::Binary);
    }
    if is_generated(name, text) {
        return Some(Reason::Generated);
    }
    (longest_line(text) > MAX_LINE_CHARS).then_some(Reason::LongLines)
}
