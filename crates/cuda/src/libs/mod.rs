//! CUDA's libraries: found, opened by absolute path, and checked for their version.
//!
//! Later calls use functions of the very files opened here ([`symbol`]), whatever else the loader knows under their
//! names. [`probe`] must therefore precede every other call.

mod find;
mod open;

use std::path::PathBuf;

use serde::Serialize;

pub use find::{Search, mapped};
pub(crate) use open::symbol;

use crate::driver::Real;
use crate::{Error, Result};

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
    fn range(self) -> [(u32, u32); 2] {
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

/// Search result for one library.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The library.
    pub library: Library,
    /// The opened file.
    pub path: Option<PathBuf>,
    /// Its reported version.
    pub version: Option<String>,
    /// Why it cannot be used.
    pub problem: Option<String>,
    /// The command that fixes the problem.
    pub remedy: Option<String>,
}

/// CUDA as found on this machine.
#[derive(Clone, Debug, Serialize)]
pub struct Probe {
    /// One entry for each library searched for.
    pub libraries: Vec<Found>,
    /// The devices' names.
    pub devices: Vec<String>,
    /// Why the CUDA machine cannot be used, in one line; `None` if it can.
    pub why_not: Option<String>,
}

impl Probe {
    /// True if a library can be used.
    pub fn has(&self, library: Library) -> bool {
        self.libraries.iter().any(|found| found.library == library && found.problem.is_none())
    }
}

/// Searches for the driver and, if `all` or if there is a device, for the other libraries.
pub fn probe(search: &Search, all: bool) -> Probe {
    let driver = look(search, Library::Driver);
    let counted = match &driver.problem {
        Some(problem) => Err(problem.clone()),
        None => Real::count().map_err(|error| error.to_string()),
    };
    let mut why_not = counted.as_ref().err().cloned();
    let mut libraries = vec![driver];
    if all || why_not.is_none() {
        let search = search.asked();
        libraries.extend(Library::ALL[1..].iter().map(|library| look(&search, *library)));
    }
    let missing = libraries.iter().find(|found| found.library.is_needed() && found.problem.is_some());
    if let (None, Some(Found { library, problem: Some(problem), remedy, .. })) = (&why_not, missing) {
        let remedy = remedy.as_deref().unwrap_or_default();
        why_not = Some(format!("{}: {problem}; {remedy}", library.name()));
    }
    let names = |count: usize| (0..count).filter_map(|device| Some(Real::describe(device).ok()?.name));
    let devices = counted.map(|count| names(count).collect()).unwrap_or_default();
    Probe { libraries, devices, why_not }
}

fn look(search: &Search, library: Library) -> Found {
    let (path, opened) = match library {
        Library::Driver => driver(search),
        _ => match search.file(library.file()) {
            Some(path) => (Some(path.clone()), open::version(library, &path)),
            None => (None, Err(missing(search, library))),
        },
    };
    let checked = opened.and_then(|version| in_range(library, path.clone(), version));
    let remedy = checked.is_err().then(|| library.remedy().to_string());
    let (version, problem) = match checked {
        Ok(version) => (Some(named(library, version)), None),
        Err(error) => (None, Some(error.to_string())),
    };
    Found { library, path, version, problem, remedy }
}

/// Opens the driver. It is the host's: the one that the loader finds, unless a configured folder has one. The system's
/// folders come last, since a container may have a driver of another build, which fits only the kernel module it was
/// made for.
fn driver(search: &Search) -> (Option<PathBuf>, Result<Version>) {
    let file = Library::Driver.file();
    let named = search.named.iter().find_map(|folder| find::in_folder(folder, file));
    if let Some(path) = named {
        return (Some(path.clone()), open::version(Library::Driver, &path));
    }
    let loaded = open::version(Library::Driver, file.as_ref()).map_err(absent);
    if let Err(Error::NoDriver(_)) = loaded
        && let Some(path) = search.file(file)
    {
        return (Some(path.clone()), open::version(Library::Driver, &path));
    }
    (mapped(file).into_iter().next(), loaded)
}

