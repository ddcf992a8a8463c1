//! `/v1/chat/completions`.

use axum::body::Body;
use axum::http::Response;
use fathom_base::{Event, RequestOutput, Stop, TokenLogprob, Usage};
use serde_json::{Value, json};

use super::logprobs::{self, Spelling};
use super::params::Params;
use super::talk::{Talk, Tools, prompt_logprobs};
use super::tools::{AnswerPart, Call, Scanner};
use super::{
    AdmittedRequest, Answer, Server, apart, guardrails_chunk, ignored, json_answer, on_blocking_thread,
    usage, usage_chunk,
};
use crate::answering::{blocked, ended_by, reason};
use crate::fields::Fields;
use crate::knowledge::{CitationScanner, Sources};
use crate::now::now_s;
use crate::sse::{Frames, Protocol, stream};

/// Calls in the form of a message.
pub fn calls_json(server: &Server, calls: &[Call]) -> Value {
    let one = |call: &Call| {
        let function = json!({"name": call.name, "arguments": call.arguments});
        json!({"id": server.unique("call_"), "type": "function", "function": function})
    };
    calls.iter().map(one).collect()
}

/// The endpoint.
///
/// # Errors
/// Those of the request or of its answer.
pub async fn answer(server: Server, asked: AdmittedRequest) -> Answer {
    let of = server.clone();
    let mut talk = on_blocking_thread(asked, move |asked| {
        let mut fields = Fields::parse(&asked.body)?;
        let prompt_logprobs = prompt_logprobs(&mut fields, &of.settings)?;
        Talk::ask(&of, asked, fields, prompt_logprobs)
    })
    .await?;
    let id = server.unique("chatcmpl-");
    let unknown = std::mem::take(&mut talk.unknown);
    let response =
        if talk.params.stream { streamed(&server, id, talk) } else { whole(server, id, talk).await? };
    Ok(ignored(response, &unknown))
}

async fn whole(server: Server, id: String, mut talk: Talk) -> Answer {
    let answered = talk.collect().await?;
    apart(move || written(&server, &id, &talk, &answered)).await
}

/// A whole answer as JSON.
fn written(server: &Server, id: &str, talk: &Talk, answered: &RequestOutput) -> Answer {
    let spelling = Spelling { as_ids: talk.params.tokens_as_ids };
    let mut choices = Vec::new();
    for (index, answer) in answered.answers.iter().enumerate() {
        let (mut words, calls) = talk.tools.split(&answer.text);
        let citations = talk.sources.as_ref().map(|sources| sources.checked(&mut words));
        let mut message = json!({"role": "assistant", "content": words, "refusal": null});
        if let Some(Stop::Refused { why, .. }) = &answer.stop {
            message["refusal"] = why.as_str().into();
        }
        let mut why = reason(answer.stop.as_ref().unwrap_or(&Stop::Length));
        if !calls.is_empty() {
            message["tool_calls"] = calls_json(server, &calls);
            if words.is_empty() {
                message["content"] = Value::Null;
            }
            why = if why == "stop" && talk.tools.forced().is_none() { "tool_calls" } else { why };
        }
        let service = &*talk.params.model.service;
        let logprobs = talk.logprobs.map(|top| logprobs::chat(service, &answer.logprobs, spelling, top));
        let mut choice =
            json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": why});
        choice["stop_reason"] = ended_by(answer.stop.as_ref());
        if let Some(citations) = citations {
            choice["citations"] = citations;
        }
        if talk.params.token_ids {
            choice["token_ids"] = json!(answer.ids);
        }
        choices.push(choice);
    }
    let mut body = json!({
        "id": id,
        "object": "chat.completion",
        "created": now_s(),
        "model": talk.params.name,
        "system_fingerprint": talk.params.fingerprint(),
        "choices": choices,
        "usage": usage(&talk.answering.usage),
    });
    if let Some(sources) = &talk.sources {
        body["sources"] = sources.json();
    }
    if let Some(report) = talk.answering.guardrails() {
        body["guardrails"] = report;
    }
    if talk.params.token_ids {
        body["prompt_token_ids"] = json!(answered.prompt);
    }
    if let Some(top) = talk.prompt_logprobs {
        body["prompt_logprobs"] = logprobs::prompt(&*talk.params.model.service, &answered.logprobs, top);
    }
    Ok(json_answer(&body))
}

fn streamed(server: &Server, id: String, talk: Talk) -> Response<Body> {
    let Talk { answering, params, tools, logprobs, sources, .. } = talk;
    let progress = |_| StreamProgress {
        scanner: tools.scanner(),
        calls: 0,
        has_text: false,
        citations: sources.as_ref().map(Sources::scanner),
    };
    let sent = (0..params.answers()).map(progress).collect();
    let frame = json!({
        "id": id,
        "object": "chat.completion.chunk",
        "created": now_s(),
        "model": params.name,
        "system_fingerprint": params.fingerprint(),
    });
    let sources = sources.map(|sources| sources.json());
    let protocol =
        Chunks { server: server.clone(), params, tools, logprobs, frame, sent, sources, prompt: None };
    stream(answering, protocol, server.settings.keep_alive_s)
}

