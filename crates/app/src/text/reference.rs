//! Scores of a store's tokens by another model, in a column next to them, computed once, unsplit on one rank, before
//! the first step: log-probabilities of the reference that a run starts from, or the top tokens of a teacher.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use fathom_base::{LanguageModel, Numbers, human};
use fathom_curate::store_prefix;
use fathom_engine::{Engine, Limits};
use fathom_text::Tokenizer;
use fathom_text::lessons::Lesson;
use fathom_text::store::{Column, ColumnWriter, Store};
use fathom_train::recipe::{MethodName, ReferenceName};

use crate::error::{Result, refuse};
use crate::events::Events;
use crate::job::Job;
use crate::models;
use fathom_model::{LoadedModel, ModelView};

/// Tokens per batch.
const TOKENS: usize = 8192;

/// Returns the hash of a model's weights in the form that a column stores.
///
/// # Errors
/// A folder that cannot be read.
pub fn hash(folder: &Path) -> Result<[u8; 32]> {
    let mut name = [0; 32];
    name[..16].copy_from_slice(&fathom_model::open_writer(folder)?.source.hash()?.to_be_bytes());
    Ok(name)
}

/// Formats a hash in hexadecimal.
pub fn named(hash: &[u8; 32]) -> String {
    hash[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Column from another model that a run needs.
struct ColumnNeed {
    column: Column,
    /// Folder of the model.
    folder: PathBuf,
    /// Key of the recipe that names the model.
    key: &'static str,
    /// Hash of the model and the settings.
    made_by: [u8; 32],
    /// Number of top tokens per position; 0 for log-probabilities.
    top_k: usize,
    temperature: f64,
}

impl ColumnNeed {
    fn of(job: &Job) -> Result<Option<ColumnNeed>> {
        let table = &job.recipe().objective;
        let needed = |column, folder: PathBuf, key, top_k, temperature| -> Result<Option<ColumnNeed>> {
            let made_by =
                if top_k == 0 { hash(&folder)? } else { hash_of_best(&folder, top_k, temperature)? };
            Ok(Some(ColumnNeed { column, folder, key, made_by, top_k, temperature }))
        };
        match &table.teacher {
            Some(teacher) if table.method == MethodName::Distill && table.top_k > 0 => {
                let folder = models::model_folder(teacher)?;
                needed(Column::Best, folder, "objective.teacher", table.top_k, table.temperature)
            }
            _ if job.recipe().reference() == ReferenceName::Column => match job.start()? {
                Some(folder) => needed(Column::Reference, folder, "model.from", 0, 1.0),
                None => refuse!(
                    "objective.reference: there is no model to start from, which would be the reference; give model.from=DIR"
                ),
            },
            _ => Ok(None),
        }
    }

    /// Computes the column's values for some documents.
    fn ask(&self, model: &dyn LanguageModel, documents: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        if self.top_k > 0 {
            return Ok(model.look(documents, Numbers::Top { k: self.top_k, temperature: self.temperature })?);
        }
        // The first token is never predicted.
        let logps = |row: &Vec<f32>| [0.0].into_iter().chain(row.iter().step_by(2).copied()).collect();
        Ok(model.look(documents, Numbers::Logprobs)?.iter().map(logps).collect())
    }
}

/// Returns the hash of a teacher's top tokens: its weights, its tokenizer, their number and the temperature.
///
/// # Errors
/// A folder that cannot be read.
pub fn hash_of_best(folder: &Path, top_k: usize, temperature: f64) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&hash(folder)?);
    hasher.update(Tokenizer::from_dir(folder)?.hash()?.as_bytes());
    hasher.update(&(top_k as u64).to_le_bytes());
    hasher.update(&temperature.to_bits().to_le_bytes());
    Ok(*hasher.finalize().as_bytes())
}

/// Column values that rows bring with them, as written by `fathom score`.
pub struct ReferenceColumn {
    /// Column that the run needs; `None` if it needs none.
    wanted: Option<ColumnNeed>,
    writer: Option<ColumnWriter>,
    /// Set if some document lacks values, so that all are computed.
    lacks: bool,
}

