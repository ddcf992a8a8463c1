//! Quantized folders for other servers.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::run::write_text;
use crate::{arg, good, refused};

/// Text in which seven of eight words follow from the previous two, so that quantizing a model costs something.
fn write_followed(folder: &Path) {
    fs::create_dir(folder).unwrap();
    let words = ["river", "stone", "carries", "the", "old", "light", "under", "every", "bridge", "slowly"];
    let mut state = 7u32;
    for file in 0..40 {
        let (mut text, mut last) = (String::new(), [file % 10, file / 4]);
        for _ in 0..300 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (any, [first, second]) = (state >> 29 == 0, last);
            let next = if any { (state >> 16) as usize } else { 3 * first + second * second + 1 };
            last = [second, next % words.len()];
            text += words[last[1]];
            text += if any { ".\n" } else { " " };
        }
        fs::write(folder.join(format!("{file:02}.txt")), text).unwrap();
    }
}

#[test]
fn folders_in_few_bits_are_written_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_followed(&at("text"));
    let wide = "[model]\nhidden = 64\nlayers = 2\nheads = 4\nkv_heads = 2\nhead_dim = 16\nffn = 96\nvocab = 512\n\
        [[stage]]\nseq_tokens = 64\nsteps = 400\n[eval]\nenabled = false\n[optimizer]\nlr = 1e-2\n";
    fs::write(at("wide.toml"), wide).unwrap();
    let paths = format!("data.paths={}", arg(&at("text")));
    good(["train", arg(&at("wide.toml")), &paths, &format!("run.out={}", arg(&at("wide")))]);
    let text = fs::read_dir(at("text")).unwrap().next().unwrap().unwrap().path();
    let judge = ["--data", arg(&text), "--samples", "16", "--sample-tokens", "64", "--json"];
    let model = at("wide");
    let rise = |method: &str| {
        let to = at(method);
        let report = good([&["quantize", arg(&model), arg(&to), "--to", method][..], &judge].concat());
        let report: Value = serde_json::from_str(&report).unwrap();
        let group = [("fp8", 0), ("nvfp4", 16)].into_iter().find(|(name, _)| *name == method);
        assert_eq!(report["group"], group.map_or(32, |(_, group)| group), "{report}");
        let config = fs::read_to_string(to.join("config.json")).unwrap();
        let config: Value = serde_json::from_str(&config).unwrap();
        let name =
            if matches!(method, "int4" | "mxfp4" | "nvfp4" | "fp8") { "compressed-tensors" } else { method };
        assert_eq!(config["quantization_config"]["quant_method"], name);
        let answer = good(["generate", arg(&to), "the old", "--max-tokens", "2", "--temperature", "0"]);
        assert!(!answer.is_empty());
        let [before, after] = [0, 1].map(|at| report["losses"][at].as_f64().unwrap());
        after - before
    };
    let [int4, fp8, gptq, awq] = ["int4", "fp8", "gptq", "awq"].map(rise);
    let [mxfp4, nvfp4] = ["mxfp4", "nvfp4"].map(rise);
    assert!([mxfp4, nvfp4].iter().all(|rise| rise.abs() < 0.3), "{mxfp4} {nvfp4}");
    println!("int4 {int4} fp8 {fp8} gptq {gptq} awq {awq}");
    assert!(
        fp8.abs() < 0.02 && [int4, gptq, awq].iter().all(|rise| rise.abs() < 0.2),
        "{int4} {fp8} {gptq} {awq}"
    );
    // Calibrated methods lose less.
    assert!(gptq < int4, "{gptq} {int4}");
    // A quantized folder is a model like any other and can be converted.
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

/// Experts are quantized in every format, each as a linear layer of its own, and the printed loss is that of the
/// whole model.
#[test]
fn experts_are_written_in_few_bits() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let mixture = "[model]\nfamily = \"mixtral\"\nhidden = 64\nlayers = 2\nheads = 4\nkv_heads = 2\nhead_dim = 16\nffn = 96\nvocab = 512\n\
        [moe]\nexperts = 4\n[[stage]]\nseq_tokens = 64\nsteps = 40\n[eval]\nenabled = false\n[optimizer]\nlr = 1e-2\n";
    fs::write(at("mixture.toml"), mixture).unwrap();
    let paths = format!("data.paths={}", arg(&at("text")));
    good(["train", arg(&at("mixture.toml")), &paths, &format!("run.out={}", arg(&at("mixture")))]);
    let text = at("text/00.txt");
    let judge = ["--data", arg(&text), "--samples", "32", "--sample-tokens", "64", "--json"];
    let rise = |method: &str| {
        let to = at(method);
        let report =
            good([&["quantize", arg(&at("mixture")), arg(&to), "--to", method][..], &judge].concat());
        let report: Value = serde_json::from_str(&report).unwrap();
        // Two layers of four experts of three projections.
        assert_eq!(report["experts"]["rounded"], 24, "{report}");
        let unjudged = report["experts"]["unjudged"].as_u64().unwrap();
        assert!(unjudged < if matches!(method, "gptq" | "awq") { 24 } else { 1 }, "{report}");
        let weights = fs::read(to.join("model.safetensors")).unwrap();
        let header = String::from_utf8_lossy(&weights[..weights.len().min(1 << 16)]).into_owned();
        let end = match method {
            "gptq" | "awq" => "qweight",
            "fp8" => "weight_scale",
            _ => "weight_packed",
        };
        assert!(header.contains(&format!("block_sparse_moe.experts.3.w2.{end}")), "{method}");
        assert!(!header.contains(&format!("block_sparse_moe.gate.{end}")), "{method}");
        let [before, after] = [0, 1].map(|at| report["losses"][at].as_f64().unwrap());
        after - before
    };
    let all = ["int4", "mxfp4", "nvfp4", "fp8", "gptq", "awq"];
    let found = all.map(rise);
    println!("{all:?} {found:?}");
    assert!(found.iter().all(|rise| rise.abs() < 0.3) && found[3].abs() < 0.02, "{all:?} {found:?}");
    let few = ["--data", arg(&text), "--samples", "3", "--sample-tokens", "32"];
    let said = good([&["quantize", arg(&at("mixture")), arg(&at("few")), "--to", "gptq"][..], &few].concat());
    assert!(said.contains("24 of 24 projections of experts are rounded to nearest"), "{said}");
    let said = good(["quantize", arg(&at("mixture")), arg(&at("nf4")), "--to", "nf4"]);
    assert!(said.contains("experts stay as they are"), "{said}");
    good(["quantize", arg(&at("awq")), arg(&at("again.gguf")), "--to", "q8_0"]);
}

