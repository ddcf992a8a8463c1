//! Locations of CUDA's libraries: configured folders, the active Python's wheels, the system.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders to search, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// Configured folders: a recipe's, then `FATHOM_CUDA_LIBS`, separated by colons.
    pub named: Vec<PathBuf>,
    /// `site-packages/nvidia/*/lib` of the active Python.
    pub python: Vec<PathBuf>,
    /// Folders of the system.
    pub system: Vec<PathBuf>,
    /// A Python to query for its packages, as no wheel lies next to it.
    pub interpreter: Option<PathBuf>,
}

/// The system's library folders, and those that CUDA's own installer and containers use.
const SYSTEM: [&str; 9] = [
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/wsl/lib",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    // Drivers of other builds than the host's, for hosts that are configured to use them.
    "/usr/local/cuda/compat",
];

impl Search {
    /// Folders given by the environment.
    pub fn from_environment() -> Search {
        let list = |key: &str| -> Vec<PathBuf> {
            std::env::var_os(key).map(|value| std::env::split_paths(&value).collect()).unwrap_or_default()
        };
        let named = list("FATHOM_CUDA_LIBS").into_iter().filter(|path| !path.as_os_str().is_empty());
        let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from);
        let mut interpreter = list("PATH").into_iter().map(|folder| folder.join("python3"));
        let interpreter = interpreter.find(|path| path.is_file());
        let own_prefix = interpreter.as_deref().and_then(|path| Some(path.parent()?.parent()?.to_path_buf()));
        let python: Vec<PathBuf> = prefixes.chain(own_prefix).flat_map(|prefix| wheels(&prefix)).collect();
        // conda's own packages have no folder below the environment's.
        let conda = std::env::var_os("CONDA_PREFIX").map(|prefix| PathBuf::from(prefix).join("lib"));
        let system = list("LD_LIBRARY_PATH").into_iter().chain(conda);
        let system = system.chain(SYSTEM.iter().map(PathBuf::from));
        Search {
            named: named.collect(),
            interpreter: interpreter.filter(|_| python.is_empty()),
            python,
            system: system.filter(|path| path.is_dir()).collect(),
        }
    }

    /// The same with folders in front of all others.
    pub fn before(mut self, folders: impl Iterator<Item = PathBuf>) -> Search {
        self.named = folders.filter(|path| !path.as_os_str().is_empty()).chain(self.named).collect();
        self
    }

    /// The same with the folders of the interpreter's own packages, if it is to be queried: it may be a link to
    /// elsewhere, or use packages of the user's. Starts the interpreter, so it is called only when libraries are
    /// needed.
    pub fn asked(&self) -> Search {
        let mut search = self.clone();
        let Some(interpreter) = search.interpreter.take() else { return search };
        let paths =
            Command::new(interpreter).args(["-c", "import sys; print('\\n'.join(sys.path))"]).output();
        // A Python that does not start has no wheels.
        let paths =
            paths.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let absolute = paths.lines().map(Path::new).filter(|path| path.is_absolute());
        search.python = absolute.flat_map(libraries).collect();
        search
    }

    /// All folders in search order.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        [&self.named, &self.python, &self.system].into_iter().flatten().map(PathBuf::as_path)
    }

    /// The first file of a library: `name`, or `name` followed by further version numbers.
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        self.folders().find_map(|folder| in_folder(folder, name))
    }

    /// Short description of the places searched.
    pub fn said(&self) -> String {
        let count = |folders: &[PathBuf], [what, of]: [&str; 2]| match folders.len() {
            0 => format!("no {what} {of}"),
            1 => format!("1 {what} {of}"),
            many => format!("{many} {what}s {of}"),
        };
        [
            count(&self.named, ["folder", "of machine.cuda_libs and FATHOM_CUDA_LIBS"]),
            count(&self.python, ["wheel", "of the active Python"]),
            count(&self.system, ["folder", "of the system"]),
        ]
        .join(", ")
    }
}

/// The file called `name`, else the alphabetically first one that continues it after a dot.
pub fn in_folder(folder: &Path, name: &str) -> Option<PathBuf> {
    let exact = folder.join(name);
    if exact.is_file() {
        return Some(exact);
    }
    let continues = |file: &OsStr| {
        let rest =
            file.to_str().and_then(|file| file.strip_prefix(name)).and_then(|rest| rest.strip_prefix('.'));
        rest.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
    };
    let entries = std::fs::read_dir(folder).ok()?;
    let mut files: Vec<PathBuf> =
        entries.flatten().filter(|entry| continues(&entry.file_name())).map(|entry| entry.path()).collect();
    files.sort();
    files.into_iter().next()
}

/// Entries of a folder, sorted.
fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// `nvidia/*/lib` folders of a folder of packages.
fn libraries(packages: &Path) -> Vec<PathBuf> {
    let libs = children(&packages.join("nvidia")).into_iter().map(|wheel| wheel.join("lib"));
    libs.filter(|lib| lib.is_dir()).collect()
}

