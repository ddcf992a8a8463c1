//! Anthropic's `/v1/messages`, translated to a conversation as in `/v1/chat/completions`.

use axum::body::Body;
use axum::http::Response;
use fathom_base::{Event, Prompt, Stop, Usage};
use serde_json::{Map, Value, json};

use super::params::one_answer;
use super::talk::{self, Talk};
use super::tools::{self, AnswerPart, Scanner};
use super::{AdmittedRequest, Answer, Server, ignored, json_answer, on_blocking_thread, raw, typed};
use crate::answering::refusal;
use crate::fault::{Fault, Words};
use crate::fields::Fields;
use crate::knowledge::{CitationScanner, Sources};
use crate::sse::{Frames, Protocol, stream};

/// The text of a string or of text blocks.
fn text_of(value: &Value, field: &str) -> Result<String, Fault> {
    let block = |block: &Value| match (block["type"].as_str(), block["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text.to_string()),
        _ => Err(Fault::field(field, "has blocks that are not text; this model reads text alone")),
    };
    match value {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => blocks.iter().map(block).collect(),
        _ => Err(Fault::field(field, "has to be a string or a list of blocks")),
    }
}

/// Converts an Anthropic message to one or several in OpenAI's format: tool results are separate messages.
fn translated(message: &Value, out: &mut Vec<Value>) -> Result<(), Fault> {
    let role = message["role"].as_str().filter(|role| ["user", "assistant", "system"].contains(role));
    let role = role.ok_or_else(|| {
        Fault::field("messages", "has to be a list of objects with a `role`, which is user or assistant")
    })?;
    let Some(blocks) = message["content"].as_array() else {
        out.push(json!({"role": role, "content": text_of(&message["content"], "messages")?}));
        return Ok(());
    };
    let (mut words, mut calls) = (Vec::new(), Vec::new());
    for block in blocks {
        match block["type"].as_str() {
            Some("tool_use") => {
                let function = json!({"name": block["name"], "arguments": block["input"].to_string()});
                calls.push(json!({"id": block["id"], "type": "function", "function": function}));
            }
            Some("tool_result") => {
                let content = text_of(&block["content"], "messages")?;
                out.push(json!({"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}));
            }
            // Thoughts of earlier turns are not passed on.
            Some("thinking" | "redacted_thinking") => {}
            _ => words.push(block.clone()),
        }
    }
    if words.is_empty() && calls.is_empty() {
        return Ok(());
    }
    let content = if words.is_empty() { Value::Null } else { text_of(&words.into(), "messages")?.into() };
    let mut said = json!({"role": role, "content": content});
    if !calls.is_empty() {
        said["tool_calls"] = calls.into();
    }
    out.push(said);
    Ok(())
}

/// True if the last message is the beginning of the answer, which continues it. An empty one has no effect.
fn prefill(messages: &mut Vec<Value>) -> Result<bool, Fault> {
    let Some(last) = messages.last().filter(|last| last["role"] == "assistant") else { return Ok(false) };
    let said = last["content"].as_str().unwrap_or_default();
    if last.get("tool_calls").is_some() {
        return Ok(false);
    }
    if said.is_empty() {
        messages.pop();
        return Ok(false);
    }
    if said.ends_with(char::is_whitespace) {
        let what = "ends with a message of the assistant that ends with white space, which cannot be continued; take it off";
        return Err(Fault::field("messages", what));
    }
    Ok(true)
}

/// The request in OpenAI's fields; remaining fields stay and are checked as there.
fn openai(body: Map<String, Value>) -> Result<Fields, Fault> {
    let mut fields = Fields::of(body);
    one_answer(&fields, "messages")?;
    let mut to = Map::new();
    let mut messages = Vec::new();
    let system = text_of(&fields.or("system", Value::Null)?, "system")?;
    if !system.is_empty() {
        messages.push(json!({"role": "system", "content": system}));
    }
    for message in fields.need::<Vec<Value>>("messages")? {
        translated(&message, &mut messages)?;
    }
    if prefill(&mut messages)? {
        to.insert("continue_final_message".into(), true.into());
    }
    to.insert("messages".into(), messages.into());
    if let Some(stops) = fields.take::<Value>("stop_sequences")? {
        to.insert("stop".into(), stops);
    }
    let tools: Vec<Value> = fields.list("tools")?;
    if let Some(other) = tools.iter().find(|tool| tool.get("type").is_some_and(|kind| *kind != "custom")) {
        return Err(Fault::field(
            "tools",
            format_args!("has one of type {}; tools of the client alone are called", other["type"]),
        ));
    }
    if !tools.is_empty() {
        let tool = |tool: &Value| tools::function(tool, "input_schema");
        to.insert("tools".into(), tools.iter().map(tool).collect());
    }
    if let Some(choice) = fields.take::<Value>("tool_choice")? {
        let ours = match choice["type"].as_str() {
            Some("any") => "required".into(),
            Some("tool") => json!({"type": "function", "function": {"name": choice["name"]}}),
            Some("auto" | "none") => choice["type"].clone(),
            _ => return Err(Fault::field("tool_choice", "has to be of type auto, any, tool or none")),
        };
        to.insert("tool_choice".into(), ours);
        to.insert("parallel_tool_calls".into(), (choice["disable_parallel_tool_use"] != true).into());
    }
    if let Some(thinking) = fields.take::<Value>("thinking")?
        && thinking["type"] == "enabled"
    {
        return Err(Fault::field("thinking", "is not reported separately by this server; leave it out"));
    }
    fields.need::<usize>("max_tokens").map(|tokens| to.insert("max_tokens".into(), tokens.into()))?;
    Ok(fields.under(to))
}

fn body(asked: &AdmittedRequest) -> Result<Map<String, Value>, Fault> {
    match serde_json::from_slice(&asked.body) {
        Ok(Value::Object(map)) => Ok(map),
        _ => Err(Fault::bad("the body has to be a JSON object")),
    }
}

fn why(stop: Option<&Stop>, calls: bool) -> &'static str {
    match stop {
        Some(Stop::Length | Stop::Deadline) => "max_tokens",
        Some(Stop::Refused { .. }) => "refusal",
        _ if calls => "tool_use",
        Some(Stop::StopText(_)) => "stop_sequence",
        _ => "end_turn",
    }
}

/// The rail that refused the answer, and its message, as Anthropic reports a refusal.
fn stop_details(stop: Option<&Stop>) -> Value {
    let of = |(rail, why)| json!({"type": "refusal", "category": rail, "explanation": why});
    refusal(stop).map_or(Value::Null, of)
}

/// The stop text that ended the answer.
fn stopped_by(stop: Option<&Stop>) -> Value {
    match stop {
        Some(Stop::StopText(text)) => text.as_str().into(),
        _ => Value::Null,
    }
}

fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.answer_tokens,
    })
}

