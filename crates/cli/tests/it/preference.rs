//! Preference training: metrics, the reference, and a reward model's files.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::sft::base_model;
use crate::{arg, fathom, good, refused};

/// Creates a model in `base/model`, and rows of pairs.
fn base(folder: &Path) {
    let at = |name: &str| folder.join(name);
    base_model(folder);
    let row = |n: usize| {
        format!(
            "{{\"prompt\": \"Is {n} one?\", \"chosen\": \" Yes{}.\", \"rejected\": \" No.\", \"chosen_reward\": {n}, \"rejected_reward\": -1}}\n",
            " yes".repeat(n % 3)
        )
    };
    fs::write(at("pairs.jsonl"), (0..12).map(row).collect::<String>()).unwrap();
}

fn args(folder: &Path, recipe: &str, rows: &str, more: &[&str]) -> Vec<String> {
    let at = |name: &str| folder.join(name);
    let mut args: Vec<String> = ["train", recipe].map(String::from).to_vec();
    args.push(format!("model.from={}", arg(&at("base/model"))));
    args.push(format!("data.paths={}", arg(&at(rows))));
    let small = [
        "stage.0.seq_tokens=128",
        "stage.0.max_docs=32",
        "stage.0.micro_batches=2",
        "stage.0.epochs=6",
        "optimizer.lr=3e-3",
        "data.held_out_share=0",
        "model.precision=f32",
    ];
    args.extend(small.iter().chain(more).map(|arg| (*arg).to_string()));
    args
}

fn steps(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event"] == "step").collect()
}

#[test]
fn every_method_learns() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    for (recipe, more) in [
        ("dpo", &["objective.beta=0.1", "objective.loss=sigmoid"][..]),
        ("rpo", &[][..]),
        ("kto", &["objective.mismatched_rows=4"][..]),
        ("orpo", &[][..]),
        ("simpo", &[][..]),
    ] {
        let out = folder.path().join(recipe);
        let run_out = format!("run.out={}", arg(&out));
        good(args(folder.path(), recipe, "pairs.jsonl", &[more, &[run_out.as_str()]].concat()));
        let steps = steps(&out);
        let metric = |step: usize, name: &str| {
            steps[step][name].as_f64().unwrap_or_else(|| panic!("{recipe}: {name}"))
        };
        let last = steps.len() - 1;
        assert!(metric(last, "rewards/margins") > metric(0, "rewards/margins"), "{recipe}");
        if recipe == "dpo" {
            // The model initially equals its reference.
            assert!((metric(0, "loss") - std::f64::consts::LN_2).abs() < 1e-6, "{}", steps[0]);
            assert_eq!(steps[0]["metrics"]["rewards/margins"], steps[0]["rewards/margins"]);
            let page = fs::read_to_string(out.join("report.html")).unwrap();
            assert!(page.contains("rewards/margins"), "the report shows margins");
        }
    }
    refused(
        args(folder.path(), "dpo", "pairs.jsonl", &["objective.loss=bt", "run.out=none"]),
        &["objective.loss", "is no loss of objective.method = \"dpo\""],
    );
}

