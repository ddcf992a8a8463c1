//! From a recipe to segments: consecutive row-wise stages are fused, a whole-table stage forms its own segment.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_base::human;
use fathom_base::recipe::{Loaded, suggest_name};
use fathom_prose::extract::Extraction;
use fathom_prose::pii::PiiOptions;
use twox_hash::XxHash3_64;

use super::batch::Batch;
use super::env::{COPIES, Env};
use super::manifest::KeyHasher;
use super::models::ModelKind;
use super::recipe::{Input, Recipe, StageSpec, refuse_secrets};
use super::runner::{Rows, option_path};
use super::stage::{Barrier, Work};
use super::verify::HashCache;
use super::{RunOptions, units};
use crate::counters::Counters;
use crate::error::Error;
use crate::read::{RawOptions, RemoteOptions};
use crate::stage::{Kind, kinds};

/// One stage of the plan, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageName {
    /// Name in tables and reports.
    pub name: String,
    /// Kind of stage: the recipe's `use`, or `read`.
    pub kind: String,
}

/// Stages between two tables on disk.
pub(crate) struct Segment {
    /// Name of the table it writes, which is that of its last stage.
    pub name: String,
    pub folder: PathBuf,
    pub stages: Vec<StageName>,
    pub work: SegmentWork,
}

pub(crate) enum SegmentWork {
    Rows(Box<Rows>),
    Table { stage: Box<dyn Barrier>, key: String },
    Sink { stage: Box<dyn Barrier>, key: String },
}

impl SegmentWork {
    /// Folders and kinds of the models that its stages need.
    pub fn models(&self) -> Vec<(PathBuf, ModelKind)> {
        match self {
            SegmentWork::Rows(rows) => rows.stages.iter().flat_map(|(_, stage)| stage.models()).collect(),
            SegmentWork::Table { stage, .. } | SegmentWork::Sink { stage, .. } => stage.models(),
        }
    }
}

/// A validated curation, ready to run.
pub struct Pipeline {
    pub(crate) recipe: Recipe,
    pub(crate) segments: Vec<Segment>,
    pub(crate) units: Vec<units::Unit>,
    /// Reader options of the units.
    pub(crate) reading: RawOptions,
    /// Input files without a reader.
    pub(crate) unread: Counters,
    /// Columns requested explicitly, as opposed to those always looked for.
    pub(crate) asked: Vec<String>,
    pub(crate) memory_bytes: u64,
    resolved: String,
    /// Known hashes of files in the output folder.
    hashes: Arc<HashCache>,
}

/// A stage with its resolved options.
struct StagePlan {
    spec: StageSpec,
    work: Work,
    key: String,
    options: toml::Table,
}

impl Pipeline {
    /// Validates a recipe: its stages, their options and its input. Loads the models and lists that stages name.
    ///
    /// # Errors
    /// A stage or option is unknown (reported with its place in the recipe), an input cannot be listed, or a model
    /// cannot be loaded.
    pub fn new(loaded: &Loaded<Recipe>) -> Result<Pipeline, Error> {
        Pipeline::with_remote(loaded, RemoteOptions::default())
    }

    /// Like [`Pipeline::new`], with settings for remote inputs: credentials, retries.
    ///
    /// # Errors
    /// Those of [`Pipeline::new`].
    pub fn with_remote(loaded: &Loaded<Recipe>, remote: RemoteOptions) -> Result<Pipeline, Error> {
        Pipeline::over(loaded, remote, units::list)
    }

    /// Like [`Pipeline::with_remote`], over units returned by `list`, with the counters of skipped files.
    pub(crate) fn over(
        loaded: &Loaded<Recipe>,
        remote: RemoteOptions,
        list: impl FnOnce(&Input, &RawOptions) -> Result<(Vec<units::Unit>, Counters), Error>,
    ) -> Result<Pipeline, Error> {
        refuse_secrets(loaded)?;
        let recipe = loaded.value.clone();
        let memory_bytes =
            human::parse_bytes(&recipe.memory).map_err(|message| loaded.refuse("memory", message))?;
        let (least, document) =
            (COPIES * batch_bytes(&recipe), human::bytes(recipe.input.max_document_bytes));
        if memory_bytes < least {
            let message = format!(
                "documents of up to {document} (input.max_document_bytes) need {} at least; give more, or allow only shorter ones",
                human::bytes(least)
            );
            return Err(loaded.refuse("memory", message).into());
        }
        let mut planned = Vec::new();
        for (index, spec) in recipe.stage.iter().enumerate() {
            check_name(loaded, index)?;
            planned.push(plan_stage(loaded, index, spec)?);
        }
        let resolved = resolved(loaded, &planned);
        let reading = units::raw_options(&recipe.input, remote);
        let (units, unread) = list(&recipe.input, &reading)?;
        let segments = segments(&recipe.out, planned);
        let hashes = Arc::default();
        let asked = if loaded.is_set("input.columns") { recipe.input.columns.clone() } else { Vec::new() };
        Ok(Pipeline { recipe, segments, units, reading, unread, asked, memory_bytes, resolved, hashes })
    }

