//! Tests of the guard from outside.

mod checks;
mod config;
mod engine;
mod guarded;
mod measure;
mod rails;
mod service;
mod stream;
mod support;
