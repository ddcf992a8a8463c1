//! The endpoints: what each takes, and what it answers.

pub mod admin;
pub mod chat;
pub mod completions;
pub mod info;
pub mod kserve;
mod logprobs;
pub mod messages;
mod params;
mod raw;
pub mod responses;
pub mod schema;
pub mod tensors;
pub mod tokens;
pub mod tools;
pub mod vectors;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response, header};
use bytes::Bytes;
use fathom_base::Usage;
use serde_json::{Value, json};

use crate::admission::Permit;
use crate::fault::Fault;
use crate::fields::Fields;
use crate::keys::Asker;
use crate::shared::Shared;
use crate::traces::Traced;

/// What an endpoint answers with.
pub type Answer = Result<Response<Body>, Fault>;

/// What a request is called.
#[derive(Clone, Debug)]
pub struct Named {
    /// In the log.
    pub id: String,
    /// In a trace.
    pub traced: Traced,
    /// What is done for it, in OpenTelemetry's words.
    pub operation: &'static str,
    /// Who asked does not listen any more.
    pub left: Arc<AtomicBool>,
}

impl Named {
    /// Who asked does not listen any more.
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }
}

/// A request, let in and read.
pub struct Asked {
    /// Its name in the log, and where it stands in a trace.
    pub id: Named,
    /// Who asks.
    pub asker: Asker,
    /// Its path.
    pub path: String,
    /// Its body.
    pub body: Bytes,
    /// Bytes of the body that are JSON, where tensors come behind them.
    pub json_bytes: Option<usize>,
    /// Its permit, if the route does work.
    pub permit: Option<Permit>,
    /// What its body takes of the room for bodies.
    pub _bytes: Option<Permit>,
}

impl Asked {
    /// The fields of the body.
    ///
    /// # Errors
    /// It is no JSON object.
    pub fn fields(&self) -> Result<Fields, Fault> {
        Fields::parse(&self.body)
    }

    /// The permit.
    ///
    /// # Errors
    /// The route takes none.
    pub fn permit(&mut self) -> Result<Permit, Fault> {
        self.permit.take().ok_or_else(|| Fault::ours("this route has no permit"))
    }

    /// What prefixes may be shared within: one key, and what the request says.
    pub fn scope(&self, salt: Option<String>) -> String {
        let key = match &self.asker {
            Asker::Known(key) => key.as_str(),
            _ => "",
        };
        format!("{key}/{}", salt.unwrap_or_default())
    }
}

/// Says that who asked has left, once it is dropped.
struct Leaving(Arc<AtomicBool>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs what prepares an answer, outside the threads that drive connections: reading a body, filling in a template, tokenising and compiling
/// a structure take as long as a client likes, whatever the body's size. It is no longer wanted when the client leaves.
///
/// # Errors
/// Its own.
pub async fn prepared<T: Send + 'static>(
    asked: Asked,
    work: impl FnOnce(Asked) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let _leaving = Leaving(asked.id.left.clone());
    apart(move || if asked.id.has_left() { Err(Fault::left()) } else { work(asked) }).await
}

/// Runs what takes long outside the threads that drive connections.
///
/// # Errors
/// Its own.
pub async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Fault::ours("the request failed by a defect of the server")))
}

/// An answer of JSON.
pub fn json_answer(value: &Value) -> Response<Body> {
    typed("application/json", value.to_string())
}

/// An answer of a type.
pub fn typed(kind: &'static str, text: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Names the unknown fields, in a header: they had no effect.
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

/// The server, for endpoints.
pub type Server = Arc<Shared>;
