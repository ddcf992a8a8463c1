//! The server over a pretended model: requests through the router, in one process.
#![allow(clippy::unwrap_used)]

mod access;
mod adapters;
mod admission;
mod alike;
mod bench;
mod chat;
mod completions;
mod fuzz;
mod guarded;
mod guarded_models;
mod guarded_passages;
mod hostile;
mod knowledge;
mod mock;
mod others;
mod protocols;
mod reload;
mod traces;
