//! Ladders of scaling laws: climbed to their end, again after a kill, and refused where they cannot finish.

use std::fs;
use std::path::Path;

use fathom_app::scale::{LadderOutcome, LadderResult, Request, climb, dry_run};
use fathom_app::train::Order;
use fathom_app::{Silent, library};

use crate::{TextSink, text_below};

fn request(folder: &Path, budget_s: f64, settings: &[&str]) -> Request {
    let text = text_below(folder);
    let keys = [
        "machine.kind=cpu",
        "machine.threads=1",
        "model.hidden=64",
        "model.layers=1",
        "model.heads=2",
        "model.kv_heads=1",
        "model.ffn=128",
        "model.vocab=300",
        "data.held_out_share=0.2",
        "data.document_bytes=4096",
        "data.curate=none",
        "eval.tokens=1024",
        "stage.0.seq_tokens=32",
        "stage.0.samples_per_micro_batch=2",
        "stage.0.steps=1",
        "scale.widths=32,64,96,128",
        "scale.budgets=2",
        "scale.flops=6e8",
        "scale.least_steps=2",
        "scale.resamples=40",
        "scale.gpu_hours=1e-9",
    ];
    let own = [
        format!("data.paths=[{:?}]", text.display().to_string()),
        format!("run.out={}", folder.join("ladder").display()),
    ];
    let all: Vec<String> = keys.iter().chain(settings).map(ToString::to_string).chain(own).collect();
    Request { loaded: library::load(library::layers("ladder", &all)).unwrap(), budget_s }
}

#[track_caller]
fn climbed(request: &Request, heard: &TextSink) -> LadderResult {
    match climb(request, &Order::default(), heard).unwrap() {
        LadderOutcome::Finished(scaled) => *scaled,
        LadderOutcome::Interrupted => panic!("interrupted"),
    }
}

/// A ladder whose process was killed goes on: finished rungs stay, the prediction too, and the results are the same.
#[test]
fn a_ladder_predicts_a_larger_rung_before_it_is_trained_and_goes_on_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let request = request(folder.path(), 3600.0, &[]);
    let heard = TextSink::default();
    let first = climbed(&request, &heard);
    assert_eq!(first.trained.len(), 7);
    let budgets: Vec<Option<usize>> = first.trained.iter().map(|rung| rung.budget).collect();
    assert_eq!(budgets, [Some(0), Some(0), Some(0), Some(1), Some(1), Some(1), None]);
    assert!(first.trained.iter().all(|rung| rung.loss > 1.0 && rung.loss < 7.0));
    assert!(first.fits.surface.is_some() && first.fits.joint.is_some() && first.fits.profiles.len() == 2);
    let expected = first.expected.as_ref().unwrap();
    assert!(expected.main.interval.is_some() && !expected.others.is_empty());
    let said = heard.all();
    let [predicted, began, measured] =
        ["predicted for w128-held-out", "rung w128-held-out:", "measured for w128-held-out"]
            .map(|text| said.find(text).unwrap_or_else(|| panic!("{text} is not in {said}")));
    assert!(predicted < began && began < measured);
    assert_eq!(first.gpus.len(), 1);
    let page = fs::read_to_string(&first.page).unwrap();
    assert!(page.contains("Predictions of w128-held-out") && page.contains("Hours of a GPU"));

    let ladder = folder.path().join("ladder");
    let results = fs::read(ladder.join("scale.json")).unwrap();
    // A kill while the second rung was being trained.
    fs::remove_dir_all(ladder.join("rungs/w64-c1")).unwrap();
    fs::remove_file(ladder.join("scale.json")).unwrap();
    let heard = TextSink::default();
    let again = climbed(&request, &heard);
    assert_eq!(heard.all().matches("rung w").count(), 1, "{}", heard.all());
    assert_eq!(again.trained[1].loss.to_bits(), first.trained[1].loss.to_bits());
    let read = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
    let (before, after) = (read(&results), read(&fs::read(ladder.join("scale.json")).unwrap()));
    assert_eq!((&before["fits"], &before["expected"]["rung"]), (&after["fits"], &after["expected"]["rung"]));
    let main = |scaled: &LadderResult| scaled.expected.as_ref().unwrap().main.loss;
    assert!((main(&first) / main(&again) - 1.0).abs() < 1e-12, "the prediction is the one made at first");
}

#[test]
fn another_ladder_in_the_same_folder_and_budgets_that_are_too_short_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let short = request(folder.path(), 5.0, &["scale.flops=1e15"]);
    let said = climb(&short, &Order::default(), &Silent).err().unwrap().to_string();
    assert!(said.contains("scale.flops") && said.contains("--budget"), "{said}");
    assert!(!folder.path().join("ladder/rungs").exists(), "no rung has begun");

    let planned = dry_run(&request(folder.path(), 3600.0, &[]), &Silent).unwrap();
    let names: Vec<&str> = planned.rungs.iter().map(|rung| rung.name.as_str()).collect();
    assert_eq!(names, ["w32-c1", "w64-c1", "w96-c1", "w32-c2", "w64-c2", "w96-c2", "w128-held-out"]);
    assert!(planned.sizes.windows(2).all(|pair| pair[0].params < pair[1].params));
    assert!(
        planned
            .sizes
            .windows(2)
            .all(|pair| pair[0].peak_bytes < pair[1].peak_bytes && pair[0].lr > pair[1].lr)
    );

    for (settings, name) in [
        (&["scale.widths=32,64"][..], "scale.widths"),
        (&["scale.widths=64,32,96"], "scale.widths"),
        (&["scale.widths=32,64,80"], "multiples of 32"),
        (&["eval.enabled=false"], "eval.enabled"),
        (&["machine.memory_bytes=100k"], "width 32"),
    ] {
        let request = request(folder.path(), 3600.0, settings);
        let said = dry_run(&request, &Silent).unwrap_err().to_string();
        assert!(said.contains(name), "{said}");
    }
}

#[test]
fn a_ladder_of_another_recipe_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let ladder = folder.path().join("ladder");
    fs::create_dir(&ladder).unwrap();
    let first = request(folder.path(), 3600.0, &[]);
    fs::write(ladder.join("scale.toml"), first.loaded.text()).unwrap();
    let empty = r#"{"sizes":[],"rungs":[],"prepared_s":0.0,"measured":true}"#;
    fs::write(ladder.join("ladder.json"), empty).unwrap();
    let other = request(folder.path(), 3600.0, &["scale.budgets=3", "scale.gpu=h200"]);
    let said = climb(&other, &Order::default(), &Silent).err().unwrap().to_string();
    assert!(said.contains("scale.budgets") && !said.contains("scale.gpu"), "{said}");
}
