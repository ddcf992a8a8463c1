//! Models over HTTP: OpenAI's endpoints and their kin over any [`fathom_base::Service`].
//!
//! A request passes one door (its name, its key, its size), takes a permit before any work, and is a ticket at its model from then on:
//! whoever stops listening drops it, and the model is free within a step. What it was refused for is said in the words of its protocol.
//! All routes are in one table, each with who may ask it.
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
mod listen;
mod metrics;
mod openapi;
mod page;
mod routes;
mod server;
mod settings;
mod shared;
mod sse;
mod traces;

pub use api::tools::shown_marks;
pub use axum::Router;
pub use error::Error;
pub use fault::Fault;
pub use fields::{HARMLESS, REFUSED};
pub use keys::Keys;
pub use routes::{ADMIN, Access, ROUTES, Route, Takes, router};
pub use server::{Listening, check, is_loopback, serve};
pub use settings::{Recipe, Settings, ToolFormat};
pub use shared::{Log, Model, Opening, Reload, Shared};
