//! Expands a path to its files, in an order that depends only on names.

use std::path::{Path, PathBuf};

use walkdir::{DirEntry, WalkDir};

use crate::counters::{Counters, Damage, Reason};
use crate::error::{Error, may_pass};
use crate::read::packed::Codec;

/// Readable file types, for messages.
pub(crate) const READABLE: &str = ".txt .md .rs .html .json .jsonl .warc .wet .tar and MediaWiki dumps *-pages-*.xml, all of \
    them also compressed .gz .zst .bz2, and .parquet; a curation reads source code too, and files of any name by `input.format`";

/// Decoding of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The file is the text itself.
    Text(Codec),
    /// HTML; the text between the tags.
    Html(Codec),
    /// One JSON object per line.
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

fathom_base::choice! {
    /// How the files of an input are read.
    pub enum Format {
        /// Each as its name says: text, source code, pages, JSON, tables, crawls, dumps, papers.
        Auto = "auto",
        /// A folder of programs: pages, JSON, XML and tables of values are source code there, and read as they are.
        /// `.jsonl` and `.parquet` hold records.
        Code = "code",
        /// Each is one text, whatever its name.
        Text = "text",
        /// Each is one page.
        Html = "html",
        /// One JSON object a line.
        Jsonl = "jsonl",
        /// Parquet.
        Parquet = "parquet",
        /// Crawls, WARC or WET.
        Warc = "warc",
        /// MediaWiki dumps.
        Wikipedia = "wikipedia",
        /// Tars of arXiv sources.
        Arxiv = "arxiv",
    }
}

/// Extensions of source code beyond those that [`Kind::of`] treats as text.
const CODE: &str = " c h cc cpp cxx hpp hh cu cuh py pyi pyx pxd js mjs cjs ts tsx jsx go java kt kts scala sbt swift rb php pl pm \
                    lua r jl hs ml mli clj cljs ex exs erl cs fs vb zig nim d dart sh bash zsh fish ps1 bat cmd sql proto \
                    thrift graphql tf hcl cmake mk mak gradle groovy bzl bazel nix m4 ac am awk tcl rst adoc org markdown \
                    tex toml yaml yml ini cfg vue svelte css scss sass less el lisp scm rkt elm purs lean agda v sv vhd f f90 \
                    f95 pas ada adb ads m mm asm s sol wgsl glsl hlsl vert frag metal erb ejs hbs pug ";
/// Extensions treated as source code only in a folder of programs.
const CODE_DATA: &str = " html htm xhtml json json5 jsonc xml xsd xsl xslt csv tsv conf properties ";
/// Complete file names of source code.
const CODE_NAMES: &str = " dockerfile containerfile makefile gnumakefile rakefile gemfile jenkinsfile vagrantfile procfile \
                          justfile brewfile podfile fastfile build workspace sconstruct sconscript kconfig kbuild ";

/// Returns true if `word` occurs in a space-separated list.
fn stands_in(list: &str, word: &str) -> bool {
    list.split_ascii_whitespace().any(|listed| listed == word)
}

impl Kind {
    /// Returns true if the records of a file have about as many bytes as the file.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Kind::Text(Codec::Plain) | Kind::Html(Codec::Plain) | Kind::Jsonl(Codec::Plain))
    }

    /// Kind by file name; `None` if no reader exists. Case-insensitive.
    pub(crate) fn of(path: &Path) -> Option<Kind> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        let (codec, stem) = Codec::split(&name);
        let ends = |suffix: &str| stem.len() > suffix.len() && stem.ends_with(suffix);
        // Large dumps are split into pieces: `...-pages-articles1.xml-p1p41242.bz2`. Their index only lists
        // positions.
        let dump = |(head, rest): (&str, &str)| {
            head.contains("-pages-") && (rest.is_empty() || rest.starts_with("-p"))
        };
        match codec {
            _ if stem.contains("-multistream-index") => None,
            codec if ends(".txt") || ends(".md") || ends(".rs") => Some(Kind::Text(codec)),
            codec if ends(".html") => Some(Kind::Html(codec)),
            Codec::Plain if ends(".parquet") => Some(Kind::Parquet),
            codec if ends(".jsonl") || ends(".json") || ends(".ndjson") => Some(Kind::Jsonl(codec)),
            codec if ends(".warc") || ends(".wet") => Some(Kind::Warc(codec)),
            codec if stem.rsplit_once(".xml").is_some_and(dump) => Some(Kind::Wiki(codec)),
            codec if ends(".tar") => Some(Kind::Papers(codec)),
            _ => None,
        }
    }

    /// Like [`Kind::of`], with source code of any language as text.
    fn of_any(path: &Path) -> Option<Kind> {
        let is_page = || is_of(path, " htm xhtml ");
        let other = || match () {
            () if is_page() => Some(Kind::Html(Codec::Plain)),
            () if is_code(path) => Some(Kind::Text(Codec::Plain)),
            () => None,
        };
        Kind::of(path).or_else(other)
    }

    /// Kind of a file in a folder of programs.
    fn of_code(path: &Path) -> Option<Kind> {
        if is_code(path) || is_of(path, CODE_DATA) {
            return Some(Kind::Text(Codec::Plain));
        }
        let records = |kind: &Kind| matches!(kind, Kind::Text(Codec::Plain) | Kind::Jsonl(_) | Kind::Parquet);
        Kind::of(path).filter(records)
    }
}

/// Returns true if the extension occurs in a list.
fn is_of(path: &Path, list: &str) -> bool {
    path.extension().is_some_and(|e| stands_in(list, &e.to_string_lossy().to_lowercase()))
}

fn is_code(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let variant = ["dockerfile.", "makefile."].iter().any(|start| name.starts_with(start));
    is_of(path, CODE) || stands_in(CODE_NAMES, &name) || variant
}

impl Format {
    /// Kind of a file of this name; `None` if no reader exists.
    pub(crate) fn kind(self, path: &Path) -> Option<Kind> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        let (codec, _) = Codec::split(&name);
        match self {
            Format::Auto => Kind::of_any(path),
            Format::Code => Kind::of_code(path),
            Format::Text => Some(Kind::Text(codec)),
            Format::Html => Some(Kind::Html(codec)),
            Format::Jsonl => Some(Kind::Jsonl(codec)),
            Format::Parquet => Some(Kind::Parquet),
            Format::Warc => Some(Kind::Warc(codec)),
            Format::Wikipedia => Some(Kind::Wiki(codec)),
            Format::Arxiv => Some(Kind::Papers(codec)),
        }
    }
}

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
///
/// # Errors
/// Same as [`below_of`].
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
