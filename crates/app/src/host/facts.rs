//! Facts about a model that its service needs: its card, its chat template, how it reads texts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_base::{Conversation, ModelCard};
use fathom_engine::{Accept, Capacity, Engine, Facts, Render, Structures, TextReading};
use fathom_model::{Sentence, Spec, Task, ranks_by_sigmoid};
use fathom_text::Tokenizer;
use fathom_text::chat::Template;
use fathom_text::gguf::side_file;
use serde_json::{Map, Value};

use crate::error::Result;

/// A model whose facts are wanted.
pub(crate) struct FactsOf<'a> {
    /// Name of the model.
    pub name: String,
    /// Its Hugging Face folder.
    pub folder: &'a Path,
    /// Its tokenizer.
    pub tokenizer: &'a Arc<Tokenizer>,
    /// Fingerprint of everything that its answers depend on; empty if it is not needed.
    pub fingerprint: String,
    /// File with a chat template; `None` for the model's own.
    pub template: Option<&'a Path>,
    /// Maximum number of open requests.
    pub queue: usize,
    /// Program that compiles structures of answers; `None` compiles them in this process.
    pub compiler: Option<PathBuf>,
    /// Checks adapters before they are read; `None` if there are to be none.
    pub accept: Option<Box<Accept>>,
}

impl FactsOf<'_> {
    /// Returns the facts about the model that its handle needs.
    ///
    /// # Errors
    /// A chat template or files that cannot be read.
    pub fn facts(self, engine: &Engine<'_>, capacity: &Capacity) -> Result<Facts> {
        let FactsOf { name, folder, tokenizer, fingerprint, template, queue, compiler, accept } = self;
        let template = match template {
            Some(file) => Some(Template::from_file(file, tokenizer)?),
            None => Template::from_dir(folder, tokenizer)?,
        };
        let template = template.filter(|_| engine.spec().scores == 0);
        let (spec, bounds) = (engine.spec(), engine.bounds(capacity.clone()));
        let labels = labels(folder, spec.scores);
        let reading = reading(folder, spec, labels.len())?;
        let card = ModelCard {
            name,
            fingerprint,
            context_tokens: bounds.limits.context_tokens,
            vocabulary: spec.vocab,
            source: bounds.source,
            generates: spec.scores == 0,
            converses: template.is_some(),
            labels,
            embedding: match &reading.sentence {
                _ if bounds.source => 0,
                None => spec.hidden,
                Some(how) => how.size(spec.hidden),
            },
            adapters: BTreeMap::new(),
            eos: tokenizer.stops().to_vec(),
            bos: tokenizer.bos(),
            pad_token: pad_token(folder)?,
            sampling: fathom_model::open_writer_config(folder)?.1.sampling(),
            chat_template: template.as_ref().map(|template| template.source().to_string()),
        };
        Ok(Facts {
            card,
            tokenizer: tokenizer.clone(),
            bounds,
            render: template.map(rendered),
            adapters: accept,
            queue,
            structures: Structures::probing(compiler),
            reading,
        })
    }
}

/// Returns the padding token, as the tokenizer's configuration spells it.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn pad_token(folder: &Path) -> Result<Option<String>> {
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
