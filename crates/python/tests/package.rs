//! The tests of the Python package, where there is a Python with pytest. Without one they are skipped, and say so.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A Python of 3.11 or later that has pytest: `FATHOM_PYTHON`, or `python3`.
fn python() -> Option<String> {
    let named = std::env::var("FATHOM_PYTHON").ok();
    let all = named.into_iter().chain(["python3".to_string()]);
    all.into_iter().find(|python| {
        let asked = "import sys, pytest; sys.exit(sys.version_info < (3, 11))";
        Command::new(python).args(["-c", asked]).output().is_ok_and(|said| said.status.success())
    })
}

/// Prints past the test harness, which keeps the output of tests that pass.
fn say(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// The folder of this program, `deps`: a test's own library is linked here, and copied to the folder above only by a
/// build that names it.
fn dependencies() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.to_path_buf())
}

#[test]
fn python_package_passes_its_tests() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some(python) = python() else {
        return say(
            "SKIPPED: the tests of the Python package; no Python of 3.11 with pytest (FATHOM_PYTHON names one)",
        );
    };
    let dependencies = dependencies().expect("a folder of built files");
    let library = dependencies.join("lib_fathom.so");
    assert!(library.exists(), "{} is not there", library.display());
    let place = package.join("fathom/_fathom.abi3.so");
    if std::fs::read_link(&place).ok().as_deref() != Some(&library) {
        let _ = std::fs::remove_file(&place);
        std::os::unix::fs::symlink(&library, &place).expect("a link to the library");
    }
    let mut command = Command::new(python);
    command.args(["-m", "pytest", "-x", "-p", "no:cacheprovider"]).current_dir(package);
    command.env("PYTHONPATH", package).env("PYTHONDONTWRITEBYTECODE", "1");
    // Tests next to the binary are skipped where it has not been built.
    let binary = dependencies.with_file_name("fathom");
    if binary.exists() {
        command.env("FATHOM_BINARY", binary);
    }
    let output = command.output().expect("pytest starts");
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{out}\n{err}");
    let summary = out.lines().rfind(|line| line.contains(" passed")).unwrap_or_default();
    say(&format!("python package: {summary}"));
}
