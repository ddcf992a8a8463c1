//! Compares steps with FP8 matrix products to bf16: speed and loss.

use std::path::Path;
use std::process::Command;

use super::losses::{compare_means, read};
use super::session::Session;
use super::table::STEPS;
pub(crate) use super::table::{FORMATS, SHAPE_NAME, loss_of};

/// The Llama-3-8B shape with half of its layers, so that the optimizer's state fits on the device and matrix products
/// dominate the step.
const SHAPE: &str = "model.hidden=4096 model.layers=16 model.heads=32 model.kv_heads=8 model.head_dim=128 model.ffn=14336 model.vocab=128256";

/// Tokens per step.
const TOKENS: &str = "8192";
/// Time limits in seconds of a step benchmark and of a training run.
pub const STEP_S: u64 = 25;
pub const RUN_S: u64 = 60;

const LAST: usize = 20;
/// Maximum relative difference of the losses.
const BOUND: f64 = 0.01;

impl Session {
    /// Benchmarks a step in each format.
    pub(super) fn fp8_steps(&mut self) {
        for format in ["bf16"].iter().chain(&FORMATS) {
            let mut command = self.bench_step((SHAPE, "flat"), TOKENS, "5");
            command.arg(format!("precision.gemm={format}"));
            let what = format!("step of {TOKENS} tokens, {SHAPE_NAME}, {format}");
            let ran = self.stage(&what, STEP_S, &mut command);
            self.results.add(&ran.lines, Some(SHAPE_NAME));
        }
    }

    /// Trains in each format.
    pub(super) fn fp8_losses(&mut self) {
        let out = std::env::temp_dir().join(format!("fathom-gpu-fp8-{}", std::process::id()));
        let mut reference = Vec::new();
        for format in ["bf16"].iter().chain(&FORMATS) {
            let run = out.join(format);
            let mut command = training(&self.programs.fathom, &run, format, "cuda");
            self.stage(&format!("{STEPS} steps of three stages, {format}"), RUN_S, &mut command);
            let losses: Vec<f64> = read(&run).unwrap_or_default().iter().map(|[loss, _]| *loss).collect();
            if *format == "bf16" {
                reference = losses;
                continue;
            }
            let (line, complaint) = judged(format, &reference, &losses);
            self.results.add(&[line], None);
            self.complaints.extend(complaint);
        }
        // A temporary folder; the system cleans it up otherwise.
        let _ = std::fs::remove_dir_all(&out);
    }
}

/// The command of a training run on the handbook's text, with a model large enough that its products run in the
/// library.
fn training(binary: &Path, out: &Path, format: &str, machine: &str) -> Command {
    let mut command = Command::new(binary);
    command.args(["quickstart", "--steps", STEPS, "--out"]).arg(out);
    command.arg(format!("precision.gemm={format}")).arg(format!("machine.kind={machine}"));
    command.args([
        "model.layers=8",
        "model.hidden=512",
        "model.heads=8",
        "model.kv_heads=4",
        "model.ffn=1408",
    ]);
    command.args(["model.vocab=1024", "model.precision=bf16", "eval.enabled=false", "optimizer.lr=1e-3"]);
    command
        .args(["stage.0.blend=[{source='text',weight=1.0}]", "stage.1.blend=[{source='text',weight=1.0}]"]);
    command.args(["stage.2.seq_tokens=4096", "stage.2.min_doc_tokens=0"]);
    command.args(["--data", "docs"]);
    command
}

/// The result line of a format, and a complaint if its loss differs.
fn judged(format: &str, reference: &[f64], losses: &[f64]) -> (String, Option<String>) {
    let what = loss_of(format);
    let steps = STEPS.parse().unwrap_or(1);
    match compare_means(reference, losses, (steps, LAST)) {
        None => {
            let text = format!("{} steps, {} in bf16", losses.len(), reference.len());
            let line = format!(r#"{{"what":"{what}","ok":false,"found":"{text}"}}"#);
            (line, Some(format!("{what}: {text}")))
        }
        Some(ratios) => {
            let ok = ratios.iter().all(|ratio| (ratio - 1.0).abs() <= BOUND);
            let words: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.4}")).collect();
            let text = format!("{} of bf16's by stage, bound {BOUND}", words.join(", "));
            let line = format!(r#"{{"what":"{what}","ok":{ok},"found":"{text}"}}"#);
            (line, (!ok).then(|| format!("{what}: {text}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_losses_of_each_stage_are_compared() {
        let reference: Vec<f64> = (0..600).map(|step| if step % 200 < 180 { 9.0 } else { 2.0 }).collect();
        let mut losses = reference.clone();
        losses.iter_mut().skip(500).for_each(|loss| *loss *= 1.005);
        let (line, complaint) = judged("fp8_block", &reference, &losses);
        assert!(complaint.is_none() && line.contains("1.0000, 1.0000, 1.0050 of bf16's"), "{line}");
        losses[599] = 3.0;
        assert!(judged("fp8_block", &reference, &losses).1.is_some_and(|text| text.contains("1.02")));
        assert!(judged("fp8_block", &reference, &losses[..599]).1.is_some());
        losses[599] = f64::NAN;
        assert!(judged("fp8_block", &reference, &losses).1.is_some());
    }
}
