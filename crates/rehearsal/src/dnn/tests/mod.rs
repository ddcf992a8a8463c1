//! Graphs through the exported functions, against direct computation.

mod attention;
mod bench;
mod execution;
mod operations;
mod packed;
mod refusals;
