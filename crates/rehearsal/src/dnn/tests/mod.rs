//! Graphs through the exported functions, compared with direct computation.

mod attention;
mod bench;
mod execution;
mod operations;
mod packed;
mod refusals;
