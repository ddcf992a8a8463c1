//! OpenAI's `/v1/responses`, without storage: every request has the whole conversation.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use fathom_base::{Event, Stop, TokenLogprob, Usage};
use serde_json::{Map, Value, json};

use super::logprobs::{self, Spelling};
use super::params::one_answer;
use super::talk::Talk;
use super::tools::{self, AnswerPart, Call, Scanner};
use super::{AdmittedRequest, Answer, Server, apart, ignored, json_answer, on_blocking_thread};
use crate::answering::refusal;
use crate::fault::{self, Fault};
use crate::fields::Fields;
use crate::knowledge::{CitationScanner, Sources};
use crate::now::now_s;
use crate::shared::Model;
use crate::sse::{Frames, Protocol, stream};

/// An input item as a message.
fn message(item: &Value) -> Result<Value, Fault> {
    match item["type"].as_str() {
        None | Some("message") => Ok(json!({"role": item["role"], "content": item["content"]})),
        Some("function_call") => {
            let function = json!({"name": item["name"], "arguments": item["arguments"]});
            let call = json!({"id": item["call_id"], "type": "function", "function": function});
            Ok(json!({"role": "assistant", "content": null, "tool_calls": [call]}))
        }
        Some("function_call_output") => {
            Ok(json!({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}))
        }
        Some(kind) => Err(Fault::field(
            "input",
            format_args!("has an item of type {kind}, which this server does not read"),
        )),
    }
}

/// The request in the fields of a chat.
fn chat(mut fields: Fields) -> Result<Fields, Fault> {
    one_answer(&fields, "responses")?;
    let mut to = Map::new();
    let mut messages = Vec::new();
    if let Some(text) = fields.take::<String>("instructions")? {
        messages.push(json!({"role": "system", "content": text}));
    }
    match fields.need::<Value>("input")? {
        Value::String(text) => messages.push(json!({"role": "user", "content": text})),
        Value::Array(items) => {
            for item in &items {
                messages.push(message(item)?);
            }
        }
        _ => return Err(Fault::field("input", "has to be a string or a list of items")),
    }
    to.insert("messages".into(), messages.into());
    if fields.take::<Value>("previous_response_id")?.is_some() {
        return Err(Fault::field(
            "previous_response_id",
            "names a response, and this server keeps none; send the conversation",
        ));
    }
    if fields.or("background", false)? {
        return Err(Fault::field("background", "is not supported by this server; leave it out"));
    }
    if let Some(tokens) = fields.take::<Value>("max_output_tokens")? {
        to.insert("max_tokens".into(), tokens);
    }
    let tools: Vec<Value> = fields.list("tools")?;
    if let Some(other) = tools.iter().find(|tool| tool["type"] != "function") {
        return Err(Fault::field(
            "tools",
            format_args!("has one of type {}; functions alone are called", other["type"]),
        ));
    }
    if !tools.is_empty() {
        let tool = |tool: &Value| tools::function(tool, "parameters");
        to.insert("tools".into(), tools.iter().map(tool).collect());
    }
    for (name, part, ours) in
        [("text", "format", "response_format"), ("reasoning", "effort", "reasoning_effort")]
    {
        let mut parts = fields.part(name)?;
        if let Some(value) = parts.take::<Value>(part)? {
            to.insert(ours.into(), value);
        }
        fields.rest_of(name, parts)?;
    }
    if fields.take::<Value>("conversation")?.is_some() {
        return Err(Fault::field(
            "conversation",
            "names what this server does not keep; send the conversation",
        ));
    }
    if fields.take::<String>("truncation")?.is_some_and(|how| how != "disabled") {
        // Conversations that are too long are refused.
        fields.ignore("truncation");
    }
    let include: Vec<String> = fields.list("include")?;
    if include.iter().any(|what| what != LOGPROBS) {
        fields.ignore("include");
    }
    let top = fields.get("top_logprobs").and_then(Value::as_u64).unwrap_or(0);
    if top > 0 || include.iter().any(|what| what == LOGPROBS) {
        to.insert("logprobs".into(), true.into());
    }
    Ok(fields.under(to))
}

/// The `include` value that requests log-probabilities of answer tokens.
const LOGPROBS: &str = "message.output_text.logprobs";