#[test]
fn a_reference_is_computed_or_given_and_is_of_one_model() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    let at = |name: &str| folder.path().join(name);
    let (rows, scored) = (at("pairs.jsonl"), at("scored.jsonl"));
    let model = at("base/model");
    good(["score", arg(&model), arg(&rows), "--out", arg(&scored), "--precision", "f32"]);
    let row: Value =
        serde_json::from_str(fs::read_to_string(&scored).unwrap().lines().next().unwrap()).unwrap();
    assert_eq!(row["reference"]["logps"].as_array().unwrap().len(), 2);
    let run = |rows: &str, out: &str| {
        let out = at(out);
        good(args(folder.path(), "dpo", rows, &[&format!("run.out={}", arg(&out))]));
        steps(&out).iter().map(|step| step["loss"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let (computed, given) = (run("pairs.jsonl", "computed"), run("scored.jsonl", "given"));
    assert_eq!(computed.len(), given.len());
    for (one, other) in computed.iter().zip(&given) {
        assert!((one - other).abs() < 1e-6, "{computed:?} {given:?}");
    }
    let other = fs::read_to_string(&scored)
        .unwrap()
        .replace(row["reference"]["model"].as_str().unwrap(), &"0".repeat(32));
    fs::write(&scored, other).unwrap();
    let out = format!("run.out={}", arg(&at("other")));
    refused(
        args(folder.path(), "dpo", "scored.jsonl", &[&out]),
        &["00000000000000000000000000000000", "fathom score"],
    );
}

#[test]
fn a_reward_model_is_a_sequence_classifier() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    let at = |name: &str| folder.path().join(name);
    let out = at("reward");
    good(args(
        folder.path(),
        "reward",
        "pairs.jsonl",
        &[&format!("run.out={}", arg(&out)), "stage.0.epochs=20"],
    ));
    let steps = steps(&out);
    let last = &steps[steps.len() - 1];
    assert!(last["accuracy"].as_f64().unwrap() > 0.9 && last["margin"].as_f64().unwrap() > 0.5, "{last}");
    let config: Value = serde_json::from_slice(&fs::read(out.join("model/config.json")).unwrap()).unwrap();
    assert_eq!(config["architectures"][0], "LlamaForSequenceClassification");
    assert_eq!(config["id2label"]["0"], "LABEL_0");
    let (rows, scored) = (at("pairs.jsonl"), at("scored.jsonl"));
    good(["score", arg(&out), arg(&rows), "--out", arg(&scored), "--precision", "f32"]);
    for line in fs::read_to_string(&scored).unwrap().lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let reward = |at: usize| row["rewards"][at][0].as_f64().unwrap();
        assert!(reward(0) > reward(1), "{line}");
    }
    // RewardBench rows; in one subset the answers are swapped.
    let bench = at("bench.jsonl");
    let row = |n: usize| {
        let (chosen, rejected, subset) =
            if n < 6 { (" Yes yes.", " No.", "easy") } else { (" No.", " Yes yes.", "wrong") };
        let prompt = format!("Is {n} one?");
        let row = serde_json::json!({"prompt": prompt, "chosen": chosen, "rejected": rejected, "subset": subset, "id": n});
        format!("{row}\n")
    };
    fs::write(&bench, (0..8).map(row).collect::<String>()).unwrap();
    let said = good(["eval", arg(&out), "--reward-bench", arg(&bench), "--json"]);
    let said: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<(&str, f64, u64)> = said
        .iter()
        .map(|it| {
            (it["subset"].as_str().unwrap(), it["accuracy"].as_f64().unwrap(), it["rows"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(found, [("easy", 1.0, 6), ("wrong", 0.0, 2), ("all", 0.75, 8)]);
    assert!(good(["eval", arg(&out), "--reward-bench", arg(&bench)]).contains("75.0 %"));
    refused(["eval", arg(&at("base")), "--reward-bench", arg(&bench)], &["no reward model"]);
}

/// The reference as a column, as a copy, and as an adapter switched off; a moving copy is saved with the run.
#[test]
fn a_reference_may_be_in_the_run() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    let at = |name: &str| folder.path().join(name);
    let run = |out: &str, recipe: &str, more: &[&str]| {
        let out = at(out);
        good(args(
            folder.path(),
            recipe,
            "pairs.jsonl",
            &[more, &[&format!("run.out={}", arg(&out))]].concat(),
        ));
        steps(&out).iter().map(|step| step["loss"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let near = |one: &[f64], other: &[f64]| {
        assert!(one.len() == other.len() && one.len() > 3, "{one:?} {other:?}");
        one.iter().zip(other).for_each(|(a, b)| assert!((a - b).abs() < 2e-6, "{one:?} {other:?}"));
    };
    near(&run("copied", "dpo", &["objective.reference=copy"]), &run("column", "dpo", &[]));
    assert!(!at("copied/data/store/train.ref").exists() && at("column/data/store/train.ref").exists());
    let lora = ["adapter.method=lora", "adapter.rank=4", "optimizer.lr=1e-2"];
    let with = |reference: &'static str| [&lora[..], &[reference]].concat();
    let off = run("off", "dpo", &with("objective.reference=auto"));
    assert!(!at("off/data/store/train.ref").exists());
    near(&off, &run("stored", "dpo", &with("objective.reference=column")));
    assert_eq!(off, run("twice", "dpo", &with("objective.reference=copy")));
    let moves = ["objective.sync_ref_model=true", "objective.ref_model_sync_steps=2"];
    let whole = run("moves", "dpo", &moves);
    // A stopped run tells by its exit status, and resumes when started again.
    let stop = ["machine.fault=\"term rank 0 at step 3\"", &format!("run.out={}", arg(&at("cut")))];
    let stopped = fathom(args(folder.path(), "dpo", "pairs.jsonl", &[&moves[..], &stop].concat()));
    assert_eq!((stopped.status.code(), steps(&at("cut")).len()), (Some(75), 3));
    assert_eq!(run("cut", "dpo", &[&moves[..], &stop[..1]].concat()), whole);
    near(&run("kto", "kto", &["objective.reference=copy"]), &run("kto-column", "kto", &[]));
    for (more, said) in [
        (&["objective.reference=adapter_off"][..], "trains no adapter"),
        (&["objective.ref_model_mixup_alpha=0.5"], "sync_ref_model=true"),
        (&["objective.reference=column", moves[0]], "objective.reference=copy"),
        (&[lora[0], moves[0]], "adapter.method"),
        (&["objective.use_weighting=true", "objective.loss=aot"], "a loss of each pair"),
        (&["objective.kl_over=micro_batch"], "no effect on objective.method = \"dpo\""),
    ] {
        let out = format!("run.out={}", arg(&at("bad")));
        refused(args(folder.path(), "dpo", "pairs.jsonl", &[more, &[&out]].concat()), &[said]);
    }
    refused(
        args(folder.path(), "simpo", "pairs.jsonl", &["objective.reference=copy", "run.out=none"]),
        &["objective.reference", "no effect"],
    );
}
