//! `fathom inspect` on golden models.

use std::path::Path;

use fathom_model::{SafeTensors, Source};

use crate::{arg, golden, good, refused};

fn tensor(file: &Path, name: &str) -> (Vec<usize>, Vec<f32>) {
    let source = SafeTensors::open_file(file).unwrap();
    let shape = source.shape(name).unwrap_or_else(|| panic!("no {name} in {}", file.display())).to_vec();
    let mut bytes = Vec::new();
    source.read_rows(name, 0..shape[0], &mut bytes).unwrap();
    (shape, bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// Largest difference relative to the largest value.
fn error(found: &[f32], expected: &[f32]) -> f32 {
    let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    found.iter().zip(expected).fold(0.0f32, |worst, (x, y)| worst.max((x - y).abs())) / largest
}

fn batch(case: &str, name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(golden(case).join("golden.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).unwrap()[name].clone()
}

fn ids(case: &str) -> String {
    let list = batch(case, "single")["input_ids"].as_array().unwrap().clone();
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn logits_are_those_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("logits.safetensors");
    for case in ["llama2", "llama32_tied", "gemma2", "qwen3", "gpt2", "phi3"] {
        let path = golden(case);
        good([
            "inspect",
            "logits",
            arg(&path),
            "--ids",
            &ids(case),
            "--precision",
            "f32",
            "--out",
            arg(&out),
        ]);
        let (shape, ours) = tensor(&out, "logits");
        let (expected, theirs) = tensor(&path.join("golden.safetensors"), "single.logits");
        assert_eq!(shape, expected, "{case}");
        assert!(error(&ours, &theirs) < 1e-4, "{case}: {}", error(&ours, &theirs));
    }
}

#[test]
fn a_summary_names_the_likeliest_tokens() {
    let out = good(["inspect", "logits", arg(&golden("llama2")), "--ids", "5,17,3"]);
    assert_eq!(out.lines().count(), 1 + 3 + 2 + 5, "{out}");
    let next = |line: usize| out.lines().nth(line).unwrap().split_whitespace().nth(2).unwrap().to_string();
    let best = out.lines().nth(6).unwrap().split_whitespace().next().unwrap().to_string();
    assert_eq!(next(3), best);
}

#[test]
fn gradients_have_hugging_face_names_and_are_of_the_mean() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("gradients.safetensors");
    // The golden batch of this case trains on every next token, like the verb.
    let case = "gpt2";
    good(["inspect", "gradients", arg(&golden(case)), "--ids", &ids(case), "--out", arg(&out)]);
    let single = batch(case, "single");
    let norms = single["grad_l2"].as_object().unwrap();
    let largest = norms.values().filter_map(|v| v.as_f64()).fold(0.0, f64::max);
    let names: Vec<String> =
        SafeTensors::open_file(&out).unwrap().names().into_iter().map(String::from).collect();
    assert_eq!(names.len(), norms.len());
    for name in names {
        let squares: f64 = tensor(&out, &name).1.iter().map(|x| f64::from(*x).powi(2)).sum();
        let expected = norms[&name].as_f64().unwrap();
        assert!((squares.sqrt() - expected).abs() < 1e-4 * largest, "{name}: {} {expected}", squares.sqrt());
    }
    // Only the file is left.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let table = good(["inspect", "gradients", arg(&golden(case)), "--ids", &ids(case)]);
    assert!(table.contains("transformer.h.0.attn.c_attn.weight"), "{table}");
    let loss: f64 = table.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!((loss - single["loss"].as_f64().unwrap()).abs() < 1e-5, "{table}");
}

/// A pair of a golden encoder-decoder, with the rows of its logits.
fn pair(case: &Path, at: usize) -> ([String; 2], std::ops::Range<usize>) {
    let text = std::fs::read_to_string(case.join("golden.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
    let pairs = golden["pairs"].as_array().unwrap();
    let list = |key: &str| pairs[at][key].to_string().trim_matches(['[', ']']).to_string();
    let rows = |at: usize| pairs[at]["decoder"].as_array().unwrap().len();
    let first = (0..at).map(rows).sum();
    (["source", "decoder"].map(list), first..first + rows(at))
}

#[test]
fn logits_of_encoder_decoders_are_those_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("logits.safetensors");
    for case in ["t5_v10", "t5_v11", "flan", "umt5", "t5_few_buckets"] {
        let path = golden("").join("../golden_t5").join(case);
        let ([source, decoder], rows) = pair(&path, 2);
        let ids = ["--ids", &source, "--decoder-ids", &decoder, "--out", arg(&out)];
        good(["inspect", "logits", arg(&path)].into_iter().chain(ids));
        let (shape, ours) = tensor(&out, "logits");
        let (_, theirs) = tensor(&path.join("golden.safetensors"), "logits");
        assert_eq!(shape, [rows.len(), 96], "{case}");
        let error = error(&ours, &theirs[rows.start * 96..rows.end * 96]);
        assert!(error < 1e-5, "{case}: {error}");
    }
}

#[test]
fn decoder_ids_are_of_encoder_decoders() {
    let t5 = golden("").join("../golden_t5/t5_v10");
    refused(["inspect", "logits", arg(&t5), "--ids", "1"], &["--decoder-ids", "encoder-decoder"]);
    refused(["inspect", "logits", arg(&t5), "--ids", "1", "--decoder-ids", "96"], &["--decoder-ids", "95"]);
    let llama = golden("llama2");
    refused(["inspect", "logits", arg(&llama), "--ids", "1", "--decoder-ids", "1"], &["no encoder-decoder"]);
    refused(["inspect", "gradients", arg(&t5), "--ids", "1,2", "--decoder-ids", "1,2"], &["logits"]);
    let train = ["train", "continue", &format!("model.from={}", arg(&t5)), "data.paths=x"];
    refused(train, &["objective.method", "encoder-decoder"]);
}
