//! Short training runs on both machines, compared by loss and gradient norm.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::session::Session;

/// Steps of each of the three stages of a small run.
const STEPS: &str = "3";
/// Time limit in seconds of each run.
pub const RUN_S: u64 = 10;

/// Maximum relative differences of losses and of norms: f32 sums have a different order, and products are in bf16.
/// Differences accumulate in the weights, and norms are more sensitive to them.
const BOUNDS: [(&str, [f64; 2]); 2] = [("f32", [1e-4, 1e-3]), ("bf16", [2e-2, 5e-2])];

/// A step's loss and gradient norm.
pub type Step = [f64; 2];

impl Session {
    /// Runs the small runs on both machines and compares their steps.
    pub(super) fn losses(&mut self) {
        let out = std::env::temp_dir().join(format!("fathom-gpu-{}", std::process::id()));
        for (precision, bounds) in BOUNDS {
            let expected = self.steps(&out, precision, "cpu", &[]);
            let graphs = ["machine.graphs=true"];
            let ways = [("", &[][..]), (", blocks as graphs", &graphs)];
            for (way, keys) in ways.into_iter().take(if precision == "bf16" { 2 } else { 1 }) {
                let name = format!("{precision}{way}");
                let steps = [expected.clone(), self.steps(&out, &name, "cuda", keys)];
                let complaints = compare(&name, &steps, bounds);
                let found = complaints.first().cloned().unwrap_or(format!("{} steps agree", expected.len()));
                let line = serde_json::json!({ "what": format!("training steps against the processor, {name}"),
                    "ok": complaints.is_empty(), "found": found });
                self.results.add(&[line.to_string()], None);
                self.complaints.extend(complaints);
            }
        }
        // A temporary folder; the system cleans it up otherwise.
        let _ = std::fs::remove_dir_all(&out);
    }

    /// The steps of a small run in the precision that `name` begins with.
    fn steps(&mut self, out: &Path, name: &str, machine: &str, keys: &[&str]) -> Vec<Step> {
        let run = out.join(format!("{}-{machine}", name.replace([',', ' '], "-")));
        let precision = name.split(',').next().unwrap_or(name);
        let mut command = quickstart(&self.programs.fathom, &run, (precision, machine), keys);
        self.stage(&format!("three steps of three stages, {name} on {machine}"), RUN_S, &mut command);
        read(&run).unwrap_or_default()
    }
}

/// The command of a small run of all stages on the handbook.
fn quickstart(binary: &Path, out: &Path, (precision, machine): (&str, &str), keys: &[&str]) -> Command {
    let mut command = Command::new(binary);
    command.args(["quickstart", "--steps", STEPS, "--out"]).arg(out);
    command.arg(format!("model.precision={precision}")).arg(format!("machine.kind={machine}"));
    command.args(["model.layers=2", "model.hidden=128", "model.vocab=1024", "eval.enabled=false"]);
    // The handbook is small; several documents ensure that not all of it is held out.
    command.arg("data.document_bytes=16384");
    command.args([
        "stage.0.samples_per_micro_batch=4",
        "stage.2.seq_tokens=4096",
        "stage.2.min_doc_tokens=0",
    ]);
    command.args(keys);
    command.args(["--data", "docs"]).stderr(Stdio::inherit());
    command
}

/// Reads the steps of a run.
pub fn read(folder: &Path) -> Result<Vec<Step>, String> {
    let path = folder.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let steps = events.filter(|event| event["event"] == "step");
    Ok(steps.filter_map(|event| Some([event["loss"].as_f64()?, event["grad_norm"].as_f64()?])).collect())
}

fn compare(precision: &str, [cpu, cuda]: &[Vec<Step>; 2], bounds: [f64; 2]) -> Vec<String> {
    println!("cpu  {cpu:?}\ncuda {cuda:?}");
    if cpu.is_empty() || cpu.len() != cuda.len() {
        return vec![format!("{precision}: {} steps on cpu, {} on cuda", cpu.len(), cuda.len())];
    }
    let mut complaints = Vec::new();
    for (step, (ours, theirs)) in cuda.iter().zip(cpu).enumerate() {
        for (index, what) in ["loss", "norm"].into_iter().enumerate() {
            let (found, expected) = (ours[index], theirs[index]);
            let share = (found - expected).abs() / expected.abs().max(1e-9);
            if share.is_nan() || share > bounds[index] {
                complaints.push(format!(
                    "{precision}: {what} of step {step} is {expected} on cpu, {found} on cuda"
                ));
            }
        }
    }
    complaints
}

/// By stage of `steps` steps, the ratio of the mean of the last `last` losses to that of the reference; `None` if steps
/// are missing.
pub fn compare_means(reference: &[f64], losses: &[f64], (steps, last): (usize, usize)) -> Option<Vec<f64>> {
    let whole = !losses.is_empty() && losses.len() == reference.len() && losses.len().is_multiple_of(steps);
    let ends = |all: &[f64]| -> Vec<f64> {
        all.chunks(steps).map(|stage| stage.iter().rev().take(last).sum::<f64>()).collect()
    };
    whole.then(|| ends(losses).iter().zip(ends(reference)).map(|(ours, theirs)| ours / theirs).collect())
}

#[cfg(test)]
mod tests {
    use super::compare;

    #[test]
    fn steps_that_lie_apart_are_named() {
        let complaints = |cpu: &[[f64; 2]], cuda: &[[f64; 2]]| {
            compare("f32", &[cpu.to_vec(), cuda.to_vec()], [1e-3, 1e-2]).join("\n")
        };
        assert_eq!(complaints(&[[2.0, 1.0], [1.0, 3.0]], &[[2.0001, 1.005], [1.0, 3.0]]), "");
        assert!(complaints(&[[2.0, 1.0], [1.0, 1.0]], &[[2.0, 1.0], [1.1, 1.0]]).contains("loss of step 1"));
        assert!(complaints(&[[2.0, 1.0]], &[[2.0, 1.02]]).contains("norm of step 0"));
        assert!(complaints(&[[2.0, 1.0]], &[[f64::NAN, 1.0]]).contains("loss of step 0"));
        assert!(complaints(&[[2.0, 1.0]], &[]).contains("0 on cuda"));
    }
}
