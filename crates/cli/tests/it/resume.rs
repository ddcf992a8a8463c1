//! A run killed at any moment and restarted has the losses of an uninterrupted one; asked to stop, it saves.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::run::{TINY, write_text};
use crate::{arg, good, text};

pub const STEPS: usize = 12;

pub fn args(text: &Path, out: &Path) -> Vec<String> {
    let steps = STEPS.to_string();
    let fixed = ["quickstart", "--steps", &steps, "--data", arg(text), "--out", arg(out)].map(String::from);
    let often =
        ["checkpoint.every_steps=2", "checkpoint.every_s=none", "eval.enabled=false"].map(String::from);
    fixed.into_iter().chain(TINY.map(String::from)).chain(often).collect()
}

pub fn start(text: &Path, out: &Path) -> Child {
    start_with(text, out, &[])
}

/// Result of an uninterrupted run: its losses and model.
pub struct Alone {
    pub losses: Vec<(u64, u64)>,
    model: Vec<u8>,
}

/// The run of [`args`], made once for all comparisons.
pub fn alone() -> &'static Alone {
    static MADE: OnceLock<Alone> = OnceLock::new();
    MADE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write_text(&at("text"));
        good(args(&at("text"), &at("alone")));
        let losses = losses(&at("alone"));
        assert_eq!(losses.len(), 3 * STEPS);
        Alone { losses, model: fs::read(at("alone/model/model.safetensors")).unwrap() }
    })
}

fn start_with(text: &Path, out: &Path, more: &[&str]) -> Child {
    let mut command = crate::program();
    command.args(args(text, out)).args(more).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Bits of the loss of each step in the log.
pub fn losses(out: &Path) -> Vec<(u64, u64)> {
    let text = fs::read_to_string(out.join("metrics.jsonl")).unwrap_or_default();
    let events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let steps = events.filter(|event| event["event"] == "step");
    steps.map(|step| (step["step"].as_u64().unwrap(), step["loss_bits"].as_u64().unwrap())).collect()
}

/// Waits until the run has logged `steps` steps, or has ended.
fn wait_for(child: &mut Child, out: &Path, steps: usize) {
    let started = Instant::now();
    while losses(out).len() < steps && child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < Duration::from_secs(120), "no step {steps}");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn killed_runs_go_on_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    // Before the first save, between saves of the first stage, and in the second and third.
    for steps in [1, 7, STEPS + 4, 2 * STEPS + 5] {
        let mut child = start(&at("text"), &at("killed"));
        wait_for(&mut child, &at("killed"), steps);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    good(args(&at("text"), &at("killed")));
    assert_eq!(losses(&at("killed")), alone().losses);
}

/// The placement of weights and optimizer state is not part of a run's identity: it may change between starts.
#[test]
fn killed_runs_go_on_with_their_state_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let on_disk = ["machine.offload_weights=true", "machine.offload_optimizer=true"];
    for (steps, more) in [(5, &on_disk[..]), (STEPS + 4, &[]), (2 * STEPS + 5, &on_disk[1..])] {
        let mut child = start_with(&at("text"), &at("killed"), more);
        wait_for(&mut child, &at("killed"), steps);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    good(args(&at("text"), &at("killed")).into_iter().chain(on_disk.map(String::from)));
    assert_eq!(losses(&at("killed")), alone().losses);
    assert!(fs::read(at("killed/model/model.safetensors")).unwrap() == alone().model);
}

/// A supervised run on two ranks that loses one, is asked to stop, and continues on one rank: pipeline stages change
/// no bit if nothing reads the gradient's norm.
#[test]
fn a_run_that_lost_a_rank_goes_on_under_another_mesh() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let with = |out: &Path| args(&at("text"), out).into_iter().chain(["optimizer.clip=none".to_owned()]);
    good(with(&at("alone")));
    let program = env!("CARGO_BIN_EXE_fathom");
    let out = at("disturbed");
    let mut job = crate::program();
    job.args(["supervise", "--out", arg(&out), "--backoff", "0.01", "--", program]);
    job.args(with(&out));
    job.args(["mesh.pp=2", "machine.fault=\"kill rank 1 at step 7, term rank 0 at step 20\""]);
    let output = job.output().unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{err}");
    assert!(err.contains("restart 1 of 10"), "{err}");
    assert_eq!(losses(&out).len(), 20, "{err}");
    good(with(&out));
    assert_eq!(losses(&out), losses(&at("alone")));
}

#[cfg(unix)]
#[test]
fn a_run_that_is_asked_to_stop_saves_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let mut child = start(&at("text"), &at("run"));
    wait_for(&mut child, &at("run"), 3);
    let status = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    let status = child.wait().unwrap();
    // On a fast machine the run may already have finished.
    assert!(matches!(status.code(), Some(75 | 0)), "{status}");
    good(args(&at("text"), &at("run")));
    assert_eq!(losses(&at("run")).len(), 3 * STEPS);
}

/// A log that was emptied: the run goes on from its checkpoint, and says what its report lacks.
#[test]
fn a_run_whose_log_was_emptied_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let [data, out] = ["text", "run"].map(|name| folder.path().join(name));
    write_text(&data);
    let run = || {
        let args = ["quickstart", "--steps", "1", "--data", arg(&data), "--out", arg(&out)];
        let output = crate::fathom(args.into_iter().chain(["eval.enabled=false"]).chain(TINY));
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    assert!(!run().contains("has no line"));
    fs::write(out.join("metrics.jsonl"), "").unwrap();
    let said = run();
    assert!(
        said.contains("metrics.jsonl: has no line of the steps 1 to 3, which the checkpoint has"),
        "{said}"
    );
}

/// Slurm sends USR1 some time before the end, and TERM at it: both request the same.
#[cfg(unix)]
#[test]
fn a_signal_of_another_kind_does_not_end_a_save() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let mut child = start_with(&at("text"), &at("run"), &["stage.0.steps=100000"]);
    wait_for(&mut child, &at("run"), 3);
    let kill = format!("kill -USR1 {0} && kill -TERM {0}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(75));
}
