//! `/v1/completions`, with `echo`, log-probabilities of prompts, and prompts of ids.

use axum::body::Body;
use axum::http::Response;
use fathom_base::{
    Event, GenerateRequest, Prompt, RequestOutput, Service, SpecialTokens, Stop, TokenLogprob, Usage,
};
use serde_json::{Value, json};

use super::logprobs::{self, Offset, Spelling};
use super::params::{Params, most};
use super::talk::prompt_logprobs;
use super::{
    AdmittedRequest, Answer, Server, apart, guardrails_chunk, ignored, json_answer, on_blocking_thread,
    usage, usage_chunk,
};
use crate::answering::{ModelRequests, blocked, collect, ended_by, reason};
use crate::fault::Fault;
use crate::fields::Fields;
use crate::now::now_s;
use crate::sse::{Frames, Protocol, stream};

/// Default number of answer tokens, as in OpenAI's API.
const USUAL: usize = 16;

/// A requested completion.
struct CompletionRequest {
    answering: ModelRequests,
    params: Params,
    how: How,
    prompts: usize,
    unknown: Vec<String>,
}

/// Settings of the response.
#[derive(Clone, Copy)]
struct How {
    echo: bool,
    logprobs: Option<usize>,
    /// Alternatives of each prompt token, independent of `echo`.
    prompt_logprobs: Option<usize>,
}

/// The prompts of a request: text, ids, or lists of either.
///
/// # Errors
/// Any other value; more than `limit` prompts.
pub fn prompts(
    service: &dyn Service,
    value: Value,
    reading: SpecialTokens,
    limit: u64,
) -> Result<Vec<Prompt>, Fault> {
    let wrong = || {
        Fault::field(
            "prompt",
            "has to be a string, a list of strings, a list of token ids, or a list of such lists",
        )
    };
    let ids = |value: &Value| -> Result<Prompt, Fault> {
        let one = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong);
        let ids = value.as_array().ok_or_else(wrong)?.iter().map(one).collect::<Result<_, Fault>>()?;
        Ok(Prompt::Ids(ids))
    };
    let encode = |text: &str| match reading {
        SpecialTokens::Prompt => Ok(text.into()),
        _ => Ok(Prompt::Ids(service.encode(text, reading).map_err(Fault::refused)?)),
    };
    if let Value::Array(all) = &value
        && !all.iter().all(Value::is_number)
    {
        most("prompt", all.len(), limit)?;
    }
    match &value {
        Value::String(text) => Ok(vec![encode(text)?]),
        Value::Array(all) if all.is_empty() => Err(Fault::field("prompt", "is empty")),
        Value::Array(all) if all.iter().all(Value::is_number) => Ok(vec![ids(&value)?]),
        Value::Array(all) => all
            .iter()
            .map(|prompt| match prompt {
                Value::String(text) => encode(text),
                other => ids(other),
            })
            .collect(),
        _ => Err(wrong()),
    }
}

fn ask(server: &Server, mut asked: AdmittedRequest) -> Result<CompletionRequest, Fault> {
    let mut fields = Fields::parse(&asked.body)?;
    let permit = asked.permit.take();
    let prompt_logprobs = prompt_logprobs(&mut fields, &server.settings)?;
    let params = Params::take(server, &asked, &mut fields)?;
    let how = How { prompt_logprobs, ..how(server, &mut fields, params.max_tokens)? };
    let reading =
        if fields.or("add_special_tokens", true)? { SpecialTokens::Prompt } else { SpecialTokens::Rendered };
    let value: Value = fields.need("prompt")?;
    let unknown = fields.rest()?;
    let prompts = prompts(&*params.model.service, value, reading, server.settings.max_texts)?;
    let request = |prompt| {
        let mut request: GenerateRequest = params.request(prompt, USUAL)?;
        request.logprobs = how.logprobs;
        request.prompt_logprobs = how.logprobs.filter(|_| how.echo).max(how.prompt_logprobs);
        if request.sampling.max_tokens == 0 {
            // The prompt is only read, so there is nothing to search or constrain.
            (request.beams, request.structure, request.sampling.min_tokens) = (None, None, 0);
        }
        Ok(request)
    };
    let count = prompts.len();
    let requests = prompts.into_iter().map(request).collect::<Result<Vec<_>, Fault>>()?;
    let model = params.model.clone();
    let answering = ModelRequests::ask(server.clone(), model, requests, (asked.id, permit))?;
    Ok(CompletionRequest { answering, params, how, prompts: count, unknown })
}

