//! The recipe of a curation: its input, and an ordered list of stages.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fathom_base::recipe::{Field, Key, Loaded, Shape, Table};
use fathom_base::secrets::{in_address, redacted};
use serde::{Deserialize, Serialize};

use crate::kinds::Format;
use crate::read::{Charset, NO_SECRETS, Snapshot};

fathom_base::recipe! {
    /// A curation.
    pub struct Recipe {
        /// Folder of the results: the reports, and one folder per table.
        pub out: PathBuf = "out/curated".into(),
        /// Seed of the random choices of blend, shuffle, split and semantic. The hashes of `fuzzy` and the draws of `quality` have
        /// their own seeds, as published.
        pub seed: u64 = 0,
        /// Threads; 0 for all cores. The results do not depend on it.
        pub threads: usize = 0,
        /// Memory for batches and whole-table work, e.g. 4GiB; whole-table work spills beyond it. At least four times
        /// `input.max_document_bytes` and 32 MiB.
        pub memory: String = "2GiB".into(),
        /// Folder for spilled data, with a subfolder for each `out`; none for a folder below `out`.
        pub spill: Option<PathBuf>,
        /// The source of the text.
        pub input: Input,
        /// The stages, in order.
        pub stage: Vec<StageSpec>,
    }
    /// The source of the text.
    pub struct Input {
        /// Files, folders and addresses, each `path` or `name=path`. The name is the source of its documents and, with the path
        /// below the folder, their id, on which random choices depend. Without a name, both have the path as given. All of it is
        /// saved, so addresses with a password or a query are refused.
        pub paths: Vec<String>,
        /// A crawl of Common Crawl, instead of or in addition to paths.
        pub snapshot: Snapshot,
        /// Format of the files: `auto` decides by file name, `code` reads HTML, JSON, XML and tables as source code, and all others
        /// (`text`, `html`, `jsonl`, `parquet`, `warc`, `wikipedia`, `arxiv`) apply to every file, whatever its name.
        pub format: Format,
        /// Charset of text files: `detect` detects it and counts files that are not UTF-8; `utf-8` drops them.
        pub charset: Charset,
        /// The field (JSON) or column (Parquet) that holds the text.
        pub field: String = "text".into(),
        /// Further columns to keep, where they exist: fields of JSON, columns of Parquet; of crawls `url`, `date`, `warc_id`, of
        /// Wikipedia `title`, `page_id`, of arXiv `arxiv_id`.
        pub columns: Vec<String> = vec!["url".into()],
        /// Longer records are dropped and counted; longer text files are split at line ends.
        pub max_document_bytes: u64 = 32 << 20,
        /// Reads what symbolic links lead to that point out of an input folder; without it they are counted. Links within the folder
        /// and those named in `input.paths` are always followed.
        pub follow_links: bool,
        /// Largest window of `.zst` files, rounded down to a power of two; files that need a larger one are counted as too large.
        /// `zstd --long=31` needs 2 GiB, for each file that is open, on top of `memory`.
        pub max_window_bytes: u64 = 512 << 20,
        /// Small files are grouped into units of this many bytes; each unit becomes one part.
        pub unit_bytes: u64 = 64 << 20,
        /// Reads only the first files, up to this many bytes on disk; none for all.
        pub max_bytes: Option<u64>,
        /// Reads only this many units, the first ones; none for all.
        pub max_units: Option<u64>,
    }
}

impl Input {
    /// Description of the input, for messages.
    pub(super) fn looked_at(&self) -> String {
        let snapshot = Some(&self.snapshot.name).filter(|name| !name.is_empty());
        let all: Vec<&str> = self.paths.iter().chain(snapshot).map(String::as_str).collect();
        match all.as_slice() {
            [] => "no path at all (set input.paths or input.snapshot.name)".to_owned(),
            all => all.join(", "),
        }
    }
}

/// Rejects input addresses that contain secrets, since inputs are recorded in the recipe, the ids and the reports
/// next to the results.
///
/// # Errors
/// Contains the redacted address, with the place of its key.
pub fn refuse_secrets(loaded: &Loaded<Recipe>) -> Result<(), fathom_base::Error> {
    let input = &loaded.value.input;
    let keys = input.paths.iter().map(|path| ("input.paths", path));
    for (key, location) in keys.chain([("input.snapshot.base", &input.snapshot.base)]) {
        if let Some(what) = in_address(location) {
            let message =
                format!("`{}` has {what} in it, which would be saved; {NO_SECRETS}", redacted(location));
            return Err(loaded.refuse(key, message));
        }
    }
    Ok(())
}

/// One stage: its kind and options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageSpec {
    /// Kind of stage.
    #[serde(rename = "use")]
    pub kind: String,
    /// Name in tables, reports and settings (`stage.NAME.option=value`); defaults to the kind.
    pub name: Option<String>,
    /// Writes the stage's table even if the next stage could read it from memory.
    pub save: bool,
    /// All other keys of its table.
    #[serde(default)]
    pub options: BTreeMap<String, toml::Value>,
}

impl StageSpec {
    /// Name in tables and reports.
    pub fn shown(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.kind)
    }
}

impl Table for StageSpec {
    fn keys() -> Vec<Key> {
        vec![
            Key::of::<String>("use", "The kind of stage."),
            Key::of::<Option<String>>("name", "Its name in tables, reports and settings; default: its kind."),
            Key::of::<bool>("save", "Writes its table even if the next stage could read it from memory."),
            Key::of::<BTreeMap<String, toml::Value>>(
                "options",
                "The options of its kind, in the same table as `use`.",
            ),
        ]
    }

    fn rest() -> Option<&'static str> {
        Some("options")
    }
}

impl Field for StageSpec {
    fn shape() -> Shape {
        Shape::table::<Self>()
    }
}
