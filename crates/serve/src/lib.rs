//! Models over HTTP: OpenAI's endpoints and related ones over any [`fathom_base::Service`].
//!
//! Every request passes the same checks (request id, key, size) and takes a permit before any work; from then on it is
//! a ticket at its model. A client that disconnects drops it, which frees the model within a step. Refusals are
//! reported in the format of the request's protocol. All routes are in one table, with their access rules.
//!
//! This crate knows nothing of engines, tensors or files of models; it prints nothing.

mod admission;
mod answering;
mod api;
pub mod bench;
mod door;
mod drain;
mod error;
mod fault;
mod fields;
mod keys;
mod knowledge;
mod listen;
mod metrics;
mod now;
mod openapi;
mod page;
mod rails;
mod route;
mod routes;
mod server;
mod settings;
mod shared;
mod sse;
mod traces;
mod view;

pub use api::tools::shown_marks;
pub use axum::Router;
pub use error::Error;
pub use fault::Fault;
pub use fields::{HARMLESS, REFUSED};
pub use keys::ApiKeys;
pub use knowledge::{
    Knowledge, KnowledgeBase, Passage, Screen, ScreenVerdict, SearchRequest, SearchResult, Sources,
};
pub use rails::{RailRecord, RailSpan, RailedModel, Rails};
pub use route::{Access, Route, Takes};
pub use routes::{ADMIN, ROUTES, VIEW, router};
pub use server::{ServerAddresses, check, is_loopback, serve};
pub use settings::{Recipe, Settings, ToolFormat};
pub use shared::{Log, Model, Reload, ServeOptions, ServerState};
pub use view::View;
