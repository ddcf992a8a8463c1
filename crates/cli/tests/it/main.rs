//! The program from outside: output, files and refusals of its verbs.
#![allow(clippy::unwrap_used)]

mod adapters;
mod bad_input;
#[cfg(feature = "ballista")]
mod ballista;
mod bench;
mod curate;
mod data;
mod diff;
#[cfg(target_os = "linux")]
mod disk_full;
mod distill;
mod encoders;
mod few_bits;
mod folders;
mod gguf;
mod handbook;
mod hints;
mod index;
mod inspect;
mod launch;
mod mesh;
mod plan;
mod preference;
mod recipes;
#[cfg(target_os = "linux")]
mod rehearsal;
mod resume;
mod retro;
mod rounds;
mod run;
mod seq2seq;
mod sft;
mod shell;
mod supervise;
#[cfg(target_os = "linux")]
mod trust;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Tests run concurrently. Two threads of a program wait for each other when others have the cores: 36 steps of a
/// tiny model took 0.5 s of processor time on one thread, and 1.4 to 3 s on two.
const ONE_THREAD: (&str, &str) = ("FATHOM_THREADS", "1");

/// The binary, on one thread by default.
fn program() -> Command {
    on_one_thread(env!("CARGO_BIN_EXE_fathom"))
}

/// A command that runs the binary, on one thread by default.
fn on_one_thread(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env(ONE_THREAD.0, ONE_THREAD.1);
    command
}

/// Runs the binary with these arguments.
fn fathom<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    program().args(args).env_remove("FATHOM_ISA").output().unwrap()
}

/// Standard output of a call that must succeed.
#[track_caller]
fn good<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let output = fathom(args);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    out
}

/// Standard error of a call that must be refused with a message, not a panic; it names every one of `names`.
#[track_caller]
fn refused<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>, names: &[&str]) -> String {
    let output = fathom(args);
    let err = text(&output.stderr);
    assert!(!output.status.success(), "was accepted:\n{}", text(&output.stdout));
    assert!(!err.contains("panicked"), "{err}");
    for name in names {
        assert!(err.contains(name), "`{name}` is not in: {err}");
    }
    err
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Parses one JSON value per line.
#[track_caller]
fn rows(out: &str) -> Vec<serde_json::Value> {
    out.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// A case of `tests/golden`.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

/// A path as an argument.
fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}
