//! What a GPU is asked before anything is claimed of it, in one command of less than eight minutes: its libraries and rates,
//! every operation against the CPU machine, ranks on one device, NCCL, graphs, training steps on both machines, and the
//! figures that have bars, beside PyTorch's. Each stage has a time limit, and the failure of one does not stop the others.
//! What it found is printed as a dated table, for `LOG.md`.

mod stage;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use stage::Ran;
use table::{LARGE, Results};

/// Steps of each of the three stages of a small run.
const STEPS: &str = "3";
/// Largest difference of two losses, as a share: f32 sums in another order, and bf16 products.
const BOUNDS: [(&str, f64); 2] = [("f32", 1e-4), ("bf16", 2e-2)];
/// All stages together.
const ALL_S: u64 = 470;
/// The Llama-3.2-1B shape, for `fathom bench step`.
const SHAPE: &str = "--hidden 2048 --layers 16 --heads 32 --kv-heads 8 --head-dim 64 --ffn 8192 --vocab 128256 --tile-rows 8192";
/// Tokens, places, repeats and the limit of each step.
const LENGTHS: [(&str, &str, &str, u64); 4] = [
    ("8192", "none", "5", 40),
    ("32768", "linear", "3", 45),
    ("131072", "linear", "2", 75),
    ("262144", "auto", "1", 75),
];
/// The bar for the longest step; it alone takes longer than all of the above.
const LONGEST: (&str, u64) = ("1048576", 1500);
/// The larger shape, whose optimizer's state is with the host; its length and limit.
const LARGE_SHAPE: &str = "--hidden 4096 --layers 32 --heads 32 --kv-heads 8 --head-dim 128 --ffn 14336 --vocab 128256 --tile-rows 8192 --offload-optimizer";
const LARGE_STEP: (&str, u64) = ("262144", 900);

/// Where the two programs are: a folder that was brought here, or what cargo builds.
struct Programs {
    gpu: PathBuf,
    fathom: PathBuf,
}

impl Programs {
    fn find(folder: Option<&Path>) -> Result<Programs, String> {
        if let Some(folder) = folder {
            let [gpu, fathom] = ["gpu", "fathom"].map(|name| folder.join(name));
            let absent = [&gpu, &fathom].into_iter().find(|path| !path.is_file());
            if let Some(path) = absent {
                return Err(format!("{}: no such program", path.display()));
            }
            return Ok(Programs { gpu, fathom });
        }
        for build in [&["--bin", "fathom"][..], &["-p", "fathom-cuda", "--example", "gpu"]] {
            let status = Command::new("cargo").args(["build", "--release"]).args(build).status();
            if !status.map_err(|error| error.to_string())?.success() {
                return Err(format!("cargo build {} fails", build.join(" ")));
            }
        }
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
        let release = target.join("release");
        Ok(Programs { gpu: release.join("examples/gpu"), fathom: release.join("fathom") })
    }
}

/// The stages so far.
struct Session {
    programs: Programs,
    begun: Instant,
    limit: Duration,
    results: Results,
    complaints: Vec<String>,
}

impl Session {
    /// Runs a program within its limit and what is left of all.
    fn stage(&mut self, name: &str, limit_s: u64, command: &mut Command) -> Ran {
        let left = self.limit.saturating_sub(self.begun.elapsed());
        if left.is_zero() {
            self.complaints.push(format!("{name}: not run, the time is up"));
            return Ran { lines: Vec::new(), failed: Some("not run".into()), seconds: 0.0 };
        }
        println!("== {name}");
        let ran = stage::run(command, left.min(Duration::from_secs(limit_s)));
        println!("== {name}: {:.0} s, {:.0} s in all", ran.seconds, self.begun.elapsed().as_secs_f64());
        if let Some(failed) = &ran.failed {
            self.complaints.push(format!("{name}: {failed}"));
        }
        ran
    }

    fn gpu(&mut self, what: &str, limit_s: u64) -> bool {
        let mut command = Command::new(&self.programs.gpu);
        let ran = self.stage(&format!("gpu {what}"), limit_s, command.arg(what));
        self.results.add(&ran.lines, None);
        ran.failed.is_none()
    }

    /// The losses of small runs on both machines.
    fn steps(&mut self) {
        let out = std::env::temp_dir().join(format!("fathom-gpu-{}", std::process::id()));
        for (precision, bound) in BOUNDS {
            let mut losses = Vec::new();
            for machine in ["cpu", "cuda"] {
                let run = out.join(format!("{precision}-{machine}"));
                let mut command = quickstart(&self.programs.fathom, &run, precision, machine);
                self.stage(
                    &format!("three steps of three stages, {precision} on {machine}"),
                    60,
                    &mut command,
                );
                losses.push(read(&run).unwrap_or_default());
            }
            self.complaints.extend(compare(precision, &losses[0], &losses[1], bound));
        }
        // A folder of the system's that it clears itself.
        let _ = std::fs::remove_dir_all(&out);
    }

