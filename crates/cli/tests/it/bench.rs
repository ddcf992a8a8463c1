//! Rows of `fathom bench`: their keys, and the figures that are no rates.

use serde_json::Value;

use crate::{good, rows};

/// A small model.
const SMALL: [&str; 12] =
    ["--hidden", "64", "--layers", "2", "--heads", "4", "--kv-heads", "2", "--ffn", "128", "--vocab", "512"];

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
fn products() {
    for isa in ["portable", "amx"] {
        let found = run(&["gemm", "--json", "--shape", "64,96,32", "--repeat", "1", "--isa", isa]);
        assert_eq!(
            found.iter().map(|row| row["packed"].as_bool()).collect::<Vec<_>>(),
            [Some(false), Some(true)]
        );
        for row in &found {
            has(row, &["bench", "dtype", "m", "n", "k", "packed", "threads", "gflops"]);
            assert!(row["gflops"].as_f64().unwrap() > 0.0);
        }
    }
    let one =
        run(&["gemm", "--packed", "--m", "8", "--n", "9", "--k", "10", "--dtype", "f32", "--repeat", "1"]);
    assert_eq!((one.len(), &one[0]["k"], &one[0]["dtype"]), (1, &Value::from(10), &Value::from("f32")));
}

#[test]
fn attention() {
    let flags = ["--tokens", "256", "--head-dim", "32", "--heads", "4", "--kv-heads", "2", "--repeat", "1"];
    let found = run(&[&["attention", "--json"], &flags[..]].concat());
    assert_eq!(found.len(), 2);
    for (row, pass) in found.iter().zip(["forward", "forward_backward"]) {
        has(row, &["bench", "dtype", "tokens", "heads", "kv_heads", "head_dim", "threads", "ms", "gflops"]);
        assert_eq!(row["pass"], pass);
    }
    let packed = run(&[&["attention", "--docs", "3", "--pass", "forward"], &flags[..]].concat());
    assert_eq!((packed.len(), &packed[0]["docs"]), (1, &Value::from(3)));
}

#[test]
fn the_plan_of_a_step_is_its_peak() {
    for places in ["none", "linear", "full"] {
        let flags = [&["step", "--json", "--tokens", "512", "--repeat", "1", "--places", places], &SMALL[..]]
            .concat();
        let (ran, planned) = (run(&flags), run(&[&flags[..], &["--machine", "meta"]].concat()));
        let (ran, planned) = (&ran[0], &planned[0]);
        has(ran, &["bench", "dtype", "tokens", "places", "machine", "tokens_per_s", "model_tflops"]);
        has(ran, &["peak_rss_bytes", "untracked_peak_bytes"]);
        assert_eq!(ran["peak_pool_bytes"], planned["peak_pool_bytes"], "{places}");
        assert!(planned["tokens_per_s"].as_f64() > Some(0.0) && planned["step_s"].as_f64() > Some(0.0));
        // The bar of the issue, at any length.
        assert!(ran["untracked_peak_bytes"].as_u64().unwrap() <= 32 << 20, "{ran}");
    }
}

#[test]
fn decoding() {
    let flags = ["decode", "--json", "--prompt", "20", "--new", "7", "--repeat", "2"];
    let found = run(&[&flags[..], &SMALL[..]].concat());
    assert_eq!((&found[0]["prompt_tokens"], &found[0]["new_tokens"]), (&Value::from(20), &Value::from(7)));
    assert!(found[0]["tokens_per_s"].as_f64().unwrap() > 0.0);
}
