//! Kills a quickstart at random moments, resumes it each time, and compares every loss with those of an uninterrupted
//! run. Run by hand: it takes as long as two quickstarts plus restarts.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::random::Random;

/// Steps of each stage.
const STEPS: u64 = 24;
/// A run that has not finished after this many starts is broken.
const STARTS: usize = 200;

/// Kills the run `kills` times; complaints name the first step whose loss differs.
pub fn run(kills: usize) -> Result<Vec<String>, String> {
    let binary = build()?;
    let folder = std::env::temp_dir().join(format!("fathom-kill-{}", std::process::id()));
    let (alone, killed) = (folder.join("alone"), folder.join("killed"));
    let started = Instant::now();
    let status = quickstart(&binary, &alone).status().map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!("the run that was left alone ended with {status}"));
    }
    let whole = started.elapsed();
    // Each start runs long enough for a few steps and short enough for all kills to happen.
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut left = kills;
    for start in 0..STARTS {
        let mut child = quickstart(&binary, &killed).spawn().map_err(|error| error.to_string())?;
        if left == 0 {
            let status = child.wait().map_err(|error| error.to_string())?;
            println!("ended with {status} at start {}", start + 1);
            let complaints = compare(&losses(&alone)?, &losses(&killed)?);
            if complaints.is_empty() {
                let _ = std::fs::remove_dir_all(&folder);
            }
            return Ok(complaints);
        }
        let life = whole.mul_f64(0.05 + 0.3 * random.unit()).max(Duration::from_millis(200));
        let since = Instant::now();
        let mut ended = false;
        while since.elapsed() < life && !ended {
            sleep(Duration::from_millis(20));
            ended = child.try_wait().map_err(|error| error.to_string())?.is_some();
        }
        if ended {
            // The run finished early; the remaining kills hit a fresh run.
            std::fs::remove_dir_all(&killed).map_err(|error| error.to_string())?;
            continue;
        }
        child.kill().and_then(|()| child.wait().map(drop)).map_err(|error| error.to_string())?;
        left -= 1;
        println!(
            "killed after {:.1} s, {} steps on disk, {left} kills left",
            life.as_secs_f64(),
            losses(&killed).map_or(0, |losses| losses.len())
        );
    }
    Err(format!("no end after {STARTS} starts"))
}

/// Builds the program and returns its path.
pub fn build() -> Result<PathBuf, String> {
    let status = Command::new("cargo").args(["build", "--release", "--bin", "fathom"]).status();
    if status.map_err(|error| error.to_string())?.success() {
        Ok(std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from).join("release/fathom"))
    } else {
        Err("fathom does not build".to_string())
    }
}

/// The command of a small run of all stages that saves often.
fn quickstart(binary: &Path, out: &Path) -> Command {
    let mut command = Command::new(binary);
    command.args(["quickstart", "--steps", &STEPS.to_string(), "--out"]).arg(out);
    command.args([
        "data.max_bytes=2000000",
        "model.layers=2",
        "model.hidden=128",
        "model.vocab=1024",
        "eval.enabled=false",
    ]);
    command.args([
        "stage.0.samples_per_micro_batch=4",
        "stage.2.seq_tokens=4096",
        "stage.2.min_doc_tokens=0",
    ]);
    command.args(["checkpoint.every_steps=3", "checkpoint.every_s=none"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// (step, bits of the loss) of each step in a run's log.
fn losses(folder: &Path) -> Result<Vec<(u64, u64)>, String> {
    let path = folder.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let steps = events.filter(|event| event["event"] == "step");
    Ok(steps.filter_map(|event| Some((event["step"].as_u64()?, event["loss_bits"].as_u64()?))).collect())
}

fn compare(alone: &[(u64, u64)], killed: &[(u64, u64)]) -> Vec<String> {
    if alone.len() as u64 != 3 * STEPS || alone.len() != killed.len() {
        return vec![format!(
            "{} steps alone, {} killed and resumed, expected {}",
            alone.len(),
            killed.len(),
            3 * STEPS
        )];
    }
    let differs = alone.iter().zip(killed).find(|(alone, killed)| alone != killed);
    differs
        .map(|(alone, killed)| format!("first difference: {alone:?} alone, {killed:?} resumed"))
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_differing_loss_is_named() {
        let alone: Vec<(u64, u64)> = (0..3 * STEPS).map(|step| (step, 7)).collect();
        let mut other = alone.clone();
        assert!(compare(&alone, &other).is_empty());
        other[5].1 = 8;
        assert!(compare(&alone, &other)[0].contains("(5, 7)"));
        assert!(compare(&alone, &other[1..])[0].contains("steps"));
    }
}
