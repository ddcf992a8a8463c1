//! Errors that prevent a server from starting.

use std::path::PathBuf;

/// Errors of a server.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages show what the fields are.
#[non_exhaustive]
pub enum Error {
    /// An invalid file of keys.
    #[error("{}: {why}; a server without keys is one without --api-key-file", file.display())]
    Keys { file: PathBuf, why: String },
    /// Two models or adapters have the same name.
    #[error(
        "two models or adapters are called `{0}`; name them (--name, once for each model in their order; --adapter NAME=DIR)"
    )]
    Twice(String),
    /// The address cannot be used.
    #[error("cannot listen at {address}: {source}{hint}")]
    Listen {
        address: String,
        #[source]
        source: std::io::Error,
        /// A remedy, with its leading separator, or empty.
        hint: &'static str,
    },
    /// An invalid certificate or key.
    #[error("TLS: {0}")]
    Tls(String),
    /// Something that the server does not support.
    #[error("{0}")]
    Refused(String),
    /// Error of the operating system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
