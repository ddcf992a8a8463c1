//! Kinds of files, by their names.

use std::path::Path;

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
pub(crate) fn is_of(path: &Path, list: &str) -> bool {
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
