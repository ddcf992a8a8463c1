//! A model that others ask: opened once, on a thread of its own, and asked from any thread, without HTTP.

mod encoder;
mod facts;
pub(crate) mod fingerprint;
mod likelihoods;
mod thread;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use fathom_base::{
    Continuation, Error as BaseError, GenerateRequest, Generation, LanguageModel, LogLikelihood, Numbers,
    Relay, Ticket, relay,
};
use fathom_engine::{Capacity, Engine, Handle, Limits, service};
use fathom_model::{Sentence, Spec};
use fathom_tensor::DType;
use fathom_text::Tokenizer;

use crate::error::{Error, Result, caught};
use crate::events::Events;
use crate::machine::Machine;
use crate::models::{self, TextModel};

pub use encoder::EncoderHost;
pub(crate) use encoder::encoder_facts;
pub(crate) use facts::FactsOf;
pub(crate) use thread::{ModelThread, ReadyReporter, ended};

/// Events of a request that wait for its reader.
const RELAYED: usize = 64;

/// Tokens of a sequence up to which all sequences of a host are generated at once.
pub const SHORT_TOKENS: usize = 2048;

/// A model to open, and what it has room for.
pub struct HostOptions<'a> {
    /// Folder of a run, a Hugging Face folder, or a GGUF file.
    pub model: PathBuf,
    /// Adapter over it: its folder, or that of its run.
    pub adapter: Option<PathBuf>,
    /// Type of the weights; `None` keeps the stored one.
    pub dtype: Option<DType>,
    /// Machine of the model.
    pub machine: &'a Machine,
    /// Sequences that are generated at once; 0 for a model that is only looked at. The pages hold one of a whole context,
    /// or all of up to [`SHORT_TOKENS`] tokens; others wait.
    pub sequences: usize,
    /// Tokens of prompt and answer together; `None` for the model's own context.
    pub context_tokens: Option<usize>,
    /// Tokens read per step.
    pub chunk_tokens: usize,
    /// Most tokens that are guessed per answer and step. Changes no answer.
    pub draft_tokens: usize,
    /// File with a chat template; `None` for the model's own.
    pub template: Option<PathBuf>,
}

impl<'a> HostOptions<'a> {
    /// One sequence of the model's own context.
    pub fn new(model: impl Into<PathBuf>, machine: &'a Machine) -> HostOptions<'a> {
        HostOptions {
            model: model.into(),
            adapter: None,
            dtype: None,
            machine,
            sequences: 1,
            context_tokens: None,
            chunk_tokens: Limits::default().chunk_tokens,
            draft_tokens: 0,
            template: None,
        }
    }
}

/// A model on a thread of its own, which ends after open requests once the host and all clones of its service are
/// dropped.
pub struct Host {
    /// Closed before the thread is waited for.
    service: Option<Arc<Handle>>,
    facts: HostFacts,
    thread: Mutex<Option<JoinHandle<Result<()>>>>,
}

/// Facts about an opened model.
#[derive(Clone)]
pub struct HostFacts {
    /// Hugging Face folder of the model.
    pub folder: PathBuf,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its specification.
    pub spec: Spec,
}

impl Host {
    /// Opens a model; returns when it is ready for requests.
    ///
    /// # Errors
    /// No model there; an adapter of another base; an invalid chat template; out of memory.
    pub fn open(options: HostOptions<'_>, events: &dyn Events) -> Result<Host> {
        let machine = options.machine.again();
        let HostOptions { model, adapter, dtype, sequences, context_tokens, .. } = options;
        let HostOptions { chunk_tokens, draft_tokens, template, .. } = options;
        let name =
            model.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
        let called = name.clone();
        let work = move |opening: &ReadyReporter<HostFacts>| {
            let ready = models::open_with(&model, adapter.as_deref(), dtype, &machine, opening)?;
            let TextModel { folder, tokenizer, loaded } = ready;
            let _revocable = machine.revocable(&loaded.device);
            let tokenizer = Arc::new(tokenizer);
            let spec = loaded.model.spec.clone();
            let context_tokens = context_tokens.unwrap_or_else(|| models::context_tokens(&spec));
            let limits = Limits { context_tokens, chunk_tokens, draft_tokens, ..Limits::default() };
            caught(|| {
                let engine = Engine::new(loaded.view(), &tokenizer, limits);
                let engine = engine.pooling(Sentence::open(&folder, spec.hidden)?);
                let capacity = capacity(&engine, sequences);
                let of = FactsOf {
                    name: called,
                    folder: &folder,
                    tokenizer: &tokenizer,
                    fingerprint: String::new(),
                    template: template.as_deref(),
                    queue: usize::MAX,
                    compiler: None,
                    accept: None,
                };
                let (handle, commands) = service(of.facts(&engine, &capacity)?);
                if opening
                    .ready(handle, HostFacts { folder: folder.clone(), tokenizer: tokenizer.clone(), spec })
                {
                    commands.serve(&engine, capacity, None)?;
                }
                Ok(())
            })
        };
        let ModelThread { service, found, thread } = ModelThread::start(&name, events, work)?;
        Ok(Host { service: Some(Arc::new(service)), facts: found, thread: Mutex::new(Some(thread)) })
    }