/// Request fields that a response repeats, with defaults.
fn repeated(fields: &Fields) -> Map<String, Value> {
    let defaults = json!({
        "instructions": null,
        "max_output_tokens": null,
        "metadata": {},
        "parallel_tool_calls": true,
        "prompt_cache_key": null,
        "reasoning": {"effort": null, "summary": null},
        "safety_identifier": null,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "user": null,
    });
    let Value::Object(mut repeated) = defaults else { return Map::new() };
    for (name, value) in &mut repeated {
        if let Some(given) = fields.get(name).filter(|given| !given.is_null()) {
            *value = given.clone();
        }
    }
    repeated
}

/// A response without its output.
struct Frame {
    id: String,
    created: u64,
    model: String,
    temperature: f64,
    top_p: f64,
    /// Repeated request fields.
    repeated: Map<String, Value>,
}

impl Frame {
    /// A response that has ended.
    fn ended(&self, stop: Option<&Stop>, output: Vec<Value>, usage: Value) -> Value {
        let mut response = self.json(status(stop), output, usage);
        if let Some(reason) = cut_by(stop) {
            response["incomplete_details"] = json!({"reason": reason});
            if let Some((rail, _)) = refusal(stop) {
                response["incomplete_details"]["rail"] = rail.into();
            }
        }
        response
    }

    fn json(&self, status: &str, output: Vec<Value>, usage: Value) -> Value {
        let own = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "model": self.model,
            "output": output,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "background": false,
            "previous_response_id": null,
            "store": false,
            "truncation": "disabled",
            "usage": usage,
        });
        let mut whole = self.repeated.clone();
        whole.extend(own.as_object().cloned().unwrap_or_default());
        whole.into()
    }
}

fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.answer_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.answer_tokens,
    })
}

/// The reason why an answer is incomplete, if it is.
fn cut_by(stop: Option<&Stop>) -> Option<&'static str> {
    match stop {
        Some(Stop::Length | Stop::Deadline) => Some("max_output_tokens"),
        Some(Stop::Refused { .. }) => Some("content_filter"),
        _ => None,
    }
}

fn status(stop: Option<&Stop>) -> &'static str {
    if cut_by(stop).is_some() { "incomplete" } else { "completed" }
}

fn words_part(text: &str, logprobs: &[Value]) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}

/// The part of a message with which a rail refused the answer.
fn refusal_part(stop: Option<&Stop>) -> Option<Value> {
    refusal(stop).map(|(_, why)| json!({"type": "refusal", "refusal": why}))
}

fn words_item(id: &str, content: Vec<Value>, status: &str) -> Value {
    json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content})
}

fn call_item(server: &Server, call: &Call, status: &str) -> Value {
    json!({
        "type": "function_call",
        "id": server.unique("fc_"),
        "call_id": server.unique("call_"),
        "name": call.name,
        "arguments": call.arguments,
        "status": status,
    })
}

/// `/v1/responses`.
///
/// # Errors
/// Those of the request or of its answer.
pub async fn answer(server: Server, asked: AdmittedRequest) -> Answer {
    let of = server.clone();
    let (mut talk, repeated) = on_blocking_thread(asked, move |asked| {
        let fields = Fields::parse(&asked.body)?;
        let repeated = repeated(&fields);
        Ok((Talk::ask(&of, asked, chat(fields)?, None)?, repeated))
    })
    .await?;
    let sampling = &talk.params.sampling;
    let frame = Frame {
        id: server.unique("resp_"),
        created: now_s(),
        model: talk.params.name.clone(),
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        repeated,
    };
    let unknown = std::mem::take(&mut talk.unknown);
    if talk.params.stream {
        return Ok(ignored(streamed(&server, frame, talk), &unknown));
    }
    let mut answered = talk.collect().await?;
    let answer = answered.answers.pop().unwrap_or_default();
    apart(move || Ok(ignored(written(&server, &frame, &talk, &answer), &unknown))).await
}

/// A whole answer as JSON.
fn written(server: &Server, frame: &Frame, talk: &Talk, answer: &fathom_base::Answer) -> Response<Body> {
    let (mut words, calls) = talk.tools.split(&answer.text);
    let citations = talk.sources.as_ref().map(|sources| sources.checked(&mut words));
    let mut output = Vec::new();
    if !words.is_empty() || calls.is_empty() {
        let part = words_part(&words, &Logprobs::of(talk).json(&answer.logprobs));
        let content = std::iter::once(part).chain(refusal_part(answer.stop.as_ref())).collect();
        output.push(words_item(&server.unique("msg_"), content, status(answer.stop.as_ref())));
    }
    // A call found in the text is complete; one that is the whole answer has the answer's status.
    let status_of_calls =
        if talk.tools.forced().is_some() { status(answer.stop.as_ref()) } else { "completed" };
    output.extend(calls.iter().map(|call| call_item(server, call, status_of_calls)));
    let mut body = frame.ended(answer.stop.as_ref(), output, usage(&talk.answering.usage));
    if let (Some(sources), Some(citations)) = (&talk.sources, citations) {
        (body["sources"], body["citations"]) = (sources.json(), citations);
    }
    if let Some(report) = talk.answering.guardrails() {
        body["guardrails"] = report;
    }
    json_answer(&body)
}

