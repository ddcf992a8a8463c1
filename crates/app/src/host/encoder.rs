//! An encoder that others ask, on a thread of its own: vectors, labels, scores of pairs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use fathom_base::{Describe, Error as BaseError, Evaluate, ModelCard, Numbers, TextPair};
use fathom_engine::{Bounds, Capacity, Facts, Handle, Limits, Structures, TextEncoder, service};
use fathom_model::{EncoderSpec, SafeTensors};
use fathom_retrieval::{Encode, EncoderFacts};
use fathom_tensor::DType;
use fathom_text::Tokenizer;

use super::facts::pad_token;
use super::fingerprint;
use super::thread::{ModelThread, ReadyReporter};
use crate::error::{Error, Result, caught, refuse};
use crate::events::Events;
use crate::machine::Machine;
use crate::{exported, models};

/// An encoder on its thread, which ends when this is dropped.
pub struct EncoderHost {
    folder: PathBuf,
    /// Closed before the thread is waited for.
    service: Option<Arc<Handle>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl EncoderHost {
    /// Opens the encoder of a Hugging Face folder; `None` keeps the stored type of its weights.
    ///
    /// # Errors
    /// No encoder there; out of memory.
    pub fn open(
        path: &Path,
        dtype: Option<DType>,
        machine: &Machine,
        events: &dyn Events,
    ) -> Result<EncoderHost> {
        let folder = models::model_folder(path)?;
        if !EncoderSpec::is_of(&folder) {
            refuse!(
                "{}: its config.json names no encoder, such as a model of Sentence-Transformers",
                path.display()
            );
        }
        let (machine, own) = (machine.again(), folder.clone());
        let work = move |opening: &ReadyReporter<()>| {
            exported::verify(&own)?;
            let tokenizer = Arc::new(models::tokenizer(&own)?);
            let device = machine.open()?;
            let stored = || Ok::<_, Error>(models::stored_dtype(&SafeTensors::open_folder(&own)?));
            let dtype = dtype.map_or_else(stored, Ok)?;
            caught(|| {
                let chunk_tokens = Limits::default().chunk_tokens;
                let encoder =
                    TextEncoder::open(&device, &own, (dtype, tokenizer.clone()), None, chunk_tokens)?;
                let name = own.to_string_lossy();
                let facts = encoder_facts(&name, &own, (&encoder, dtype), &tokenizer, usize::MAX)?;
                let (handle, commands) = service(facts);
                if opening.ready(handle, ()) {
                    commands.serve_texts(&encoder);
                }
                Ok(())
            })
        };
        let name =
            folder.file_name().map_or_else(|| "encoder".into(), |name| name.to_string_lossy().into_owned());
        let ModelThread { service, found: (), thread } = ModelThread::start(&name, events, work)?;
        Ok(EncoderHost { folder: path.to_path_buf(), service: Some(Arc::new(service)), thread: Some(thread) })
    }

    /// The encoder as a service.
    ///
    /// # Errors
    /// Closed.
    pub fn service(&self) -> fathom_base::Result<&Arc<Handle>> {
        self.service.as_ref().ok_or_else(|| BaseError::product("the encoder has been closed"))
    }

    /// Numbers of texts, each cut after the encoder's last token.
    fn numbers(&self, texts: Vec<TextPair>, asked: Numbers) -> fathom_base::Result<Vec<Vec<f32>>> {
        let service = self.service()?;
        let most = service.card().context_tokens;
        let ids = texts
            .iter()
            .map(|text| service.read(text, asked, Some(most)))
            .collect::<fathom_base::Result<Vec<_>>>()?;
        let rows = service.look_while(ids, asked, &|| true)?;
        rows.ok_or_else(|| BaseError::product("the encoder was interrupted"))
    }

    /// Relevance of each text to a query. A pair that is longer than the model loses the last tokens of its longer text.
    ///
    /// # Errors
    /// The model has no single score.
    pub fn relevance(&self, query: &str, texts: &[&str]) -> fathom_base::Result<Vec<f32>> {
        let pairs = texts.iter().map(|text| (query.to_string(), Some((*text).to_string()))).collect();
        let rows = self.numbers(pairs, Numbers::Relevance)?;
        Ok(rows.into_iter().map(|row| row.first().copied().unwrap_or(0.0)).collect())
    }

    /// Probabilities of the labels of texts or pairs.
    ///
    /// # Errors
    /// The model has no labels.
    pub fn classes(&self, texts: Vec<TextPair>) -> fathom_base::Result<Vec<Vec<f32>>> {
        self.numbers(texts, Numbers::Classes)
    }

    /// Requires a model with one score for a pair of texts.
    ///
    /// # Errors
    /// Another model.
    pub fn ranking(self) -> Result<EncoderHost> {
        let labels = self.service()?.card().labels.len();
        if labels != 1 {
            refuse!(
                "{}: it has {labels} labels; a reranker has one score for a query and a text",
                self.folder.display()
            );
        }
        Ok(self)
    }

    /// Requires an encoder that gives vectors.
    ///
    /// # Errors
    /// A classifier.
    pub fn embedding(self) -> Result<EncoderHost> {
        if self.service()?.card().embedding == 0 {
            refuse!("{}: it has a head that classifies, and gives no vectors", self.folder.display());
        }
        Ok(self)
    }
}

impl Encode for EncoderHost {
    fn facts(&self) -> EncoderFacts {
        let card = self.service.as_deref().map(Describe::card).unwrap_or_default();
        EncoderFacts {
            name: self.folder.to_string_lossy().into_owned(),
            fingerprint: card.fingerprint,
            dimensions: card.embedding,
        }
    }

    fn encode(&self, texts: &[String]) -> fathom_base::Result<Vec<Vec<f32>>> {
        self.numbers(texts.iter().map(|text| (text.clone(), None)).collect(), Numbers::Vector)
    }
}

impl Drop for EncoderHost {
    fn drop(&mut self) {
        // Somebody else may still hold the service.
        let is_last = self.service.take().is_some_and(|service| Arc::into_inner(service).is_some());
        let thread = self.thread.take().filter(|_| is_last);
        // Its error has been reported to the requests that it failed.
        _ = thread.map(JoinHandle::join);
    }
}

/// Returns the facts about an encoder that its handle needs.
///
/// # Errors
/// A fingerprint or a configuration that cannot be read.
pub(crate) fn encoder_facts(
    name: &str,
    folder: &Path,
    (encoder, dtype): (&TextEncoder, DType),
    tokenizer: &Arc<Tokenizer>,
    queue: usize,
) -> Result<Facts> {
    let spec = &encoder.encoder().spec;
    let (vocab, room) = (spec.model.vocab, encoder.max_tokens());
    let card = ModelCard {
        name: name.to_string(),
        fingerprint: fingerprint::fingerprint(folder, tokenizer, &[format!("{dtype:?}")])?,
        context_tokens: room,
        vocabulary: vocab,
        labels: spec.labels.clone(),
        embedding: encoder.vector_size(),
        eos: tokenizer.stops().to_vec(),
        bos: tokenizer.bos(),
        pad_token: pad_token(folder)?,
        ..ModelCard::default()
    };
    let limits = Limits { context_tokens: room, ..Limits::default() };
    let (windows, capacity) = (Vec::new(), Capacity::default());
    Ok(Facts {
        card,
        tokenizer: tokenizer.clone(),
        bounds: Bounds { vocab, room, lead: 0, windows, source: false, limits, capacity },
        render: None,
        adapters: None,
        queue,
        structures: Structures::default(),
        reading: encoder.reading().clone(),
    })
}