    /// [`Host::open`], for a model that generates text.
    ///
    /// # Errors
    /// Those of [`Host::open`], and a reward model.
    pub fn open_writer(options: HostOptions<'_>, events: &dyn Events) -> Result<Host> {
        let named = options.adapter.clone().unwrap_or_else(|| options.model.clone());
        let host = Host::open(options, events)?;
        models::check_writes(&named, &host.facts.spec)?;
        Ok(host)
    }

    /// Facts about the model.
    pub fn facts(&self) -> &HostFacts {
        &self.facts
    }

    /// The model as a service.
    ///
    /// # Panics
    /// Never: it is closed by dropping the host alone.
    pub fn service(&self) -> &Arc<Handle> {
        match &self.service {
            Some(service) => service,
            None => unreachable!("a host without a service is being dropped"),
        }
    }

    /// Submits a request; returns its events as they come. The request is cancelled when the ticket is dropped.
    ///
    /// # Errors
    /// The request is refused.
    pub fn events(&self, request: GenerateRequest) -> Result<(Ticket, Relay)> {
        let (sink, relay) = relay(RELAYED);
        let submitted = fathom_base::Generate::submit(&**self.service(), request, sink);
        Ok((submitted.map_err(|error| self.cause(error))?, relay))
    }

    /// The reason behind an error: if the model's thread has ended, that of the thread.
    pub fn cause(&self, error: BaseError) -> Error {
        let thread = match &error {
            BaseError::Gone { .. } => self.thread.lock().unwrap_or_else(PoisonError::into_inner).take(),
            _ => None,
        };
        thread.and_then(|thread| ended(thread).err()).unwrap_or_else(|| error.into())
    }

    /// An error as a product's.
    fn product(&self, error: BaseError) -> BaseError {
        match error {
            BaseError::Gone { .. } => BaseError::product(self.cause(error)),
            error => error,
        }
    }
}

/// Pages for one sequence of a whole context, or for all of up to [`SHORT_TOKENS`] tokens.
fn capacity(engine: &Engine<'_>, sequences: usize) -> Capacity {
    let context_tokens = engine.max_tokens();
    let short = engine.capacity(sequences, context_tokens.min(SHORT_TOKENS));
    if sequences == 0 {
        return short;
    }
    let whole = engine.capacity(1, context_tokens).pages;
    Capacity {
        pages: short.pages.into_iter().zip(whole).map(|(short, whole)| short.max(whole)).collect(),
        ..short
    }
}

impl LanguageModel for Host {
    fn max_tokens(&self) -> usize {
        self.service().max_tokens()
    }

    fn generate_all(&self, requests: Vec<GenerateRequest>) -> fathom_base::Result<Vec<Vec<Generation>>> {
        self.service().generate_all(requests).map_err(|error| self.product(error))
    }

    fn look(&self, texts: &[Vec<u32>], at: Numbers) -> fathom_base::Result<Vec<Vec<f32>>> {
        self.service().look(texts, at).map_err(|error| self.product(error))
    }

    fn log_likelihoods(&self, texts: &[Continuation]) -> fathom_base::Result<Vec<LogLikelihood>> {
        likelihoods::of(self.service(), texts).map_err(|error| self.product(error))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Somebody else may still hold the service.
        let is_last = self.service.take().is_some_and(|service| Arc::into_inner(service).is_some());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|_| is_last) {
            // Its error has been reported to the requests that it failed.
            _ = ended(thread);
        }
    }
}
