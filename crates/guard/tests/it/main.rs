//! Tests of the guard from outside.

mod checks;
mod config;
mod engine;
mod guarded;
mod rails;
mod service;
mod stream;
mod support;
