//! A served model on its thread.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fathom_base::memory::Memory;
use fathom_base::{Conversation, ModelCard, human};
use fathom_engine::{
    Accept, Beginnings, Capacity, Engine, Facts, Handle, Render, StoreLocation, Structures, TextReading,
    service,
};
use fathom_model::{Sentence, Spec, Task, ranks_by_sigmoid};
use fathom_serve::Log;
use fathom_tensor::DType;
use fathom_text::Tokenizer;
use fathom_text::chat::Template;
use fathom_text::gguf::side_file;
use serde_json::{Map, Value, json};

use super::draft::Draft;
use super::fingerprint;
use super::order::Order;
use super::sizes::{self, Sizes};
use crate::adapters::{self, BaseQuantization};
use crate::error::{Error, Result, caught, in_full, refuse};
use crate::events::Silent;
use crate::models;

/// A served model.
pub(super) struct Hosted {
    /// Handle of the model's service.
    pub service: Handle,
    /// Memory that the model takes.
    pub sizes: Sizes,
    /// Thread of the model, which ends when the last handle is dropped.
    pub thread: JoinHandle<()>,
}

/// Delay before a failed engine is restarted.
const AGAIN: Duration = Duration::from_millis(100);

pub(super) type Started = Result<(Handle, Sizes)>;

/// Opens a model, sends its handle and serves requests until all handles are dropped.
pub(super) type Answers = fn(&str, &Path, &Order, (&Sender<Started>, &Watch)) -> Result<()>;

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
    answers: Answers,
) -> Result<Hosted> {
    let (send, receive) = channel();
    let (own, path, order, watch) = (name.to_string(), path.to_path_buf(), order.clone(), watch.clone());
    // A device must stay on the thread that opened it.
    let work = move || {
        let ended = answers(&own, &path, &order, (&send, &watch));
        // Until the model is ready, the error goes to the caller that started it.
        if let Err(error) = ended
            && let Err(SendError(Err(error))) = send.send(Err(error))
        {
            watch.ended(&own, error);
        }
    };
    let thread = thread::Builder::new().name(format!("model {name}")).spawn(work)?;
    match receive.recv() {
        Ok(Ok((service, sizes))) => Ok(Hosted { service, sizes, thread }),
        Ok(Err(error)) => Err(error),
        Err(_) => refuse!("{name}: the model's thread ended before it could be asked"),
    }
}

/// Opens a model on one rank, sends its handle and serves requests until all handles are dropped.
///
/// # Errors
/// No model there; out of memory.
pub(super) fn run(
    name: &str,
    path: &Path,
    order: &Order,
    (send, watch): (&Sender<Started>, &Watch),
) -> Result<()> {
    let folder = models::model_folder(path)?;
    let tokenizer = Arc::new(models::tokenizer(&folder)?);
    let device = order.machine(&Silent).open()?;
    let opened = fathom_model::open(&folder)?;
    let dtype = order.precision.map_or_else(|| models::stored_dtype(&opened.source), models::precision);
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
    let named = Named { name, folder: &folder, tokenizer: &tokenizer, dtype, held: held.as_ref() };
    let beginnings = named.beginnings(engine.spec(), &device.machine.profile().isa, order)?;
    let capacity = sizes.capacity.clone();
    let (handle, commands) = service(named.facts(&engine, &capacity, order)?);
    if send.send(Ok((handle, sizes))).is_err() {
        return Ok(());
    }
    let serve = || commands.serve(&engine, capacity.clone(), beginnings.as_ref());
    answer(serve, |why| watch.step_failed(name, why));
    Ok(())
}

/// A model in a folder, with the name it is served under.
pub(super) struct Named<'a> {
    pub name: &'a str,
    pub folder: &'a Path,
    pub tokenizer: &'a Arc<Tokenizer>,
    pub dtype: DType,
    /// Quantization of the model in the runs of its adapters, if any.
    pub held: Option<&'a BaseQuantization>,
}

