//! A served model on its thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use fathom_base::human;
use fathom_base::memory::Memory;
use fathom_engine::{Accept, Beginnings, Capacity, Engine, Facts, StoreLocation, service};
use fathom_model::Sentence;
use fathom_serve::Log;
use fathom_tensor::DType;
use fathom_text::Tokenizer;
use fathom_train::recipe::Precision;
use serde_json::json;

use super::draft::Draft;
use super::order::Order;
use super::sizes::{self, Sizes};
use crate::adapters::{self, BaseQuantization};
use crate::error::{Error, Result, caught, in_full, refuse};
use crate::events::Silent;
use crate::host::{FactsOf, ModelThread, ReadyReporter, fingerprint};
use crate::models;

/// Delay before a failed engine is restarted.
const AGAIN: Duration = Duration::from_millis(100);

/// Opens a model, announces it and serves requests until all handles are dropped.
pub(super) type ServeFn = fn(&str, &Path, &Order, Opener<'_>) -> Result<()>;

/// Receiver of the opened model's handle, and the watch over its thread.
pub(super) type Opener<'a> = (&'a ReadyReporter<Sizes>, &'a Watch);

/// Receives the failures of running engines.
#[derive(Clone)]
pub(super) struct Watch {
    /// Receives lines of the log.
    pub log: Option<Log>,
    /// Set to stop the server.
    pub stop: Arc<AtomicBool>,
    /// Error that the server stops with.
    pub failed: Arc<Mutex<Option<Error>>>,
}

impl Watch {
    /// Stops the server because an engine failed for good.
    fn ended(&self, name: &str, error: Error) {
        self.step_failed(name, &in_full(&error));
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.get_or_insert(error);
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn step_failed(&self, name: &str, why: &str) {
        if let Some(log) = &self.log {
            log(&json!({"event": "failed_step", "model": name, "why": why}));
        }
    }
}

/// Starts a model and returns when it is ready for requests.
///
/// # Errors
/// No model there; out of memory.
pub(super) fn start(
    name: &str,
    path: &Path,
    order: &Order,
    watch: &Watch,
    serving: ServeFn,
) -> Result<ModelThread<Sizes>> {
    let (own, path, order, watch) = (name.to_string(), path.to_path_buf(), order.clone(), watch.clone());
    let work = move |opening: &ReadyReporter<Sizes>| match serving(&own, &path, &order, (opening, &watch)) {
        Err(error) if opening.is_over() => {
            watch.ended(&own, error);
            Ok(())
        }
        // Until the model is ready, the error goes to the caller that started it.
        ended => ended,
    };
    ModelThread::start(name, &Silent, work)
}

/// Opens a model on one rank, sends its handle and serves requests until all handles are dropped.
///
/// # Errors
/// No model there; out of memory.
pub(super) fn run(name: &str, path: &Path, order: &Order, (opening, watch): Opener<'_>) -> Result<()> {
    let folder = models::model_folder(path)?;
    let tokenizer = Arc::new(models::tokenizer(&folder)?);
    let device = order.machine(&Silent).open()?;
    let opened = fathom_model::open_writer(&folder)?;
    let dtype = order.precision.map_or_else(|| models::stored_dtype(&opened.source), Precision::dtype);
    let sizes = sizes::of(&device, (&folder, &opened, dtype), &tokenizer, order)?;
    drop(opened);
    fits_next_to_served(name, &sizes, order)?;
    let held = order.held();
    let loaded = caught(|| models::load_held(&device, &folder, Some(dtype), held.as_ref(), &Silent))?;
    let draft = Draft::load(&device, order)?;
    let drafting = draft.as_ref().map(|draft| draft.engine(&device, sizes.limits));
    let mut engine = Engine::new(loaded.view(), &tokenizer, sizes.limits).reserving(sizes.workspace_bytes);
    if let Some(drafting) = &drafting {
        engine = engine.drafting(drafting)?;
    }
    engine = engine.pooling(Sentence::open(&folder, loaded.model.spec.hidden)?);
    let model_folder =
        ModelFolder { name, folder: &folder, tokenizer: &tokenizer, dtype, held: held.as_ref() };
    let beginnings = model_folder.beginnings(&device.machine.profile().isa, order)?;
    let capacity = sizes.capacity.clone();
    let (handle, commands) = service(model_folder.facts(&engine, &capacity, order)?);
    if !opening.ready(handle, sizes) {
        return Ok(());
    }
    let serve = || commands.serve(&engine, capacity.clone(), beginnings.as_ref());
    answer(serve, |why| watch.step_failed(name, why));
    Ok(())
}

/// A model in a folder, with the name it is served under.
pub(super) struct ModelFolder<'a> {
    pub name: &'a str,
    pub folder: &'a Path,
    pub tokenizer: &'a Arc<Tokenizer>,
    pub dtype: DType,
    /// Quantization of the model in the runs of its adapters, if any.
    pub held: Option<&'a BaseQuantization>,
}

impl ModelFolder<'_> {
    /// Returns what the model's values depend on in addition to its files.
    fn how(&self, order: &Order) -> Vec<String> {
        let held = self.held.map(|held| format!("{held:?}"));
        [format!("{:?}", self.dtype), format!("{:?}", order.kv)].into_iter().chain(held).collect()
    }

    /// Opens the store of prefixes on disk, if there is one; it is keyed by everything that keys and values depend on.
    ///
    /// # Errors
    /// A folder that cannot be used.
    pub fn beginnings(&self, isa: &str, order: &Order) -> Result<Option<Beginnings>> {
        let Some(root) = &order.prefixes else { return Ok(None) };
        let mut how = self.how(order);
        how.extend([isa.into(), order.version.clone()]);
        let model = fingerprint::identity(self.folder, self.tokenizer, &how)?;
        let at = StoreLocation { folder: root.clone(), model, most_bytes: order.settings.prefix_bytes };
        Ok(Some(Beginnings::open(&at)?))
    }

    /// Returns the facts about the model that its handle needs.
    ///
    /// # Errors
    /// A chat template or files that cannot be read.
    pub fn facts(&self, engine: &Engine<'_>, capacity: &Capacity, order: &Order) -> Result<Facts> {
        let ModelFolder { name, folder, tokenizer, held, .. } = *self;
        let of = FactsOf {
            name: name.to_string(),
            folder,
            tokenizer,
            fingerprint: fingerprint::fingerprint(folder, tokenizer, &self.how(order))?,
            template: order.template.as_deref(),
            queue: usize::try_from(order.settings.max_requests).unwrap_or(usize::MAX),
            compiler: order.compiler.clone(),
            accept: Some(accepting(folder.to_path_buf(), held.cloned())),
        };
        of.facts(engine, capacity)
    }
}

