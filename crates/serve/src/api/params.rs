//! Common parameters of requests to generate: the model, sampling, limits.

use std::collections::BTreeMap;
use std::sync::Arc;

use fathom_base::{
    Beams, EarlyStopping, GenerateRequest, ModelCard, PartialSampling, Prompt, Sampling, Structure,
};
use serde_json::{Map, Value};

use super::schema::Spacing;
use super::{AdmittedRequest, schema};
use crate::fault::Fault;
use crate::fields::Fields;
use crate::shared::{Model, ServerState};

/// Parameters of a request except the prompt.
pub struct Params {
    /// The model.
    pub model: Arc<Model>,
    /// The model's description.
    pub card: ModelCard,
    /// The model's name in the request.
    pub name: String,
    /// Sampling settings without a number of tokens.
    pub sampling: Sampling,
    /// Requested number of answer tokens, if any.
    pub max_tokens: Option<usize>,
    /// True if the answer is streamed.
    pub stream: bool,
    /// True if a stream ends with usage figures.
    pub include_usage: bool,
    /// True if token ids are sent.
    pub token_ids: bool,
    /// True if tokens are spelled by id (`token_id:5`).
    pub tokens_as_ids: bool,
    answers: usize,
    beams: Option<Beams>,
    structure: Option<Structure>,
    spacing: Spacing,
    adapter: Option<String>,
    priority: i32,
    scope: String,
    deadline_s: f64,
}

impl Params {
    /// Fingerprint of the model, or of the adapter over it.
    pub fn fingerprint(&self) -> &str {
        let own = self.adapter.as_ref().and_then(|name| self.card.adapters.get(name));
        own.unwrap_or(&self.card.fingerprint)
    }

    /// Takes the common parameters out of a request.
    ///
    /// # Errors
    /// A value of the wrong type, or beyond a limit; there is no such model.
    pub fn take(
        shared: &Arc<ServerState>,
        asked: &AdmittedRequest,
        fields: &mut Fields,
    ) -> Result<Params, Fault> {
        let settings = &shared.settings;
        let name: Option<String> = fields.take("model")?;
        let (model, adapter) = shared.model(name.as_deref())?;
        let rails: Option<Value> = fields.take("guardrails")?;
        let model = shared.railed(model, rails.as_ref(), asked.asker.key())?;
        let card = model.service.card();
        if !card.generates {
            let ask = match card.labels.len() {
                0 => "/v1/embeddings",
                1 => "/v1/rerank",
                _ => "/classify",
            };
            return Err(Fault::field(
                "model",
                format_args!("is {}, which writes no text; ask {ask}", model.name),
            ));
        }
        let mut options = fields.part("stream_options")?;
        let include_usage = options.or("include_usage", false)?;
        fields.rest_of("stream_options", options)?;
        let answers = fields.or("n", 1usize)?;
        most("n", answers, settings.max_answers)?;
        if answers == 0 {
            return Err(Fault::field("n", "has to be at least 1"));
        }
        let asked_s = fields.or("deadline_s", settings.request_s)?;
        let max_tokens = match fields.take("max_completion_tokens")? {
            Some(tokens) => {
                fields.take::<usize>("max_tokens")?;
                Some(tokens)
            }
            None => fields.take("max_tokens")?,
        };
        let (structure, spacing) = schema::structure(fields, settings)?;
        Ok(Params {
            sampling: sampling(shared, &card.sampling, fields)?,
            structure,
            spacing,
            name: name.unwrap_or_else(|| model.name.clone()),
            model,
            card,
            max_tokens,
            stream: fields.or("stream", false)?,
            include_usage,
            token_ids: fields.or("return_token_ids", false)?,
            tokens_as_ids: fields.or("return_tokens_as_token_ids", false)?,
            answers,
            beams: beams(fields, answers, settings.max_answers)?,
            adapter,
            priority: priority(fields.or("priority", 0i64)?),
            scope: format!("{}/{}", asked.asker.key(), fields.or("cache_salt", String::new())?),
            deadline_s: asked_s.clamp(0.001, settings.request_s.max(0.001)),
        })
    }

    /// The request for a prompt. Without a requested number of tokens it is `usual`, limited by the room left.
    ///
    /// # Errors
    /// The prompt cannot be tokenized, is empty, or leaves no room.
    pub fn request(&self, prompt: Prompt, usual: usize) -> Result<GenerateRequest, Fault> {
        let ids = self.model.service.ids(&prompt).map_err(Fault::refused)?;
        if ids.is_empty() {
            return Err(Fault::bad("the prompt is empty, and the tokenizer has no token that begins a text"));
        }
        let (context, room) = (self.card.context_tokens, self.card.answer_room(ids.len()));
        let asked = self.max_tokens.unwrap_or(usual.min(room.max(1)));
        if asked > room || ids.len() > context {
            let message = format!(
                "this model's context is {context} tokens; the prompt has {} and {asked} are asked for; shorten the prompt, or ask for \
                 fewer (max_tokens)",
                ids.len(),
            );
            return Err(Fault { code: Some("context_length_exceeded"), ..Fault::bad(message) });
        }
        let sampling = Sampling { max_tokens: asked, ..self.sampling.clone() };
        Ok(GenerateRequest {
            answers: self.answers,
            beams: self.beams,
            structure: self.structure.clone(),
            adapter: self.adapter.clone(),
            priority: self.priority,
            scope: self.scope.clone(),
            deadline_s: Some(self.deadline_s),
            ids: Some(ids),
            ..GenerateRequest::new(prompt, sampling)
        })
    }

