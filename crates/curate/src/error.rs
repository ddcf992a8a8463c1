//! What stops a run: a path the user named that cannot be read, nothing to read at all, or an output that cannot be
//! written.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use fathom_base::secrets::redacted;

use crate::counters::Reason;

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
    /// A file could not be opened or read for a reason that may pass and says nothing about its content: a disk or a
    /// server that is unreachable, too many open files. It is never counted as damage.
    #[error(
        "cannot read {location}{}: {detail}; this may pass: try again, and leave the file out if it stays so",
        offset.map(|offset| format!(" at byte {offset}")).unwrap_or_default()
    )]
    Unavailable {
        /// The path or address.
        location: String,
        /// The byte of the file that could not be had; `None` where it could not be opened.
        offset: Option<u64>,
        /// What the system or the server said.
        detail: String,
    },
    /// Parts of a table that were not made, because files could not be read for a reason that may pass.
    #[error(
        "{parts} of {of} parts are not made: {first}; the next run with the same folder makes only what is missing"
    )]
    Unread {
        /// How many parts.
        parts: usize,
        /// How many parts there were to make.
        of: usize,
        /// Why the first of them was not.
        first: Box<Error>,
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
    /// The file has no usable text column of the wanted name, a Parquet file by its schema, one of JSON in any record.
    #[error("{}: {problem}; choose one of its text columns ({columns}) as the field, or leave the file out", path.display())]
    NoTextColumn {
        /// The file.
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
    /// The folder of the results holds those of other inputs.
    #[error(
        "{} holds a curation of other inputs ({held}); give this one another folder with `out=...`, or remove that one first",
        folder.display()
    )]
    OtherCuration {
        /// The folder.
        folder: PathBuf,
        /// What that curation read.
        held: String,
    },
    /// A folder that a curation would empty is not its own.
    #[error(
        "{} is not empty, and no curation made it: its files would be removed; give this one another folder with `out=...`",
        folder.display()
    )]
    ForeignFolder {
        /// The folder.
        folder: PathBuf,
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
    /// The run was asked to end; the next one goes on from here.
    #[error("stopped at `{at}`; the next run with the same folder goes on from here")]
    Interrupted {
        /// The point of the run.
        at: String,
    },
    /// Another process works in the folder of the results.
    #[error(
        "{} is in use by {holder}, as rank {rank} of {world_size}; wait for its end, end it, or give this run another folder \
         with `out=...`",
        folder.display()
    )]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// Who, in words.
        holder: String,
        /// The number of that process among those of its run.
        rank: usize,
        /// The number of processes of that run.
        world_size: usize,
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
    /// A file that an earlier step of the run wrote holds something else now.
    #[error("{} has changed since it was written; run the same recipe again, rank 0 first: it makes the file again", path.display())]
    Changed {
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
    /// A failure to open a file or to read it at an offset.
    pub(crate) fn access(location: &str, offset: Option<u64>, source: io::Error) -> Error {
        if !may_pass(&source) {
            return Error::read(location.as_ref(), source);
        }
        let location = redacted(location).into_owned();
        Error::Unavailable { location, offset, detail: source.to_string() }
    }
    /// What a file is counted under that cannot be opened or read because of this; `None` where that may pass, so that
    /// it must not be counted.
    pub(crate) fn reason(&self) -> Option<Reason> {
        match self {
            Error::Unavailable { .. } => None,
            Error::BadFile { .. } => Some(Reason::BrokenArchive),
            Error::NoTextColumn { .. } => Some(Reason::NoTextField),
            _ => Some(Reason::Unreadable),
        }
    }
    /// A failure to read `path`, which may be an address that was taken for one.
    pub(crate) fn read(path: &Path, source: std::io::Error) -> Error {
        let path = match path.to_str().map(redacted) {
            Some(Cow::Owned(shown)) => PathBuf::from(shown),
            _ => path.to_path_buf(),
        };
        Error::Read { path, source }
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

/// Whether a failure to open or read a file may pass: a disk or network that is unreachable (`EIO`, `ESTALE`, `ETIMEDOUT`), too many
/// open files (`EMFILE`, `ENFILE`), no memory. What lasts is listed; all else may pass, because to try once too often costs less
/// than a file that is left out for good.
pub(crate) fn may_pass(error: &io::Error) -> bool {
    use io::ErrorKind::{
        InvalidData, InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied,
        UnexpectedEof, Unsupported,
    };
    // `ELOOP`, symbolic links in a circle, which a folder from anywhere may hold; its kind has no stable name.
    const LOOP: i32 = if cfg!(target_os = "linux") { 40 } else { 62 };
    let lasts = matches!(
        error.kind(),
        NotFound
            | PermissionDenied
            | NotADirectory
            | IsADirectory
            | InvalidFilename
            | InvalidInput
            | InvalidData
            | UnexpectedEof
            | Unsupported
    );
    !lasts && error.raw_os_error() != Some(LOOP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn what_may_pass_is_distinguished_from_what_lasts() {
        // ENXIO, EIO, EAGAIN, ENOMEM, EBUSY, ENFILE, EMFILE, ENOSPC, ENOTCONN, ETIMEDOUT, EHOSTDOWN, ESTALE, EUCLEAN, EDQUOT
        for number in [6, 5, 11, 12, 16, 23, 24, 28, 107, 110, 112, 116, 117, 122] {
            let error = io::Error::from_raw_os_error(number);
            assert!(may_pass(&error), "{error}");
            assert_eq!(Error::access("a", Some(7), error).reason(), None);
        }
        // EPERM, ENOENT, EACCES, ENOTDIR, EISDIR, EINVAL, ENAMETOOLONG, ENOSYS, ELOOP, EOPNOTSUPP
        for number in [1, 2, 13, 20, 21, 22, 36, 38, 40, 95] {
            let error = io::Error::from_raw_os_error(number);
            assert!(!may_pass(&error), "{error}");
            assert_eq!(Error::access("a", None, error).reason(), Some(Reason::Unreadable));
        }
        let said = Error::access("a.gz", Some(7), io::Error::from_raw_os_error(5)).to_string();
        assert!(said.starts_with("cannot read a.gz at byte 7: Input/output error"), "{said}");
    }
}
