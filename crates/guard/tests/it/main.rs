//! Tests of the guard from outside.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod checks;
mod config;
mod engine;
mod guarded;
mod hostile;
mod rails;
mod service;
mod stream;
mod support;
