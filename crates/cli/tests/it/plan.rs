//! Output of `fathom plan`.

use std::fs;

use serde_json::Value;

use crate::{arg, golden, good, refused, rows};

fn planned(args: &[&str]) -> Value {
    rows(&good(["plan", "--json"].iter().chain(args))).remove(0)
}

#[test]
fn a_folder_with_a_configuration_alone_is_planned() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::copy(golden("llama2").join("config.json"), model.join("config.json")).unwrap();
    let from = format!("model.from={}", arg(&model));
    for recipe in ["sft", "lora", "dpo", "extend"] {
        let more: &[&str] = if recipe == "extend" { &["stages=256"] } else { &["stage.0.seq_tokens=64"] };
        // With much memory, finding a tiny model's longest sequence takes long.
        let row = planned(&[&[recipe, from.as_str(), "--memory", "8MiB"][..], more].concat());
        assert!(row["peak_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{recipe}: {row}");
    }
    // A missing file is named.
    refused(["plan", "sft", "model.from=org/model"], &["a plan needs its config.json alone"]);
}

#[test]
fn a_run_whose_checkpoints_the_disk_has_no_room_for_is_refused_before_its_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("text")).unwrap();
    fs::write(at("text/a.txt"), "a river carries the old light under every bridge slowly\n".repeat(99))
        .unwrap();
    let (out, paths) = (format!("run.out={}", arg(&at("run"))), format!("data.paths={}", arg(&at("text"))));
    let large = [
        "model.hidden=16384",
        "model.layers=256",
        "model.ffn=65536",
        "model.heads=128",
        "model.kv_heads=128",
        "model.head_dim=128",
        "machine.memory_bytes=52776558133248",
        "run.minutes=1",
        "eval.enabled=false",
    ];
    let args = ["train", "quickstart", out.as_str(), paths.as_str()];
    refused(args.iter().chain(&large).copied(), &["writes at least", "a checkpoint", "are free", "run.out"]);
    assert!(!at("run/data").exists(), "refused before text is read");
    let row = planned(&[&["quickstart"][..], &large].concat());
    let [checkpoint, stored] = ["checkpoint_bytes", "stored_bytes"].map(|key| row[key].as_u64().unwrap());
    assert!(checkpoint > 1 << 42 && stored > 4 * checkpoint, "{row}");
}
