//! Configurations with impossible numbers: refused by key, or planned. Nothing panics.

use std::path::{Path, PathBuf};

use fathom_model::Family;
use fathom_train::fuzz_config;
use serde_json::{Map, Value, json};

fn golden() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let configs = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path().join("config.json"));
    let mut configs: Vec<PathBuf> = configs.filter(|path| path.is_file()).collect();
    configs.sort();
    configs
}

fn object(path: &Path) -> Map<String, Value> {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn every_number_of_a_configuration_may_be_anything() {
    let numbers: Vec<Value> = vec![
        json!(0),
        json!(1),
        json!(2),
        json!(3),
        json!(1 << 20),
        json!(1u64 << 28),
        json!(u64::MAX / 2),
        json!(u64::MAX),
        json!(-1),
        json!(-0.5),
        json!(1e-320),
        json!(1e39),
        json!(1e308),
    ];
    assert!(golden().len() >= 30);
    for (file, path) in golden().into_iter().enumerate() {
        let map = object(&path);
        let numeric = map.iter().filter(|(_, value)| value.is_number() || value.is_null());
        // A key gets a third of the numbers in each file, and all of them over three files.
        for (at, (key, _)) in numeric.enumerate() {
            for number in numbers.iter().skip((file + at) % 3).step_by(3) {
                let mut changed = map.clone();
                changed.insert(key.clone(), number.clone());
                let text = serde_json::to_vec(&changed).unwrap();
                let planned = std::panic::catch_unwind(|| fuzz_config(&text));
                assert!(planned.is_ok(), "{}: {key} = {number}", path.display());
            }
        }
    }
}

#[test]
fn numbers_out_of_range_are_refused_by_key() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    for (case, key, number) in [
        ("mistral", "sliding_window", json!(u64::MAX)),
        ("nemotron", "intermediate_size", json!(1)),
        ("llama2", "rms_norm_eps", json!(-1)),
        ("llama2", "rms_norm_eps", json!(1e39)),
        ("llama2", "vocab_size", json!(1)),
        ("gpt2", "layer_norm_epsilon", json!(-1e-5)),
        ("granite", "logits_scaling", json!(1e-320)),
    ] {
        let mut map = object(&folder.join(case).join("config.json"));
        map.insert(key.into(), number.clone());
        let refusal = Family::read(Path::new("config.json"), &map).expect_err(key).to_string();
        assert!(refusal.contains(&format!("`{key}`")), "{case}, {number}: {refusal}");
    }
}