/// Quantization-aware training: the exported folder has the weights of the run's own model, bit for bit, and its
/// loss; a killed run resumes identically.
#[test]
fn runs_that_round_are_exported_in_their_format() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let tiny = "[model]\nhidden = 64\nlayers = 2\nheads = 4\nkv_heads = 2\nhead_dim = 16\nffn = 96\nvocab = 512\n\
        [[stage]]\nseq_tokens = 64\nsteps = 6\n[optimizer]\nlr = 1e-2\n[eval]\nneedle_trials = 0\n\
        [data]\nheld_out_share = 0.2\ndocument_bytes = 4096\n[checkpoint]\nevery_steps = 3\nkeep = 9\n";
    fs::write(at("tiny.toml"), tiny).unwrap();
    let paths = format!("data.paths={}", arg(&at("text")));
    let train = |out: &str, more: &[&str]| {
        let out = format!("run.out={}", arg(&at(out)));
        good([&["train", arg(&at("tiny.toml")), &paths, &out][..], more].concat())
    };
    let measured = |model: &Path| {
        let data = at("text/00.txt");
        let report =
            ["eval", arg(model), "--data", arg(&data), "--tokens", "64", "--needle-trials", "0", "--json"];
        let report: Value = serde_json::from_str(good(report).lines().next().unwrap()).unwrap();
        report["bits_per_byte"].as_f64().unwrap()
    };
    let alike = |one: &Path, other: &Path| {
        let [found, want] = [one, other].map(measured);
        assert!((found - want).abs() < 1e-4 * want, "{}: {found} {want}", one.display());
    };
    for format in ["mxfp4", "nvfp4", "int4"] {
        let qat = format!("precision.qat={format}");
        let (run, exported) = (at(format), at(&format!("{format}-folder")));
        train(format, &[&qat]);
        let report = good(["export", arg(&run), arg(&exported)]);
        assert!(report.trim_end().ends_with(&format!("weights as {format}")), "{report}");
        let config: Value =
            serde_json::from_str(&fs::read_to_string(exported.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["quantization_config"]["quant_method"], "compressed-tensors");
        // Quantized weights are multiplied directly, by 16-bit activations.
        alike(&exported, &run);
        let plain = at(&format!("{format}-plain"));
        good(["export", arg(&exported), arg(&plain)]);
        let [found, want] =
            [&plain, &run.join("model")].map(|at| fs::read(at.join("model.safetensors")).unwrap());
        assert!(found == want, "{format}");
        // The checkpoint in the middle, and the same run from there on.
        let middle = run.join("checkpoints/step-00000003");
        good(["export", arg(&middle), arg(&at(&format!("{format}-middle")))]);
        let weights = fs::read(run.join("model/model.safetensors")).unwrap();
        fs::remove_dir_all(run.join("checkpoints/step-00000006")).unwrap();
        fs::write(run.join("checkpoints/LATEST"), "step-00000003").unwrap();
        train(format, &[&qat]);
        assert!(run.join("checkpoints/step-00000006").is_dir(), "{format}: it went on from the middle");
        assert!(fs::read(run.join("model/model.safetensors")).unwrap() == weights, "{format}");
    }
    // On request the export is a folder of plain weights: those that the run computed with.
    good(["export", arg(&at("mxfp4")), arg(&at("plain")), "--precision", "bf16"]);
    assert_eq!(measured(&at("plain")), measured(&at("mxfp4")));
    // MXFP4 values are unchanged by requantizing.
    good(["quantize", arg(&at("mxfp4")), arg(&at("again")), "--to", "mxfp4"]);
    alike(&at("again"), &at("mxfp4"));
    let text = fs::read_to_string(at("mxfp4/metrics.jsonl")).unwrap();
    for name in ["held-out, before rounding", "held-out, rounded", "held-out, rounded and trained"] {
        assert_eq!(text.matches(&format!("\"{name}\"")).count(), 1, "{name}");
    }
    let refuses = |more: &str, words: &[&str]| {
        let out = format!("run.out={}", arg(&at("refused")));
        refused(["train", arg(&at("tiny.toml")), &paths, &out, "precision.qat=mxfp4", more], words);
    };
    refuses("model.precision=f32", &["model.precision", "precision.qat"]);
    refuses("model.ffn=72", &["precision.qat", "72 columns"]);
    refuses("mesh.tp=2", &["precision.qat", "mesh.tp=2", "blocks of 32"]);
}
