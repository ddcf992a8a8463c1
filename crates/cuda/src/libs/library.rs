//! The libraries and their versions.

use serde::Serialize;

/// A library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Library {
    /// Installed with the device's kernel module.
    Driver,
    /// Compiles kernels.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Attention. Without it the machine's own kernels are used, which are slow.
    Cudnn,
    /// Communication between devices.
    Nccl,
}

impl Library {
    /// All libraries, in the order in which they are opened.
    pub const ALL: [Library; 5] =
        [Library::Driver, Library::Nvrtc, Library::CublasLt, Library::Cudnn, Library::Nccl];

    /// Name in tables and messages.
    pub fn name(self) -> &'static str {
        match self {
            Library::Driver => "driver",
            Library::Nvrtc => "NVRTC",
            Library::CublasLt => "cuBLASLt",
            Library::Cudnn => "cuDNN",
            Library::Nccl => "NCCL",
        }
    }

    /// File name; further version numbers may follow.
    pub fn file(self) -> &'static str {
        match self {
            Library::Driver => "libcuda.so.1",
            Library::Nvrtc => "libnvrtc.so.13",
            Library::CublasLt => "libcublasLt.so.13",
            Library::Cudnn => "libcudnn.so.9",
            Library::Nccl => "libnccl.so.2",
        }
    }

    /// True if the machine requires the library.
    pub fn is_needed(self) -> bool {
        matches!(self, Library::Driver | Library::Nvrtc | Library::CublasLt)
    }

    /// How to install it.
    pub fn remedy(self) -> &'static str {
        match self {
            Library::Driver => {
                "install NVIDIA's driver 580 or later on the host (a container takes the host's)"
            }
            Library::Nvrtc => "pip install 'nvidia-cuda-nvrtc==13.*'",
            Library::CublasLt => "pip install 'nvidia-cublas==13.*'",
            Library::Cudnn => "pip install 'nvidia-cudnn-cu13>=9.11,<10'",
            Library::Nccl => "pip install nvidia-nccl-cu13",
        }
    }

    /// Lowest supported and first unsupported version, as (major, minor).
    pub(super) fn range(self) -> [(u32, u32); 2] {
        match self {
            // The driver's version is a CUDA version.
            Library::Driver => [(13, 0), (u32::MAX, 0)],
            Library::Nvrtc | Library::CublasLt => [(13, 0), (14, 0)],
            Library::Cudnn => [(9, 11), (10, 0)],
            // From this version on communicators are aborted in groups.
            Library::Nccl => [(2, 22), (3, 0)],
        }
    }
}

/// Major, minor and patch version.
pub(crate) type Version = (u32, u32, u32);
