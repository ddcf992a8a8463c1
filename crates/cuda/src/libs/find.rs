//! Where CUDA's libraries may lie: named folders, the active Python's wheels, the system.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Folders to look in, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// What somebody named: `FATHOM_CUDA_LIBS`, folders with colons between them.
    pub named: Vec<PathBuf>,
    /// `site-packages/nvidia/*/lib` of the active Python.
    pub python: Vec<PathBuf>,
    /// Of the system.
    pub system: Vec<PathBuf>,
}

/// Where the system keeps libraries, and where CUDA's own installer and containers put them.
const SYSTEM: [&str; 9] = [
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/compat",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/wsl/lib",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
];

impl Search {
    /// What the environment says.
    pub fn from_environment() -> Search {
        let list = |key: &str| -> Vec<PathBuf> {
            std::env::var_os(key).map(|value| std::env::split_paths(&value).collect()).unwrap_or_default()
        };
        let named = list("FATHOM_CUDA_LIBS").into_iter().filter(|path| !path.as_os_str().is_empty());
        let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from);
        let interpreter = list("PATH").into_iter().map(|folder| folder.join("python3"));
        let interpreter = interpreter.filter(|path| path.is_file()).take(1);
        let prefixes =
            prefixes.chain(interpreter.filter_map(|path| Some(path.parent()?.parent()?.to_path_buf())));
        let system = list("LD_LIBRARY_PATH").into_iter().chain(SYSTEM.iter().map(PathBuf::from));
        Search {
            named: named.collect(),
            python: prefixes.flat_map(|prefix| wheels(&prefix)).collect(),
            system: system.filter(|path| path.is_dir()).collect(),
        }
    }

    /// All folders, the first first.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        [&self.named, &self.python, &self.system].into_iter().flatten().map(PathBuf::as_path)
    }

    /// The first file of a library: `name`, or `name` and more numbers.
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        self.folders().find_map(|folder| in_folder(folder, name))
    }

    /// Says where was looked, in few words.
    pub fn said(&self) -> String {
        let count = |folders: &[PathBuf], [what, of]: [&str; 2]| match folders.len() {
            0 => format!("no {what} {of}"),
            1 => format!("1 {what} {of}"),
            many => format!("{many} {what}s {of}"),
        };
        [
            count(&self.named, ["folder", "of FATHOM_CUDA_LIBS"]),
            count(&self.python, ["wheel", "of the active Python"]),
            count(&self.system, ["folder", "of the system"]),
        ]
        .join(", ")
    }
}

/// The file called `name`, else the first by name that continues it with a dot.
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

/// `lib/python3*/site-packages/nvidia/*/lib` of a prefix, sorted.
fn wheels(prefix: &Path) -> Vec<PathBuf> {
    let children = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    let is_python = |path: &PathBuf| {
        path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("python3"))
    };
    let pythons = children(&prefix.join("lib")).into_iter().filter(is_python);
    pythons
        .flat_map(|python| {
            ["site-packages", "dist-packages"].map(|packages| python.join(packages).join("nvidia"))
        })
        .flat_map(|nvidia| children(&nvidia))
        .map(|wheel| wheel.join("lib"))
        .filter(|lib| lib.is_dir())
        .collect()
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
        let search = Search { named: vec![named], python: wheels(dir.path()), system: vec![system.clone()] };
        assert_eq!(search.python, std::slice::from_ref(&wheel));
        for (name, expected) in [
            ("liba.so.13", Some(wheel.join("liba.so.13.2.1"))),
            ("libb.so.9", Some(system.join("libb.so.9"))),
            ("libc.so.1", None),
        ] {
            assert_eq!(search.file(name), expected, "{name}");
        }
        assert_eq!(
            search.said(),
            "1 folder of FATHOM_CUDA_LIBS, 1 wheel of the active Python, 1 folder of the system"
        );
    }
}
