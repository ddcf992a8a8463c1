//! A full disk ends a run with a message that names the file, and the previous checkpoint stays valid; during a
//! checkpoint it is only a warning, and the run continues.
//!
//! A full disk is simulated by the shell's file size limit, with its signal ignored so that the program sees the
//! error. This needs no privileges.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::resume::{STEPS, alone, args, losses, start};
use crate::run::write_text;
use crate::{good, on_one_thread, text};

/// Standard error of a run limited to files of `kib` KiB, which must fail and name every one of `names`.
#[track_caller]
fn too_large(kib: u64, args: &[String], names: &[&str]) -> String {
    let (code, err) = limited(kib, args, names);
    assert!(code.is_some_and(|code| code != 0), "{code:?}\n{err}");
    err
}

/// Exit code and standard error of a run limited to files of `kib` KiB; it names every one of `names`.
#[track_caller]
fn limited(kib: u64, args: &[String], names: &[&str]) -> (Option<i32>, String) {
    // The unit is 512 bytes (POSIX).
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", 2 * kib);
    let output =
        on_one_thread("sh").args(["-c", &script, env!("CARGO_BIN_EXE_fathom")]).args(args).output().unwrap();
    let err = text(&output.stderr);
    assert!(!err.contains("panicked"), "{err}");
    for name in names.iter().chain(&["File too large"]) {
        assert!(err.contains(name), "`{name}` is not in: {err}");
    }
    (output.status.code(), err)
}

/// A run killed after its first checkpoint.
fn killed(folder: &Path) -> Vec<String> {
    let at = |name: &str| folder.join(name);
    write_text(&at("text"));
    let mut child = start(&at("text"), &at("run"));
    let started = Instant::now();
    while !at("run/checkpoints/LATEST").is_file() {
        assert!(started.elapsed() < Duration::from_secs(120), "no checkpoint");
        sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    args(&at("text"), &at("run"))
}

/// Continues with enough space, from the existing checkpoint.
fn goes_on(folder: &Path, args: &[String]) {
    let left = fs::read_dir(folder.join("run/checkpoints")).unwrap();
    let names: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().any(|name| name.starts_with("step-")), "{names:?}");
    good(args);
    assert_eq!(losses(&folder.join("run")), alone().losses);
}

#[test]
fn while_the_corpus_is_built() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let run = args(&at("text"), &at("run"));
    // The first line of the log is 20 KiB, the tokens are 45.
    too_large(28, &run, &["cannot", &at("run/data").display().to_string()]);
    good(&run);
    assert_eq!(losses(&at("run")).len(), 3 * STEPS);
}

#[test]
fn while_a_checkpoint_is_saved() {
    let folder = tempfile::tempdir().unwrap();
    let run = killed(folder.path());
    let checkpoints = folder.path().join("run/checkpoints");
    let latest = fs::read_to_string(checkpoints.join("LATEST")).unwrap();
    let model = checkpoints.join(latest.trim()).join("model/model.safetensors");
    // Space for the weights, but not for the first moments, which are twice as wide.
    let kib = fs::metadata(&model).unwrap().len() / 1024 * 3 / 2;
    // The run continues to its end, or to the next file that is too large.
    limited(kib, &run, &["warning: no checkpoint of step", "moment1/model.safetensors", "cannot write"]);
    assert_eq!(fs::read_to_string(checkpoints.join("LATEST")).unwrap(), latest);
    let leftover = |name: &str| name.starts_with('.');
    let names = fs::read_dir(&checkpoints).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(
        names.into_iter().all(|name| !leftover(name.to_str().unwrap())),
        "the disk is full; nothing is left behind"
    );
    goes_on(folder.path(), &run);
}

/// Before the first checkpoint, a run that could save nothing has failed.
#[test]
fn before_the_first_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let mut run = args(&at("text"), &at("run"));
    // Larger than the report.
    run.push("model.ffn=1024".into());
    good(&run);
    let model = at("run/model/model.safetensors");
    let kib = fs::metadata(&model).unwrap().len() / 1024 * 3 / 2;
    fs::remove_dir_all(at("run/checkpoints")).unwrap();
    fs::remove_file(at("run/metrics.jsonl")).unwrap();
    let (code, err) = limited(kib, &run, &["no checkpoint of step 2, and there is none before it"]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("no checkpoint of the run could be saved"), "{err}");
    assert!(!err.contains("stays"), "{err}");
}

#[test]
fn while_metrics_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let run = killed(folder.path());
    let (log, kib) = (folder.path().join("run/metrics.jsonl"), 4096);
    let mut text = fs::read_to_string(&log).unwrap();
    // An event that the program does not know, up to a few steps below the limit.
    let length = kib as usize * 1024 - 2000 - text.len();
    text.push_str(&format!("{{\"event\":\"padding\",\"step\":0,\"text\":\"{}\"}}\n", "x".repeat(length)));
    fs::write(&log, text).unwrap();
    too_large(kib, &run, &["cannot write", "metrics.jsonl"]);
    goes_on(folder.path(), &run);
}
