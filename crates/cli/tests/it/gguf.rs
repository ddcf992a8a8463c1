//! GGUF files wherever a model is expected.

use std::fs;

use crate::run::{TINY, write_text};
use crate::{arg, good, refused};

#[test]
fn a_file_stands_for_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let (text, out) = (at("text"), at("out"));
    let run = ["quickstart", "--steps", "2", "--data", arg(&text), "--out", arg(&out)];
    let run: Vec<&str> = run.into_iter().chain(TINY).chain(["eval.enabled=false"]).collect();
    good(run);
    let (file, small, back) = (at("model.gguf"), at("small.gguf"), at("back"));
    good(["export", arg(&out), arg(&file), "--format", "gguf", "--type", "f32"]);
    good(["export", arg(&file), arg(&back), "--precision", "f32"]);
    let logits = |model: &std::path::Path| good(["inspect", "logits", arg(model), "--ids", "5,17,3,9"]);
    let folder_logits = logits(&back);
    assert_eq!(logits(&file), folder_logits);
    let answer = |model: &std::path::Path| {
        good([
            "generate",
            arg(model),
            "the old",
            "--max-tokens",
            "6",
            "--temperature",
            "0",
            "--precision",
            "f32",
        ])
    };
    assert_eq!(answer(&file), answer(&back));
    assert_eq!(answer(&file), answer(&out));
    good(["quantize", arg(&file), arg(&small), "--to", "q8_0"]);
    assert!(fs::metadata(&small).unwrap().len() < fs::metadata(&file).unwrap().len() / 2);
    let name = [&b"general.name"[..], &8u32.to_le_bytes(), &5u64.to_le_bytes(), b"model"].concat();
    for file in [&file, &small] {
        let bytes = fs::read(file).unwrap();
        assert!(bytes.windows(name.len()).any(|some| some == name), "{}: another name", file.display());
    }
    good(["generate", arg(&small), "the old", "--max-tokens", "2"]);
    refused(["generate", arg(&back), "x", "--max-tokens", "0"], &["--max-tokens"]);
    refused(["quantize", arg(&file), arg(&small), "--to", "q8_0"], &["small.gguf", "exists"]);
    // Conflicting or inapplicable flags are refused; a precision selects the file's type.
    let (wide, more) = (at("wide.gguf"), at("more"));
    good(["export", arg(&out), arg(&wide), "--precision", "f32"]);
    assert_eq!(fs::metadata(&wide).unwrap().len(), fs::metadata(&file).unwrap().len());
    let again = at("again.gguf");
    refused(["export", arg(&out), arg(&again), "--quantization", "nf4"], &["--quantization nf4", ".gguf"]);
    refused(
        ["export", arg(&out), arg(&again), "--type", "q8_0", "--precision", "f32"],
        &["--type q8_0", "--precision f32"],
    );
    refused(["export", arg(&out), arg(&more), "--type", "q8_0"], &["--type q8_0", "--precision"]);
    assert!(!again.exists() && !more.exists());
    fs::write(at("broken.gguf"), &fs::read(&small).unwrap()[..200]).unwrap();
    refused(["generate", arg(&at("broken.gguf")), "x"], &["broken.gguf"]);
}
