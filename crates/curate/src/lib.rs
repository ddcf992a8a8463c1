//! Curation: reading text from files and archives, deduplication, and the pipeline from a recipe to a token store.
//!
//! A corpus is an iterator of [`Document`]s. [`gather`] walks the sources of Fathom's own dependencies, [`open`]
//! reads paths named by the user; both return [`Documents`], which reads one record at a time. [`Unique`] drops exact
//! duplicates and [`group_documents`] joins whole files of one group into long documents. The adapters chain like any
//! iterator:
//!
//! ```no_run
//! # use std::path::PathBuf;
//! # use fathom_curate::{open, group_documents, ReadOptions, Sameness, Unique};
//! # fn main() -> Result<(), fathom_curate::Error> {
//! let mut documents = open(&[PathBuf::from("notes/")], &ReadOptions::default())?;
//! let mut unique = Unique::new(&mut documents, Sameness::Bytes);
//! for document in group_documents(&mut unique, 256 << 10) {
//!     println!("{}", document?.source);
//! }
//! # Ok(()) }
//! ```
//!
//! Three guarantees hold everywhere. The order of documents depends on names and contents, never on the file system's
//! listing order. An unreadable record is counted with its place ([`Counters`]), never fatal and never silent; only a
//! path named by the user may stop the run. Memory holds the list of files and one record, whatever the size of a
//! file.
//!
//! [`build`] runs the whole chain: from a [`CorpusSpec`] to a tokenizer and a token store on disk, ready for
//! training.
//!
//! Processing of single texts is in `fathom-prose`; [`pipeline`] combines it with the operations on the whole corpus.
//!
//! Without the cargo feature `pipeline`, only the readers of local files and [`build`] are available, without a query
//! engine.
//!
//! This crate does not depend on tensors or the environment: folders are passed in. Only [`build`] deals with tokens.

// Some items of the readers and counters are used only by the pipeline.
#![cfg_attr(not(feature = "pipeline"), allow(dead_code, unused_imports))]

#[cfg(feature = "pipeline")]
pub mod bench;
#[cfg(feature = "pipeline")]
pub mod blend;
mod corpus;
mod counters;
#[cfg(feature = "pipeline")]
pub mod decontaminate;
pub mod dedup;
mod document;
#[cfg(feature = "pipeline")]
mod durable;
mod error;
mod files;
mod gather;
mod join;
mod kinds;
#[cfg(feature = "pipeline")]
pub mod pipeline;
#[cfg(feature = "pipeline")]
mod quality;
mod read;
#[cfg(feature = "pipeline")]
pub mod stage;
#[cfg(feature = "pipeline")]
pub mod tables;

#[cfg(feature = "pipeline")]
pub use corpus::curation;
pub use corpus::{
    CorpusReport, CorpusSpec, CorpusTotals, Curation, Input, Phase, Progress, Seconds, SourceTotals,
    TokenizerFrom, altered, build, built, held_out_documents, made_otherwise, store_prefix, tokenizer_dir,
};
pub use counters::{Counters, Damage, DocumentCounts, Reason};
pub use dedup::{Sameness, Unique};
pub use document::Document;
pub use error::Error;
pub use gather::{GatherOptions, default_roots, gather};
pub use join::{DocumentJoiner, SEPARATOR, group_documents};
pub use kinds::Format;
#[cfg(feature = "pipeline")]
pub use quality::{QualityExamples, QualityReport, QualityTraining, train_quality};
pub use read::{Charset, Columns, Documents, RawRecord, ReadOptions, html_to_text, open};
#[cfg(feature = "pipeline")]
pub use read::{
    CrawlFiles, InputFile, RawOptions, RawRecords, RemoteOptions, Snapshot, fetch, input_files, is_remote,
    named_files, remote_files,
};