    /// A step of a length, with places, so often; of the larger shape if it has a name.
    fn bench(&mut self, [tokens, places, repeat]: [&str; 3], limit_s: u64, name: Option<&str>) {
        let shape = if name.is_some() { LARGE_SHAPE } else { SHAPE };
        let mut command = Command::new(&self.programs.fathom);
        command
            .args(["bench", "step", "--json", "--machine", "cuda", "--dtype", "bf16"])
            .args(shape.split(' '));
        command.args(["--tokens", tokens, "--places", places, "--repeat", repeat]);
        if repeat == "1" {
            command.arg("--once");
        }
        let what = format!("step of {tokens} tokens, {}", name.unwrap_or("Llama-3.2-1B shape"));
        let ran = self.stage(&what, limit_s, &mut command);
        self.results.add(&ran.lines, name);
    }

    /// PyTorch on the same device, if it is there.
    fn rival(&mut self) {
        let script = crate::gpu_check::root().join("oracle/bench/gpu_step.py");
        let asked = Command::new("python3").args(["-c", "import torch, transformers"]).output();
        if !asked.is_ok_and(|output| output.status.success()) || !script.is_file() {
            println!(
                "== PyTorch skipped: python3 has no torch and transformers, or {} is not there",
                script.display()
            );
            return;
        }
        let mut command = Command::new("python3");
        command.arg(script).args(["--tokens", "8192,32768,131072"]);
        let ran = self.stage("PyTorch", 150, &mut command);
        self.results.add(&ran.lines, None);
    }
}

/// Runs everything; complaints name what differs. `folder` has `gpu` and `fathom` if nothing is to be built. With `long` the
/// step that has the bar for length comes last, beyond the eight minutes.
///
/// # Errors
/// If a program cannot be built, or there is no device: then in one line.
pub fn run(folder: Option<&Path>, long: bool) -> Result<Vec<String>, String> {
    let programs = Programs::find(folder)?;
    let (begun, limit) = (Instant::now(), Duration::from_secs(ALL_S));
    let mut session = Session { programs, begun, limit, results: Results::default(), complaints: Vec::new() };
    if !session.gpu("device", 30) {
        return Err("gpu-run: no GPU to run on; the lines above say why".to_string());
    }
    session.gpu("rates", 75);
    session.gpu("ranks", 45);
    session.gpu("parity", 75);
    session.steps();
    for (tokens, places, repeat, limit_s) in LENGTHS {
        session.bench([tokens, places, repeat], limit_s, None);
    }
    session.rival();
    if long {
        session.limit += Duration::from_secs(LONGEST.1 + LARGE_STEP.1);
        session.bench([LARGE_STEP.0, "auto", "1"], LARGE_STEP.1, Some(LARGE));
        session.bench([LONGEST.0, "auto", "1"], LONGEST.1, None);
    }
    let date = Command::new("date").args(["-u", "+%F"]).output();
    let date = date.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string());
    let (table, missed) = session.results.table(&date.unwrap_or_default());
    println!("== for LOG.md\n\n{table}\n");
    session.complaints.extend(missed);
    Ok(session.complaints)
}

/// A small run of all stages over the handbook.
fn quickstart(binary: &Path, out: &Path, precision: &str, machine: &str) -> Command {
    let mut command = Command::new(binary);
    command.args(["quickstart", "--steps", STEPS, "--out"]).arg(out).args(["--data", "docs"]);
    command.arg(format!("model.precision={precision}")).arg(format!("machine.kind={machine}"));
    command.args(["model.layers=2", "model.hidden=128", "model.vocab=1024", "eval.enabled=false"]);
    command.args([
        "stage.0.samples_per_micro_batch=4",
        "stage.2.seq_tokens=4096",
        "stage.2.min_doc_tokens=0",
    ]);
    command.stderr(Stdio::inherit());
    command
}

/// The loss of each step of a run.
fn read(folder: &Path) -> Result<Vec<f64>, String> {
    let path = folder.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    Ok(events.filter(|event| event["event"] == "step").filter_map(|event| event["loss"].as_f64()).collect())
}

fn compare(precision: &str, cpu: &[f64], cuda: &[f64], bound: f64) -> Vec<String> {
    println!("cpu  {cpu:?}\ncuda {cuda:?}");
    if cpu.is_empty() || cpu.len() != cuda.len() {
        return vec![format!("{precision}: {} steps on cpu, {} on cuda", cpu.len(), cuda.len())];
    }
    let apart = |(step, (a, b)): (usize, (&f64, &f64))| {
        let share = (a - b).abs() / a.abs().max(1e-9);
        let far = share.is_nan() || share > bound;
        far.then(|| format!("{precision}: step {step} is {a} on cpu, {b} on cuda"))
    };
    cpu.iter().zip(cuda).enumerate().filter_map(apart).collect()
}

#[cfg(test)]
mod tests {
    use super::compare;

    #[test]
    fn losses_that_lie_apart_are_named() {
        assert!(compare("f32", &[2.0, 1.0], &[2.0001, 1.0], 1e-3).is_empty());
        assert!(compare("f32", &[2.0, 1.0], &[2.0, 1.1], 1e-3)[0].contains("step 1"));
        assert!(compare("f32", &[2.0], &[f64::NAN], 1e-3)[0].contains("step 0"));
        assert!(compare("f32", &[2.0], &[], 1e-3)[0].contains("0 on cuda"));
    }
}
