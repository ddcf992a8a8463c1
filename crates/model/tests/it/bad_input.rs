//! Truncated, contradictory or malicious weight files: an error that names file and tensor, no panic.

use std::path::Path;

use fathom_model::{
    FileWriter, INDEX, Model, SINGLE, SafeTensors, Source, TensorInfo, fuzz_safetensors, load, open,
    parse_header, read_f32,
};
use fathom_tensor::DType;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::golden::cpu;
use crate::golden_files::root;
use crate::pieces::meta;

/// A whole file: length, JSON, data.
fn file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    bytes
}

fn open_bytes(bytes: &[u8]) -> fathom_model::Result<SafeTensors> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(SINGLE);
    std::fs::write(&path, bytes).unwrap();
    SafeTensors::open_file(&path)
}

#[track_caller]
fn check_refused(bytes: &[u8], wanted: &[&str]) {
    let Err(error) = open_bytes(bytes) else { panic!("accepted, expected {wanted:?}") };
    let message = error.to_string();
    for part in wanted.iter().chain(&[SINGLE]) {
        assert!(message.contains(part), "{wanted:?} in: {message}");
    }
}

#[test]
fn a_sound_file_is_accepted() {
    let header = r#"{"b":{"dtype":"F32","shape":[2,2],"data_offsets":[4,20]},
        "a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"e":{"dtype":"I16","shape":[0],"data_offsets":[4,4]},
        "__metadata__":{"format":"pt"}}"#;
    let source = open_bytes(&file(header, 20)).unwrap();
    assert_eq!(source.names(), ["a", "e", "b"]);
    assert_eq!((source.shape("b"), source.dtype("b")), (Some(&[2, 2][..]), Some(DType::F32)));
    assert_eq!(source.dtype("e"), None);
    let mut rows = Vec::new();
    source.read_rows("b", 1..2, &mut rows).unwrap();
    assert_eq!(rows.len(), 8);
    assert!(source.read_rows("b", 1..3, &mut rows).unwrap_err().to_string().contains("`b` has 2 rows"));
    assert!(source.read_rows("c", 0..1, &mut rows).unwrap_err().to_string().contains("`c` is missing"));
}

#[test]
fn broken_files_are_refused() {
    check_refused(b"", &["too few"]);
    check_refused(b"1234567", &["too few"]);
    check_refused(&u64::MAX.to_le_bytes(), &["100 MiB"]);
    check_refused(&(1_u64 << 20).to_le_bytes(), &["cut off"]);
    check_refused(&file("", 0), &["not valid"]);
    check_refused(&file("{", 0), &["not valid"]);
    check_refused(&file("[]", 0), &["not valid"]);
    check_refused(&file(&"[".repeat(100_000), 0), &["not valid"]);
    check_refused(&file(&format!("{{\"a\":{}", "{\"a\":".repeat(100_000)), 0), &["not valid"]);
    check_refused(&file("{}", 4), &["4 bytes after"]);
    let mut bytes = file("{\"a\"}", 0);
    bytes[10] = 0xff;
    check_refused(&bytes, &["UTF-8"]);
}

#[test]
fn inconsistent_entries_are_refused_by_tensor() {
    let one = |entry: Value, data: usize| file(&json!({ "w.weight": entry }).to_string(), data);
    let entry =
        |shape: Value, offsets: Value| json!({ "dtype": "F32", "shape": shape, "data_offsets": offsets });
    let cases: [(Value, &str); 11] = [
        (entry(json!([2]), json!([0, 4])), "takes 8 bytes, its offsets hold 4"),
        (entry(json!([1]), json!([8, 4])), "before its start"),
        (entry(json!([1]), json!([4, 8])), "gap"),
        (entry(json!([4]), json!([0, 16])), "cut off"),
        (entry(json!([1_u64 << 40]), json!([0, 1_u64 << 42])), "cut off"),
        (entry(json!([u64::MAX, u64::MAX]), json!([0, 8])), "2^64"),
        (entry(json!([1]), json!([u64::MAX - 4, u64::MAX])), "beyond any file"),
        (json!({ "dtype": "F33", "shape": [1], "data_offsets": [0, 4] }), "F33"),
        (json!({ "dtype": "F32", "shape": [-1], "data_offsets": [0, 4] }), "not valid"),
        (json!({ "dtype": "F32", "shape": [1], "data_offsets": [0, 4], "x": 1 }), "`x`"),
        (json!({ "dtype": "F32", "shape": [1] }), "data_offsets"),
    ];
    for (entry, wanted) in cases {
        check_refused(&one(entry.clone(), 8), &[wanted]);
    }
    let two = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#;
    check_refused(&file(two, 6), &["`b`", "before the tensor"]);
    let twice = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    check_refused(&file(twice, 4), &["`a` appears twice"]);
}

