//! The bodies of fuzz targets over changed seeds, without sanitizers: nothing panics (`fuzz/`).

use std::path::Path;

use fathom_model::{GgufType, open, save_gguf};
use fathom_tensor::ggml::Kind;

#[path = "../../../../fuzz/bodies/few_bits.rs"]
mod few_bits;
#[path = "../../../../fuzz/bodies/gguf_model.rs"]
mod gguf_model;
#[path = "../../../../fuzz/bodies/structure.rs"]
mod structure;

/// Runs on the bytes as they are, and with some of them changed, removed and duplicated.
fn changed(seed: &[u8], times: usize, run: impl Fn(&[u8])) {
    run(seed);
    let mut random = seed.len() as u64 + 11;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % below.max(1)
    };
    for _ in 0..times {
        let mut bytes = seed.to_vec();
        for _ in 0..1 + next(4) {
            // Most of a file's structure is at its beginning.
            let most = if next(2) == 0 { bytes.len().min(2048) } else { bytes.len() };
            let at = next(most);
            match next(4) {
                0 => bytes.truncate(at),
                1 => _ = bytes.get_mut(at).map(|byte| *byte ^= 1 << next(8)),
                2 => _ = bytes.get_mut(at).map(|byte| *byte = next(256) as u8),
                _ => {
                    let part: Vec<u8> = bytes[at.min(bytes.len())..].iter().copied().take(16).collect();
                    bytes.splice(at.min(bytes.len())..at.min(bytes.len()), part);
                }
            }
        }
        run(&bytes);
    }
}

fn golden(path: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(path)).unwrap()
}

#[test]
fn damaged_folders_in_few_bits_are_refused() {
    let file = golden("golden_few_bits/model.safetensors");
    for said in [
        r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true}"#,
        r#"{"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": true}"#,
        r#"{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": {"targets": ["Linear"]}}}"#,
        r#"{"quant_method": "fp8", "weight_block_size": [128, 128]}"#,
    ] {
        changed(&[said.as_bytes(), &[0], &file].concat(), 30, few_bits::run);
    }
}

#[test]
fn damaged_gguf_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/llama2");
    let opened = open(&golden).unwrap();
    save_gguf((&opened.spec, &opened.source), &file, GgufType::Plain(Kind::F32), Vec::new()).unwrap();
    changed(&std::fs::read(&file).unwrap(), 80, gguf_model::run);
    changed(b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 200, gguf_model::run);
}

#[test]
fn structures_of_any_text_are_compiled_or_refused() {
    for seed in [
        "\0{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"array\", \"items\": {\"enum\": [1, \"b\"]}}}}",
        "\x01(a|b[^c]*){2,5}\\d+",
        "\x02start: \"a\" (b | \"c\")+\nb: /[0-9]+/",
        "\x03yes\nno\n",
    ] {
        changed(seed.as_bytes(), 60, structure::run);
    }
}
