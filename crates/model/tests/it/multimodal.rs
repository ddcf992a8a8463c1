//! The text part of multimodal models' folders.

use fathom_model::{
    FileWriter, FolderOptions, GenerationConfig, LeftOut, Model, SINGLE, SafeTensors, SaveOptions, Source,
    TensorInfo, load, open, save_hf,
};
use fathom_tensor::DType;
use serde_json::json;

use crate::golden::cpu;
use crate::golden_files::{object, root};

#[test]
fn the_text_part_is_the_model_of_its_own_folder() {
    let device = cpu(1, None);
    let bits = |case: &str| {
        let folder = open(&root().join(case)).unwrap();
        let (model, mut params) = Model::declare(&device, &folder.spec, DType::F32);
        load(&device, &model, &mut params, &folder.source).unwrap();
        let bits: Vec<Vec<u8>> = params.iter().map(|(_, param)| param.value.bytes(&device)).collect();
        (bits, model, params, folder.left_out)
    };
    let (text, _, _, left_out) = bits("gemma3");
    assert_eq!(left_out, None);
    for case in ["gemma3_multimodal", "gemma3_multimodal_v5"] {
        let (part, model, params, left_out) = bits(case);
        assert!(part == text, "{case}");
        let left_out = left_out.unwrap();
        assert!(matches!(left_out, LeftOut { model_type: "gemma3", text: "gemma3_text", tensors: 20.. }));
        assert!(left_out.to_string().contains("vision"), "{left_out}");
        // Only the text model is written.
        let out = tempfile::tempdir().unwrap();
        let generation = GenerationConfig::default();
        let options =
            FolderOptions { weights: SaveOptions::new(DType::F32), generation: &generation, copy: &[] };
        save_hf(&device, &model, &params, out.path(), options).unwrap();
        let config = object(&out.path().join("config.json"));
        assert_eq!((&config["model_type"], config.get("vision_config")), (&json!("gemma3_text"), None));
        let written = SafeTensors::open_folder(out.path()).unwrap();
        assert!(written.names().iter().all(|name| name.starts_with("model.")), "{:?}", written.names());
    }
}

/// Special tokens are next to the text part, or within.
#[test]
fn special_tokens_are_found_on_both_levels() {
    let folder = tempfile::tempdir().unwrap();
    let from = root().join("gemma3_multimodal");
    std::fs::copy(from.join(SINGLE), folder.path().join(SINGLE)).unwrap();
    let mut config = object(&from.join("config.json"));
    config.insert("eos_token_id".into(), json!([1, 106]));
    config["text_config"]["bos_token_id"] = json!(2);
    config["text_config"]["eos_token_id"] = json!(7);
    std::fs::write(folder.path().join("config.json"), json!(config).to_string()).unwrap();
    let generation = open(folder.path()).unwrap().generation;
    assert_eq!((generation.bos, generation.eos), (Some(2), vec![1, 106]));
}

/// A folder with the multimodal configuration and tensors of these names.
fn with_tensors(names: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let from = root().join("gemma3_multimodal");
    std::fs::copy(from.join("config.json"), folder.path().join("config.json")).unwrap();
    let tensor = |name: &&str| TensorInfo { name: (*name).into(), shape: vec![1], dtype: DType::F32 };
    let tensors: Vec<TensorInfo> = names.iter().map(tensor).collect();
    let mut writer = FileWriter::create(&folder.path().join(SINGLE), &tensors).unwrap();
    writer.write(&vec![0; 4 * tensors.len()]).unwrap();
    writer.finish().unwrap();
    let refused = open(folder.path()).and_then(|folder| {
        let device = cpu(1, None);
        let (model, mut params) = Model::declare(&device, &folder.spec, DType::F32);
        load(&device, &model, &mut params, &folder.source)
    });
    refused.unwrap_err().to_string()
}

#[test]
fn tensors_of_no_part_and_doubled_ones_are_refused() {
    let both = ["language_model.model.norm.weight", "model.language_model.norm.weight"];
    let message = with_tensors(&both);
    assert!(
        message.contains("model.language_model.norm.weight") && message.contains("same weight"),
        "{message}"
    );
    let message = with_tensors(&["vision_tower.x"]);
    assert!(message.contains("model.embed_tokens.weight") && message.contains("missing"), "{message}");
}