/// Serves requests until all handles are dropped. A step that panics fails the requests that it worked on, and serving
/// continues.
pub(super) fn answer(
    serve: impl Fn() -> std::result::Result<(), fathom_engine::Error>,
    failed: impl Fn(&str),
) {
    loop {
        match catch_unwind(AssertUnwindSafe(&serve)) {
            Ok(Ok(())) => return,
            // There is only one rank here.
            Ok(Err(error)) => return failed(&error.to_string()),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                failed(text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no memory"));
                // Limits the load on the machine if the failure repeats at once.
                thread::sleep(AGAIN);
            }
        }
    }
}

/// Refuses to reload a model if the free memory does not hold it next to the one being served.
pub(super) fn fits_next_to_served(name: &str, sizes: &Sizes, order: &Order) -> Result<()> {
    if !order.again {
        return Ok(());
    }
    let Some(memory) = Memory::read().filter(|memory| memory.available_bytes < sizes.bytes()) else {
        return Ok(());
    };
    refuse!(
        "{name} takes {} next to the one that answers, and {} are free; it is served as it was: give both less memory (--memory), or \
         start the server again",
        human::bytes(sizes.bytes()),
        human::bytes(memory.available_bytes)
    )
}

/// Returns the function that checks adapters for a base with this quantization.
fn accepting(base: PathBuf, held: Option<BaseQuantization>) -> Box<Accept> {
    Box::new(move |adapter| {
        let folder = adapters::served(adapter, &base).map_err(fathom_base::Error::product)?;
        if let Some(said) = adapters::held_otherwise(&folder, held.as_ref()) {
            log::warn!("{said}");
        }
        Ok(folder)
    })
}

impl From<fathom_serve::Error> for Error {
    fn from(error: fathom_serve::Error) -> Error {
        Error::Outside(Box::new(error))
    }
}