    /// The recipe with every option of every stage, as TOML; explicitly set values are annotated with their source.
    pub fn resolved(&self) -> &str {
        &self.resolved
    }

    /// Output folder.
    pub fn out(&self) -> &Path {
        &self.recipe.out
    }

    /// Names and folders of the tables on disk, in order; excludes sinks.
    pub fn tables(&self) -> Vec<(&str, &Path)> {
        let tables = self.segments.iter().filter(|s| !matches!(s.work, SegmentWork::Sink { .. }));
        tables.map(|segment| (segment.name.as_str(), segment.folder.as_path())).collect()
    }

    pub(crate) fn env(&self, options: &RunOptions) -> Env {
        let wanted = if options.threads == 0 { self.recipe.threads } else { options.threads };
        let all = || std::thread::available_parallelism().map_or(1, |n| n.get());
        Env {
            threads: if wanted == 0 { all() } else { wanted },
            memory_bytes: self.memory_bytes,
            batch_bytes: batch_bytes(&self.recipe),
            spill: spill_of(&self.recipe),
            seed: self.recipe.seed,
            options: options.clone(),
            pool: Default::default(),
            hashes: self.hashes.clone(),
        }
    }
}

/// Spill folder. Several curations may share `spill`; each has its own subfolder.
fn spill_of(recipe: &Recipe) -> PathBuf {
    let Some(folder) = &recipe.spill else { return recipe.out.join("spill") };
    let out = std::path::absolute(&recipe.out).unwrap_or_else(|_| recipe.out.clone());
    folder.join(format!("{:016x}", XxHash3_64::oneshot(out.as_os_str().as_encoded_bytes())))
}

/// Maximum bytes of a batch: the document that closes it may exceed the limit.
fn batch_bytes(recipe: &Recipe) -> u64 {
    (Batch::MAX_TEXT_BYTES as u64).saturating_add(recipe.input.max_document_bytes).min(u64::MAX / COPIES)
}

/// Rejects names that are invalid for a table or folder, and duplicates.
fn check_name(loaded: &Loaded<Recipe>, index: usize) -> Result<(), Error> {
    let stages = &loaded.value.stage;
    let name = stages[index].shown();
    let key = if stages[index].name.is_some() { "name" } else { "use" };
    let path = format!("stage.{index}.{key}");
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.is_empty() || !name.chars().all(plain) || name.starts_with(|c: char| c.is_ascii_digit()) {
        let message = format!("`{name}` cannot name a table; use lower-case letters, digits and _");
        return Err(loaded.refuse(&path, message).into());
    }
    if ["read", "extract"].contains(&name) && stages[index].kind != "extract"
        || stages[..index].iter().any(|other| other.shown() == name)
    {
        let message = format!("two stages are called `{name}`; give this one another `name`");
        return Err(loaded.refuse(&path, message).into());
    }
    Ok(())
}

/// Error about a key of a stage. The path is the one that was typed, or contains the stage's name, as settings do.
pub(crate) fn refuse(
    loaded: &Loaded<Recipe>,
    index: usize,
    key: &str,
    message: impl Into<String>,
) -> fathom_base::Error {
    let path = format!("stage.{index}.{key}");
    match loaded.refuse(&path, message) {
        fathom_base::Error::Refused { place, message, .. } if loaded.typed(&path).is_none() => {
            let key = option_path(loaded.value.stage[index].shown(), key);
            fathom_base::Error::Refused { place, key, message }
        }
        typed => typed,
    }
}

fn plan_stage(loaded: &Loaded<Recipe>, index: usize, spec: &StageSpec) -> Result<StagePlan, Error> {
    let Some(kind) = kinds().iter().find(|kind| kind.name == spec.kind) else {
        let names: Vec<&str> = kinds().iter().map(|kind| kind.name).collect();
        let hint = suggest_name(&spec.kind, &names, "there are");
        let message = format!("no stage is called `{}`; {hint}", spec.kind);
        return Err(loaded.refuse(&format!("stage.{index}.use"), message).into());
    };
    let mut written = spec.options.clone();
    let unset = |value: &toml::Value| value.as_str() == Some("none");
    // A stage without its own seed takes the recipe's.
    if kind.takes_seed() && written.get("seed").is_none_or(unset) {
        let seed =
            i64::try_from(loaded.value.seed).map_err(|_| loaded.refuse("seed", "has more than 63 bits"))?;
        written.insert("seed".to_owned(), toml::Value::Integer(seed));
    }
    let (work, options) = (kind.build)(&written)?.map_err(|mistake| {
        let key = if mistake.key.is_empty() { "use" } else { &mistake.key };
        refuse(loaded, index, key, mistake.message)
    })?;
    if index > 0 && matches!(work, Work::Extract(_)) {
        let message = "records become text at the beginning; make this the first stage";
        return Err(refuse(loaded, index, "use", message).into());
    }
    let mut key = KeyHasher::new().with(kind.name).with(&options.to_string());
    for file in work.files() {
        key = key.with_file(&file)?;
    }
    Ok(StagePlan { spec: spec.clone(), work, key: key.finish(), options })
}