    /// Sets the structure of the answer.
    pub fn set_structure(&mut self, structure: Structure) -> Result<(), Fault> {
        if self.structure.is_some() {
            return Err(Fault::field("tool_choice", "and a structure of the answer exclude each other"));
        }
        self.structure = Some(self.spacing.on(structure));
        Ok(())
    }

    /// Number of answers to a prompt.
    pub fn answers(&self) -> usize {
        self.answers
    }
}

/// The requested beam search, with the settings' names of vLLM's completions and Transformers' `generate`; the default
/// width is the number of answers.
fn beams(fields: &mut Fields, answers: usize, limit: u64) -> Result<Option<Beams>, Fault> {
    let asked = fields.or("use_beam_search", false)?;
    let width: Option<usize> = fields.take("beam_width")?;
    let length_penalty = fields.or("length_penalty", 1.0)?;
    let early_stopping = match fields.take::<Value>("early_stopping")? {
        None | Some(Value::Bool(false)) => EarlyStopping::Likely,
        Some(Value::Bool(true)) => EarlyStopping::First,
        Some(Value::String(never)) if never == "never" => EarlyStopping::Never,
        Some(_) => return Err(Fault::field("early_stopping", "has to be true, false or \"never\"")),
    };
    if asked {
        let width = width.unwrap_or(answers);
        most("beam_width", width, limit)?;
        return Ok(Some(Beams { width, length_penalty, early_stopping }));
    }
    let unused = [
        ("beam_width", width.is_some()),
        ("length_penalty", length_penalty != 1.0),
        ("early_stopping", early_stopping != EarlyStopping::Likely),
    ];
    match unused.into_iter().find(|(_, given)| *given) {
        Some((name, _)) => {
            Err(Fault::field(name, "is part of a search over beams; ask for one (use_beam_search)"))
        }
        None => Ok(None),
    }
}

/// Refuses several answers.
///
/// # Errors
/// Several answers are asked for where a route has one.
pub fn one_answer(fields: &Fields, of: &str) -> Result<(), Fault> {
    match fields.get("n") {
        Some(count) if !count.is_null() && count.as_f64() != Some(1.0) => {
            Err(Fault::field("n", format_args!("is no field of {of}, which has one answer; leave it out")))
        }
        _ => Ok(()),
    }
}

/// Checks a limit.
///
/// # Errors
/// More than a limit.
pub fn most(name: &str, count: usize, limit: u64) -> Result<(), Fault> {
    if count as u64 > limit {
        return Err(Fault::field(
            name,
            format_args!("is {count}; {limit} are the most that this server takes"),
        ));
    }
    Ok(())
}

/// Converts a priority: in vLLM lower numbers run first, in a service higher ones.
fn priority(asked: i64) -> i32 {
    i32::try_from(-asked.clamp(-1000, 1000)).unwrap_or(0)
}

/// Sampling settings: from the request, else from the model's files, else OpenAI's defaults.
fn sampling(shared: &ServerState, model: &PartialSampling, fields: &mut Fields) -> Result<Sampling, Fault> {
    // A beam search does not sample.
    let searches = fields.get("use_beam_search") == Some(&Value::Bool(true));
    let usual = Sampling { temperature: 1.0, ..Sampling::default() };
    let usual = if searches { usual } else { model.on(usual) };
    let settings = &shared.settings;
    let stop: Vec<String> = fields.list("stop")?;
    let stop_ids: Vec<u32> = fields.list("stop_token_ids")?;
    most("stop", stop.len() + stop_ids.len(), settings.max_stops)?;
    if stop.iter().any(|text| text.is_empty() || text.len() > 1024) {
        return Err(Fault::field("stop", "has to be texts of 1 to 1024 bytes"));
    }
    let top_k = fields.take::<i64>("top_k")?;
    Ok(Sampling {
        temperature: fields.or("temperature", usual.temperature)?,
        top_k: top_k.map_or(usual.top_k, |top_k| usize::try_from(top_k).unwrap_or(0)),
        top_p: fields.or("top_p", usual.top_p)?,
        min_p: fields.or("min_p", usual.min_p)?,
        typical_p: fields.or("typical_p", 1.0)?,
        repetition_penalty: fields.or("repetition_penalty", usual.repetition_penalty)?,
        frequency_penalty: fields.or("frequency_penalty", 0.0)?,
        presence_penalty: fields.or("presence_penalty", 0.0)?,
        logit_bias: bias(fields, settings.max_bias)?,
        seed: match fields.take::<i64>("seed")? {
            Some(seed) => seed as u64,
            None => shared.seed(),
        },
        max_tokens: 0,
        min_tokens: fields.or("min_tokens", 0)?,
        stop,
        stop_ids,
        ignore_eos: fields.or("ignore_eos", false)?,
    })
}

fn bias(fields: &mut Fields, limit: u64) -> Result<BTreeMap<u32, f32>, Fault> {
    let map: Map<String, Value> = fields.or("logit_bias", Map::new())?;
    most("logit_bias", map.len(), limit)?;
    let entry = |(id, value): (String, Value)| {
        let pair = id.parse().ok().zip(value.as_f64());
        let (id, value) =
            pair.ok_or_else(|| Fault::field("logit_bias", "has to map token ids to numbers"))?;
        Ok((id, value as f32))
    };
    map.into_iter().map(entry).collect()
}