/// Adds f32 tensors to a folder's file.
fn add_tensors(folder: &Path, more: &[(&str, Vec<usize>, Vec<f32>)]) {
    let path = folder.join(SINGLE);
    let source = SafeTensors::open_file(&path).unwrap();
    let mut tensors: Vec<(TensorInfo, Vec<u8>)> = Vec::new();
    for name in source.names() {
        let (shape, mut bytes) = (source.shape(name).unwrap().to_vec(), Vec::new());
        source.read_rows(name, 0..shape[0], &mut bytes).unwrap();
        tensors.push((TensorInfo { name: name.into(), dtype: source.dtype(name).unwrap(), shape }, bytes));
    }
    for (name, shape, values) in more {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        tensors.push((TensorInfo { name: name.to_string(), dtype: DType::F32, shape: shape.clone() }, bytes));
    }
    let infos: Vec<TensorInfo> = tensors.iter().map(|(info, _)| info.clone()).collect();
    let mut writer = FileWriter::create(&path, &infos).unwrap();
    tensors.iter().for_each(|(_, bytes)| writer.write(bytes).unwrap());
    writer.finish().unwrap();
}

fn check_loads(folder: &Path) {
    let device = cpu(1, None);
    let opened = open(folder).unwrap();
    let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
    load(&device, &model, &mut params, &opened.source).unwrap();
}

#[test]
fn a_tied_head_of_its_own_is_refused() {
    let folder = copy("llama32_tied");
    let opened = open(folder.path()).unwrap();
    let shape = opened.source.shape("model.embed_tokens.weight").unwrap().to_vec();
    let mut values = read_f32(&opened.source, "model.embed_tokens.weight", 0..shape[0]).unwrap();
    drop(opened);
    add_tensors(folder.path(), &[("lm_head.weight", shape.clone(), values.clone())]);
    check_loads(folder.path());
    let other = copy("llama32_tied");
    *values.last_mut().unwrap() += 1.0;
    add_tensors(other.path(), &[("lm_head.weight", shape, values)]);
    let opened = open(other.path()).unwrap();
    let device = cpu(1, None);
    let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
    let error = load(&device, &model, &mut params, &opened.source).unwrap_err().to_string();
    assert!(error.contains("`lm_head.weight` differs") && error.contains("tie_word_embeddings"), "{error}");
}

#[test]
fn blocks_that_predict_further_tokens_are_left() {
    let folder = copy("deepseek_v3");
    let norm = ("model.layers.3.enorm.weight", vec![2], vec![1.0; 2]);
    add_tensors(folder.path(), std::slice::from_ref(&norm));
    assert!(load_error(folder.path()).contains("`model.layers.3.enorm.weight` is no weight"));
    add_tensors(folder.path(), &[("model.layers.3.eh_proj.weight", vec![1, 2], vec![1.0; 2])]);
    check_loads(folder.path());
    let inside = copy("deepseek_v3");
    add_tensors(inside.path(), &[("model.layers.2.eh_proj.weight", vec![1, 2], vec![1.0; 2])]);
    assert!(load_error(inside.path()).contains("`model.layers.2.eh_proj.weight` is no weight"));
}

/// A copy of a golden folder for tests that change files.
fn copy(case: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(root().join(case)).unwrap() {
        let from = entry.unwrap().path();
        std::fs::copy(&from, folder.path().join(from.file_name().unwrap())).unwrap();
    }
    folder
}

fn edit(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(file, value.to_string()).unwrap();
}

fn load_error(folder: &Path) -> String {
    let opened = match open(folder) {
        Ok(opened) => opened,
        Err(error) => return error.to_string(),
    };
    let device = meta();
    let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
    load(&device, &model, &mut params, &opened.source).expect_err("loaded").to_string()
}

