//! Folders for other servers.

use std::fs;

use serde_json::Value;

use crate::run::write_text;
use crate::{arg, good, refused};

#[test]
fn folders_in_few_bits_are_written_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let wide = "[model]\nhidden = 64\nlayers = 2\nheads = 4\nkv_heads = 2\nhead_dim = 16\nffn = 96\nvocab = 512\n\
        [[stage]]\nseq_tokens = 64\nsteps = 40\n[eval]\nenabled = false\n[optimizer]\nlr = 1e-2\n";
    fs::write(at("wide.toml"), wide).unwrap();
    let paths = format!("data.paths={}", arg(&at("text")));
    good(["train", arg(&at("wide.toml")), &paths, &format!("run.out={}", arg(&at("wide")))]);
    let text = fs::read_dir(at("text")).unwrap().next().unwrap().unwrap().path();
    let judge = ["--data", arg(&text), "--samples", "16", "--sample-tokens", "64", "--json"];
    let model = at("wide");
    let rise = |method: &str| {
        let to = at(method);
        let told = good([&["quantize", arg(&model), arg(&to), "--to", method][..], &judge].concat());
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["group"], if method == "fp8" { 0 } else { 32 }, "{told}");
        let config = fs::read_to_string(to.join("config.json")).unwrap();
        let config: Value = serde_json::from_str(&config).unwrap();
        let name = if matches!(method, "int4" | "fp8") { "compressed-tensors" } else { method };
        assert_eq!(config["quantization_config"]["quant_method"], name);
        let answer = good(["generate", arg(&to), "the old", "--max-tokens", "2", "--temperature", "0"]);
        assert!(!answer.is_empty());
        let [before, after] = [0, 1].map(|at| told["losses"][at].as_f64().unwrap());
        after - before
    };
    let [int4, fp8, gptq, awq] = ["int4", "fp8", "gptq", "awq"].map(rise);
    println!("int4 {int4} fp8 {fp8} gptq {gptq} awq {awq}");
    assert!(
        fp8.abs() < 0.02 && [int4, gptq, awq].iter().all(|rise| rise.abs() < 0.2),
        "{int4} {fp8} {gptq} {awq}"
    );
    // What is judged by text loses less than what is not.
    assert!(gptq < int4, "{gptq} {int4}");
    // A folder in few bits is a model like any other: it is written as another.
    good(["quantize", arg(&at("gptq")), arg(&at("again.gguf")), "--to", "q8_0"]);
    refused(["quantize", arg(&model), arg(&at("new")), "--to", "awq"], &["--to awq", "--data"]);
    refused(
        [&["quantize", arg(&model), arg(&at("int4")), "--to", "gptq"][..], &judge].concat(),
        &["is not empty"],
    );
    refused(
        [&["quantize", arg(&model), arg(&at("q")), "--to", "nf4"][..], &judge].concat(),
        &["--to nf4", "no text"],
    );
}
