//! Tokenizers, with the chat template of their model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_app::models::model_folder;
use fathom_app::{Error, Result};
use fathom_text::Tokenizer as Inner;
use fathom_text::chat::Template;
use pyo3::prelude::*;
use serde_json::{Map, Value};

use crate::edge::guarded;
use crate::error;

/// A tokenizer. It has no thread, and goes on in forked processes.
#[pyclass(frozen, module = "fathom._fathom")]
pub struct Tokenizer {
    inner: Arc<Inner>,
    template: Option<Template>,
}

impl Tokenizer {
    /// The tokenizer of an opened model, with the template of its folder.
    ///
    /// # Errors
    /// A template that cannot be read.
    pub fn of(inner: Arc<Inner>, folder: &Path) -> Result<Tokenizer> {
        let template = Template::from_dir(folder, &inner)?;
        Ok(Tokenizer { inner, template })
    }

    fn run<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&Inner) -> Result<T> + Send) -> PyResult<T> {
        py.detach(|| guarded(|| work(&self.inner))).map_err(|error| error::raise(py, &error))
    }
}

#[pymethods]
impl Tokenizer {
    /// Opens the tokenizer of a run, a Hugging Face folder or a GGUF file, or a `tokenizer.json`.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Tokenizer> {
        let open = || {
            if path.is_file() && path.extension().is_some_and(|end| end == "json") {
                return Ok(Tokenizer { inner: Arc::new(Inner::from_file(&path)?), template: None });
            }
            // A folder may have a tokenizer alone.
            let folder = model_folder(&path)
                .or_else(|error| if path.is_dir() { Ok(path.clone()) } else { Err(error) })?;
            Tokenizer::of(Arc::new(Inner::from_dir(&folder)?), &folder)
        };
        py.detach(|| guarded(open)).map_err(|error| error::raise(py, &error))
    }

    /// Reads the text of a `tokenizer.json`, and of a chat template.
    #[staticmethod]
    #[pyo3(signature = (text, template=None))]
    fn read(py: Python<'_>, text: &str, template: Option<&str>) -> PyResult<Tokenizer> {
        let read = || {
            let inner = Inner::from_bytes(text.as_bytes(), Path::new("tokenizer.json"))?;
            let template = template.map(|source| Template::new(source, &inner)).transpose();
            Ok(Tokenizer { template: template.map_err(Error::Refused)?, inner: Arc::new(inner) })
        };
        py.detach(|| guarded(read)).map_err(|error| error::raise(py, &error))
    }

    /// Trains a byte-level BPE.
    #[staticmethod]
    fn train(
        py: Python<'_>,
        texts: Vec<String>,
        vocab_size: usize,
        special: Vec<String>,
    ) -> PyResult<Tokenizer> {
        let special: Vec<&str> = special.iter().map(String::as_str).collect();
        let train = || {
            let inner = Inner::train_bpe(texts.into_iter(), vocab_size, &special)?;
            Ok(Tokenizer { inner: Arc::new(inner), template: None })
        };
        py.detach(|| guarded(train)).map_err(|error| error::raise(py, &error))
    }

    /// The text of its `tokenizer.json`.
    fn json(&self, py: Python<'_>) -> PyResult<String> {
        self.run(py, |inner| Ok(inner.to_json()?))
    }

    /// Source of its chat template.
    #[getter]
    fn template(&self) -> Option<&str> {
        self.template.as_ref().map(Template::source)
    }

    /// Writes its files into a folder.
    fn save(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        self.run(py, |inner| {
            std::fs::create_dir_all(&folder)?;
            Ok(inner.save_dir(&folder)?)
        })
    }

    /// Ids of a text: as ordinary text, with special tokens recognized, or also with those that the tokenizer adds.
    fn encode(&self, py: Python<'_>, text: &str, special: bool, added: bool) -> PyResult<Vec<u32>> {
        let encode = |inner: &Inner| {
            Ok(match (special, added) {
                (_, true) => inner.encode_prompt(text)?,
                (true, false) => inner.encode_special(text)?,
                (false, false) => inner.encode(text)?,
            })
        };
        // A short text takes less time than the lock.
        if text.len() < 1024 {
            return guarded(|| encode(&self.inner)).map_err(|error| error::raise(py, &error));
        }
        self.run(py, encode)
    }

    /// Ids of many texts, encoded on all threads unless `alone`.
    fn encode_batch(
        &self,
        py: Python<'_>,
        texts: Vec<String>,
        added: bool,
        alone: bool,
    ) -> PyResult<Vec<Vec<u32>>> {
        self.run(py, |inner| {
            if added || alone {
                let encode =
                    |text: &String| if added { inner.encode_prompt(text) } else { inner.encode(text) };
                return Ok(texts.iter().map(encode).collect::<fathom_text::Result<_>>()?);
            }
            Ok(inner.encode_batch(&texts)?)
        })
    }

    /// Text of ids.
    fn decode(&self, py: Python<'_>, ids: Vec<u32>, skip_special: bool) -> PyResult<String> {
        self.run(py, |inner| Ok(if skip_special { inner.decode_text(&ids) } else { inner.decode(&ids) }))
    }

    /// Renders a conversation, given as JSON, with the chat template.
    fn render(
        &self,
        py: Python<'_>,
        messages: &str,
        tools: &str,
        prompt: bool,
        variables: &str,
    ) -> PyResult<String> {
        let Some(template) = &self.template else {
            return Err(error::refuse(
                py,
                "this tokenizer has no chat template; open that of a model that converses, or give a template (Tokenizer.read)",
            ));
        };
        let render = || -> Result<String> {
            let messages: Vec<Value> = serde_json::from_str(messages)?;
            let tools: Vec<Value> = serde_json::from_str(tools)?;
            let variables: Map<String, Value> = serde_json::from_str(variables)?;
            let messages: Vec<&Value> = messages.iter().collect();
            let rendered = template.render_with(&messages, &tools, prompt, &variables);
            Ok(rendered.map_err(Error::Refused)?.text)
        };
        py.detach(|| guarded(render)).map_err(|error| error::raise(py, &error))
    }

    /// Spelling of a token.
    fn token(&self, id: u32) -> Option<String> {
        self.inner.token(id)
    }

    /// Id of a token by its spelling.
    fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_id(token)
    }

    /// Number of tokens.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    /// Ids that end an answer.
    #[getter]
    fn stops(&self) -> Vec<u32> {
        self.inner.stops().to_vec()
    }

    /// Id that begins a text.
    #[getter]
    fn bos(&self) -> Option<u32> {
        self.inner.bos()
    }

    /// Id that ends a text.
    #[getter]
    fn eos(&self) -> Option<u32> {
        self.inner.eos()
    }
}
