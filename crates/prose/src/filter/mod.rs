//! Heuristic quality filters over `&str`: NeMo Curator's English and multilingual sets, Gopher, FineWeb, C4 and code.
//!
//! [`Filters`] is compiled once from [`FilterOptions`] and shared by all threads; every thread uses its own
//! [`Scratch`]. A single scan finds words, lines, paragraphs and n-grams; every enabled filter derives its value from
//! these facts, each of which is computed at most once and only if a filter needs it. Filters are evaluated in the
//! order of Curator's cascade, so [`Filters::check`], which stops at the first refusal, reports the same reason as
//! [`Filters::scores`], which evaluates all.
//!
//! A value is what the filter's publication measures (a share, a count). Characters are Unicode scalar values; words
//! are split like Python's `str.split`, and by dictionary ([`WordRule`]) in text without spaces. Text without words
//! has no values: it is rejected as `empty` before any share could divide by zero.
//!
//! This module is independent of tables, files and threads.

mod c4;
mod catalog;
mod chars;
mod code;
mod comments;
mod extensions;
mod fused;
mod generated;
mod histogram;
mod lines;
mod ngrams;
mod options;
mod phrases;
mod ranges;
mod repetition;
mod scratch;
mod segments;
mod select;
mod table;
mod tokens;
mod unicode;
mod urls;
mod words;

pub use c4::{C4, C4Options};
pub use catalog::Filter;
pub use code::{CodeFile, CodeFilters, CodeOptions, TokenFilter};
pub use comments::CommentStyle;
pub use extensions::{ExtensionRule, ExtensionRules};
pub use fused::{Filters, Refusal, Score};
pub use generated::{is_generated, longest_line};
pub use histogram::Histogram;
pub use options::Set;
pub use options::{
    FilterOptions, FineWebOptions, GopherOptions, NGramLimit, Position, SubstringOptions, WordRule,
};
pub use scratch::Scratch;
pub use unicode::{is_space, strip};

pub(crate) use lines::paragraphs;
pub(crate) use phrases::PolicyPhrases;
pub(crate) use urls::find_urls;
