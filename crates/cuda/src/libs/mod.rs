//! CUDA's libraries: found, opened by absolute path, and checked for their version.
//!
//! Later calls use functions of the very files opened here ([`symbol`]), whatever else the loader knows under their
//! names. [`probe`] must therefore precede every other call.

mod find;
mod library;
mod open;

use std::path::PathBuf;

use serde::Serialize;

pub use find::{Search, mapped};
pub(crate) use open::symbol;

use crate::driver::Real;
use crate::{Error, Result};
pub use library::Library;
pub(crate) use library::Version;

/// Search result for one library.
#[derive(Clone, Debug, Serialize)]
pub struct LibraryStatus {
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
    pub libraries: Vec<LibraryStatus>,
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
    if let (None, Some(LibraryStatus { library, problem: Some(problem), remedy, .. })) = (&why_not, missing) {
        let remedy = remedy.as_deref().unwrap_or_default();
        why_not = Some(format!("{}: {problem}; {remedy}", library.name()));
    }
    let names = |count: usize| (0..count).filter_map(|device| Some(Real::describe(device).ok()?.name));
    let devices = counted.map(|count| names(count).collect()).unwrap_or_default();
    Probe { libraries, devices, why_not }
}

fn look(search: &Search, library: Library) -> LibraryStatus {
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
    LibraryStatus { library, path, version, problem, remedy }
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
