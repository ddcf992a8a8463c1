//! Functions of one text: extraction, cleaning, language, filters, personal data.
//!
//! Pure functions and plain types over `&str`, compiled once and shared by threads: [`extract`] (web pages, LaTeX and
//! wikitext to text), [`clean`] (Unicode repair and modifiers), [`language`] (languages, quality models read and trained),
//! [`filter`] (heuristics of NeMo Curator, Gopher, FineWeb, C4 and for code, in one scan), [`pii`] (personal data).
//!
//! Every piece has options with the published defaults and a compiled form. Hostile text ends in a refusal with a reason:
//! depth, size and time are bounded.
//!
//! This crate knows nothing of corpora: no tables, threads or tokens; files only where a model or list is named.

pub mod clean;
mod error;
pub mod extract;
pub mod filter;
pub mod language;
pub mod pii;

pub use error::Error;
