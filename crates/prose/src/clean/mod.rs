//! Modifiers of text: each a function from `&str` to `Cow<str>`, and all of them in one pass.
//!
//! [`Cleaner`] is compiled once from [`CleanOptions`] and shared by threads. Its order is fixed: Unicode repair, outer
//! quotation marks, boilerplate paragraphs, then line by line URLs, Markdown and unwanted lines, then runs of newlines,
//! then the slice. The line steps are done in one walk that writes the result once; a text that no step changes is
//! given back as it is. The result equals the steps applied one after another.
//!
//! This module knows nothing of tables, files or threads.

mod fused;
mod lines;
mod whole;

pub mod unicode;

pub use fused::{CleanOptions, Cleaner};
pub use lines::{LineRemover, UrlRemover, normalize_newlines, remove_markdown};
pub use unicode::{Normalization, Unescape, UnicodeFixer, UnicodeOptions};
pub use whole::{BoilerplateRemover, SliceAt, SliceOptions, remove_quotation, slice};