/// Settings of the tokens' log-probabilities.
struct Logprobs {
    model: Arc<Model>,
    spelling: Spelling,
    /// Alternatives per token; `None` if log-probabilities are not requested.
    top: Option<usize>,
}

impl Logprobs {
    fn of(talk: &Talk) -> Logprobs {
        let spelling = Spelling { as_ids: talk.params.tokens_as_ids };
        Logprobs { model: talk.params.model.clone(), spelling, top: talk.logprobs }
    }

    fn json(&self, tokens: &[TokenLogprob]) -> Vec<Value> {
        let Some(top) = self.top else { return Vec::new() };
        match logprobs::chat(&*self.model.service, tokens, self.spelling, top)["content"].take() {
            Value::Array(all) => all,
            _ => Vec::new(),
        }
    }
}

fn streamed(server: &Server, frame: Frame, talk: Talk) -> Response<Body> {
    let protocol = Items {
        server: server.clone(),
        frame,
        scanner: talk.tools.scanner(),
        forced: talk.tools.forced().map(|name| Call { name: name.to_string(), arguments: String::new() }),
        logprobs: Logprobs::of(&talk),
        citations: talk.sources.as_ref().map(Sources::scanner),
        sources: talk.sources.as_ref().map(Sources::json),
        pending: Vec::new(),
        words: None,
        output: Vec::new(),
        sequence: 0,
        stop: None,
    };
    stream(talk.answering, protocol, server.settings.keep_alive_s)
}

/// A message in progress.
#[derive(Default)]
struct Words {
    id: String,
    text: String,
    logprobs: Vec<Value>,
}

/// A streamed answer in items.
struct Items {
    server: Server,
    frame: Frame,
    scanner: Scanner,
    forced: Option<Call>,
    logprobs: Logprobs,
    citations: Option<CitationScanner>,
    /// Sources that the first and the last event have.
    sources: Option<Value>,
    /// Log-probabilities of tokens whose text is not sent yet.
    pending: Vec<Value>,
    /// The message in progress.
    words: Option<Words>,
    output: Vec<Value>,
    sequence: u64,
    stop: Option<Stop>,
}

