//! The tests of the Python package, where there is a Python with pytest. Without one they are skipped, and say so.

use std::path::Path;
use std::process::Command;

use crate::text;

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

#[test]
fn python_package_passes_its_tests() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let library = Path::new(env!("CARGO_BIN_EXE_fathom")).with_file_name("lib_fathom.so");
    let Some(python) = python() else {
        return say(
            "SKIPPED: the tests of the Python package; no Python of 3.11 with pytest (FATHOM_PYTHON names one)",
        );
    };
    if !library.exists() {
        return say(
            "SKIPPED: the tests of the Python package; cargo build --release -p fathom-python makes its library",
        );
    }
    let place = package.join("fathom/_fathom.abi3.so");
    if std::fs::read_link(&place).ok().as_deref() != Some(&library) {
        let _ = std::fs::remove_file(&place);
        std::os::unix::fs::symlink(&library, &place).unwrap();
    }
    let output = Command::new(python)
        .args(["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"])
        .current_dir(&package)
        .env("PYTHONPATH", &package)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("FATHOM_BINARY", env!("CARGO_BIN_EXE_fathom"))
        .output()
        .unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    say(&format!(
        "python package: {}",
        out.lines().rfind(|line| line.contains(" passed")).unwrap_or_default()
    ));
}