fn how(server: &Server, fields: &mut Fields, max_tokens: Option<usize>) -> Result<How, Fault> {
    let echo = fields.or("echo", false)?;
    let logprobs: Option<usize> = match fields.take::<Value>("logprobs")? {
        None | Some(Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(1),
        Some(value) => match value.as_u64() {
            Some(count) => Some(count as usize),
            None => return Err(Fault::field("logprobs", "has to be a whole number")),
        },
    };
    most("logprobs", logprobs.unwrap_or(0), server.settings.max_logprobs)?;
    if max_tokens == Some(0) && !echo {
        return Err(Fault::field("max_tokens", "has to be at least 1, but for `echo`"));
    }
    Ok(How { echo, logprobs, prompt_logprobs: None })
}

/// The endpoint.
///
/// # Errors
/// Those of the request or of its answer.
pub async fn answer(server: Server, asked: AdmittedRequest) -> Answer {
    let of = server.clone();
    let asking = on_blocking_thread(asked, move |asked| ask(&of, asked)).await?;
    let id = server.unique("cmpl-");
    let unknown = asking.unknown.clone();
    let response =
        if asking.params.stream { streamed(&server, id, asking) } else { whole(id, asking).await? };
    Ok(ignored(response, &unknown))
}

/// Joins the log-probabilities of two parts.
fn joined(mut first: Value, second: Value) -> Value {
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        if let (Some(first), Some(second)) = (first[name].as_array_mut(), second[name].as_array()) {
            first.extend(second.iter().cloned());
        }
    }
    first
}

impl How {
    fn legacy(self, params: &Params, tokens: &[TokenLogprob], offset: &mut Offset) -> Value {
        let spelling = Spelling { as_ids: params.tokens_as_ids };
        let service = &*params.model.service;
        match self.logprobs {
            Some(top) => logprobs::legacy(service, tokens, spelling, top, offset),
            None => Value::Null,
        }
    }
}

async fn whole(id: String, mut asking: CompletionRequest) -> Answer {
    let all = collect(&mut asking.answering, asking.prompts).await?;
    apart(move || written(&id, &asking, &all)).await
}

/// A whole answer as JSON.
fn written(id: &str, asking: &CompletionRequest, all: &[RequestOutput]) -> Answer {
    let CompletionRequest { answering, params, how, .. } = asking;
    let mut choices: Vec<Value> = Vec::new();
    for answered in all {
        let RequestOutput { prompt, logprobs, answers, .. } = answered;
        let before = if how.echo {
            params.model.service.decode(prompt).map_err(Fault::refused)?
        } else {
            String::new()
        };
        for answer in answers {
            let mut sent = Offset::default();
            let shown = if how.echo { how.legacy(params, logprobs, &mut sent) } else { Value::Null };
            let new = how.legacy(params, &answer.logprobs, &mut sent);
            let both = match (shown.is_null(), new.is_null()) {
                (true, _) => new,
                (_, true) => shown,
                _ => joined(shown, new),
            };
            let stop = answer.stop.as_ref();
            let mut choice = json!({
                "index": choices.len(),
                "text": before.clone() + &answer.text,
                "logprobs": both,
                "finish_reason": reason(stop.unwrap_or(&Stop::Length)),
                "stop_reason": ended_by(stop),
            });
            if params.token_ids {
                choice["token_ids"] = json!(answer.ids);
                choice["prompt_token_ids"] = json!(prompt);
            }
            if let Some(top) = how.prompt_logprobs {
                choice["prompt_logprobs"] = logprobs::prompt(&*params.model.service, logprobs, top);
            }
            choices.push(choice);
        }
    }
    let mut body = json!({
        "id": id,
        "object": "text_completion",
        "created": now_s(),
        "model": params.name,
        "system_fingerprint": params.fingerprint(),
        "choices": choices,
        "usage": usage(&answering.usage),
    });
    if let Some(report) = answering.guardrails() {
        body["guardrails"] = report;
    }
    Ok(json_answer(&body))
}

