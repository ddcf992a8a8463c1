//! A route: its access, its input, the format of its errors and its handler.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::api::{AdmittedRequest, Answer};
use crate::fault::Words;
use crate::shared::ServerState;

/// Access to a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everyone.
    Open,
    /// Clients with a key, if keys are required.
    Keyed,
}

/// Input of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nothing.
    Nothing,
    /// JSON.
    Json,
    /// JSON, and a permit for the work of a model or its tokenizer.
    Work,
}

/// Handler of an admitted request.
pub type Call = fn(Arc<ServerState>, AdmittedRequest) -> Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A route.
pub struct Route {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// Its path, as the router reads it.
    pub path: &'static str,
    /// Access.
    pub access: Access,
    /// Input.
    pub takes: Takes,
    /// Format of its errors.
    pub words: Words,
    /// Description.
    pub about: &'static str,
    /// Its handler.
    pub call: Call,
}

impl Route {
    /// True if it answers conversations.
    pub fn converses(&self) -> bool {
        ["/v1/chat/completions", "/v1/responses", "/v1/messages"].contains(&self.path)
    }
}
