//! `fathom inspect` on golden models.

use std::path::Path;

use fathom_model::{SafeTensors, Source};

use crate::{arg, golden, good};

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
