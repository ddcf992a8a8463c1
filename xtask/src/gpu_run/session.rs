//! A session on the device: its programs, its time and its results.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::stage;
use super::stage::Ran;
use super::table::{GRAPHS, LARGE, LEAN, OFFLOADED, PEAKED, Results};

/// The paths of the two programs: in a given folder, or as built by cargo.
pub(super) struct Programs {
    gpu: PathBuf,
    pub(crate) fathom: PathBuf,
}

impl Programs {
    pub(crate) fn find(folder: Option<&Path>) -> Result<Programs, String> {
        if let Some(folder) = folder {
            let [gpu, fathom] = ["gpu", "fathom"].map(|name| folder.join(name));
            let absent = [&gpu, &fathom].into_iter().find(|path| !path.is_file());
            if let Some(path) = absent {
                return Err(format!("{}: no such program", path.display()));
            }
            return Ok(Programs { gpu, fathom });
        }
        let build = ["build", "--release", "--bin", "fathom", "--example", "gpu"];
        let status = Command::new("cargo").args(build).status();
        if !status.map_err(|error| error.to_string())?.success() {
            return Err(format!("cargo {} fails", build.join(" ")));
        }
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
        let release = target.join("release");
        Ok(Programs { gpu: release.join("examples/gpu"), fathom: release.join("fathom") })
    }
}

/// The state of a run.
pub(super) struct Session {
    pub(crate) programs: Programs,
    pub(crate) started: Instant,
    pub(crate) limit: Duration,
    pub(crate) patience: u32,
    pub(crate) results: Results,
    pub(crate) complaints: Vec<String>,
}

impl Session {
    /// Runs a program within its time limit and the remaining total time.
    pub(crate) fn stage(&mut self, name: &str, limit_s: u64, command: &mut Command) -> Ran {
        let left = self.limit.saturating_sub(self.started.elapsed());
        if left.is_zero() {
            self.complaints.push(format!("{name}: not run, the time is up"));
            return Ran { lines: Vec::new(), failed: Some("not run".into()), ended: false, seconds: 0.0 };
        }
        println!("== {name}");
        let ran = stage::run(command, left.min(self.patience * Duration::from_secs(limit_s)));
        println!("== {name}: {:.0} s, {:.0} s in all", ran.seconds, self.started.elapsed().as_secs_f64());
        if let Some(failed) = &ran.failed {
            self.complaints.push(format!("{name}: {failed}"));
        }
        if ran.ended {
            // Device memory held by the program is not available immediately to the next one.
            stage::run(Command::new(&self.programs.gpu).arg("free"), Duration::from_secs(30));
        }
        ran
    }

    pub(crate) fn gpu(&mut self, what: &str, limit_s: u64) -> bool {
        let mut command = Command::new(&self.programs.gpu);
        let ran = self.stage(&format!("gpu {what}"), limit_s, command.arg(what));
        self.results.add(&ran.lines, None);
        ran.failed.is_none()
    }

    pub(crate) fn check(&mut self, what: &str, limit_s: u64) {
        // A failure has already been added to the complaints.
        let _ = self.gpu(what, limit_s);
    }

    /// The command `fathom bench step` for a shape, a kind of attention scores and a sequence length, with tiled
    /// processing.
    pub(crate) fn bench_step(&self, (shape, scores): (&str, &str), tokens: &str, repeat: &str) -> Command {
        let mut command = Command::new(&self.programs.fathom);
        command.args([
            "bench",
            "step",
            "--repeat",
            repeat,
            "--scores",
            scores,
            "machine.kind=cuda",
            "activations.tile_rows=8192",
        ]);
        command.arg(format!("stages={tokens}")).args(shape.split(' '));
        command
    }

    /// Benchmarks a step with the given memory options; `name` selects a variant or another shape.
    pub(crate) fn bench(&mut self, (tokens, places, repeat, limit_s): Step, name: Option<&str>) {
        let shape = if matches!(name, Some(LARGE | OFFLOADED)) { LARGE_SHAPE } else { SHAPE };
        let more: &[&str] = match name {
            Some(GRAPHS) => &["machine.graphs=true"],
            Some(OFFLOADED) => &["machine.offload_optimizer=true", "machine.offload_to=host"],
            Some(LEAN | LARGE) => &["optimizer.moments=bf16", "optimizer.master_weights=false"],
            _ => &[],
        };
        let scores = if name == Some(PEAKED) { "peaked" } else { "flat" };
        let mut command = self.bench_step((shape, scores), tokens, repeat);
        command.arg(places).args(more);
        if repeat == "1" {
            command.arg("--once");
        }
        let what = format!("step of {tokens} tokens, {}", name.unwrap_or("Llama-3.2-1B shape"));
        let ran = self.stage(&what, limit_s, &mut command);
        self.results.add(&ran.lines, name);
    }
}

/// The Llama-3.2-1B shape, as keys of `fathom bench step`.
pub const SHAPE: &str = "model.hidden=2048 model.layers=16 model.heads=32 model.kv_heads=8 model.head_dim=64 model.ffn=8192 model.vocab=128256";

/// The larger shape.
pub const LARGE_SHAPE: &str = "model.hidden=4096 model.layers=32 model.heads=32 model.kv_heads=8 model.head_dim=128 model.ffn=14336 model.vocab=128256";

/// Tokens, memory option, repeats and time limit in seconds of a step.
pub type Step = (&'static str, &'static str, &'static str, u64);
