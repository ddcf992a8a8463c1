//! What stops a run: a path the user named that cannot be read, nothing to read at all, or an output that cannot be
//! written.

use std::path::{Path, PathBuf};

/// Everything that ends the reading of a corpus. Damaged records are counted instead, see
/// [`Counters`](crate::Counters).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder that was named could not be opened, listed or read.
    #[error("cannot read {}: {source}; check that the path exists and may be read", path.display())]
    Read {
        /// The path as it was given.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file behind an address could not be read.
    #[error("cannot read {location}: {detail}; {advice}")]
    Remote {
        /// The address as it was given.
        location: String,
        /// What the client or the server said.
        detail: String,
        /// What to do.
        advice: String,
    },
    /// A file that was named has an extension without a reader.
    #[error("{}: no reader for this kind of file; readable are {}", path.display(), crate::files::READABLE)]
    UnknownExtension {
        /// The path as it was given.
        path: PathBuf,
    },
    /// The Parquet file has no usable text column of the wanted name.
    #[error("{}: {problem}; choose one of its text columns ({columns}) as the field", path.display())]
    NoTextColumn {
        /// The Parquet file.
        path: PathBuf,
        /// What is wrong with the wanted column.
        problem: String,
        /// The names of the columns that could be read, comma separated.
        columns: String,
    },
    /// A file that was named is not what its extension says.
    #[error("{}: not a readable {kind} file: {detail}", path.display())]
    BadFile {
        /// The path as it was given.
        path: PathBuf,
        /// The kind that its extension promises.
        kind: &'static str,
        /// What the decoder said.
        detail: String,
    },
    /// Documents of two files would have the same ids.
    #[error(
        "{first} and {second} would both be called `{name}`; name no file twice, and give inputs whose files have the same \
         names different names, as in `paths = [\"a=one/\", \"b=two/\"]`"
    )]
    SameName {
        /// What the documents of both would be called.
        name: String,
        /// The path or address of the first.
        first: String,
        /// The path or address of the second.
        second: String,
    },
    /// Not one document came out of everything that was looked at.
    #[error("no text found: looked at {looked_at}; {outcome}")]
    EmptyCorpus {
        /// The paths that were searched.
        looked_at: String,
        /// How many files there were and why none gave a document.
        outcome: String,
    },
    /// A file of the corpus could not be written, or the folder could not be made.
    #[error("cannot {action} {}: {source}", path.display())]
    Write {
        /// What was tried: `create`, `write`, `rename`, `remove`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A setting of the corpus that cannot be.
    #[error("corpus: `{key}` is {found}; {advice}")]
    Setting {
        /// The field of [`CorpusSpec`](crate::CorpusSpec).
        key: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        advice: String,
    },
    /// The recipe of a curation.
    #[error(transparent)]
    Recipe(#[from] fathom_base::Error),
    /// The run was told to end; the next one goes on from here.
    #[error("stopped at `{at}`; the next run with the same folder goes on from here")]
    Interrupted {
        /// The point of the run.
        at: String,
    },
    /// A stage panicked where it should have counted a loss.
    #[error("a stage panicked: {detail}; leave the stage out, or report the text it panicked on")]
    Panicked {
        /// The panic's message.
        detail: String,
    },
    /// A file that an earlier step of the run wrote is gone.
    #[error("{} is missing; run the same recipe again, it makes what is missing", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A table that is not as a stage needs it.
    #[error("a table of documents is not as it should be: {detail}")]
    Table {
        /// What is wrong.
        detail: String,
    },
    /// Threads that the system refuses.
    #[error("cannot start threads: {detail}; ask for fewer with `threads=`")]
    Threads {
        /// What the system said.
        detail: String,
    },
    /// A query over tables.
    #[error("query: {detail}")]
    Query {
        /// What the engine said.
        detail: String,
    },
    /// An option of a curation stage that cannot be.
    #[error("{stage}: `{key}` is {found}; {advice}")]
    Option {
        /// The stage.
        stage: &'static str,
        /// The key of its options.
        key: String,
        /// Its value, in words.
        found: String,
        /// What it may be.
        advice: String,
    },
    /// A model that a stage asks.
    #[error("the model in {}: {detail}", folder.display())]
    Model {
        /// Its Hugging Face folder.
        folder: PathBuf,
        /// What is wrong and what to do.
        detail: String,
    },
    /// A cluster for whole tables.
    #[cfg(feature = "ballista")]
    #[error("cannot {doing} {address}: {detail}; {advice}")]
    Cluster {
        /// What was tried: `reach the scheduler at`.
        doing: &'static str,
        /// The address as it was given.
        address: String,
        /// What the system or the cluster said.
        detail: String,
        /// What to do.
        advice: &'static str,
    },
    /// The tables' engine gave up.
    #[error("cannot {doing} the table {}: {detail}; check the space left on its disk and the limit on memory", path.display())]
    Engine {
        /// What it was doing: `start`, `sort`.
        doing: &'static str,
        /// The table or folder.
        path: PathBuf,
        /// What it said.
        detail: String,
    },
    /// A piece that works on texts.
    #[error(transparent)]
    Prose(#[from] fathom_prose::Error),
    /// The tokenizer or the token store.
    #[error(transparent)]
    Text(#[from] fathom_text::Error),
}

impl Error {
    /// A failure to read `path`.
    pub(crate) fn read(path: &Path, source: std::io::Error) -> Error {
        Error::Read { path: path.to_path_buf(), source }
    }
    /// A setting of a stage that cannot be.
    pub(crate) fn setting(key: &'static str, found: impl std::fmt::Display, advice: &'static str) -> Error {
        Error::Option {
            stage: "dedup",
            key: key.to_string(),
            found: found.to_string(),
            advice: advice.to_string(),
        }
    }
    /// A failure to write `path`.
    pub(crate) fn write(action: &'static str, path: &Path, source: std::io::Error) -> Error {
        Error::Write { action, path: path.to_path_buf(), source }
    }
}
