//! OpenAI's `/v1/responses`, without a store: a conversation is sent whole each time.

use axum::body::Body;
use axum::http::Response;
use fathom_base::{Event, Stop, Usage};
use serde_json::{Map, Value, json};

use super::chat::Talk;
use super::tools::{AnswerPart, Call, Scanner};
use super::{Answer, Asked, Server, json_answer, prepared};
use crate::fault::{Fault, Words};
use crate::fields::Fields;
use crate::shared::now_s;
use crate::sse::{Frames, Protocol, stream};

/// An item of the input as a message.
fn message(item: &Value) -> Result<Value, Fault> {
    match item["type"].as_str() {
        None | Some("message") => Ok(json!({"role": item["role"], "content": item["content"]})),
        Some("function_call") => {
            let function = json!({"name": item["name"], "arguments": item["arguments"]});
            let call = json!({"id": item["call_id"], "type": "function", "function": function});
            Ok(json!({"role": "assistant", "content": "", "tool_calls": [call]}))
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
    for (from, name) in [("max_output_tokens", "max_tokens"), ("tool_choice", "tool_choice")] {
        if let Some(value) = fields.take::<Value>(from)? {
            to.insert(name.into(), value);
        }
    }
    let tools: Vec<Value> = fields.list("tools")?;
    if let Some(other) = tools.iter().find(|tool| tool["type"] != "function") {
        return Err(Fault::field(
            "tools",
            format_args!("has one of type {}; functions alone are called", other["type"]),
        ));
    }
    if !tools.is_empty() {
        let tool = |tool: &Value| {
            let function = json!({"name": tool["name"], "description": tool["description"], "parameters": tool["parameters"]});
            json!({"type": "function", "function": function})
        };
        to.insert("tools".into(), tools.iter().map(tool).collect());
    }
    if let Some(text) = fields.take::<Value>("text")?
        && text["format"].is_object()
    {
        to.insert("response_format".into(), text["format"].clone());
    }
    if let Some(reasoning) = fields.take::<Value>("reasoning")?
        && reasoning["effort"].is_string()
    {
        to.insert("reasoning_effort".into(), reasoning["effort"].clone());
    }
    // What is reported of an answer besides, and what to do with one that is too long: nothing here.
    for name in ["include", "truncation", "conversation", "top_logprobs"] {
        if fields.take::<Value>(name)?.is_some_and(|value| name == "conversation" && !value.is_null()) {
            return Err(Fault::field(name, "names what this server does not keep; send the conversation"));
        }
    }
    fields.keep(&mut to);
    Ok(Fields::of(to))
}

/// What a response is, but for its output.
struct Frame {
    id: String,
    created: u64,
    model: String,
    temperature: f64,
    top_p: f64,
}

impl Frame {
    fn json(&self, status: &str, output: Vec<Value>, usage: Value) -> Value {
        let incomplete =
            if status == "incomplete" { json!({"reason": "max_output_tokens"}) } else { Value::Null };
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": incomplete,
            "instructions": null,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": true,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "tool_choice": "auto",
            "tools": [],
            "metadata": {},
            "usage": usage,
        })
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

fn status(stop: Option<&Stop>) -> &'static str {
    if matches!(stop, Some(Stop::Length | Stop::Deadline)) { "incomplete" } else { "completed" }
}

fn words_item(id: &str, text: &str, status: &str) -> Value {
    let content = json!([{"type": "output_text", "text": text, "annotations": []}]);
    json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content})
}

fn call_item(server: &Server, call: &Call) -> Value {
    json!({
        "type": "function_call",
        "id": server.unique("fc_"),
        "call_id": server.unique("call_"),
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    })
}

/// `/v1/responses`.
///
/// # Errors
/// What is wrong with the request, or with its answer.
pub async fn answer(server: Server, asked: Asked) -> Answer {
    let of = server.clone();
    let talk = prepared(asked, move |asked| {
        let fields = chat(asked.fields()?)?;
        Talk::ask(&of, asked, fields)
    });
    let mut talk = talk.await?;
    if talk.params.answers() != 1 {
        return Err(Fault::field("n", "is no field of responses"));
    }
    let sampling = &talk.params.sampling;
    let frame = Frame {
        id: server.unique("resp_"),
        created: now_s(),
        model: talk.params.name.clone(),
        temperature: sampling.temperature,
        top_p: sampling.top_p,
    };
    if talk.params.stream {
        return Ok(streamed(&server, frame, talk));
    }
    let mut answered = talk.collect().await?;
    let answer = answered.answers.pop().unwrap_or_default();
    let (words, calls) = talk.tools.split(&answer.text);
    let mut output = Vec::new();
    if !words.is_empty() || calls.is_empty() {
        output.push(words_item(&server.unique("msg_"), &words, status(answer.stop.as_ref())));
    }
    output.extend(calls.iter().map(|call| call_item(&server, call)));
    Ok(json_answer(&frame.json(status(answer.stop.as_ref()), output, usage(&talk.answering.usage))))
}

