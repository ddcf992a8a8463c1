//! Preferences in a pipeline.

use std::fs;

use fathom_app::train::Order;
use fathom_app::{Job, Silent, library, train};
use fathom_base::metrics::read_events;
use serde_json::Value;

use crate::TextSink;

/// A copy of the reference, and KTO's divergence over the whole step, give the results of one rank; a step uses no more
/// memory than planned.
#[test]
fn a_pipeline_compares_as_one_rank() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    train(&crate::small(folder, &["eval.enabled=false", "model.precision=f32"]), &Order::default(), &Silent)
        .unwrap();
    let at = |name: &str| folder.join(name).display().to_string();
    let row = |n: usize| {
        format!("{{\"prompt\": \"Is {n} one?\", \"chosen\": \" Yes {n}.\", \"rejected\": \" No.\"}}\n")
    };
    fs::write(folder.join("pairs.jsonl"), (0..16).map(row).collect::<String>()).unwrap();
    let run = |recipe: &str, out: &str, more: &[&str]| {
        let own = [
            "machine.kind=cpu".to_string(),
            "machine.threads=1".to_string(),
            format!("model.from={}", at("run")),
            format!("data.paths=[{:?}]", at("pairs.jsonl")),
            format!("run.out={}", at(out)),
        ];
        let small = [
            "model.precision=f32",
            "data.held_out_share=0",
            "optimizer.lr=1e-3",
            "objective.reference=copy",
            "stage.0.seq_tokens=128",
            "stage.0.samples_per_micro_batch=1",
            "stage.0.max_docs=32",
            "stage.0.micro_batches=2",
            "stage.0.epochs=none",
            "stage.0.steps=3",
            "checkpoint.every_s=none",
        ];
        let settings = own.into_iter().chain(small.iter().chain(more).map(ToString::to_string));
        let settings: Vec<String> = settings.collect();
        let job = Job::new(library::load(library::layers(recipe, &settings)).unwrap(), &Silent).unwrap();
        let heard = TextSink::default();
        train(&job, &Order::default(), &heard).unwrap();
        let events = read_events(folder.join(out).join("metrics.jsonl")).unwrap();
        let steps = events.into_iter().filter(|event| event["event"] == "step");
        (steps.collect::<Vec<Value>>(), heard.all())
    };
    for (recipe, names) in [("dpo", ["rewards/margins", "logps/chosen"]), ("kto", ["kl", "logps/chosen"])] {
        let (want, _) = run(recipe, &format!("{recipe}-one"), &[]);
        let (found, heard) = run(recipe, &format!("{recipe}-pp"), &["mesh.pp=2"]);
        assert_eq!(found.len(), 3);
        for (a, b) in found.iter().zip(&want) {
            let near = |a: &Value, b: &Value| {
                let [a, b] = [a, b].map(|value| value.as_f64().unwrap());
                assert!((a - b).abs() <= 2e-5 * b.abs().max(1.0), "{recipe}: {a} {b}");
            };
            near(&a["loss"], &b["loss"]);
            names.iter().for_each(|name| near(&a["metrics"][name], &b["metrics"][name]));
        }
        // Samples are not full, so a step may use less memory than planned, but never more.
        let stage = heard.lines().find_map(|line| line.strip_prefix("stage: ")).unwrap();
        let planned: u64 = stage.rsplit(' ').next().unwrap().parse().unwrap();
        let taken = found.iter().map(|step| step["pool_peak_bytes"].as_u64().unwrap()).max().unwrap();
        assert!(taken <= planned, "{taken} {planned}");
    }
}
