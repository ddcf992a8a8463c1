//! Streamed answers, as server-sent events.

use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use fathom_base::{Event, Usage};
use serde_json::Value;

use crate::answering::ModelRequests;
use crate::fault::{Fault, Words};

/// Maximum number of events written at once.
const TOGETHER: usize = 64;

/// Serialised events of a stream.
#[derive(Debug, Default)]
pub struct Frames(String);

impl Frames {
    /// An event without a name.
    pub fn data(&mut self, value: &Value) {
        _ = write!(self.0, "data: {value}\n\n");
    }

    /// An event with a name.
    pub fn named(&mut self, name: &str, value: &Value) {
        _ = write!(self.0, "event: {name}\ndata: {value}\n\n");
    }

    /// OpenAI's end marker of a stream.
    pub fn done(&mut self) {
        self.0.push_str("data: [DONE]\n\n");
    }

    fn comment(&mut self) {
        self.0.push_str(": keep-alive\n\n");
    }
}

/// Representation of events in a protocol.
pub trait Protocol: Send + 'static {
    /// The beginning of the stream.
    fn begin(&mut self, out: &mut Frames);
    /// An event of a prompt.
    fn event(&mut self, prompt: usize, event: Event, out: &mut Frames);
    /// The request failed; nothing follows.
    fn fault(&mut self, fault: &Fault, out: &mut Frames) {
        out.data(&fault.json(Words::OpenAi));
        out.done();
    }
    /// The rails' account, if the request asks for it; comes before the end.
    fn guardrails(&mut self, report: Value, out: &mut Frames);
    /// All answers have ended.
    fn end(&mut self, usage: &Usage, out: &mut Frames);
}

struct Stream<P> {
    answering: ModelRequests,
    protocol: P,
    keep_alive: Duration,
    started: bool,
}

impl<P: Protocol> Stream<P> {
    /// The next bytes to write, and whether more follow.
    async fn next(&mut self) -> (Bytes, bool) {
        let mut out = Frames::default();
        if !self.started {
            self.started = true;
            self.protocol.begin(&mut out);
            if !out.0.is_empty() {
                return (out.0.into(), true);
            }
        }
        while out.0.is_empty() {
            match tokio::time::timeout(self.keep_alive, self.answering.next()).await {
                Err(_) => out.comment(),
                Ok(event) => {
                    if !self.take(event, &mut out) {
                        return (out.0.into(), false);
                    }
                }
            }
        }
        for _ in 0..TOGETHER {
            let Some(event) = self.answering.ready() else { break };
            if !self.take(Some(event), &mut out) {
                return (out.0.into(), false);
            }
        }
        (out.0.into(), true)
    }

    /// Processes an event; false at the end.
    fn take(&mut self, event: Option<Result<(usize, Event), Fault>>, out: &mut Frames) -> bool {
        match event {
            None => {
                if let Some(report) = self.answering.guardrails() {
                    self.protocol.guardrails(report, out);
                }
                self.protocol.end(&self.answering.usage, out);
            }
            Some(Err(fault)) => self.protocol.fault(&fault, out),
            Some(Ok((prompt, event))) => {
                self.protocol.event(prompt, event, out);
                return true;
            }
        }
        false
    }
}

/// The streaming response.
pub fn stream(answering: ModelRequests, protocol: impl Protocol, keep_alive_s: f64) -> Response<Body> {
    let keep_alive = Duration::from_secs_f64(keep_alive_s.clamp(0.05, 3600.0));
    let stream = Stream { answering, protocol, keep_alive, started: false };
    let body = futures::stream::unfold(Some(stream), |stream| async move {
        let mut stream = stream?;
        let (bytes, more) = stream.next().await;
        Some((Ok::<_, Infallible>(bytes), more.then_some(stream)))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
