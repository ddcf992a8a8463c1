//! Rows of `fathom bench`: keys, and figures other than rates.

use serde_json::Value;

use crate::{good, rows, text};

/// A small model.
const SMALL: [&str; 7] = [
    "model.hidden=64",
    "model.layers=2",
    "model.heads=4",
    "model.kv_heads=2",
    "model.head_dim=16",
    "model.ffn=128",
    "model.vocab=512",
];

fn run(args: &[&str]) -> Vec<Value> {
    rows(&good([&["bench"], args].concat()))
}

#[track_caller]
fn has(row: &Value, keys: &[&str]) {
    for key in keys {
        assert!(row.get(key).is_some(), "no {key} in {row}");
    }
}

#[test]
fn the_bench_of_products_has_a_rate_in_each_row() {
    for isa in ["portable", "amx"] {
        let mut command = crate::program();
        command.args(["bench", "gemm", "--shape", "64,96,32", "--repeat", "1"]).env("FATHOM_ISA", isa);
        let found = rows(&text(&command.output().unwrap().stdout));
        assert_eq!(
            found.iter().map(|row| row["packed"].as_bool()).collect::<Vec<_>>(),
            [Some(false), Some(true)]
        );
        for row in &found {
            has(row, &["bench", "dtype", "m", "n", "k", "packed", "threads", "gflops", "isa"]);
            assert!(row["gflops"].as_f64().unwrap() > 0.0);
        }
    }
    let one = run(&["gemm", "--packed", "--shape", "8,9,10", "--dtype", "f32", "--repeat", "1"]);
    assert_eq!((one.len(), &one[0]["k"], &one[0]["dtype"]), (1, &Value::from(10), &Value::from("f32")));
}

#[test]
fn the_bench_of_attention_has_a_row_for_each_pass_and_kind_of_scores() {
    let flags = ["--tokens", "256", "--head-dim", "32", "--heads", "4", "--kv-heads", "2", "--repeat", "1"];
    let found = run(&[&["attention"], &flags[..]].concat());
    let kinds = ["forward", "forward_backward"].map(|pass| [(pass, "flat"), (pass, "peaked")]).concat();
    assert_eq!(found.len(), kinds.len());
    for (row, (pass, scores)) in found.iter().zip(kinds) {
        has(row, &["bench", "dtype", "tokens", "heads", "kv_heads", "head_dim", "threads", "ms", "gflops"]);
        assert_eq!((&row["pass"], &row["scores"]), (&pass.into(), &scores.into()));
    }
    let one = ["attention", "--docs", "3", "--pass", "forward", "--scores", "peaked"];
    let packed = run(&[&one, &flags[..]].concat());
    assert_eq!((packed.len(), &packed[0]["docs"]), (1, &Value::from(3)));
}

#[test]
fn the_plan_of_a_step_is_its_peak() {
    for places in ["none", "linear", "full"] {
        let places = format!("activations.recompute_granularity={places}");
        let flags = [&["step", "stages=512", "--repeat", "1", &places], &SMALL[..]].concat();
        let (ran, planned) = (run(&flags), run(&[&flags[..], &["machine.kind=meta"]].concat()));
        let (ran, planned) = (&ran[0], &planned[0]);
        has(ran, &["bench", "dtype", "tokens", "places", "machine", "tokens_per_s", "model_tflops"]);
        has(ran, &["peak_rss_bytes", "untracked_peak_bytes"]);
        assert_eq!(ran["peak_pool_bytes"], planned["peak_pool_bytes"], "{places}");
        assert!(planned["tokens_per_s"].as_f64() > Some(0.0) && planned["step_s"].as_f64() > Some(0.0));
        // The limit, at any length.
        assert!(ran["untracked_peak_bytes"].as_u64().unwrap() <= 32 << 20, "{ran}");
    }
}

/// Every stage, with its documents and micro-batches, on the ranks of its mesh, offloading to a folder.
#[test]
fn steps_of_a_recipe() {
    let folder = tempfile::tempdir().unwrap();
    let spill = format!("machine.spill={}", folder.path().display());
    let keys =
        ["step", "stages=128,256", "--repeat", "1", "optimizer.moments=bf16", "precision.gemm=fp8_block"];
    let peaked = run(&[&["step", "stages=128", "--repeat", "1"], &SMALL[..]].concat());
    let scores: Vec<_> = peaked.iter().map(|row| row["scores"].as_str()).collect();
    assert_eq!(scores, [Some("flat"), Some("peaked")]);
    assert_ne!(peaked[0]["loss"], peaked[1]["loss"]);
    let keys = [&keys[..], &["--scores", "flat"]].concat();
    let alone = run(&[&keys[..], &SMALL, &["stage.0.samples_per_micro_batch=2"]].concat());
    let found: Vec<_> = alone.iter().map(|row| (row["tokens"].as_u64(), row["docs"].as_u64())).collect();
    assert_eq!(found, [(Some(256), Some(2)), (Some(512), Some(2))]);
    let offloaded = ["activations.offload_modules=all", "machine.offload_optimizer=true", &spill];
    let offloaded = run(&[&keys[..], &SMALL, &offloaded, &["stage.0.samples_per_micro_batch=2"]].concat());
    for (offloaded, here) in offloaded.iter().zip(&alone) {
        assert_eq!(offloaded["loss"], here["loss"]);
        assert!(offloaded["spill_bytes"].as_u64() > Some(0), "{offloaded}");
        assert_eq!(offloaded["peak_pool_bytes"], offloaded["planned_peak_bytes"]);
    }
    let mesh = ["step", "mesh-parity", "mesh.dp=2", "--once", "--ops", "--scores", "flat"];
    let mesh = run(&mesh);
    assert_eq!((&mesh[0]["ranks"], &mesh[0]["micro_batches"]), (&Value::from(2), &Value::from(8)));
    has(&mesh[0], &["wait_s", "mesh", "loss"]);
    assert!(mesh[1..].iter().any(|row| row["op"] == "adamw"), "{mesh:?}");
}

#[test]
fn the_bench_of_decoding_counts_prompt_and_new_tokens() {
    let flags = ["decode", "--prompt", "20", "--new", "7", "--repeat", "2"];
    let found = run(&[&flags[..], &SMALL[..]].concat());
    assert_eq!((&found[0]["scores"], &found[1]["scores"]), (&"flat".into(), &"peaked".into()));
    assert_eq!((&found[0]["prompt_tokens"], &found[0]["new_tokens"]), (&Value::from(20), &Value::from(7)));
    assert!(found[0]["tokens_per_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_bench_of_saving_has_its_stall() {
    let folder = tempfile::tempdir().unwrap();
    let spill = format!("machine.spill={}", folder.path().display());
    let found = run(&[&["save", "stages=128", "--repeat", "1", &spill], &SMALL[..]].concat());
    has(&found[0], &["bytes", "steps_s", "steps_with_save_s", "stall_s", "save_s"]);
}
