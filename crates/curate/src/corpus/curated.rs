//! Text that passes a curation before it becomes a corpus.
//!
//! A recipe of `fathom curate` says through which stages. Order, splits, long documents and tokens are the corpus's own, so the
//! recipe is taken up to its first stage of that kind. The curation lies in `OUT/curated`, as one of its own would.

use std::path::{Path, PathBuf};

use fathom_base::recipe::{Layers, Recipe as Loaded};
use serde::{Deserialize, Serialize};

use super::spec::{CorpusSpec, Input};
use crate::counters::Counters;
use crate::document::{Document, file_of, group_of};
use crate::error::Error;
use crate::gather::{self, GatherOptions, Gathered};
use crate::pipeline::{Batch, Part, PartReader, Pipeline, Recipe, Stats, chosen_units, parts_of};
use crate::read::{InputFile, RemoteOptions};

/// Stages whose work the corpus does itself.
const OWN: [&str; 5] = ["blend", "shuffle", "split", "write", "tokenize"];

/// What gathered crates are called as a source of documents.
const GATHERED: &str = "crates";

/// What of a curation decides the bytes of a corpus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curation(Recipe);

impl Curation {
    /// Of a recipe: all but where it works and with how much.
    pub fn of(loaded: &Loaded<Recipe>) -> Curation {
        let mut recipe = loaded.value.clone();
        let Recipe { out, threads, memory, spill, .. } = Recipe::default();
        (recipe.out, recipe.threads, recipe.memory, recipe.spill) = (out, threads, memory, spill);
        shorten(&mut recipe);
        Curation(recipe)
    }
}

/// Leaves out what the corpus does itself, and what could only follow it.
fn shorten(recipe: &mut Recipe) {
    let end = recipe.stage.iter().position(|stage| OWN.contains(&stage.kind.as_str()));
    recipe.stage.truncate(end.unwrap_or(recipe.stage.len()));
}

/// Where the curation of a corpus in `out` lies.
fn folder(out: &Path) -> PathBuf {
    out.join("curated")
}

/// The curation that the texts of a corpus pass: the stages of the recipe over what `spec` reads, of which files are taken up to
/// `spec.max_bytes` on disk. A recipe that names its own input is read from there where `spec` names no paths.
///
/// # Errors
/// Those of [`Pipeline::with_remote`], and of gathering.
pub fn curation(spec: &CorpusSpec, layers: Layers<'_>, remote: RemoteOptions) -> Result<Pipeline, Error> {
    let (out, most) = (folder(&spec.out).display().to_string(), spec.max_bytes.to_string());
    let mut layers = layers
        .flag("the run's folder", "out", &out)
        .flag("data.text_field", "input.field", &spec.text_field)
        .flag("data.max_bytes", "input.max_bytes", &most);
    if let Input::Paths(paths) = &spec.input {
        let paths = paths.iter().map(|path| toml::Value::String(path.display().to_string()));
        let paths = toml::Value::Array(paths.collect()).to_string();
        layers =
            layers.flag("data.paths", "input.paths", &paths).flag("data.paths", "input.snapshot.name", "");
    }
    let mut loaded = Loaded::<Recipe>::load(layers)?;
    shorten(&mut loaded.value);
    let named = !loaded.value.input.paths.is_empty() || !loaded.value.input.snapshot.name.is_empty();
    match &spec.input {
        Input::Default { roots, fallback } if !named => {
            let options = GatherOptions { max_bytes: spec.max_bytes, seed: spec.seed };
            let Gathered { entries, counters, .. } = gather::files(roots, fallback.as_deref(), &options)?;
            let files: Vec<InputFile> = entries.into_iter().map(InputFile::of).collect();
            Pipeline::over(&loaded, remote, |input, _| {
                Ok((chosen_units(files, GATHERED, input.unit_bytes), counters))
            })
        }
        _ => Pipeline::with_remote(&loaded, remote),
    }
}

/// The documents of a finished curation's last table, in order. Whole files of a source are a group, records are not.
pub(super) struct CuratedTexts {
    spec: CorpusSpec,
    parts: std::vec::IntoIter<Part>,
    reader: Option<PartReader>,
    /// The batch at hand, and how many of its rows are given.
    batch: Option<(Batch, usize)>,
    /// What has been handed on.
    pub(super) counters: Counters,
}

impl CuratedTexts {
    pub(super) fn open(spec: &CorpusSpec) -> Result<CuratedTexts, Error> {
        let out = folder(&spec.out);
        let path = out.join("stats.json");
        let text = std::fs::read(&path).map_err(|e| Error::read(&path, e))?;
        let stats: Stats = serde_json::from_slice(&text).map_err(|e| Error::BadFile {
            path: path.clone(),
            kind: "JSON",
            detail: e.to_string(),
        })?;
        let last = stats.tables.last().and_then(|table| Some((table.folder.file_name()?, table.parts)));
        let (name, parts) = last.ok_or(Error::Missing { path })?;
        let parts = parts_of(&out.join(name), parts)?;
        if parts.iter().all(|part| part.facts.documents == 0) {
            let read = stats.stages.first().map_or(0, |stage| stage.tally.documents_in);
            let outcome = format!("{read} documents read, none kept by the curation");
            return Err(Error::EmptyCorpus { looked_at: out.display().to_string(), outcome });
        }
        let counters = Counters::default();
        let spec = spec.clone();
        Ok(CuratedTexts { spec, parts: parts.into_iter(), reader: None, batch: None, counters })
    }

    /// Bytes of text in the parts that have not been opened yet.
    pub(super) fn remaining_bytes(&self) -> u64 {
        self.parts.as_slice().iter().map(|part| part.facts.text_bytes).sum()
    }

    /// Parts that have not been opened yet.
    pub(super) fn remaining_parts(&self) -> usize {
        self.parts.len()
    }

    fn advance(&mut self) -> Result<Option<Document>, Error> {
        loop {
            if let Some((batch, row)) = &mut self.batch {
                if *row < batch.rows() {
                    let (source, text) = (batch.id(*row).to_owned(), batch.text(*row).to_owned());
                    *row += 1;
                    self.counters.keep(&text);
                    let whole_file = file_of(&source).len() == source.len();
                    let group =
                        if whole_file { group_of(&self.spec.source_of(&source)) } else { group_of(&source) };
                    return Ok(Some(Document { text, source, group }));
                }
                self.batch = None;
            }
            if let Some(reader) = &mut self.reader {
                match reader.next()? {
                    Some(batch) => self.batch = Some((batch, 0)),
                    None => self.reader = None,
                }
                continue;
            }
            let Some(part) = self.parts.next() else { return Ok(None) };
            self.reader = Some(PartReader::open(&part.path)?);
        }
    }
}

impl Iterator for CuratedTexts {
    type Item = Result<Document, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}