fn streamed(server: &Server, id: String, asking: CompletionRequest) -> Response<Body> {
    let CompletionRequest { answering, params, how, prompts, .. } = asking;
    let frame = json!({
        "id": id,
        "object": "text_completion",
        "created": now_s(),
        "model": params.name,
        "system_fingerprint": params.fingerprint(),
    });
    let all = prompts * params.answers();
    let (sent, has_text) = (vec![Offset::default(); all], vec![false; all]);
    stream(answering, Chunks { params, how, frame, sent, has_text }, server.settings.keep_alive_s)
}

/// A streamed completion.
struct Chunks {
    params: Params,
    how: How,
    frame: Value,
    /// The offset of the next token of each answer.
    sent: Vec<Offset>,
    /// For each answer, whether text of it was sent.
    has_text: Vec<bool>,
}

impl Chunks {
    fn chunk(&self, choice: Value, out: &mut Frames) {
        let mut chunk = self.frame.clone();
        chunk["choices"] = json!([choice]);
        if self.params.include_usage {
            chunk["usage"] = Value::Null;
        }
        out.data(&chunk);
    }

    fn text(&self, index: usize, text: &str, (logprobs, ids): (Value, &[u32]), out: &mut Frames) {
        let mut choice = json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": null});
        if self.params.token_ids {
            choice["token_ids"] = json!(ids);
        }
        self.chunk(choice, out);
    }
}

impl Protocol for Chunks {
    fn begin(&mut self, _: &mut Frames) {}

    fn event(&mut self, prompt: usize, event: Event, out: &mut Frames) {
        let first = prompt * self.params.answers();
        match event {
            Event::Started { prompt: ids, logprobs, .. } if self.how.echo => {
                let text = self.params.model.service.decode(&ids).unwrap_or_default();
                for index in first..first + self.params.answers() {
                    let mut sent = std::mem::take(&mut self.sent[index]);
                    let shown = self.how.legacy(&self.params, &logprobs, &mut sent);
                    self.sent[index] = sent;
                    self.text(index, &text, (shown, &[]), out);
                }
            }
            // The end token is not part of the answer.
            Event::Piece { answer, text, ids, logprobs } if !(text.is_empty() && ids.is_empty()) => {
                let index = first + answer;
                self.has_text[index] |= !text.is_empty();
                let mut sent = std::mem::take(&mut self.sent[index]);
                let shown = self.how.legacy(&self.params, &logprobs, &mut sent);
                self.sent[index] = sent;
                if !text.is_empty() || !shown.is_null() || self.params.token_ids {
                    self.text(index, &text, (shown, &ids), out);
                }
            }
            Event::Ended { answer, stop } => {
                let mut choice = json!({
                    "index": first + answer,
                    "text": "",
                    "logprobs": null,
                    "finish_reason": reason(&stop),
                    "stop_reason": ended_by(Some(&stop)),
                });
                if self.params.token_ids {
                    choice["token_ids"] = json!([]);
                }
                self.chunk(choice, out);
                blocked(&stop)
                    .filter(|_| self.has_text[first + answer])
                    .iter()
                    .for_each(|frame| out.data(frame));
            }
            _ => {}
        }
    }

    fn guardrails(&mut self, report: Value, out: &mut Frames) {
        out.data(&guardrails_chunk(&self.frame, report));
    }

    fn end(&mut self, took: &Usage, out: &mut Frames) {
        if self.params.include_usage {
            out.data(&usage_chunk(&self.frame, took));
        }
        out.done();
    }
}
