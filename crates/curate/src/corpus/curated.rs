//! Text that passes a curation before it becomes a corpus.
//!
//! A recipe of `fathom curate` says through which stages. Order, splits, long documents and tokens are the corpus's own, so
//! stages of that kind at a recipe's end are left out. The curation lies in `OUT/curated`, as one of its own would.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use fathom_base::human;
use fathom_base::recipe::{Layers, Loaded};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use super::spec::{CorpusSpec, Input};
use crate::counters::{Counters, Reason};
use crate::document::{Document, file_of, group_of};
use crate::error::Error;
use crate::gather::{self, GatherOptions, Gathered};
use crate::pipeline::{
    Batch, PartReader, Pipeline, Recipe, Stats, TablePart, Tally, chosen_units, parts_of, refuse,
    refuse_secrets,
};
use crate::read::{InputFile, RemoteOptions};

/// Stages whose work the corpus does itself.
const OWN: [&str; 4] = ["shuffle", "split", "write", "tokenize"];

/// What gathered crates are called as a source of documents.
const GATHERED: &str = "crates";

/// A curation is never asked to stay below this.
const LEAST_MEMORY: u64 = 512 << 20;

/// What of a curation decides the bytes of a corpus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curation(Recipe);

impl Curation {
    /// Of a recipe: all but where it works and with how much. Of a secret its hash.
    ///
    /// # Errors
    /// A stage that a corpus has no use for.
    pub fn of(mut loaded: Loaded<Recipe>) -> Result<Curation, Error> {
        refuse_secrets(&loaded)?;
        shorten(&mut loaded)?;
        let mut recipe = loaded.value;
        let Recipe { out, threads, memory, spill, .. } = Recipe::default();
        (recipe.out, recipe.threads, recipe.memory, recipe.spill) = (out, threads, memory, spill);
        for salt in recipe.stage.iter_mut().filter_map(|stage| stage.options.get_mut("salt")) {
            *salt = format!("{:032x}", XxHash3_128::oneshot(salt.to_string().as_bytes())).into();
        }
        Ok(Curation(recipe))
    }

    /// Whether the recipe says itself what is read.
    pub fn names_input(&self) -> bool {
        names_input(&self.0)
    }
}

fn names_input(recipe: &Recipe) -> bool {
    !recipe.input.paths.is_empty() || !recipe.input.snapshot.name.is_empty()
}

/// Leaves out what the corpus does itself: such stages at the end.
///
/// # Errors
/// Behind one of them another, whose work would be lost; a blend, since a run has its own.
fn shorten(loaded: &mut Loaded<Recipe>) -> Result<(), Error> {
    let own = |kind: &str| OWN.contains(&kind);
    let stages = &loaded.value.stage;
    if let Some(at) = stages.iter().position(|stage| stage.kind == "blend") {
        let message = "a run blends its sources itself, by data.blend; leave this stage out";
        return Err(refuse(loaded, at, "use", message).into());
    }
    let end = stages.iter().position(|stage| own(&stage.kind)).unwrap_or(stages.len());
    if let Some(behind) = stages[end..].iter().position(|stage| !own(&stage.kind)) {
        let message = format!(
            "it stands behind `{}`, which a run does itself, as all that follows; put it in front",
            stages[end].kind
        );
        return Err(refuse(loaded, end + behind, "use", message).into());
    }
    loaded.value.stage.truncate(end);
    Ok(())
}

/// Where the curation of a corpus in `out` lies.
fn folder(out: &Path) -> PathBuf {
    out.join("curated")
}

/// The curation that the texts of a corpus pass: the stages of the recipe over what `spec` reads, of which files are taken up to
/// `spec.max_bytes` on disk. A recipe that names its own input is read as it says where `spec` names no paths. It works with at
/// most `memory_bytes`, where that is given and not too little.
///
/// # Errors
/// A stage that a corpus has no use for, nothing to gather, and those of [`Pipeline::with_remote`].
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
            let Gathered { looked_at, mut entries, counters } = gathered;
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

/// The documents of a finished curation's last table, in order. Whole files of a source are a group, records are not.
pub(super) struct CuratedTexts {
    spec: CorpusSpec,
    parts: std::vec::IntoIter<TablePart>,
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
            let outcome = format!("{} documents read, none kept by the curation", stats.documents_read());
            return Err(Error::EmptyCorpus { looked_at: out.display().to_string(), outcome });
        }
        let counters = stats.stages.first().map_or_else(Counters::default, |stage| unread(&stage.tally));
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
                    let (id, text) = (batch.id(*row), batch.text(*row).to_owned());
                    // Gathered crates are distinguished by the beginning of their ids.
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

/// What the readers of a curation did not hand on. What its stages dropped is in its own report.
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
