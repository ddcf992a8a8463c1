//! Saved weights load with the same bits, whatever the number of files; new weights are equal for any number of
//! threads.

use std::path::{Path, PathBuf};

use fathom_grad::{OnDisk, Params, StateDisk};
use fathom_model::{
    DenseParams, FolderOptions, GenerationConfig, INDEX, Init, LlamaSizes, Model, SINGLE, SaveOptions, Spec,
    SubParams, initialise, load, open, save, save_hf,
};
use fathom_tensor::spill::Options;
use fathom_tensor::{DType, Device};

use crate::golden::cpu;
use crate::golden_files::{cases, name, root};

fn loaded(device: &Device, folder: &Path, dtype: DType) -> (Model, Params) {
    let folder = open(folder).unwrap();
    let (model, mut params) = Model::declare(device, &folder.spec, dtype);
    load(device, &model, &mut params, &folder.source).unwrap();
    (model, params)
}

fn bits(device: &Device, params: &Params) -> Vec<Vec<u8>> {
    params.iter().map(|(_, param)| param.value.bytes(device)).collect()
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Generation defaults as a model's publisher writes them.
fn sampling() -> GenerationConfig {
    let text = r#"{ "do_sample": true, "temperature": 0.6, "top_p": 0.9, "stop_strings": ["\n\n"] }"#;
    GenerationConfig { others: serde_json::from_str(text).unwrap(), ..GenerationConfig::default() }
}

#[test]
fn what_is_exported_is_imported_bit_for_bit() {
    let device = cpu(1, None);
    for case in cases() {
        for dtype in [DType::F32, DType::Bf16] {
            let (model, params) = loaded(&device, &case, dtype);
            let out = tempfile::tempdir().unwrap();
            let generation = GenerationConfig { bos: Some(1), eos: vec![2, 3], ..sampling() };
            let options =
                FolderOptions { weights: SaveOptions::new(dtype), generation: &generation, copy: &[] };
            save_hf(&device, &model, &params, out.path(), options).unwrap();
            assert_eq!(files(out.path()), ["config.json", "generation_config.json", SINGLE]);
            let again = open(out.path()).unwrap();
            assert!(again.generation.positions.is_some_and(|tokens| tokens >= again.spec.max_positions));
            let read = GenerationConfig { positions: None, ..again.generation };
            assert_eq!((again.spec, read), (model.spec, generation));
            let (_, back) = loaded(&device, out.path(), dtype);
            assert_eq!(bits(&device, &params), bits(&device, &back), "{}", name(&case));
        }
    }
}

/// The old length of an extended model is raised everywhere, and nothing else is changed.
#[test]
fn an_extended_model_is_not_cut_at_its_old_length() {
    let device = cpu(1, None);
    let [from, to] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let opened = open(&root().join("llama2")).unwrap();
    let old = opened.spec.max_positions;
    let file = |name: &str| from.path().join(name);
    let long = r#"{"model_max_length": 1000000000000000019884624838656, "max_length": 12}"#;
    let plain = format!(r#"{{"model_max_length": {old}, "padding_side": "left"}}"#);
    let copy = [file("tokenizer_config.json"), file("tokenizer.json")];
    std::fs::write(&copy[1], r#"{"truncation": null}"#).unwrap();
    let text = format!(r#"{{"max_length": {old}, "temperature": 0.6}}"#);
    let others = serde_json::from_str(&text).unwrap();
    let generation = GenerationConfig { others, positions: Some(old), ..GenerationConfig::default() };
    let options =
        FolderOptions { weights: SaveOptions::new(DType::F32), generation: &generation, copy: &copy };
    let lengths = |tokens: usize, config: &str| {
        std::fs::write(&copy[0], config).unwrap();
        let mut spec = Spec { max_positions: tokens, ..opened.spec.clone() };
        spec.ropes.iter_mut().for_each(|rope| rope.max_positions = tokens);
        let (model, mut params) = Model::declare(&device, &spec, DType::F32);
        load(&device, &model, &mut params, &opened.source).unwrap();
        save_hf(&device, &model, &params, to.path(), options).unwrap();
        let read = |name: &str| -> serde_json::Value {
            serde_json::from_slice(&std::fs::read(to.path().join(name)).unwrap()).unwrap()
        };
        assert_eq!(read("tokenizer.json")["truncation"], serde_json::Value::Null);
        assert_eq!(read("config.json")["max_position_embeddings"], tokens);
        let config = read("tokenizer_config.json");
        [
            config["model_max_length"].clone(),
            config["max_length"].clone(),
            read("generation_config.json")["max_length"].clone(),
        ]
    };
    assert_eq!(lengths(old, &plain), [old.into(), serde_json::Value::Null, old.into()]);
    assert_eq!(std::fs::read_to_string(to.path().join("tokenizer_config.json")).unwrap(), plain);
    assert_eq!(lengths(4 * old, &plain), [(4 * old).into(), serde_json::Value::Null, (4 * old).into()]);
    let [tokens, length, _] = lengths(4 * old, long);
    assert!(tokens.as_f64() > Some(1e29) && length == 4 * old, "{tokens} {length}");
}

#[test]
fn an_older_configuration_does_not_outlive_its_weights() {
    let device = cpu(1, None);
    let (model, params) = loaded(&device, &root().join("llama2"), DType::F32);
    let out = tempfile::tempdir().unwrap();
    let generation = GenerationConfig::default();
    let options = FolderOptions { weights: SaveOptions::new(DType::F32), generation: &generation, copy: &[] };
    save_hf(&device, &model, &params, out.path(), options).unwrap();
    // A second export that ends between its weights and its configuration.
    save(&device, &model, &params, out.path(), options.weights).unwrap();
    assert_eq!(files(out.path()), ["generation_config.json", SINGLE]);
    save_hf(&device, &model, &params, out.path(), options).unwrap();
    assert_eq!(files(out.path()), ["config.json", "generation_config.json", SINGLE]);
}

#[test]
fn on_disk_a_model_is_loaded_and_exported_as_in_memory() {
    let device = cpu(1, None);
    for case in cases() {
        for dtype in [DType::F32, DType::Bf16] {
            let (model, params) = loaded(&device, &case, dtype);
            let [files, here, spilled] = [0, 1, 2].map(|_| tempfile::tempdir().unwrap());
            let options = Options::new(files.path(), 64 << 20);
            let what = OnDisk { weights: true, ..OnDisk::default() };
            let disk = StateDisk::open(&device, &options, what, dtype).unwrap();
            let source = open(&case).unwrap();
            let (_, mut on_disk) = Model::declare_on(&device, &source.spec, dtype, Some(disk));
            let before = device.pool.usage().live;
            load(&device, &model, &mut on_disk, &source.source).unwrap();
            assert_eq!(device.pool.usage().live, before);
            assert_eq!(bits(&device, &params), bits(&device, &on_disk), "{}", name(&case));
            save(&device, &model, &params, here.path(), SaveOptions::new(dtype)).unwrap();
            save(&device, &model, &on_disk, spilled.path(), SaveOptions::new(dtype)).unwrap();
            let [here, spilled] = [here, spilled].map(|out| std::fs::read(out.path().join(SINGLE)).unwrap());
            assert!(here == spilled, "{}", name(&case));
        }
    }
}

#[test]
fn the_bf16_copy_and_the_sharded_copy_are_the_same_model() {
    let device = cpu(1, None);
    let [whole, sharded] =
        ["llama2", "llama2_sharded"].map(|case| loaded(&device, &root().join(case), DType::F32).1);
    assert_eq!(bits(&device, &whole), bits(&device, &sharded));
    // Stored as bf16: nothing is lost through f32.
    let (model, narrow) = loaded(&device, &root().join("llama2_bf16"), DType::Bf16);
    let (_, wide) = loaded(&device, &root().join("llama2_bf16"), DType::F32);
    let out = tempfile::tempdir().unwrap();
    save(&device, &model, &wide, out.path(), SaveOptions::new(DType::Bf16)).unwrap();
    std::fs::copy(root().join("llama2_bf16/config.json"), out.path().join("config.json")).unwrap();
    let (_, back) = loaded(&device, out.path(), DType::Bf16);
    assert_eq!(bits(&device, &narrow), bits(&device, &back));
}

#[test]
fn shards_follow_the_limit_and_replace_each_other() {
    let device = cpu(1, None);
    let (model, params) = loaded(&device, &root().join("gpt_neox"), DType::F32);
    let out = tempfile::tempdir().unwrap();
    let generation = GenerationConfig::default();
    let tokenizer: PathBuf = root().join("llama2/golden.json");
    let mut counts = Vec::new();
    for max_shard_bytes in [1, 20_000, u64::MAX] {
        let weights = SaveOptions { dtype: DType::F32, max_shard_bytes };
        let options =
            FolderOptions { weights, generation: &generation, copy: std::slice::from_ref(&tokenizer) };
        save_hf(&device, &model, &params, out.path(), options).unwrap();
        let names = files(out.path());
        counts.push(names.iter().filter(|name| name.ends_with(".safetensors")).count());
        assert_eq!(names.contains(&INDEX.to_string()), max_shard_bytes != u64::MAX);
        assert!(
            names.contains(&"golden.json".to_string()) && !names.iter().any(|name| name.ends_with(".tmp"))
        );
        let (_, back) = loaded(&device, out.path(), DType::F32);
        assert_eq!(bits(&device, &params), bits(&device, &back));
    }
    assert_eq!((counts[0], counts[2]), (28, 1));
    assert!((2..28).contains(&counts[1]));
}

#[test]
fn names_may_lack_the_prefix() {
    // GPT-2's published file has no `transformer.`, and unused buffers.
    let device = cpu(1, None);
    let (model, params) = loaded(&device, &root().join("gpt2"), DType::F32);
    let bytes = std::fs::read(root().join("gpt2").join(SINGLE)).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
    let end = bytes.len() - 8 - length;
    let buffer = format!(
        "{{\"h.0.attn.bias\":{{\"dtype\":\"BOOL\",\"shape\":[1,1,2,2],\"data_offsets\":[{end},{}]}},",
        end + 4
    );
    let header = header.replace("\"transformer.", "\"").replacen('{', &buffer, 1);
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(&bytes[8 + length..]);
    file.extend([1, 0, 1, 1]);
    let out = tempfile::tempdir().unwrap();
    std::fs::write(out.path().join(SINGLE), file).unwrap();
    std::fs::copy(root().join("gpt2/config.json"), out.path().join("config.json")).unwrap();
    let (_, back) = loaded(&device, out.path(), DType::F32);
    assert_eq!(model.pieces().len(), params.len());
    assert_eq!(bits(&device, &params), bits(&device, &back));
}

#[test]
fn new_weights_do_not_depend_on_threads() {
    let sizes = LlamaSizes { vocab: 300, max_positions: 128, tied: false, ..LlamaSizes::TINY };
    let made = [1, 2].map(|threads| {
        let device = cpu(threads, None);
        let (model, mut params) = Model::declare(&device, &Spec::llama(sizes), DType::F32);
        initialise(&device, &model, &mut params, Init::new(42));
        let values: Vec<Vec<f32>> =
            params.iter().map(|(_, param)| device.to_f32(&param.value.tensor())).collect();
        let deviation = |values: &[f32]| {
            (values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
        };
        let (embed, last) = (model.embed.unwrap().tokens, model.last.unwrap());
        assert!((deviation(&values[embed.index()]) - 0.02).abs() < 5e-4);
        let SubParams::Dense(DenseParams { down, .. }) = model.blocks[1].parts[1].sublayer else {
            panic!("experts")
        };
        assert!((deviation(&values[down.weight.index()]) - 0.01).abs() < 5e-4);
        assert!(values[last.norm.unwrap().weight.index()].iter().all(|x| *x == 1.0));
        assert_ne!(values[embed.index()][..64], values[last.head.index()][..64]);
        values
    });
    assert_eq!(made[0], made[1]);
}