/// `/v1/messages`.
///
/// # Errors
/// Those of the request or of its answer.
pub async fn answer(server: Server, asked: AdmittedRequest) -> Answer {
    let of = server.clone();
    let talk = on_blocking_thread(asked, move |asked| {
        let fields = openai(body(&asked)?)?;
        Talk::ask(&of, asked, fields, None)
    });
    let mut talk = talk.await?;
    let id = server.unique("msg_");
    if talk.params.stream {
        let unknown = std::mem::take(&mut talk.unknown);
        return Ok(ignored(streamed(&server, &id, talk), &unknown));
    }
    let mut answered = talk.collect().await?;
    let answer = answered.answers.pop().unwrap_or_default();
    let (mut words, calls) = talk.tools.split(&answer.text);
    let citations = talk.sources.as_ref().map(|sources| sources.checked(&mut words));
    let mut content = Vec::new();
    if !words.is_empty() {
        content.push(json!({"type": "text", "text": words}).to_string());
    }
    for call in &calls {
        let block = json!({"type": "tool_use", "id": server.unique("toolu_"), "name": call.name});
        content.push(raw::with(&block, "input", &input(&call.arguments)));
    }
    let mut message = json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": talk.params.name,
        "stop_reason": why(answer.stop.as_ref(), !calls.is_empty()),
        "stop_sequence": stopped_by(answer.stop.as_ref()),
        "stop_details": stop_details(answer.stop.as_ref()),
        "usage": usage(&talk.answering.usage),
    });
    if let (Some(sources), Some(citations)) = (&talk.sources, citations) {
        (message["sources"], message["citations"]) = (sources.json(), citations);
    }
    if let Some(report) = talk.answering.guardrails() {
        message["guardrails"] = report;
    }
    let message = raw::with(&message, "content", &format!("[{}]", content.join(",")));
    Ok(ignored(typed("application/json", message), &talk.unknown))
}

/// The arguments of a call as an object: the model's text, or a string if that is not JSON.
fn input(arguments: &str) -> String {
    if arguments.is_empty() { "{}".to_string() } else { raw::or_string(arguments) }
}

/// `/v1/messages/count_tokens`.
///
/// # Errors
/// Those of the conversation.
pub async fn count(server: Server, asked: AdmittedRequest) -> Answer {
    let counted = on_blocking_thread(asked, move |asked| {
        let mut map = body(&asked)?;
        map.entry("max_tokens").or_insert(1.into());
        let mut fields = openai(map)?;
        let (model, _) = server.model(fields.take::<String>("model")?.as_deref())?;
        let talk = Prompt::Conversation(talk::conversation(&mut fields)?);
        Ok(model.service.ids(&talk).map_err(Fault::refused)?.len())
    });
    Ok(json_answer(&json!({"input_tokens": counted.await?})))
}

