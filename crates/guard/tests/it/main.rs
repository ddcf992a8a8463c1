//! Tests of the guard from outside.

mod stream;
mod support;
