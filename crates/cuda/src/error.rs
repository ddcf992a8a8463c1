//! Errors between this process and a device.

use std::path::PathBuf;

/// A failure of a library, or of finding one.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs)] // The messages show what the fields are.
pub enum Error {
    /// A library was not found.
    #[error("{file} is nowhere ({looked})")]
    Missing { library: &'static str, file: &'static str, looked: String },
    /// No driver was found.
    #[error("no NVIDIA driver: {0} not found")]
    NoDriver(
        /// The driver's file name.
        String,
    ),
    /// A library exists but cannot be opened.
    #[error("{} cannot be opened: {message}", path.display())]
    Load { path: PathBuf, message: String },
    /// A library is too old, or has another major version.
    #[error("{} is version {found}; {needed} is needed", path.display())]
    Version { path: PathBuf, found: String, needed: String },
    /// The driver exists, but no device.
    #[error("no device: {0}")]
    NoDevice(String),
    /// A call of the driver failed.
    #[error("{call}: {name} ({code}){detail}")]
    Driver {
        call: &'static str,
        name: String,
        code: u32,
        /// Details after a colon, or empty.
        detail: String,
    },
    /// A kernel could not be compiled.
    #[error("{0}")]
    Compile(String),
    /// A call of cuBLASLt failed.
    #[error("{call} ({what}): {status}")]
    Blas { call: &'static str, what: String, status: String },
    /// A call of cuDNN failed.
    #[error("{call}: {status}: {message}")]
    Dnn { call: String, status: String, message: String },
    /// The ranks' rendezvous failed.
    #[error("rendezvous at {at}: {message}")]
    Rendezvous {
        at: String,
        /// The network's error, or the missing ranks.
        message: String,
    },
    /// An environment variable has an invalid value.
    #[error("{name}={value}: it can be {wanted}")]
    Variable { name: &'static str, value: String, wanted: &'static str },
    /// A call of NCCL failed.
    #[error("{call}: {message}")]
    Nccl { call: &'static str, message: String },
}

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
