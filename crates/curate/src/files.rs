//! Which files a path stands for, in an order that only names decide.

use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use crate::counters::{Counters, Damage, Reason};
use crate::error::Error;
use crate::read::packed::Codec;

/// The extensions that have a reader, for messages.
pub(crate) const READABLE: &str = ".txt .md .rs .html .jsonl .parquet .warc .wet .tar, MediaWiki dumps *-pages-*.xml; also compressed .gz .zst .bz2";

/// How a file is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The file is the text.
    Text,
    /// The text between the tags.
    Html,
    /// One JSON object a line.
    Jsonl(Codec),
    /// A column of strings.
    Parquet,
    /// A crawl: responses, or text extracted from them.
    Warc(Codec),
    /// A MediaWiki dump.
    Wiki(Codec),
    /// arXiv sources.
    Papers(Codec),
}

/// Source code by extension, beyond what [`Kind::of`] knows as text.
const CODE: &str = " c h cc cpp cxx hpp hh cu cuh py pyi js mjs ts tsx jsx go java kt kts scala swift rb php pl pm lua r jl hs \
                    ml mli clj ex exs erl cs fs vb zig nim d dart sh bash zsh ps1 sql proto graphql tf cmake mk rst adoc \
                    tex toml yaml yml vue svelte css scss el lisp scm f90 f95 m mm v sv vhd asm s ";

impl Kind {
    /// The kind by file name, `None` where no reader exists. Case does not matter.
    pub(crate) fn of(path: &Path) -> Option<Kind> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        let (codec, stem) = Codec::split(&name);
        let ends = |suffix: &str| stem.len() > suffix.len() && stem.ends_with(suffix);
        match codec {
            Codec::Plain if ends(".txt") || ends(".md") || ends(".rs") => Some(Kind::Text),
            Codec::Plain if ends(".html") => Some(Kind::Html),
            Codec::Plain if ends(".parquet") => Some(Kind::Parquet),
            codec if ends(".jsonl") => Some(Kind::Jsonl(codec)),
            codec if ends(".warc") || ends(".wet") => Some(Kind::Warc(codec)),
            codec if ends(".xml") && stem.contains("-pages-") => Some(Kind::Wiki(codec)),
            codec if ends(".tar") => Some(Kind::Papers(codec)),
            _ => None,
        }
    }

    /// Like [`Kind::of`], with source code of any language as text.
    pub(crate) fn of_any(path: &Path) -> Option<Kind> {
        let extension = || path.extension().map(|e| e.to_string_lossy().to_lowercase());
        let is_code = |e: String| !e.is_empty() && CODE.contains(&format!(" {e} "));
        Kind::of(path).or_else(|| extension().is_some_and(is_code).then_some(Kind::Text))
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

/// [`below_of`] for the kinds that [`Kind::of`] knows.
///
/// # Errors
/// [`Error::Read`] if `root` itself cannot be listed.
pub(crate) fn below(
    root: &Path,
    links: bool,
    skip: fn(&str) -> bool,
    counters: &mut Counters,
) -> Result<Vec<Found>, Error> {
    below_of(root, links, skip, Kind::of, counters)
}

/// Every file below `root` that has a `kind`, sorted by name folder by folder; hidden names and those that `skip`
/// refuses are left out with all below them. Symbolic links are followed only with `links`; a loop of them and
/// anything that cannot be listed is counted.
///
/// # Errors
/// [`Error::Read`] if `root` itself cannot be listed.
pub(crate) fn below_of(
    root: &Path,
    links: bool,
    skip: fn(&str) -> bool,
    kind: fn(&Path) -> Option<Kind>,
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
            let Some(kind) = kind(entry.path()) else {
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
