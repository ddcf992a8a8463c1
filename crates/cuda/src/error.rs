//! What can go wrong between this process and a device.

use std::path::PathBuf;

/// A failure of a library, or of finding one.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A library is nowhere.
    #[error("{file} is nowhere ({looked})")]
    Missing {
        /// Which.
        library: &'static str,
        /// Its file.
        file: &'static str,
        /// Where it was looked for.
        looked: String,
    },
    /// The driver is nowhere.
    #[error("no NVIDIA driver: {0} not found")]
    NoDriver(
        /// Its file.
        String,
    ),
    /// A library is there and cannot be opened.
    #[error("{} cannot be opened: {message}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// What the loader says.
        message: String,
    },
    /// A library is too old, or of another major version.
    #[error("{} is version {found}; {needed} is needed", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// What it says it is.
        found: String,
        /// What is needed.
        needed: String,
    },
    /// The driver is there, and no device.
    #[error("no device: {0}")]
    NoDevice(String),
    /// A call of the driver failed.
    #[error("{call}: {name} ({code}){detail}")]
    Driver {
        /// The function.
        call: &'static str,
        /// CUDA's name of the error.
        name: String,
        /// Its number.
        code: u32,
        /// More, after a colon, or nothing.
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
        /// cuBLASLt's name of the error.
        status: String,
    },
    /// A call of cuDNN failed.
    #[error("{call}: {status}: {message}")]
    Dnn {
        /// The function and what it was about.
        call: String,
        /// cuDNN's name of the error.
        status: String,
        /// Its own words.
        message: String,
    },
    /// Ranks did not meet.
    #[error("rendezvous at {at}: {message}")]
    Rendezvous {
        /// Where.
        at: String,
        /// What the network says, or who has not come.
        message: String,
    },
    /// A variable of the environment says what it cannot say.
    #[error("{name}={value}: it can be {wanted}")]
    Variable {
        /// Which.
        name: &'static str,
        /// What it says.
        value: String,
        /// What it can say.
        wanted: &'static str,
    },
    /// A call of NCCL failed.
    #[error("{call}: {message}")]
    Nccl {
        /// The function.
        call: &'static str,
        /// NCCL's words.
        message: String,
    },
}

/// Of this crate.
pub type Result<T> = std::result::Result<T, Error>;
