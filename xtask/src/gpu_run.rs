//! What a GPU is asked before anything is claimed of it, in one command of some minutes: its libraries and rates, every
//! operation against the CPU machine, and training steps on both. Results are printed, for `LOG.md`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Steps of each of the three stages of a small run.
const STEPS: &str = "3";
/// Largest difference of two losses, as a share: f32 sums in another order, and bf16 products.
const BOUNDS: [(&str, f64); 2] = [("f32", 1e-4), ("bf16", 2e-2)];

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

/// Runs everything; complaints name what differs. `folder` has `gpu` and `fathom` if nothing is to be built.
///
/// # Errors
/// If a program cannot be built or started.
pub fn run(folder: Option<&Path>) -> Result<Vec<String>, String> {
    let programs = Programs::find(folder)?;
    let begun = Instant::now();
    let mut complaints = Vec::new();
    for what in ["rates", "parity"] {
        println!("== gpu {what}");
        let status = Command::new(&programs.gpu).arg(what).status().map_err(|error| error.to_string())?;
        if !status.success() {
            complaints.push(format!("gpu {what}: see the lines with \"ok\":false above"));
        }
        println!("== {:.0} s", begun.elapsed().as_secs_f64());
    }
    let out = std::env::temp_dir().join(format!("fathom-gpu-{}", std::process::id()));
    for (precision, bound) in BOUNDS {
        let mut losses = Vec::new();
        for machine in ["cpu", "cuda"] {
            let run = out.join(format!("{precision}-{machine}"));
            println!("== three steps of three stages, {precision} on {machine}");
            let status = quickstart(&programs.fathom, &run, precision, machine).status();
            if !status.map_err(|error| error.to_string())?.success() {
                complaints.push(format!("the run in {precision} on {machine} fails"));
            }
            losses.push(read(&run).unwrap_or_default());
        }
        complaints.extend(compare(precision, &losses[0], &losses[1], bound));
        println!("== {:.0} s", begun.elapsed().as_secs_f64());
    }
    let _ = std::fs::remove_dir_all(&out);
    Ok(complaints)
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
    command.stdout(Stdio::null());
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
