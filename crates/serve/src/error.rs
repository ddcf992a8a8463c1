//! What keeps a server from starting.

use std::path::PathBuf;

/// The errors of a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of keys that opens nothing, or everything.
    #[error("{}: {why}; a server without keys is one without --api-key-file", file.display())]
    Keys {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Two models or adapters of one name.
    #[error(
        "two models or adapters are called `{0}`; name them (--name, once for each model in their order; --adapter NAME=DIR)"
    )]
    Twice(String),
    /// An address that cannot be listened at.
    #[error("cannot listen at {address}: {source}{hint}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
        /// What to do, with its leading separator, or nothing.
        hint: &'static str,
    },
    /// A certificate or its key.
    #[error("TLS: {0}")]
    Tls(String),
    /// Something that is not served like that.
    #[error("{0}")]
    Refused(String),
    /// From the operating system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