fn streamed(server: &Server, frame: Frame, talk: Talk) -> Response<Body> {
    let protocol = Items {
        server: server.clone(),
        frame,
        scanner: talk.tools.scanner(),
        forced: talk.tools.forced().map(|name| Call { name: name.to_string(), arguments: String::new() }),
        words: None,
        output: Vec::new(),
        sequence: 0,
        stop: None,
    };
    stream(talk.answering, protocol, server.settings.keep_alive_s)
}

/// An answer in items.
struct Items {
    server: Server,
    frame: Frame,
    scanner: Scanner,
    forced: Option<Call>,
    /// The message that is being sent: its name and its text.
    words: Option<(String, String)>,
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
            let mut item = words_item(&id, "", "in_progress");
            item["content"] = json!([]);
            self.tell("response.output_item.added", json!({"output_index": index, "item": item}), out);
            let part = json!({"type": "output_text", "text": "", "annotations": []});
            let added = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
            self.tell("response.content_part.added", added, out);
            self.words = Some((id, String::new()));
        }
        let Some((id, words)) = &mut self.words else { return };
        words.push_str(text);
        let delta =
            json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text, "logprobs": []});
        self.tell("response.output_text.delta", delta, out);
    }

    fn close(&mut self, out: &mut Frames) {
        let Some((id, text)) = self.words.take() else { return };
        let index = self.output.len();
        let at = json!({"item_id": id, "output_index": index, "content_index": 0});
        let with = |name: &str, value: Value| {
            let mut event = at.clone();
            event[name] = value;
            event
        };
        self.tell("response.output_text.done", with("text", text.clone().into()), out);
        let part = json!({"type": "output_text", "text": text, "annotations": []});
        self.tell("response.content_part.done", with("part", part), out);
        let item = words_item(&id, &text, status(self.stop.as_ref()));
        self.tell("response.output_item.done", json!({"output_index": index, "item": item}), out);
        self.output.push(item);
    }

    fn call(&mut self, call: &Call, out: &mut Frames) {
        self.close(out);
        let (index, item) = (self.output.len(), call_item(&self.server, call));
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
                (AnswerPart::Text(text), None) => self.text(&text, out),
                (AnswerPart::Call(call), _) => self.call(&call, out),
            }
        }
    }
}

impl Protocol for Items {
    fn begin(&mut self, out: &mut Frames) {
        for kind in ["response.created", "response.in_progress"] {
            let response = self.frame.json("in_progress", Vec::new(), Value::Null);
            self.tell(kind, json!({ "response": response }), out);
        }
    }

    fn event(&mut self, _: usize, event: Event, out: &mut Frames) {
        match event {
            Event::Piece { text, .. } => {
                let parts = self.scanner.push(&text);
                self.parts(parts, out);
            }
            Event::Ended { stop, .. } => {
                let parts = self.scanner.finish();
                self.parts(parts, out);
                self.stop = Some(stop);
                if let Some(call) = self.forced.take() {
                    self.call(&call, out);
                }
                self.close(out);
            }
            _ => {}
        }
    }

    fn fault(&mut self, fault: &Fault, out: &mut Frames) {
        let mut response = self.frame.json("failed", Vec::new(), Value::Null);
        response["error"] =
            json!({"code": fault.code.unwrap_or(fault.kind), "message": fault.json(Words::Kserve)["error"]});
        self.tell("response.failed", json!({ "response": response }), out);
    }

    fn end(&mut self, took: &Usage, out: &mut Frames) {
        let status = status(self.stop.as_ref());
        let response = self.frame.json(status, std::mem::take(&mut self.output), usage(took));
        self.tell(&format!("response.{status}"), json!({ "response": response }), out);
    }
}