/// Shortens the loader's message for a missing file, as this is what most machines report.
fn absent(error: Error) -> Error {
    match error {
        Error::Load { path, message } if message.contains("cannot open shared object file: No such file") => {
            Error::NoDriver(path.display().to_string())
        }
        other => other,
    }
}

fn missing(search: &Search, library: Library) -> Error {
    Error::Missing { library: library.name(), file: library.file(), looked: search.said() }
}

/// Major, minor and patch version.
pub(crate) type Version = (u32, u32, u32);

fn said((major, minor, patch): Version) -> String {
    format!("{major}.{minor}.{patch}")
}

/// Version for display: the driver's own and that of its CUDA.
fn named(library: Library, version: Version) -> String {
    match (library, find::kernel_module()) {
        (Library::Driver, Some(build)) => format!("{build}, of CUDA {}", said(version)),
        _ => said(version),
    }
}

fn in_range(library: Library, path: Option<PathBuf>, version: Version) -> Result<Version> {
    let [least, beyond] = library.range();
    let (major, minor, _) = version;
    if (least..beyond).contains(&(major, minor)) {
        return Ok(version);
    }
    let path = path.unwrap_or_else(|| library.file().into());
    let needed = match beyond.0 {
        u32::MAX => format!("{}.{} or later", least.0, least.1),
        _ => format!("{}.{} or later, below {}", least.0, least.1, beyond.0),
    };
    Err(Error::Version { path, found: said(version), needed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_held_to_their_range() {
        for (library, version, fits) in [
            (Library::Cudnn, (9, 10, 2), false),
            (Library::Cudnn, (9, 11, 0), true),
            (Library::Cudnn, (10, 0, 0), false),
            (Library::Driver, (12, 9, 0), false),
            (Library::Driver, (14, 2, 0), true),
            (Library::Nvrtc, (13, 2, 0), true),
        ] {
            assert_eq!(in_range(library, None, version).is_ok(), fits, "{library:?} {version:?}");
        }
    }

    #[test]
    fn nothing_anywhere_is_said_in_one_line_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let search = Search { named: vec![folder.path().to_path_buf()], ..Search::default() };
        let found = look(&search, Library::Nvrtc);
        assert_eq!(found.remedy.as_deref(), Some("pip install 'nvidia-cuda-nvrtc==13.*'"));
        let problem = found.problem.unwrap();
        assert!(problem.contains("libnvrtc.so.13") && !problem.contains('\n'), "{problem}");
    }

    #[test]
    fn a_driver_that_somebody_named_is_taken_and_the_systems_own_comes_last() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libcuda.so.1");
        std::fs::write(&file, b"not a library").unwrap();
        let folders = vec![folder.path().to_path_buf()];
        let named = Search { named: folders.clone(), ..Search::default() };
        assert_eq!(driver(&named).0.as_ref(), Some(&file));
        let of_system = Search { system: folders, ..Search::default() };
        // A driver known to the loader takes precedence.
        let (path, opened) = driver(&of_system);
        assert!(path.as_ref() == Some(&file) || opened.is_ok());
    }

    #[test]
    fn a_machine_without_a_driver_says_so_in_few_words() {
        let load = |message: &str| Error::Load { path: "libcuda.so.1".into(), message: message.into() };
        let nowhere =
            load("dlopen failed: libcuda.so.1: cannot open shared object file: No such file or directory");
        assert_eq!(absent(nowhere).to_string(), "no NVIDIA driver: libcuda.so.1 not found");
        assert!(absent(load("invalid ELF header")).to_string().contains("invalid ELF header"));
    }

    #[test]
    fn a_file_that_is_no_library_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libnccl.so.2"), b"not a library").unwrap();
        let search = Search { named: vec![folder.path().to_path_buf()], ..Search::default() };
        let found = look(&search, Library::Nccl);
        assert!(found.problem.unwrap().contains("libnccl.so.2") && found.version.is_none());
    }
}