impl Named<'_> {
    /// Returns what the model's values depend on in addition to its files.
    fn how(&self, order: &Order) -> Vec<String> {
        let held = self.held.map(|held| format!("{held:?}"));
        [format!("{:?}", self.dtype), format!("{:?}", order.kv)].into_iter().chain(held).collect()
    }

    /// Opens the store of prefixes on disk, if there is one; it is keyed by everything that keys and values depend on.
    ///
    /// # Errors
    /// A model whose prefixes cannot be stored; a folder that cannot be used.
    pub fn beginnings(&self, spec: &Spec, isa: &str, order: &Order) -> Result<Option<Beginnings>> {
        let Some(root) = &order.prefixes else { return Ok(None) };
        let mut how = self.how(order);
        how.extend([isa.into(), order.version.clone()]);
        let model = fingerprint::identity(self.folder, self.tokenizer, &how)?;
        let at = StoreLocation { folder: root.clone(), model, most_bytes: order.settings.prefix_bytes };
        Ok(Some(Beginnings::open(&at, spec)?))
    }

    /// Returns the facts about the model that its handle needs.
    ///
    /// # Errors
    /// A chat template or files that cannot be read.
    pub fn facts(&self, engine: &Engine<'_>, capacity: &Capacity, order: &Order) -> Result<Facts> {
        let Named { name, folder, tokenizer, held, .. } = *self;
        let template = match &order.template {
            Some(file) => Some(Template::from_file(file, tokenizer)?),
            None => Template::from_dir(folder, tokenizer)?,
        };
        let template = template.filter(|_| engine.spec().scores == 0);
        let (spec, bounds) = (engine.spec(), engine.bounds(capacity.clone()));
        let labels = labels(folder, spec.scores);
        let reading = reading(folder, spec, labels.len())?;
        let card = ModelCard {
            name: name.to_string(),
            fingerprint: fingerprint::fingerprint(folder, tokenizer, &self.how(order))?,
            context_tokens: bounds.limits.context_tokens,
            vocabulary: spec.vocab,
            generates: spec.scores == 0,
            converses: template.is_some(),
            labels,
            embedding: reading.sentence.as_ref().map_or(spec.hidden, |how| how.size(spec.hidden)),
            adapters: BTreeMap::new(),
            eos: tokenizer.stops().to_vec(),
            bos: tokenizer.bos(),
            pad_token: pad_token(folder)?,
            sampling: fathom_model::open_config(folder)?.1.sampling(),
            chat_template: template.as_ref().map(|template| template.source().to_string()),
        };
        Ok(Facts {
            card,
            tokenizer: tokenizer.clone(),
            bounds,
            render: template.map(rendered),
            adapters: Some(accepting(folder.to_path_buf(), held.cloned())),
            queue: usize::try_from(order.settings.max_requests).unwrap_or(usize::MAX),
            structures: Structures::probing(order.compiler.clone()),
            reading,
        })
    }
}

/// Returns the padding token, as the tokenizer's configuration spells it.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn pad_token(folder: &Path) -> Result<Option<String>> {
    let bytes = side_file(folder, "tokenizer_config.json")?.unwrap_or_default();
    // An invalid configuration is refused when the tokenizer is opened.
    let config: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let token = &config["pad_token"];
    Ok(token["content"].as_str().or(token.as_str()).map(str::to_string))
}

/// Returns how a decoder reads texts for embeddings and scores.
///
/// # Errors
/// An unsupported setting in its folder.
fn reading(folder: &Path, spec: &Spec, labels: usize) -> Result<TextReading> {
    let sentence = Sentence::open(folder, spec.hidden)?;
    let plain = TextReading { sentence, framed: false, task: None, sigmoid: false };
    if labels == 0 {
        return Ok(plain);
    }
    let (file, config) = config(folder);
    let task = Some(Task::of_config(&file, &config, labels)?);
    Ok(TextReading { task, sigmoid: ranks_by_sigmoid(&file, &config)?.unwrap_or(false), ..plain })
}

/// Returns a folder's configuration; for a GGUF file, an empty one.
fn config(folder: &Path) -> (PathBuf, Map<String, Value>) {
    let file = folder.join("config.json");
    let config = std::fs::read(&file).unwrap_or_default();
    let config = serde_json::from_slice(&config).unwrap_or_default();
    (file, config)
}

/// Returns the names of a model's scores from its configuration.
fn labels(folder: &Path, scores: usize) -> Vec<String> {
    let (_, config) = config(folder);
    let name = |label: usize| {
        let named = config.get("id2label").and_then(|all| all.get(label.to_string())?.as_str());
        named.map_or_else(|| format!("LABEL_{label}"), str::to_string)
    };
    (0..scores).map(name).collect()
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

/// Returns the function that renders conversations to prompts.
fn rendered(template: Template) -> Box<Render> {
    Box::new(move |conversation: &Conversation| {
        let Conversation { tools, add_generation_prompt, variables, .. } = conversation;
        let mut messages = conversation.messages.clone();
        if !template.asks_for_none(tools) {
            // Messages with tool calls have no text, and a template may concatenate it with other texts.
            let silent = messages.iter_mut().filter_map(|message| message.get_mut("content"));
            silent.filter(|content| content.is_null()).for_each(|content| *content = "".into());
        }
        let messages: Vec<&Value> = messages.iter().collect();
        let rendered = template.render_with(&messages, tools, *add_generation_prompt, variables);
        let mut text = rendered.map_err(fathom_base::Error::product)?.text;
        if conversation.continue_final_message {
            // Matches Transformers: the text up to the end of the last message's content.
            let last =
                messages.last().and_then(|message| message["content"].as_str()).unwrap_or_default().trim();
            let end = text.rfind(last).filter(|_| !last.is_empty()).map(|at| at + last.len());
            let Some(end) = end else {
                return Err(fathom_base::Error::product(
                    "the template leaves out the last message, so it cannot be continued",
                ));
            };
            text.truncate(end);
        }
        Ok(text)
    })
}

impl From<fathom_serve::Error> for Error {
    fn from(error: fathom_serve::Error) -> Error {
        Error::Outside(Box::new(error))
    }
}
