//! Distillation with a teacher in the same run, from a column next to the lessons, and from rows that contain it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::resume::losses;
use crate::run::write_text;
use crate::sft::{args_of, base};
use crate::{arg, good, refused};

fn steps(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event"] == "step").collect()
}

fn numbers(out: &Path, key: &str) -> Vec<f64> {
    steps(out).iter().map(|step| step["metrics"][key].as_f64().unwrap()).collect()
}

#[test]
fn a_student_learns_from_a_model_a_column_and_rows() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    base(folder.path());
    // A better trained teacher with the same tokenizer.
    let more = ["run.seed=3", "optimizer.lr=1e-2", "stage.0.epochs=8", "eval.enabled=false"];
    good(args_of("sft", folder.path(), "teacher", &more));
    let teacher = format!("objective.teacher={}", arg(&at("teacher")));
    let student = [
        "optimizer.lr=3e-3",
        "stage.0.epochs=4",
        "eval.enabled=false",
        "objective.kd_ratio=1",
        "data.held_out_share=0",
    ];
    let run = |out: &str, more: &[&str]| {
        let more = [&student[..], &[teacher.as_str()], more].concat();
        args_of("distill", folder.path(), out, &more)
    };
    good(run("whole", &[]));
    let divergences = numbers(&at("whole"), "divergence");
    assert!(divergences[divergences.len() - 1] < 0.8 * divergences[0], "{divergences:?}");
    for step in steps(&at("whole")) {
        // The loss is all divergence.
        let [loss, divergence] = [&step["loss"], &step["metrics"]["divergence"]].map(|x| x.as_f64().unwrap());
        assert!((loss - divergence).abs() < 1e-4 * loss, "{step}");
        assert!(step["metrics"]["cross_entropy"].as_f64().unwrap() > 0.0);
    }
    // Nearly all of the vocabulary plus the rest is all of it.
    refused(
        run("beyond", &["objective.top_k=500", "model.precision=f32"]),
        &["is 500, and the teacher has 320"],
    );
    good(run("column", &["objective.top_k=300", "model.precision=f32"]));
    good(run("alike", &["model.precision=f32"]));
    for (a, b) in numbers(&at("column"), "divergence").iter().zip(numbers(&at("alike"), "divergence")) {
        assert!((a - b).abs() < 2e-4 * b, "{a} {b}");
    }
    // Rows with the same column, and rows from another teacher.
    let scored = |top_k: &str, out: &str| {
        let [model, data, out] = [at("teacher"), at("lessons.jsonl"), at(out)];
        good(["score", arg(&model), arg(&data), "--out", arg(&out), "--top-k", top_k, "--precision", "f32"]);
    };
    scored("7", "seven.jsonl");
    let best = ["objective.top_k=7", "model.precision=f32"];
    good(run("computed", &best));
    let rows = format!("data.paths={}", arg(&at("seven.jsonl")));
    good(run("brought", &[&best[..], &[rows.as_str()]].concat()));
    // Scored one by one, and in batches.
    for (a, b) in numbers(&at("brought"), "divergence").iter().zip(numbers(&at("computed"), "divergence")) {
        assert!((a - b).abs() < 1e-6 * b.max(1.0), "{a} {b}");
    }
    refused(run("other", &["objective.top_k=8", rows.as_str()]), &["objective.teacher asks for"]);
    // Two context-parallel ranks, against one.
    good(run("cp", &["mesh.cp=2", "model.precision=f32", "machine.threads=1"]));
    for (a, b) in numbers(&at("cp"), "divergence").iter().zip(numbers(&at("alike"), "divergence")) {
        assert!((a - b).abs() < 1e-4 * b, "{a} {b}");
    }
}

#[test]
fn what_no_student_can_learn_from_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    base(folder.path());
    // Another vocabulary of the same size.
    write_text(&at("other-text"));
    fs::write(at("other-text/more.txt"), "zebras vex quick jumping wizards by the fjord. ".repeat(400))
        .unwrap();
    let paths = format!("data.paths={}", arg(&at("other-text")));
    good(["train", arg(&at("base.toml")), &paths, &format!("run.out={}", arg(&at("stranger")))]);
    let own = format!("objective.teacher={}", arg(&at("base")));
    let other = format!("objective.teacher={}", arg(&at("stranger")));
    let small = ["stage.0.epochs=1", "eval.enabled=false"];
    let run = |more: &[&str]| args_of("distill", folder.path(), "out", &[&small[..], more].concat());
    refused(run(&[other.as_str()]), &["has another tokenizer (hash "]);
    refused(run(&[]), &["objective.teacher"]);
    refused(run(&["objective.teacher=nowhere"]), &["objective.teacher"]);
    refused(run(&[own.as_str(), "mesh.pp=2"]), &["objective.top_k=64"]);
    refused(run(&[own.as_str(), "objective.loss=hinge"]), &["is no loss of objective.method"]);
    refused(run(&[own.as_str(), "objective.jsd_beta=0.3"]), &["objective.loss = \"jsd\""]);
    refused(run(&[own.as_str(), "objective.top_k_rest=false"]), &["objective.top_k above 0"]);
    let more = [&small[..], &[own.as_str()]].concat();
    refused(args_of("sft", folder.path(), "out", &more), &["objective.method = \"distill\""]);
}

