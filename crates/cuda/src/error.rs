//! Errors between this process and a device.

use std::path::PathBuf;

/// A failure of a library, or of finding one.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A library was not found.
    #[error("{file} is nowhere ({looked})")]
    Missing {
        /// Name of the library.
        library: &'static str,
        /// Its file name.
        file: &'static str,
        /// Places searched.
        looked: String,
    },
    /// No driver was found.
    #[error("no NVIDIA driver: {0} not found")]
    NoDriver(
        /// The driver's file name.
        String,
    ),
    /// A library exists but cannot be opened.
    #[error("{} cannot be opened: {message}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// The loader's message.
        message: String,
    },
    /// A library is too old, or has another major version.
    #[error("{} is version {found}; {needed} is needed", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: String,
        /// Required version.
        needed: String,
    },
    /// The driver exists, but no device.
    #[error("no device: {0}")]
    NoDevice(String),
    /// A call of the driver failed.
    #[error("{call}: {name} ({code}){detail}")]
    Driver {
        /// The function.
        call: &'static str,
        /// CUDA's name for the error.
        name: String,
        /// Error number.
        code: u32,
        /// Details after a colon, or empty.
        detail: String,
    },
    /// A kernel could not be compiled.
    #[error("{0}")]
    Compile(String),
    /// A call of cuBLASLt failed.
    #[error("{call} ({what}): {status}")]
    Blas {
        /// The function.
        call: &'static str,
        /// The product.
        what: String,
        /// cuBLASLt's name for the error.
        status: String,
    },
    /// A call of cuDNN failed.
    #[error("{call}: {status}: {message}")]
    Dnn {
        /// The function and its subject.
        call: String,
        /// cuDNN's name for the error.
        status: String,
        /// cuDNN's message.
        message: String,
    },
    /// The ranks' rendezvous failed.
    #[error("rendezvous at {at}: {message}")]
    Rendezvous {
        /// Address of the rendezvous.
        at: String,
        /// The network's error, or the missing ranks.
        message: String,
    },
    /// An environment variable has an invalid value.
    #[error("{name}={value}: it can be {wanted}")]
    Variable {
        /// Name of the variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// Allowed values.
        wanted: &'static str,
    },
    /// A call of NCCL failed.
    #[error("{call}: {message}")]
    Nccl {
        /// The function.
        call: &'static str,
        /// NCCL's message.
        message: String,
    },
}

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