impl ReferenceColumn {
    /// Prepares for the rows of a run.
    ///
    /// # Errors
    /// A model that cannot be read.
    pub fn new(job: &Job) -> Result<ReferenceColumn> {
        Ok(ReferenceColumn { wanted: ColumnNeed::of(job)?, writer: None, lacks: false })
    }

    /// Adds the values of the next document of the store at `prefix`.
    ///
    /// # Errors
    /// Values of another model.
    pub fn push(&mut self, lesson: &Lesson, prefix: &Path) -> Result<()> {
        let Some(wanted) = self.wanted.as_ref().filter(|_| !self.lacks) else { return Ok(()) };
        let (given, what) = match wanted.column {
            Column::Best => (&lesson.best, "teacher"),
            _ => (&lesson.reference, "reference"),
        };
        let Some((model, values)) = given else {
            (self.lacks, self.writer) = (true, None);
            return Ok(());
        };
        let own = named(&wanted.made_by);
        if *model != own {
            refuse!(
                "a row's `{what}` is of the model {model}, and {} asks for {own}: score the rows by that (fathom score), or leave the key \
                 out",
                wanted.key
            );
        }
        if self.writer.is_none() {
            self.writer = Some(ColumnWriter::create(prefix, wanted.column, wanted.made_by)?);
        }
        self.writer.as_mut().map_or(Ok(()), |writer| Ok(writer.push(values)?))
    }

    /// Publishes the column of the store in `out`, if every document has brought its values.
    ///
    /// # Errors
    /// A column that cannot be written.
    pub fn finish(self, out: &Path) -> Result<()> {
        let Some(writer) = self.writer else { return Ok(()) };
        Ok(writer.finish(&Store::open(store_prefix(out))?)?)
    }
}

/// Returns the store with the column that the run's objective needs; `None` if the run was asked to stop.
///
/// # Errors
/// A run without a model to start from; a column of another model, if the run has trained on it.
pub fn column(
    job: &Job,
    (store, tokenizer): (Store, &Tokenizer),
    stop: &AtomicBool,
    events: &dyn Events,
) -> Result<Option<Store>> {
    let Some(needed) = ColumnNeed::of(job)? else { return Ok(Some(store)) };
    let ColumnNeed { column, folder, key, made_by, .. } = &needed;
    match store.made_by(*column) {
        Some(found) if found == *made_by => return Ok(Some(store)),
        Some(found) if job.checkpoints().exists() => refuse!(
            "{}{} is of a model with the hash {}, and {key}={} has the hash {}: this run has learned from another; give back what was \
             there, or begin in another folder (run.out=FOLDER)",
            store.prefix().display(),
            column.suffix(),
            named(&found),
            folder.display(),
            named(made_by)
        ),
        _ => {}
    }
    let device = job.machine.open()?;
    let dtype = job.recipe().model.precision.dtype();
    let LoadedModel { model, params, .. } = models::load(&device, folder, Some(dtype), events)?;
    if needed.top_k > model.spec.vocab {
        let message = format!("is {}, and the teacher has {} tokens", needed.top_k, model.spec.vocab);
        return Err(job.loaded.refuse("objective.top_k", message).into());
    }
    let longest = (0..store.num_documents()).map(|doc| store.doc_len(doc)).max().unwrap_or(0);
    let limits = Limits { context_tokens: longest.max(1), chunk_tokens: 1024, ..Limits::default() };
    let engine =
        Engine::new(ModelView { device: &device, model: &model, params: &params }, tokenizer, limits);
    let mut writer = ColumnWriter::create(&store_prefix(&job.data()), *column, *made_by)?;
    let mut from = 0;
    while from < store.num_documents() {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        events.doing(&format!("asking {}: {}", folder.display(), human::counted(from as u64, "document")));
        let mut documents = vec![store.doc(from)?];
        let fits = |documents: &[Vec<u32>], doc: usize| {
            documents.iter().map(Vec::len).sum::<usize>() + store.doc_len(doc) <= TOKENS
        };
        while from + documents.len() < store.num_documents() && fits(&documents, from + documents.len()) {
            documents.push(store.doc(from + documents.len())?);
        }
        for values in needed.ask(&engine, &documents)? {
            writer.push(&values)?;
        }
        from += documents.len();
    }
    writer.finish(&store)?;
    let prefix = store.prefix().to_path_buf();
    drop(store);
    Ok(Some(Store::open(prefix)?))
}
