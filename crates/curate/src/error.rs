//! Errors that stop a run: unreadable paths named by the user, empty input, unwritable output and others.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use fathom_base::secrets::redacted;

use crate::counters::Reason;

/// Fatal errors of a curation or corpus build. Damaged records are counted instead, see
/// [`Counters`](crate::Counters).
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages show what the fields are.
pub enum Error {
    /// A named file or folder could not be opened, listed or read.
    #[error("cannot read {}: {source}; check that the path exists and may be read", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// A transient failure to open or read a file that says nothing about its content: an unreachable disk or server,
    /// too many open files. Never counted as damage.
    #[error(
        "cannot read {location}{}: {detail}; this may pass: try again, and leave the file out if it stays so",
        offset.map(|offset| format!(" at byte {offset}")).unwrap_or_default()
    )]
    Unavailable {
        location: String,
        /// Byte offset of the failed read; `None` if the file could not be opened.
        offset: Option<u64>,
        detail: String,
    },
    /// Table parts that were not made because files could not be read for a transient reason.
    #[error(
        "{parts} of {of} parts are not made: {first}; the next run with the same folder makes only what is missing"
    )]
    Unread { parts: usize, of: usize, first: Box<Error> },
    /// A remote file could not be read.
    #[error("cannot read {location}: {detail}; {advice}")]
    Remote { location: String, detail: String, advice: String },
    /// A named file has an extension without a reader.
    #[error("{}: no reader for this kind of file; readable are {}", path.display(), crate::kinds::READABLE)]
    UnknownExtension { path: PathBuf },
    /// The file has no usable text column of the configured name: a Parquet file by its schema, a JSON file in any
    /// record.
    #[error("{}: {problem}; choose one of its text columns ({columns}) as the field, or leave the file out", path.display())]
    NoTextColumn {
        path: PathBuf,
        problem: String,
        /// Names of the readable columns, comma-separated.
        columns: String,
    },
    /// A named file does not match its extension.
    #[error("{}: not a readable {kind} file: {detail}", path.display())]
    BadFile { path: PathBuf, kind: &'static str, detail: String },
    /// Documents of two files would have the same ids.
    #[error(
        "{first} and {second} would both be called `{name}`; name no file twice, and give inputs whose files have the same \
         names different names, as in `paths = [\"a=one/\", \"b=two/\"]`"
    )]
    SameName { name: String, first: String, second: String },
    /// The output folder holds the results of other inputs.
    #[error(
        "{} holds a curation of other inputs ({held}); give this one another folder with `out=...`, or remove that one first",
        folder.display()
    )]
    OtherCuration { folder: PathBuf, held: String },
    /// A folder that a curation would empty was not made by a curation.
    #[error(
        "{} is not empty, and no curation made it: its files would be removed; give this one another folder with `out=...`",
        folder.display()
    )]
    ForeignFolder { folder: PathBuf },
    /// The input yielded no document at all.
    #[error("no text found: looked at {looked_at}; {outcome}")]
    EmptyCorpus {
        looked_at: String,
        /// Number of files and the reasons why none gave a document.
        outcome: String,
    },
    /// An output file could not be written, or a folder could not be created.
    #[error("cannot {action} {}: {source}", path.display())]
    Write {
        /// Attempted action: `create`, `write`, `rename`, `remove`.
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// Invalid setting of the corpus.
    #[error("corpus: `{key}` is {found}; {advice}")]
    Setting {
        /// Field of [`CorpusSpec`](crate::CorpusSpec).
        key: &'static str,
        found: String,
        advice: String,
    },
    /// Invalid recipe of a curation.
    #[error(transparent)]
    Recipe(#[from] fathom_base::Error),
    /// The run was interrupted on request; the next one resumes here.
    #[error("stopped at `{at}`; the next run with the same folder goes on from here")]
    Interrupted { at: String },
    /// Another process uses the output folder.
    #[error(
        "{} is in use by {holder}, as rank {rank} of {world_size}; wait for its end, end it, or give this run another folder \
         with `out=...`",
        folder.display()
    )]
    InUse { folder: PathBuf, holder: String, rank: usize, world_size: usize },
    /// A stage panicked instead of counting a loss.
    #[error("a stage panicked: {detail}; leave the stage out, or report the text it panicked on")]
    Panicked { detail: String },
    /// A file written by an earlier step is gone.
    #[error("{} is missing; run the same recipe again, it makes what is missing", path.display())]
    Missing { path: PathBuf },
    /// A file written by an earlier step has different content.
    #[error("{} has changed since it was written; run the same recipe again, rank 0 first: it makes the file again", path.display())]
    Changed { path: PathBuf },
    /// A table does not have the form that a stage needs.
    #[error("a table of documents is not as it should be: {detail}")]
    Table { detail: String },
    /// The system refuses to start threads.
    #[error("cannot start threads: {detail}; ask for fewer with `threads=`")]
    Threads { detail: String },
    /// A query over tables failed.
    #[error("query: {detail}")]
    Query { detail: String },
    /// Invalid option of a curation stage.
    #[error("{stage}: `{key}` is {found}; {advice}")]
    Option { stage: &'static str, key: String, found: String, advice: String },
    /// A model used by a stage failed.
    #[error("the model in {}: {detail}", folder.display())]
    Model { folder: PathBuf, detail: String },
    /// A cluster for whole tables failed.
    #[cfg(feature = "ballista")]
    #[error("cannot {doing} {address}: {detail}; {advice}")]
    Cluster {
        /// Attempted action, such as `reach the scheduler at`.
        doing: &'static str,
        address: String,
        detail: String,
        advice: &'static str,
    },
    /// The table engine failed.
    #[error("cannot {doing} the table {}: {detail}; check the space left on its disk and the limit on memory", path.display())]
    Engine {
        /// Attempted action: `start`, `sort`.
        doing: &'static str,
        path: PathBuf,
        detail: String,
    },
    /// Failure of a text-processing component.
    #[error(transparent)]
    Prose(#[from] fathom_prose::Error),
    /// Failure of the tokenizer or the token store.
    #[error(transparent)]
    Text(#[from] fathom_text::Error),
}

impl Error {
    /// Classifies a failure to open a file or to read it at an offset.
    pub(crate) fn access(location: &str, offset: Option<u64>, source: io::Error) -> Error {
        if !may_pass(&source) {
            return Error::read(location.as_ref(), source);
        }
        let location = redacted(location).into_owned();
        Error::Unavailable { location, offset, detail: source.to_string() }
    }
    /// Reason under which a file is counted that cannot be opened or read because of this error; `None` if the error
    /// may be transient, so that the file must not be counted.
    pub(crate) fn reason(&self) -> Option<Reason> {
        match self {
            Error::Unavailable { .. } => None,
            Error::BadFile { .. } => Some(Reason::BrokenArchive),
            Error::NoTextColumn { .. } => Some(Reason::NoTextField),
            _ => Some(Reason::Unreadable),
        }
    }
    /// Failure to read `path`; secrets are redacted in case it is an address.
    pub(crate) fn read(path: &Path, source: std::io::Error) -> Error {
        let path = match path.to_str().map(redacted) {
            Some(Cow::Owned(shown)) => PathBuf::from(shown),
            _ => path.to_path_buf(),
        };
        Error::Read { path, source }
    }
    /// Invalid setting of a deduplication stage.
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

/// Returns true if a failure to open or read a file may be transient: an unreachable disk or network (`EIO`,
/// `ESTALE`, `ETIMEDOUT`), too many open files (`EMFILE`, `ENFILE`), no memory. Permanent errors are listed and all
/// others count as transient, because one retry too many costs less than a file left out for good.
pub(crate) fn may_pass(error: &io::Error) -> bool {
    use io::ErrorKind::{
        InvalidData, InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied,
        UnexpectedEof, Unsupported,
    };
    // `ELOOP`: a cycle of symbolic links, which any input folder may contain; its `ErrorKind` has no stable name.
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
