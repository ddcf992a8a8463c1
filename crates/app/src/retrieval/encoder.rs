//! Encoders and rerankers of an index, each on a thread of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use fathom_base::{Describe, Error as BaseError, Evaluate, ModelCard, Numbers, TextPair};
use fathom_engine::{Bounds, Capacity, Facts, Handle, Limits, Structures, TextEncoder, service};
use fathom_model::EncoderSpec;
use fathom_retrieval::{Encode, EncoderFacts};
use fathom_tensor::DType;

use crate::error::{Result, caught, refuse};
use crate::events::Events;
use crate::host::{ModelThread, Opening, pad_token};
use crate::machine::Machine;
use crate::serve::fingerprint;
use crate::{exported, models};

/// An encoder on its thread, which ends when this is dropped.
pub struct EncoderHost {
    folder: PathBuf,
    /// Closed before the thread is waited for.
    service: Option<Handle>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl EncoderHost {
    /// Opens the encoder of a Hugging Face folder in f32.
    ///
    /// # Errors
    /// No encoder there; out of memory.
    pub fn open(path: &Path, machine: &Machine, events: &dyn Events) -> Result<EncoderHost> {
        let folder = models::model_folder(path)?;
        if !EncoderSpec::is_of(&folder) {
            refuse!(
                "{}: its config.json names no encoder; an index needs one, such as a model of Sentence-Transformers",
                path.display()
            );
        }
        let (machine, own) = (machine.again(), folder.clone());
        let work = move |opening: &Opening<()>| {
            exported::verify(&own)?;
            let tokenizer = Arc::new(models::tokenizer(&own)?);
            let device = machine.open()?;
            caught(|| {
                let chunk_tokens = Limits::default().chunk_tokens;
                let encoder =
                    TextEncoder::open(&device, &own, (DType::F32, tokenizer.clone()), None, chunk_tokens)?;
                let (handle, commands) = service(facts(&own, &encoder, tokenizer)?);
                if opening.ready(handle, ()) {
                    commands.serve_texts(&encoder);
                }
                Ok(())
            })
        };
        let name =
            folder.file_name().map_or_else(|| "encoder".into(), |name| name.to_string_lossy().into_owned());
        let ModelThread { service, found: (), thread } = ModelThread::start(&name, events, work)?;
        Ok(EncoderHost { folder: path.to_path_buf(), service: Some(service), thread: Some(thread) })
    }

    fn service(&self) -> fathom_base::Result<&Handle> {
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
        let card = self.service.as_ref().map(Describe::card).unwrap_or_default();
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
        drop(self.service.take());
        // Its error has been reported to the requests that it failed.
        _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Facts about an encoder that its handle needs.
fn facts(folder: &Path, encoder: &TextEncoder, tokenizer: Arc<fathom_text::Tokenizer>) -> Result<Facts> {
    let spec = &encoder.encoder().spec;
    let (vocab, room) = (spec.model.vocab, encoder.max_tokens());
    let card = ModelCard {
        name: folder.to_string_lossy().into_owned(),
        fingerprint: fingerprint::fingerprint(folder, &tokenizer, &[format!("{:?}", DType::F32)])?,
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
        tokenizer,
        bounds: Bounds { vocab, room, lead: 0, windows, forks: false, limits, capacity },
        render: None,
        adapters: None,
        queue: usize::MAX,
        structures: Structures::default(),
        reading: encoder.reading().clone(),
    })
}