impl Items {
    fn tell(&mut self, kind: &str, mut event: Value, out: &mut Frames) {
        event["type"] = kind.into();
        event["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        out.named(kind, &event);
    }

    fn text(&mut self, text: &str, out: &mut Frames) {
        let index = self.output.len();
        if self.words.is_none() {
            let id = self.server.unique("msg_");
            let item = words_item(&id, Vec::new(), "in_progress");
            self.tell("response.output_item.added", json!({"output_index": index, "item": item}), out);
            let part = words_part("", &[]);
            let added = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
            self.tell("response.content_part.added", added, out);
            self.words = Some(Words { id, ..Words::default() });
        }
        let Some(words) = &mut self.words else { return };
        words.text.push_str(text);
        let logprobs = std::mem::take(&mut self.pending);
        let delta = json!({"item_id": words.id, "output_index": index, "content_index": 0, "delta": text, "logprobs": logprobs});
        words.logprobs.extend(logprobs);
        self.tell("response.output_text.delta", delta, out);
    }

    fn close(&mut self, out: &mut Frames) {
        let Some(Words { id, text, logprobs }) = self.words.take() else { return };
        let index = self.output.len();
        let at = json!({"item_id": id, "output_index": index, "content_index": 0});
        let with = |name: &str, value: Value| {
            let mut event = at.clone();
            event[name] = value;
            event
        };
        let mut done = with("text", text.clone().into());
        done["logprobs"] = logprobs.clone().into();
        self.tell("response.output_text.done", done, out);
        let part = words_part(&text, &logprobs);
        self.tell("response.content_part.done", with("part", part.clone()), out);
        let mut content = vec![part];
        if let Some(part) = refusal_part(self.stop.as_ref()) {
            let why = part["refusal"].clone();
            let events = [
                ("response.content_part.added", "part", json!({"type": "refusal", "refusal": ""})),
                ("response.refusal.delta", "delta", why.clone()),
                ("response.refusal.done", "refusal", why),
                ("response.content_part.done", "part", part.clone()),
            ];
            for (kind, name, value) in events {
                let mut event = with(name, value);
                event["content_index"] = 1.into();
                self.tell(kind, event, out);
            }
            content.push(part);
        }
        let item = words_item(&id, content, status(self.stop.as_ref()));
        self.tell("response.output_item.done", json!({"output_index": index, "item": item}), out);
        self.output.push(item);
    }

    fn call(&mut self, call: &Call, status: &str, out: &mut Frames) {
        self.close(out);
        self.pending.clear();
        let (index, item) = (self.output.len(), call_item(&self.server, call, status));
        let mut started = item.clone();
        (started["status"], started["arguments"]) = ("in_progress".into(), "".into());
        self.tell("response.output_item.added", json!({"output_index": index, "item": started}), out);
        let at = |name: &str| {
            let mut event = json!({"item_id": item["id"], "output_index": index, "name": call.name});
            event[name] = call.arguments.clone().into();
            event
        };
        self.tell("response.function_call_arguments.delta", at("delta"), out);
        self.tell("response.function_call_arguments.done", at("arguments"), out);
        self.tell("response.output_item.done", json!({"output_index": index, "item": item}), out);
        self.output.push(item);
    }

    fn parts(&mut self, parts: Vec<AnswerPart>, out: &mut Frames) {
        for part in parts {
            match (part, &mut self.forced) {
                (AnswerPart::Text(text), Some(call)) => call.arguments.push_str(&text),
                (AnswerPart::Text(text), None) => {
                    let text = match &mut self.citations {
                        Some(citations) => citations.push(&text),
                        None => text,
                    };
                    if !text.is_empty() {
                        self.text(&text, out);
                    }
                }
                (AnswerPart::Call(call), _) => self.call(&call, "completed", out),
            }
        }
    }
}

impl Protocol for Items {
    fn begin(&mut self, out: &mut Frames) {
        for kind in ["response.created", "response.in_progress"] {
            let mut response = self.frame.json("in_progress", Vec::new(), Value::Null);
            if let Some(sources) = &self.sources {
                response["sources"] = sources.clone();
            }
            self.tell(kind, json!({ "response": response }), out);
        }
    }

    fn event(&mut self, _: usize, event: Event, out: &mut Frames) {
        match event {
            Event::Piece { text, logprobs, .. } => {
                self.pending.extend(self.logprobs.json(&logprobs));
                let parts = self.scanner.push(&text);
                self.parts(parts, out);
            }
            Event::Ended { stop, .. } => {
                let parts = self.scanner.finish();
                self.parts(parts, out);
                let rest = self.citations.as_mut().map(CitationScanner::finish).unwrap_or_default();
                if !rest.is_empty() {
                    self.text(&rest, out);
                }
                let ended = status(Some(&stop));
                if refusal(Some(&stop)).is_some() && self.words.is_none() {
                    self.text("", out);
                }
                self.stop = Some(stop);
                if let Some(call) = self.forced.take() {
                    self.call(&call, ended, out);
                }
                self.close(out);
            }
            _ => {}
        }
    }

    fn fault(&mut self, fault: &Fault, out: &mut Frames) {
        let mut response = self.frame.json("failed", Vec::new(), Value::Null);
        response["error"] = json!({"code": fault.code.unwrap_or(fault.kind), "message": fault.json(fault::Words::Kserve)["error"]});
        self.tell("response.failed", json!({ "response": response }), out);
    }

    fn guardrails(&mut self, report: Value, _: &mut Frames) {
        self.frame.repeated.insert("guardrails".into(), report);
    }

    fn end(&mut self, took: &Usage, out: &mut Frames) {
        let status = status(self.stop.as_ref());
        let output = std::mem::take(&mut self.output);
        let mut response = self.frame.ended(self.stop.as_ref(), output, usage(took));
        if let (Some(sources), Some(citations)) = (self.sources.take(), &self.citations) {
            (response["sources"], response["citations"]) = (sources, citations.json());
        }
        self.tell(&format!("response.{status}"), json!({ "response": response }), out);
    }
}