fn streamed(server: &Server, id: &str, talk: Talk) -> Response<Body> {
    let mut message = json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": talk.params.name,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
    });
    if let Some(sources) = &talk.sources {
        message["sources"] = sources.json();
    }
    let citations = talk.sources.as_ref().map(Sources::scanner);
    let (scanner, forced) = (talk.tools.scanner(), talk.tools.forced().map(str::to_string));
    let protocol = Blocks {
        server: server.clone(),
        message,
        scanner,
        citations,
        guardrails: None,
        forced,
        index: 0,
        open: None,
        calls: 0,
        stop: None,
    };
    stream(talk.answering, protocol, server.settings.keep_alive_s)
}

/// A streamed answer in blocks.
struct Blocks {
    server: Server,
    message: Value,
    scanner: Scanner,
    citations: Option<CitationScanner>,
    /// The rails' account, for the last event but one.
    guardrails: Option<Value>,
    forced: Option<String>,
    index: usize,
    /// The block in progress.
    open: Option<&'static str>,
    calls: usize,
    stop: Option<Stop>,
}

impl Blocks {
    fn open(&mut self, kind: &'static str, block: Value, out: &mut Frames) {
        self.close(out);
        self.open = Some(kind);
        out.named(
            "content_block_start",
            &json!({"type": "content_block_start", "index": self.index, "content_block": block}),
        );
    }

    fn close(&mut self, out: &mut Frames) {
        if self.open.take().is_some() {
            out.named("content_block_stop", &json!({"type": "content_block_stop", "index": self.index}));
            self.index += 1;
        }
    }

    fn delta(&self, delta: Value, out: &mut Frames) {
        out.named(
            "content_block_delta",
            &json!({"type": "content_block_delta", "index": self.index, "delta": delta}),
        );
    }

    fn call(&mut self, name: &str, out: &mut Frames) {
        let id = self.server.unique("toolu_");
        self.calls += 1;
        self.open("tool_use", json!({"type": "tool_use", "id": id, "name": name, "input": {}}), out);
    }

    fn tell(&mut self, parts: Vec<AnswerPart>, out: &mut Frames) {
        for part in parts {
            match part {
                AnswerPart::Text(text) if self.forced.is_some() => {
                    self.delta(json!({"type": "input_json_delta", "partial_json": text}), out);
                }
                AnswerPart::Text(text) => {
                    let text = match &mut self.citations {
                        Some(citations) => citations.push(&text),
                        None => text,
                    };
                    self.words(&text, out);
                }
                AnswerPart::Call(call) => {
                    self.call(&call.name, out);
                    self.delta(json!({"type": "input_json_delta", "partial_json": call.arguments}), out);
                    self.close(out);
                }
            }
        }
    }

    fn words(&mut self, text: &str, out: &mut Frames) {
        if text.is_empty() {
            return;
        }
        if self.open != Some("text") {
            self.open("text", json!({"type": "text", "text": ""}), out);
        }
        self.delta(json!({"type": "text_delta", "text": text}), out);
    }
}

impl Protocol for Blocks {
    fn begin(&mut self, _: &mut Frames) {}

    fn event(&mut self, _: usize, event: Event, out: &mut Frames) {
        match event {
            // Only now is the number of cached prompt tokens known, and both counts must be consistent.
            Event::Started { prompt, cached_tokens, .. } => {
                let took = Usage { prompt_tokens: prompt.len(), cached_tokens, ..Usage::default() };
                self.message["usage"] = usage(&took);
                out.named("message_start", &json!({"type": "message_start", "message": self.message}));
                out.named("ping", &json!({"type": "ping"}));
                if let Some(name) = self.forced.clone() {
                    self.call(&name, out);
                }
            }
            Event::Piece { text, .. } => {
                let parts = self.scanner.push(&text);
                self.tell(parts, out);
            }
            Event::Ended { stop, .. } => {
                let parts = self.scanner.finish();
                self.tell(parts, out);
                let rest = self.citations.as_mut().map(CitationScanner::finish).unwrap_or_default();
                self.words(&rest, out);
                self.stop = Some(stop);
            }
            _ => {}
        }
    }

    fn fault(&mut self, fault: &Fault, out: &mut Frames) {
        out.named("error", &fault.json(Words::Anthropic));
    }

    fn guardrails(&mut self, report: Value, _: &mut Frames) {
        self.guardrails = Some(report);
    }

    fn end(&mut self, took: &Usage, out: &mut Frames) {
        self.close(out);
        let stop = self.stop.as_ref();
        let delta = json!({
            "stop_reason": why(stop, self.calls > 0),
            "stop_sequence": stopped_by(stop),
            "stop_details": stop_details(stop),
        });
        let mut event = json!({"type": "message_delta", "delta": delta, "usage": usage(took)});
        if let Some(citations) = &self.citations {
            event["citations"] = citations.json();
        }
        if let Some(report) = self.guardrails.take() {
            event["guardrails"] = report;
        }
        out.named("message_delta", &event);
        out.named("message_stop", &json!({"type": "message_stop"}));
    }
}
