//! The Python package: files that follow from declarations, the library in its place, tests, and the wheel.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The package's crate.
const CRATE: &str = "crates/python";
/// Tools of the wheel, pinned: maturin packs it, zig links it, auditwheel and abi3audit check it.
const TOOLS: [&str; 5] = [
    "maturin==1.16.0",
    "ziglang==0.14.1",
    "cargo-zigbuild==0.24.1",
    "auditwheel==6.8.2",
    "abi3audit==0.0.26",
];
/// Platform of the wheel: every Linux with this glibc or a later one.
const PLATFORM: &str = "manylinux_2_28";
/// zig's name of that platform.
const TARGET: &str = "x86_64-linux-gnu.2.28";

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

/// Builds the wheel and the sdist into a folder, by maturin and zig in an environment outside the repository, and checks
/// which symbols of glibc and of Python the wheel needs.
///
/// zig links the library alone, against symbols of the platform's glibc, so the crates below it are those that cargo has
/// built for the tests.
///
/// # Errors
/// A message when Python, maturin or cargo fails, and when the wheel needs more than its platform has.
pub fn wheel(out: &str) -> Result<Vec<String>, String> {
    let tools = tools()?;
    let python = tools.join("bin/python");
    let maturin = |verb: &str| {
        let mut command = Command::new(&python);
        command.args(["-m", "maturin", verb, "-m", &format!("{CRATE}/Cargo.toml"), "--out", out]);
        command.env_remove("PYO3_NO_PYTHON");
        command
    };
    let linker = linker(&tools)?;
    let mut build = maturin("build");
    build.args(["--release", "--compatibility", PLATFORM, "--", "-C", "strip=symbols", "-C"]);
    run(build.arg(format!("linker={}", linker.display())), "maturin build")?;
    with_links(|| run(&mut maturin("sdist"), "maturin sdist"))?;
    audit(&tools, Path::new(out))
}

/// Files of the repository that the library's build reads and the sdist has at its root.
const LINKED: [&str; 2] = ["recipes", ".cargo"];

/// Works while those files are linked into the package's folder: maturin takes none from outside it.
fn with_links(work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let links = LINKED.map(|name| Path::new(CRATE).join(name));
    for (link, name) in links.iter().zip(LINKED) {
        let _ = std::fs::remove_file(link);
        std::os::unix::fs::symlink(Path::new("../..").join(name), link)
            .map_err(|error| format!("cannot link {}: {error}", link.display()))?;
    }
    let done = work();
    links.iter().for_each(|link| drop(std::fs::remove_file(link)));
    done
}

/// A program that links by zig for [`TARGET`], as rustc calls one. The unwinder is that of the system and not zig's own:
/// Python ends threads by unwinding them, and one unwinder cannot go through the frames of another.
fn linker(tools: &Path) -> Result<PathBuf, String> {
    use std::os::unix::fs::PermissionsExt;
    let path = tools.join("bin/link-by-zig");
    let named = Command::new("cc").arg("-print-file-name=libgcc_s.so.1").output();
    let named = named.map_err(|error| format!("cannot start cc: {error}"))?;
    let unwinder = String::from_utf8_lossy(&named.stdout).trim().to_string();
    let text = format!(
        "#!/bin/sh\nPATH={0}/bin:$PATH exec {0}/bin/cargo-zigbuild zig cc -- -target {TARGET} {unwinder} \"$@\"\n",
        tools.display()
    );
    std::fs::write(&path, text)
        .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(path)
}

/// Refuses a wheel that needs a later glibc than its platform's, or functions outside Python's stable interface.
fn audit(tools: &Path, out: &Path) -> Result<Vec<String>, String> {
    let files = std::fs::read_dir(out).map_err(|error| format!("cannot list {}: {error}", out.display()))?;
    let paths = files.filter_map(|file| Some(file.ok()?.path()));
    let wheels: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "whl")).collect();
    for wheel in &wheels {
        let mut show = Command::new(tools.join("bin/auditwheel"));
        let shown = show.args(["show"]).arg(wheel).output();
        let shown = shown.map_err(|error| format!("cannot start auditwheel: {error}"))?;
        let text = String::from_utf8_lossy(&shown.stdout);
        if !shown.status.success() || !text.contains(PLATFORM) {
            return Err(format!("auditwheel does not find {PLATFORM} in {}:\n{text}", wheel.display()));
        }
        let mut check = Command::new(tools.join("bin/abi3audit"));
        run(check.args(["--strict", "--assume-minimum-abi3", "3.11"]).arg(wheel), "abi3audit")?;
    }
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