#[test]
fn missing_extra_and_misshapen_tensors_are_named() {
    let check = |key: &str, value: Value, wanted: [&str; 2]| {
        let folder = copy("llama2");
        edit(&folder.path().join("config.json"), |config| config[key] = value.clone());
        let message = load_error(folder.path());
        assert!(wanted.iter().all(|part| message.contains(part)), "{key}: {message}");
    };
    check("num_hidden_layers", json!(3), ["`model.layers.2.", "is missing"]);
    check("num_hidden_layers", json!(1), ["`model.layers.1.", "no weight"]);
    check("attention_bias", json!(true), ["`model.layers.0.self_attn.q_proj.bias`", "is missing"]);
    check("vocab_size", json!(97), ["`model.embed_tokens.weight`", "[96, 32]"]);
    check("model_type", json!("qwen2"), ["architectures", "Qwen2ForCausalLM"]);
}

#[test]
fn indices_that_lie_are_refused() {
    let check = |change: fn(&mut Value), wanted: &str| {
        let folder = copy("llama2_sharded");
        edit(&folder.path().join(INDEX), change);
        let message = load_error(folder.path());
        assert!(message.contains(wanted), "{wanted} in: {message}");
    };
    check(|index| index["weight_map"]["lm_head.weight"] = json!("../secret"), "plain file name");
    check(|index| index["weight_map"]["lm_head.weight"] = json!("/etc/passwd"), "plain file name");
    check(|index| index["weight_map"]["lm_head.weight"] = json!(""), "plain file name");
    check(|index| index["weight_map"]["lm_head.weight"] = json!(7), "plain file name");
    check(|index| index["weight_map"]["lm_head.weight"] = json!("absent.safetensors"), "absent.safetensors");
    check(
        |index| index["weight_map"]["more"] = json!("model-00001-of-00003.safetensors"),
        "`more` is not in",
    );
    check(|index| drop(index["weight_map"].as_object_mut().unwrap().remove("lm_head.weight")), "not listed");
    check(|index| *index = json!({}), "weight_map");
    let folder = copy("llama2_sharded");
    let shard = folder.path().join("model-00002-of-00003.safetensors");
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() - 1]).unwrap();
    let message = load_error(folder.path());
    assert!(message.contains("model-00002-of-00003") && message.contains("cut off"), "{message}");
    std::fs::remove_file(&shard).unwrap();
    assert!(load_error(folder.path()).contains("model-00002-of-00003"));
}

#[test]
fn folders_without_weights_are_distinguished() {
    let folder = tempfile::tempdir().unwrap();
    assert!(load_error(folder.path()).contains("config.json"));
    std::fs::copy(root().join("llama2/config.json"), folder.path().join("config.json")).unwrap();
    std::fs::write(folder.path().join("pytorch_model.bin"), "x").unwrap();
    assert!(load_error(folder.path()).contains("has neither"));
    std::fs::write(folder.path().join("config.json"), "{\"model_type\": \"llama\", ").unwrap();
    assert!(load_error(folder.path()).contains("line 1"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        fuzz_safetensors(&bytes);
        fuzz_safetensors(&file(&String::from_utf8_lossy(&bytes), 16));
    }

    /// Changes one to four bytes of a real header, or truncates it.
    #[test]
    fn mutated_headers_are_survived(
        changes in proptest::collection::vec((0_usize..4096, any::<u8>()), 1..5),
        cut in 0_usize..6000,
    ) {
        let mut bytes = std::fs::read(root().join("llama2/model.safetensors")).unwrap();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        fuzz_safetensors(&bytes);
        fuzz_safetensors(&bytes[..bytes.len().min(cut)]);
    }

    /// Replaces digits of a real header: wrong offsets and shapes.
    #[test]
    fn lying_numbers_are_survived(seed in any::<u64>(), digits in 1_usize..20) {
        let bytes = std::fs::read(root().join("llama2/model.safetensors")).unwrap();
        let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        let mut json = bytes[8..8 + length].to_vec();
        let at: Vec<usize> = (0..length).filter(|at| json[*at].is_ascii_digit()).collect();
        let mut state = seed;
        for _ in 0..digits {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            json[at[(state >> 33) as usize % at.len()]] = b'0' + (state >> 59) as u8 % 10;
        }
        let _ = parse_header(Path::new("x"), &json, bytes.len() as u64);
    }
}
