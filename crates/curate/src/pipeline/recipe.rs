//! The recipe of a curation: where the text is, and an ordered list of stages.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fathom_base::recipe::{Field, Key, Shape, Table};
use serde::{Deserialize, Serialize};

use crate::files::Format;
use crate::read::{Charset, Snapshot};

fathom_base::recipe! {
    /// A curation.
    pub struct Recipe {
        /// Folder of the results: one folder a table, the reports beside.
        pub out: PathBuf = "out/curated".into(),
        /// Key of random choices: of blend, shuffle, split and semantic. Hashes of `fuzzy` and draws of `quality` have seeds of
        /// their own, as published.
        pub seed: u64 = 0,
        /// Threads; 0 for all cores. The results do not depend on it.
        pub threads: usize = 0,
        /// Memory for batches and for the plans of whole tables, e.g. 4GiB; the plans spill beyond it. At least four times
        /// `input.max_document_bytes` and 32 MiB.
        pub memory: String = "2GiB".into(),
        /// Folder for what does not fit into memory, in which each `out` has its own; below `out` if none.
        pub spill: Option<PathBuf>,
        /// Where the text is.
        pub input: Input,
        /// The stages, in order.
        pub stage: Vec<StageSpec>,
    }
    /// Where the text is.
    pub struct Input {
        /// Files, folders and addresses, each `path` or `name=path`. The name is the source of its documents and, with the
        /// path below the folder, their id, which random choices depend on; without a name both have the path as written.
        pub paths: Vec<String>,
        /// A crawl of Common Crawl instead of paths, or beside them.
        pub snapshot: Snapshot,
        /// What the files are: `auto` goes by their names, `code` takes pages, JSON, XML and tables as source code, all others
        /// (`text`, `html`, `jsonl`, `parquet`, `warc`, `wikipedia`, `arxiv`) hold for every file, whatever its name.
        pub format: Format,
        /// Of text files that are not UTF-8: `detect` finds out and counts it, `utf-8` drops them.
        pub charset: Charset,
        /// The field (JSON) or column (Parquet) that holds the text.
        pub field: String = "text".into(),
        /// Further columns that the table gets from the reader where they are there: fields of JSON, columns of Parquet,
        /// of crawls `url`, `date`, `warc_id`, of Wikipedia `title`, `page_id`, of arXiv `arxiv_id`.
        pub columns: Vec<String> = vec!["url".into()],
        /// Longer records are dropped and counted, longer text files cut at a line end.
        pub max_document_bytes: u64 = 32 << 20,
        /// Small files are read together until they have so many bytes; each such unit gives one part.
        pub unit_bytes: u64 = 64 << 20,
        /// Only the first files, until they have so many bytes on disk; all if none.
        pub max_bytes: Option<u64>,
        /// Only the first so many units; all if none.
        pub max_units: Option<u64>,
    }
}

/// One stage: which, and its options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageSpec {
    /// Which stage.
    #[serde(rename = "use")]
    pub kind: String,
    /// Its name in tables, reports and settings (`stage.NAME.option=value`); that of its kind if none.
    pub name: Option<String>,
    /// Its table is written although the next stage could read it from memory.
    pub save: bool,
    /// Everything else that is written in its table.
    #[serde(default)]
    pub options: BTreeMap<String, toml::Value>,
}

impl StageSpec {
    /// The name in tables and reports.
    pub fn shown(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.kind)
    }
}

impl Table for StageSpec {
    fn keys() -> Vec<Key> {
        vec![
            Key::of::<String>("use", "Which stage."),
            Key::of::<Option<String>>(
                "name",
                "Its name in tables, reports and settings; that of its kind if none.",
            ),
            Key::of::<bool>(
                "save",
                "Its table is written although the next stage could read it from memory.",
            ),
            Key::of::<BTreeMap<String, toml::Value>>(
                "options",
                "The options of its kind, written beside `use`.",
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
