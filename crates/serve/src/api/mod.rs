//! The endpoints: their inputs and outputs.

pub mod admin;
pub mod chat;
pub mod checks;
pub mod completions;
pub mod info;
pub mod kserve;
mod logprobs;
pub mod messages;
mod params;
mod raw;
pub mod responses;
pub mod schema;
pub mod search;
mod talk;
pub mod tensors;
pub mod tokens;
pub mod tools;
pub mod vectors;
pub mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response, header};
use bytes::Bytes;
use fathom_base::Usage;
use serde_json::{Value, json};

use crate::admission::Permit;
use crate::fault::Fault;
use crate::keys::Asker;
use crate::shared::ServerState;
use crate::traces::RequestTrace;

/// Result of an endpoint.
pub type Answer = Result<Response<Body>, Fault>;

/// Names of a request.
#[derive(Clone, Debug)]
pub struct RequestNames {
    /// Id in the log.
    pub id: String,
    /// Position in a trace.
    pub traced: RequestTrace,
    /// The operation, in OpenTelemetry's terms.
    pub operation: &'static str,
    /// Set when the client has left.
    pub left: Arc<AtomicBool>,
}

impl RequestNames {
    /// True if the client has left.
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }
}

/// An admitted request with its body.
pub struct AdmittedRequest {
    /// Its names in the log and in traces.
    pub id: RequestNames,
    /// The client.
    pub asker: Asker,
    /// Its path.
    pub path: String,
    /// Its body.
    pub body: Bytes,
    /// Length of the body's JSON part, if tensors follow it.
    pub json_bytes: Option<usize>,
    /// Its permit, if the route does work.
    pub permit: Option<Permit>,
    /// Permit for its body's bytes.
    pub _bytes: Option<Permit>,
}

/// Records that the client has left, when dropped.
struct LeaveFlag(Arc<AtomicBool>);

impl Drop for LeaveFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Prepares a response outside the threads that drive connections: reading a body, filling in a template, tokenising
/// and compiling a structure can take arbitrarily long, whatever the body's size. The result is not wanted any more
/// once the client leaves.
///
/// # Errors
/// Those of `work`.
pub async fn on_blocking_thread<T: Send + 'static>(
    asked: AdmittedRequest,
    work: impl FnOnce(AdmittedRequest) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let _leaving = LeaveFlag(asked.id.left.clone());
    apart(move || if asked.id.has_left() { Err(Fault::left()) } else { work(asked) }).await
}

/// Runs long work outside the threads that drive connections.
///
/// # Errors
/// Those of `work`.
pub async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Fault::ours("the request failed by a defect of the server")))
}

/// A JSON response.
pub fn json_answer(value: &Value) -> Response<Body> {
    typed("application/json", value.to_string())
}

/// A response with a content type.
pub fn typed(kind: &'static str, text: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Lists unknown fields, which had no effect, in a header.
pub fn ignored(mut response: Response<Body>, unknown: &[String]) -> Response<Body> {
    let plain = |name: &&String| {
        name.len() < 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte))
    };
    let names: Vec<&str> = unknown.iter().filter(plain).take(16).map(String::as_str).collect();
    if let Ok(value) = HeaderValue::from_str(&names.join(", "))
        && !names.is_empty()
    {
        response.headers_mut().insert(HeaderName::from_static("x-fathom-ignored"), value);
    }
    response
}

/// OpenAI's `usage`.
pub fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.answer_tokens,
        "total_tokens": usage.prompt_tokens + usage.answer_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

/// A chunk of a stream that reports on guardrails.
fn guardrails_chunk(frame: &Value, report: Value) -> Value {
    let mut chunk = frame.clone();
    (chunk["choices"], chunk["guardrails"]) = (json!([]), report);
    chunk
}

/// The last chunk of a stream, with its usage.
fn usage_chunk(frame: &Value, took: &Usage) -> Value {
    let mut chunk = frame.clone();
    (chunk["choices"], chunk["usage"]) = (json!([]), usage(took));
    chunk
}

/// The server's shared state, for endpoints.
pub type Server = Arc<ServerState>;
