//! Several answers to a prompt, each as likely as it should be.

use std::fs;

use fathom_app::train::Order;
use fathom_app::{Job, Silent, library, train};
use fathom_base::metrics::read_events;

/// A run learns the shares that the rows ask for, whatever else is in a micro batch.
#[test]
fn shares_of_answers_are_learned() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    train(&crate::small(folder, &["eval.enabled=false", "model.precision=f32"]), &Order::default(), &Silent)
        .unwrap();
    let at = |name: &str| folder.join(name).display().to_string();
    let response = |value: &str, wanted: f64| {
        format!(
            "{{\"value\": \" {value}\", \"log(P(a|x,y))\": {wanted}, \"log(P(y|x))\": -6, \"log(Q(y|a,x))\": -6}}"
        )
    };
    let row = |n: usize| {
        let all = [response("stone", 3.0), response("river", 0.0), response("old light", -1.0)].join(", ");
        format!("{{\"prompt\": \"What is {n}?\", \"responses\": [{all}]}}\n")
    };
    fs::write(folder.join("rows.jsonl"), (0..8).map(row).collect::<String>()).unwrap();
    let run = |out: &str, more: &[&str]| {
        let own = [
            "machine.kind=cpu".to_string(),
            format!("model.from={}", at("run")),
            format!("data.paths=[{:?}]", at("rows.jsonl")),
            format!("run.out={}", at(out)),
        ];
        let settings = [
            "objective.responses=3",
            "model.precision=f32",
            "data.held_out_share=0",
            "data.shuffle=false",
            "optimizer.lr=3e-3",
            "stage.0.seq_tokens=128",
            "stage.0.max_docs=32",
            "stage.0.micro_batches=2",
            "stage.0.epochs=none",
            "stage.0.steps=25",
            "checkpoint.every_s=none",
        ];
        let settings = own.into_iter().chain(settings.iter().chain(more).map(ToString::to_string));
        let settings: Vec<String> = settings.collect();
        Job::new(library::load(library::layers("steerlm2", &settings))?, &Silent)
    };
    train(&run("out", &[]).unwrap(), &Order::default(), &Silent).unwrap();
    let events = read_events(folder.join("out/metrics.jsonl")).unwrap();
    let kls: Vec<f64> = events
        .iter()
        .filter(|it| it["event"] == "step")
        .map(|it| it["metrics"]["kl"].as_f64().unwrap())
        .collect();
    let (first, last) = (kls[0], kls[kls.len() - 1]);
    assert!(kls.len() == 25 && last < 0.1 * first && last >= 0.0, "{kls:?}");
    let error =
        run("bad", &["objective.responses=2"]).and_then(|job| train(&job, &Order::default(), &Silent));
    assert!(error.err().unwrap().to_string().contains("objective.responses is 2"));
    let error = run("bad", &["objective.method=dpo"]).and_then(|job| train(&job, &Order::default(), &Silent));
    assert!(error.err().unwrap().to_string().contains("objective.responses"));
}