/// All kinds of stages, for listings and help.
pub fn stage_kinds() -> &'static [Kind] {
    kinds()
}

fn segments(out: &Path, planned: Vec<StagePlan>) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    let folder = |index: usize, name: &str| out.join(format!("{index:02}-{name}"));
    let rows = |folder: PathBuf, extraction: Option<Extraction>| {
        SegmentWork::Rows(Box::new(Rows { extraction, stages: Vec::new(), key: String::new(), folder }))
    };
    let named = |name: &str, kind: &str| StageName { name: name.to_owned(), kind: kind.to_owned() };
    // Reading and extracting come first, whether or not the recipe says so.
    segments.push(Segment {
        name: "extract".to_owned(),
        folder: folder(0, "extract"),
        stages: vec![named("read", "read"), named("extract", "extract")],
        work: rows(folder(0, "extract"), Some(Extraction::default())),
    });
    // Consecutive row-wise stages share a segment until one is saved.
    let mut open = true;
    for StagePlan { spec, work, key, .. } in planned {
        let name = spec.shown().to_owned();
        let stage = StageName { name: name.clone(), kind: spec.kind.clone() };
        let index = segments.len();
        match work {
            Work::Extract(extraction) => {
                let segment = &mut segments[0];
                segment.stages[1] = stage;
                (segment.name, segment.folder) = (name.clone(), folder(0, &name));
                if let SegmentWork::Rows(rows) = &mut segment.work {
                    rows.folder.clone_from(&segment.folder);
                    rows.extraction = Some(*extraction);
                    rows.key.push_str(&key);
                }
                open = !spec.save;
            }
            Work::Rows(work) => {
                if !open {
                    let folder = folder(index, &name);
                    let work = rows(folder.clone(), None);
                    segments.push(Segment { name: name.clone(), folder, stages: Vec::new(), work });
                }
                let last = segments.len() - 1;
                let segment = &mut segments[last];
                (segment.name, segment.folder) = (name.clone(), folder(last, &name));
                segment.stages.push(stage);
                if let SegmentWork::Rows(rows) = &mut segment.work {
                    rows.folder.clone_from(&segment.folder);
                    rows.stages.push((name, work));
                    rows.key.push_str(&key);
                }
                open = !spec.save;
            }
            Work::Table(work) => {
                let (folder, work) = (folder(index, &name), SegmentWork::Table { stage: work, key });
                segments.push(Segment { name, folder, stages: vec![stage], work });
                open = false;
            }
            Work::Sink(work) => {
                let (folder, work) = (folder(index, &name), SegmentWork::Sink { stage: work, key });
                segments.push(Segment { name, folder, stages: vec![stage], work });
                open = false;
            }
        }
    }
    segments
}

/// The complete recipe as TOML. It loads to the same curation once secrets are supplied again; without them it is
/// refused.
fn resolved(loaded: &Loaded<Recipe>, planned: &[StagePlan]) -> String {
    let mut out = String::new();
    for row in loaded.rows().iter().filter(|row| row.path != "stage" && !row.path.starts_with("stage.")) {
        let value = if row.value == "none" { "\"none\"" } else { &row.value };
        out.push_str(&format!("{} = {value}  # {}\n", row.path, row.source));
    }
    for (index, stage) in planned.iter().enumerate() {
        out.push_str("\n[[stage]]\n");
        let mut line = |key: &str, value: &toml::Value| {
            let source = loaded.source(&format!("stage.{index}.{key}"));
            let source = source.map_or("default".to_owned(), ToString::to_string);
            // A secret does not belong in a file that is passed on with the data.
            let hidden = toml::Value::String(PiiOptions::HIDDEN_SALT.to_owned());
            let secret = key == "salt" && value.as_str().is_some_and(|salt| !salt.is_empty());
            let value = if secret { &hidden } else { value };
            out.push_str(&format!("{key} = {value}  # {}\n", source.replace(['\n', '\r'], "?")));
        };
        line("use", &toml::Value::String(stage.spec.kind.clone()));
        line("name", &toml::Value::String(stage.spec.shown().to_owned()));
        line("save", &toml::Value::Boolean(stage.spec.save));
        stage.options.iter().for_each(|(key, value)| line(key, value));
    }
    out
}