/// `lib/python3*/site-packages/nvidia/*/lib` folders of a prefix, sorted.
fn wheels(prefix: &Path) -> Vec<PathBuf> {
    let is_python = |path: &PathBuf| {
        path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("python3"))
    };
    let pythons = children(&prefix.join("lib")).into_iter().filter(is_python);
    let packages =
        pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|packages| python.join(packages)));
    packages.flat_map(|packages| libraries(&packages)).collect()
}

/// Build of the kernel's driver, such as `580.126.09`, if there is one.
pub fn kernel_module() -> Option<String> {
    build(&std::fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// The build in the text of `/proc/driver/nvidia/version`.
fn build(words: &str) -> Option<String> {
    let is_build =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    words.lines().next()?.split_whitespace().find(is_build).map(ToString::to_string)
}

/// The files of a library that this process has mapped, by the library's file name. More than one means two copies, one
/// of which is used by mistake.
pub fn mapped(name: &str) -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    among(&maps, name)
}

/// Searches the text of `/proc/self/maps`: a library `libx.so.9` may be a file `libx.so`, `libx.so.9` or `libx.so.9.1`.
fn among(maps: &str, name: &str) -> Vec<PathBuf> {
    let stem = name.split(".so").next().unwrap_or(name);
    let is_it = |path: &Path| {
        let file = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        file.strip_prefix(stem).is_some_and(|rest| rest == ".so" || rest.starts_with(".so."))
    };
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])));
    let mut found: Vec<PathBuf> = paths.filter(|path| is_it(path)).collect();
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"").unwrap();
    }

    #[test]
    fn folders_are_tried_in_order_and_numbers_may_follow() {
        let dir = tempfile::tempdir().unwrap();
        let [named, system] = ["named", "system"].map(|name| dir.path().join(name));
        let wheel = dir.path().join("lib/python3.11/site-packages/nvidia/cu13/lib");
        touch(&system.join("liba.so.13"));
        touch(&wheel.join("liba.so.13.2.1"));
        touch(&wheel.join("liba.so.13.alt"));
        touch(&system.join("libb.so.9"));
        touch(&named.join("libc.so"));
        let (named, system_folders) = (vec![named], vec![system.clone()]);
        let python = wheels(dir.path());
        let search = Search { named, python, system: system_folders, ..Search::default() };
        assert_eq!(search.python, std::slice::from_ref(&wheel));
        for (name, expected) in [
            ("liba.so.13", Some(wheel.join("liba.so.13.2.1"))),
            ("libb.so.9", Some(system.join("libb.so.9"))),
            ("libc.so.1", None),
        ] {
            assert_eq!(search.file(name), expected, "{name}");
        }
        let of_recipe = search.clone().before([system, PathBuf::new()].into_iter());
        assert_eq!(of_recipe.named.len(), 2);
        assert_eq!(of_recipe.file("liba.so.13"), Some(dir.path().join("system/liba.so.13")));
        assert_eq!(
            search.said(),
            "1 folder of machine.cuda_libs and FATHOM_CUDA_LIBS, 1 wheel of the active Python, 1 folder of the system"
        );
    }

    #[test]
    fn a_python_without_wheels_next_to_it_is_asked() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let packages = dir.path().join("elsewhere/packages");
        touch(&packages.join("nvidia/cu13/lib/liba.so.13"));
        let python = dir.path().join("python3");
        std::fs::write(&python, format!("#!/bin/sh\necho\necho {}\n", packages.display())).unwrap();
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
        let search = Search { interpreter: Some(python), ..Search::default() };
        assert_eq!(search.file("liba.so.13"), None);
        assert_eq!(search.asked().file("liba.so.13"), Some(packages.join("nvidia/cu13/lib/liba.so.13")));
        let nowhere = Search { interpreter: Some(dir.path().join("nothing")), ..Search::default() };
        assert_eq!(nowhere.asked(), Search::default());
    }

    #[test]
    fn a_drivers_build_is_read_from_its_words() {
        let words = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build  (user@host)  Mon Jan 5\n\
                     GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n";
        assert_eq!(build(words).as_deref(), Some("580.126.09"));
        assert_eq!(build("none"), None);
    }

    #[test]
    fn mapped_files_are_found_by_name() {
        let maps = "7f00-7f01 r-xp 00000000 08:01 12 /a/libx.so.9.1\n7f01-7f02 r--p 00000000 08:01 12 /a/libx.so.9.1\n\
                    7f02-7f03 r-xp 00000000 08:01 13 /b c/libx.so\n7f03-7f04 r-xp 00000000 08:01 14 /a/libxy.so.9\n\
                    7f04-7f05 rw-p 00000000 00:00 0 [heap]\n";
        assert_eq!(among(maps, "libx.so.9"), ["/a/libx.so.9.1", "/b c/libx.so"].map(PathBuf::from));
    }
}
