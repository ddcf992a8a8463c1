//! Text that passes through a curation before it becomes a corpus.
//!
//! A recipe of `fathom curate` names the stages. The corpus handles ordering, splits, long documents and tokenization
//! itself, so such stages at the end of a recipe are left out. The curation is stored in `OUT/curated`, laid out like
//! a standalone one.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use fathom_base::human;
use fathom_base::recipe::{Layers, Loaded};

use super::curation::{names_input, shorten};
use super::spec::{CorpusSpec, Input};
use crate::counters::{Counters, Reason};
use crate::document::{Document, file_of, group_of};
use crate::error::Error;
use crate::gather::{self, FileSelection, GatherOptions};
use crate::pipeline::{Batch, PartReader, Pipeline, Recipe, Stats, TablePart, Tally, chosen_units, parts_of};
use crate::read::{InputFile, RemoteOptions};

/// Source name of the gathered crates.
const GATHERED: &str = "crates";

/// Lower bound of the memory limit given to a curation.
const LEAST_MEMORY: u64 = 512 << 20;

/// Folder of the curation for a corpus in `out`.
fn folder(out: &Path) -> PathBuf {
    out.join("curated")
}

/// Builds the curation that the texts of a corpus pass through: the stages of the recipe over the input of `spec`,
/// limited to `spec.max_bytes` of files on disk. A recipe that names its own input is used as it stands if `spec`
/// names no paths. Memory is limited to `memory_bytes` if that is given and not too small.
///
/// # Errors
/// The recipe has a stage that a corpus cannot use, there is nothing to gather, or [`Pipeline::with_remote`] fails.
pub fn curation(
    spec: &CorpusSpec,
    layers: Layers<'_>,
    memory_bytes: Option<u64>,
    remote: RemoteOptions,
) -> Result<Pipeline, Error> {
    let out = folder(&spec.out).display().to_string();
    let most = spec.max_bytes.map_or("none".to_owned(), |bytes| bytes.to_string());
    let mut layers = layers.flag("the run's folder", "out", &out);
    if let Input::Paths(paths) = &spec.input {
        let paths = paths.iter().map(|path| toml::Value::String(path.display().to_string()));
        let paths = toml::Value::Array(paths.collect()).to_string();
        layers = layers
            .flag("data.text_field", "input.field", &spec.text_field)
            .flag("data.max_bytes", "input.max_bytes", &most)
            .flag("data.paths", "input.paths", &paths)
            .flag("data.paths", "input.snapshot.name", "");
    }
    let mut loaded = Loaded::<Recipe>::load(layers)?;
    shorten(&mut loaded)?;
    let recipe = &mut loaded.value;
    let wanted = human::parse_bytes(&recipe.memory).unwrap_or(u64::MAX);
    if let Some(most) = memory_bytes.map(|most| most.max(LEAST_MEMORY)).filter(|most| *most < wanted) {
        recipe.memory = most.to_string();
    }
    match &spec.input {
        Input::Default { roots, fallback } if !names_input(recipe) => {
            let options = GatherOptions { max_bytes: spec.max_bytes.unwrap_or(u64::MAX), seed: spec.seed };
            let gathered = gather::files(roots, fallback.as_deref(), &options)?;
            let FileSelection { looked_at, mut entries, counters } = gathered;
            // The same package may lie in two folders.
            let mut known = HashSet::new();
            entries.retain(|entry| known.insert(entry.name.clone()));
            if entries.is_empty() {
                return Err(Error::EmptyCorpus { looked_at, outcome: counters.summary() });
            }
            let files: Vec<InputFile> = entries.into_iter().map(InputFile::of).collect();
            Pipeline::over(&loaded, remote, |input, _| {
                Ok((chosen_units(files, GATHERED, input.unit_bytes), counters))
            })
        }
        _ => Pipeline::with_remote(&loaded, remote),
    }
}

/// Iterator over the documents of a finished curation's last table. Whole files of a source form a group, records do
/// not.
pub(super) struct CuratedTexts {
    spec: CorpusSpec,
    parts: std::vec::IntoIter<TablePart>,
    reader: Option<PartReader>,
    /// Current batch and the number of its rows already returned.
    batch: Option<(Batch, usize)>,
    /// Documents returned so far.
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
            let outcome = format!("{} documents read, none kept by the curation", stats.documents_read());
            return Err(Error::EmptyCorpus { looked_at: out.display().to_string(), outcome });
        }
        let counters = stats.stages.first().map_or_else(Counters::default, |stage| unread(&stage.tally));
        let spec = spec.clone();
        Ok(CuratedTexts { spec, parts: parts.into_iter(), reader: None, batch: None, counters })
    }

    /// Bytes of text in parts not yet opened.
    pub(super) fn remaining_bytes(&self) -> u64 {
        self.parts.as_slice().iter().map(|part| part.facts.text_bytes).sum()
    }

    /// Number of parts not yet opened.
    pub(super) fn remaining_parts(&self) -> usize {
        self.parts.len()
    }

    fn advance(&mut self) -> Result<Option<Document>, Error> {
        loop {
            if let Some((batch, row)) = &mut self.batch {
                if *row < batch.rows() {
                    let (id, text) = (batch.id(*row), batch.text(*row).to_owned());
                    // Gathered crates are distinguished by the first component of their ids.
                    let source = if self.spec.is_gathered() { id } else { batch.source(*row) }.to_owned();
                    let whole_file = file_of(id).len() == id.len();
                    let group =
                        if whole_file { group_of(&self.spec.source_of(&source)) } else { group_of(id) };
                    *row += 1;
                    self.counters.keep(&text);
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

/// Counters of records that the curation's readers skipped. The curation's own report covers what its stages dropped.
fn unread(read: &Tally) -> Counters {
    let dropped = read.dropped.iter().filter_map(|(reason, dropped)| {
        let reason = serde_json::from_value::<Reason>(reason.as_str().into()).ok()?;
        Some((reason, *dropped))
    });
    Counters { dropped: dropped.collect(), damage: read.damage.clone(), ..Counters::default() }
}

impl Iterator for CuratedTexts {
    type Item = Result<Document, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}