/// Progress of a streamed answer.
struct StreamProgress {
    scanner: Scanner,
    calls: usize,
    /// True once text was sent.
    has_text: bool,
    citations: Option<CitationScanner>,
}

/// A streamed answer.
struct Chunks {
    server: Server,
    params: Params,
    tools: Tools,
    logprobs: Option<usize>,
    frame: Value,
    sent: Vec<StreamProgress>,
    /// Sources that are sent with the first chunk.
    sources: Option<Value>,
    prompt: Option<Vec<u32>>,
}

impl Chunks {
    fn chunk(&mut self, choices: Value, out: &mut Frames) {
        let mut chunk = self.frame.clone();
        chunk["choices"] = choices;
        if let Some(sources) = self.sources.take() {
            chunk["sources"] = sources;
        }
        if self.params.include_usage {
            chunk["usage"] = Value::Null;
        }
        out.data(&chunk);
    }

    fn delta(&mut self, index: usize, delta: Value, rest: (Value, &[u32]), out: &mut Frames) {
        let (logprobs, ids) = rest;
        let mut choice = json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": null});
        if self.params.token_ids {
            choice["token_ids"] = json!(ids);
        }
        self.chunk(json!([choice]), out);
    }

    fn deltas(&mut self, index: usize, parts: Vec<AnswerPart>) -> Vec<Value> {
        let mut deltas = Vec::new();
        for part in parts {
            match part {
                AnswerPart::Text(text) if self.tools.forced().is_some() => {
                    let function = json!({ "arguments": text });
                    deltas.push(json!({"tool_calls": [{"index": 0, "function": function}]}));
                }
                AnswerPart::Text(text) => {
                    let citations = &mut self.sent[index].citations;
                    let text = match citations {
                        Some(citations) => citations.push(&text),
                        None => text,
                    };
                    if !text.is_empty() {
                        deltas.push(json!({ "content": text }));
                    }
                }
                AnswerPart::Call(call) => {
                    let mut call = calls_json(&self.server, &[call])[0].take();
                    call["index"] = self.sent[index].calls.into();
                    self.sent[index].calls += 1;
                    deltas.push(json!({"tool_calls": [call]}));
                }
            }
        }
        deltas
    }

    fn piece(&mut self, index: usize, text: &str, ids: &[u32], logprobs: &[TokenLogprob], out: &mut Frames) {
        self.sent[index].has_text |= !text.is_empty();
        let parts = self.sent[index].scanner.push(text);
        let mut deltas = self.deltas(index, parts);
        if deltas.is_empty() && (self.logprobs.is_some() || self.params.token_ids) {
            deltas.push(json!({}));
        }
        let spelling = Spelling { as_ids: self.params.tokens_as_ids };
        let service = &*self.params.model.service;
        let mut rest = match self.logprobs {
            Some(top) => (logprobs::chat(service, logprobs, spelling, top), ids),
            None => (Value::Null, ids),
        };
        for delta in deltas {
            self.delta(index, delta, rest, out);
            rest = (Value::Null, &[]);
        }
    }
}

impl Protocol for Chunks {
    fn begin(&mut self, out: &mut Frames) {
        for index in 0..self.sent.len() {
            self.delta(index, json!({"role": "assistant", "content": ""}), (Value::Null, &[]), out);
            if let Some(name) = self.tools.forced().map(str::to_string) {
                let function = json!({"name": name, "arguments": ""});
                let call = json!({"index": 0, "id": self.server.unique("call_"), "type": "function", "function": function});
                self.delta(index, json!({"tool_calls": [call]}), (Value::Null, &[]), out);
            }
        }
    }

    fn event(&mut self, _: usize, event: Event, out: &mut Frames) {
        match event {
            Event::Started { prompt, .. } if self.params.token_ids => self.prompt = Some(prompt),
            Event::Piece { answer, text, ids, logprobs } => self.piece(answer, &text, &ids, &logprobs, out),
            Event::Ended { answer, stop } => {
                let parts = self.sent[answer].scanner.finish();
                let mut deltas = self.deltas(answer, parts);
                let citations = self.sent[answer].citations.take().map(|mut citations| {
                    let rest = citations.finish();
                    deltas.extend((!rest.is_empty()).then(|| json!({ "content": rest })));
                    citations.json()
                });
                for delta in deltas {
                    self.delta(answer, delta, (Value::Null, &[]), out);
                }
                let why = match reason(&stop) {
                    "stop" if self.sent[answer].calls > 0 && self.tools.offered() => "tool_calls",
                    why => why,
                };
                let delta = match &stop {
                    Stop::Refused { why, .. } => json!({"refusal": why}),
                    _ => json!({}),
                };
                let mut choice =
                    json!({"index": answer, "delta": delta, "logprobs": null, "finish_reason": why});
                choice["stop_reason"] = ended_by(Some(&stop));
                if let Some(citations) = citations {
                    choice["citations"] = citations;
                }
                self.chunk(json!([choice]), out);
                blocked(&stop)
                    .filter(|_| self.sent[answer].has_text)
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
            let mut chunk = usage_chunk(&self.frame, took);
            if let Some(prompt) = &self.prompt {
                chunk["prompt_token_ids"] = json!(prompt);
            }
            out.data(&chunk);
        }
        out.done();
    }
}
