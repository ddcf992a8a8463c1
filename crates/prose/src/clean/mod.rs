//! Text modifiers: each is a function from `&str` to `Cow<str>`, and all are combined in one pass.
//!
//! [`Cleaner`] is compiled once from [`CleanOptions`] and shared by threads. Its order is fixed: Unicode repair,
//! outer quotation marks, boilerplate paragraphs, then line by line URLs, Markdown and unwanted lines, then runs of
//! newlines, then the slice. The line steps share a single pass that writes the result once; a text that no step
//! changes is returned as it is. The result equals the steps applied one after another.
//!
//! This module is independent of tables, files and threads.

mod fused;
mod lines;
mod whole;

pub mod unicode;

pub use fused::{CleanOptions, Cleaner};
pub use lines::{LineRemover, UrlRemover, normalize_newlines, remove_markdown};
pub use unicode::{Normalization, Unescape, UnicodeFixer, UnicodeOptions};
pub use whole::{BoilerplateRemover, SliceAt, SliceOptions, remove_quotation, slice};