/// Distillation over text.
const LEARN_TEXT: [&str; 10] = [
    "data.format=text",
    "objective.kd_ratio=1",
    "stage.0.seq_tokens=64",
    "stage.0.steps=40",
    "stage.0.epochs=none",
    "stage.0.packing=cut",
    "stage.0.micro_batches=1",
    "stage.0.samples_per_micro_batch=4",
    "optimizer.lr=3e-3",
    "eval.enabled=false",
];

#[test]
fn a_pruned_model_is_smaller_and_learns_back() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let wide = "[model]\nhidden = 64\nlayers = 3\nheads = 4\nkv_heads = 2\nhead_dim = 16\nffn = 96\nvocab = 512\n\
        [[stage]]\nseq_tokens = 64\nsteps = 30\n[eval]\nenabled = false\n[optimizer]\nlr = 5e-3\n";
    fs::write(at("wide.toml"), wide).unwrap();
    let paths = format!("data.paths={}", arg(&at("text")));
    good(["train", arg(&at("wide.toml")), &paths, &format!("run.out={}", arg(&at("wide")))]);
    let text = fs::read_dir(at("text")).unwrap().next().unwrap().unwrap().path();
    let sizes = ["--layers", "2", "--hidden", "48", "--ffn", "64", "--heads", "2", "--sample-tokens", "64"];
    let judge = ["--data", arg(&text), "--precision", "f32", "--samples", "8"];
    let [model, to] = [at("wide"), at("small")];
    let out = good([&["prune", arg(&model), arg(&to), "--json"][..], &judge, &sizes].concat());
    let report: Value = serde_json::from_str(&out).unwrap();
    let [before, after] = [0, 1].map(|at| report["weights"][at].as_u64().unwrap());
    assert!(after < before && report["kept"]["hidden"].as_array().unwrap().len() == 48, "{report}");
    assert_eq!(report["kept"]["layers"].as_array().unwrap().len(), 2);
    // Pruning nothing changes nothing.
    let whole = at("whole");
    let same = good([&["prune", arg(&model), arg(&whole), "--json"][..], &judge].concat());
    let same: Value = serde_json::from_str(&same).unwrap();
    assert_eq!(same["losses"][0], same["losses"][1]);
    // Distillation recovers most of the loss.
    let teacher = format!("objective.teacher={}", arg(&at("wide")));
    let student = format!("model.from={}", arg(&at("small")));
    let out = format!("run.out={}", arg(&at("back")));
    good([&["train", "distill", &teacher, &student, &out, &paths][..], &LEARN_TEXT].concat());
    let divergences = numbers(&at("back"), "divergence");
    assert!(divergences[divergences.len() - 1] < 0.5 * divergences[0], "{divergences:?}");
    // Hidden states of another width: the run has projections, which resume bit for bit and are not part of the
    // model.
    let more = ["objective.hidden_pairs=[\"1:1\",\"2:3\"]", "stage.0.steps=10", "checkpoint.every_steps=2"];
    let run = |out: &str| {
        let out = format!("run.out={}", arg(&at(out)));
        let given =
            [&["train", "distill", &teacher, &student, &out, &paths][..], &LEARN_TEXT, &more].concat();
        given.into_iter().map(String::from).collect::<Vec<_>>()
    };
    good(run("wider"));
    let distances = numbers(&at("wider"), "hidden_distance");
    assert!(distances[9] < distances[0], "{distances:?}");
    let mut child = Command::new(env!("CARGO_BIN_EXE_fathom"))
        .args(run("killed"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !at("killed/checkpoints/LATEST").exists() && child.try_wait().unwrap().is_none() {
        sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    good(run("killed"));
    assert_eq!(losses(&at("killed")), losses(&at("wider")));
    good(["export", arg(&at("killed/checkpoints/step-00000010")), arg(&at("exported"))]);
    let has = |file: &str| {
        let bytes = fs::read(at(file)).unwrap();
        let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        String::from_utf8_lossy(&bytes[8..8 + header]).contains("hidden_projection")
    };
    assert!(!has("wider/model/model.safetensors") && !has("exported/model.safetensors"));
    // Impossible sizes are refused.
    for (more, said) in [
        (["--heads", "3"], "give a multiple of 2"),
        (["--hidden", "65"], "the model has 64; give 1 to 64"),
        (["--layers", "0"], "the model has 3"),
    ] {
        let to = at("none");
        refused([&["prune", arg(&model), arg(&to)][..], &judge, &more].concat(), &[said]);
    }
    refused([&["prune", arg(&model), arg(&to)][..], &judge].concat(), &["is not empty"]);
}

#[test]
fn noise_on_embeddings_is_of_training_alone() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    let run = |out: &str, alpha: &str| {
        let alpha = format!("objective.neftune_alpha={alpha}");
        let more = [alpha.as_str(), "stage.0.epochs=1", "optimizer.lr=0", "data.held_out_share=0.2"];
        good(args_of("sft", folder.path(), out, &more));
        let text = fs::read_to_string(folder.path().join(out).join("metrics.jsonl")).unwrap();
        let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |kind: &str, key: &str| -> Vec<Value> {
            events.iter().filter(|event| event["event"] == kind).map(|event| event[key].clone()).collect()
        };
        (of("step", "loss"), of("eval_answers", "loss"))
    };
    let (plain, noisy) = (run("plain", "0"), run("noisy", "50"));
    assert_ne!(plain.0, noisy.0);
    assert_eq!(plain.1, noisy.1);
    assert_eq!(run("again", "50"), noisy);
    let more = ["objective.neftune_alpha=-1", "stage.0.epochs=1"];
    refused(args_of("sft", folder.path(), "refused", &more), &["objective.neftune_alpha", "0 or more"]);
}
