//! The Python package: files that follow from declarations, the library in its place, tests, and the wheel.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The package's crate.
const CRATE: &str = "crates/python";
/// Tools of the wheel, pinned: maturin builds it, zig links it against an old glibc.
const TOOLS: [&str; 2] = ["maturin==1.16.0", "ziglang==0.14.1"];

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn run(command: &mut Command, what: &str) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("cannot start {what}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{what} failed: {status}")) }
}

/// Writes the generated files of the package, builds the library, and links it into the package's folder.
///
/// # Errors
/// A message when cargo fails or a file cannot be written.
pub fn generate() -> Result<Vec<String>, String> {
    let mut write = cargo();
    write.args(["test", "--release", "-q", "-p", "fathom-app", "--lib", "python_files"]);
    run(write.env("FATHOM_BLESS", "1"), "the test that writes the files")?;
    run(cargo().args(["build", "--release", "-p", "fathom-python"]), "cargo build")?;
    link()?;
    Ok(Vec::new())
}

/// Links the library that cargo has built into the package's folder.
fn link() -> Result<(), String> {
    let to = Path::new(CRATE).join("fathom/_fathom.abi3.so");
    let _ = std::fs::remove_file(&to);
    std::os::unix::fs::symlink("../../../target/release/lib_fathom.so", &to)
        .map_err(|error| format!("cannot link {}: {error}", to.display()))
}

/// Builds the wheel and the sdist into a folder, by maturin and zig in an environment outside the repository.
///
/// # Errors
/// A message when Python, maturin or cargo fails.
pub fn wheel(out: &str) -> Result<Vec<String>, String> {
    let tools = tools()?;
    let python = tools.join("bin/python");
    let manifest = format!("{CRATE}/Cargo.toml");
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", tools.join("bin").display());
    let mut build = Command::new(&python);
    build.args(["-m", "maturin", "build", "--release", "--strip", "-m", &manifest, "--out", out]);
    build.args(["--zig", "--compatibility", "manylinux_2_28"]);
    run(build.env("PATH", &path).env_remove("PYO3_NO_PYTHON"), "maturin build")?;
    let mut sdist = Command::new(&python);
    sdist.args(["-m", "maturin", "sdist", "-m", &manifest, "--out", out]);
    run(sdist.env("PATH", &path), "maturin sdist")?;
    Ok(Vec::new())
}

/// The environment with the tools, made when it is first needed.
fn tools() -> Result<PathBuf, String> {
    let home = std::env::var_os("FATHOM_WHEEL_TOOLS").map(PathBuf::from);
    let folder = home.unwrap_or_else(|| std::env::temp_dir().join("fathom-wheel-tools"));
    if !folder.join("bin/maturin").exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder), "python3 -m venv")?;
        let pip = folder.join("bin/pip");
        run(Command::new(pip).args(["install", "-q"]).args(TOOLS), "pip install of maturin")?;
    }
    Ok(folder)
}
