//! Processing of single texts: extraction, cleaning, language, filters, personal data.
//!
//! Pure functions and plain types over `&str`, compiled once and shared by threads: [`extract`] (web pages, LaTeX and
//! wikitext to text), [`clean`] (Unicode repair and modifiers), [`language`] (language detection, quality models),
//! [`filter`] (heuristics of NeMo Curator, Gopher, FineWeb, C4 and for code, in one scan), [`pii`] (personal data).
//!
//! Every component has options with the published defaults, and a compiled form. Hostile text ends in a refusal with
//! a reason: depth, size and time are bounded.
//!
//! This crate does not deal with corpora, tables, threads or tokens, and reads files only if a model or list is
//! named.

pub mod clean;
mod error;
pub mod extract;
pub mod filter;
pub mod language;
pub mod pii;

pub use error::Error;
