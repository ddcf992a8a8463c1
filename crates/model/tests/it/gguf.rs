//! GGUF files: written files are read as the same model; models that llama.cpp does not support are refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fathom_model::{GgufType, SafeTensors, Source, Spec, open, open_config, read_f32, save_gguf};
use fathom_tensor::DType;
use fathom_tensor::ggml::{Kind, dequantise, quantise};

use crate::golden_files::{object, root};

/// A golden model; if llama.cpp hard-codes some settings, a copy with those.
fn case(name: &str, folder: &Path) -> PathBuf {
    let golden = root().join(name);
    if name != "phi3" && (!name.starts_with("gemma") || name == "gemma") {
        return golden;
    }
    let to = folder.join(name);
    fs::create_dir_all(&to).unwrap();
    fs::copy(golden.join("model.safetensors"), to.join("model.safetensors")).unwrap();
    let mut config = object(&golden.join("config.json"));
    if name == "phi3" {
        config.insert("sliding_window".into(), config["max_position_embeddings"].clone());
    } else {
        config.retain(|key, _| !key.contains("layer_types") && !key.contains("sliding_window_pattern"));
        config.insert("query_pre_attn_scalar".into(), config["head_dim"].clone());
    }
    fs::write(to.join("config.json"), serde_json::to_vec(&config).unwrap()).unwrap();
    to
}

fn write(model: &Path, path: &Path, how: GgufType) -> Result<u64, String> {
    let opened = open(model).unwrap();
    save_gguf((&opened.spec, &opened.source), path, how, Vec::new()).map_err(|error| error.to_string())
}

fn floats(source: &SafeTensors, name: &str) -> Vec<f32> {
    read_f32(source, name, 0..source.shape(name).unwrap()[0]).unwrap()
}

#[test]
fn families_go_through_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        "llama2",
        "llama2_bf16",
        "llama31",
        "llama32_tied",
        "llama_linear",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "gemma",
        "gemma2",
        "gemma3",
        "phi3",
        "phi3_plain",
        "granite",
    ];
    for case in cases {
        let path = folder.path().join(format!("{case}.gguf"));
        let model = self::case(case, folder.path());
        let weights = write(&model, &path, GgufType::Plain(Kind::F32))
            .unwrap_or_else(|error| panic!("{case}: {error}"));
        let (before, after) = (open(&model).unwrap(), open(&path).unwrap());
        let family = before.spec.family;
        assert_eq!(Spec { family, ..after.spec.clone() }, before.spec, "{case}");
        let mut elements = 0;
        for name in after.source.names() {
            let (theirs, ours) = (floats(&before.source, name), floats(&after.source, name));
            // One was added to Gemma's norms and subtracted again.
            let rounding =
                if before.spec.norm.plus_one && name.ends_with("norm.weight") { 3e-7 } else { 0.0 };
            assert!(theirs.len() == ours.len(), "{case}: {name}");
            assert!(theirs.iter().zip(&ours).all(|(x, y)| (x - y).abs() <= rounding), "{case}: {name}");
            elements += ours.len() as u64;
        }
        assert_eq!(elements, weights, "{case}");
    }
}

/// Frequency factors are f32 in a file, whatever their digits in a configuration; YaRN's factor is relative to
/// llama.cpp's own.
#[test]
fn frequencies_are_those_of_f32() {
    let folder = tempfile::tempdir().unwrap();
    let (model, path) = (folder.path().join("model"), folder.path().join("model.gguf"));
    fs::create_dir(&model).unwrap();
    let changed = |from: &str, change: &dyn Fn(&mut serde_json::Map<String, serde_json::Value>)| {
        fs::copy(root().join(from).join("model.safetensors"), model.join("model.safetensors")).unwrap();
        let mut config = object(&root().join(from).join("config.json"));
        change(&mut config);
        fs::write(model.join("config.json"), serde_json::to_vec(&config).unwrap()).unwrap();
        write(&model, &path, GgufType::Plain(Kind::F32)).unwrap_or_else(|error| panic!("{from}: {error}"));
        let [before, after] =
            [&model, &path].map(|model| open(model).unwrap().spec.ropes[0].frequencies(100));
        for (x, y) in before.inv_freq.iter().zip(&after.inv_freq) {
            assert!((x - y).abs() <= 2e-7 * x, "{from}: {x} {y}");
        }
        assert!((before.factor - after.factor).abs() < 1e-6, "{from}");
        fathom_base::gguf::Gguf::open(&path).unwrap()
    };
    changed("phi3", &|config| {
        config.insert("sliding_window".into(), serde_json::Value::Null);
        let factors = serde_json::json!([1.118320672, f64::from(1.13f32), 4.785517845]);
        config["rope_parameters"]["long_factor"] = factors;
    });
    let gguf = changed("llama_yarn", &|config| {
        let rope = config["rope_parameters"].as_object_mut().unwrap();
        rope.remove("beta_fast");
        rope.insert("attention_factor".into(), 1.3.into());
    });
    let factor = gguf.float("llama.rope.scaling.attn_factor").unwrap().unwrap();
    assert!((factor - 1.3 / (0.1 * 4f64.ln() + 1.0)).abs() < 1e-6, "{factor}");
}

/// Parts of tensors are read like the whole, and blocks match the definition.
#[test]
fn blocks_are_read_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write(&root().join("llama2"), &path, GgufType::Plain(Kind::Q8_0)).unwrap();
    let (before, after) = (open(&root().join("llama2")).unwrap().source, open(&path).unwrap().source);
    let mut packed = 0;
    for name in after.names() {
        let (x, y) = (floats(&before, name), floats(&after, name));
        if after.kind(name) == Some(Kind::Q8_0) {
            let (mut blocks, mut back) = (vec![0; Kind::Q8_0.bytes(x.len())], vec![0.0; x.len()]);
            quantise(Kind::Q8_0, &x, &mut blocks);
            dequantise(Kind::Q8_0, &blocks, &mut back);
            assert_eq!(y, back, "{name}");
            packed += 1;
        }
        if after.dtype(name) != Some(DType::F32) {
            continue;
        }
        let width = y.len() / after.shape(name).unwrap()[0];
        let mut stream = after.stream();
        let (from, to) = (width / 2 + 1, y.len() - width / 3);
        let mut bytes = vec![0; 4 * (to - from)];
        stream.read(name, 4 * from as u64, &mut bytes).unwrap();
        let read: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
        assert_eq!(read, y[from..to], "{name}");
    }
    assert!(packed > 5);
}

/// Rows that are not multiples of 256, and the types that replace those (`oracle/gguf_mixtures.py`).
#[test]
fn mixtures_are_llama_cpps() {
    let (folder, goldens) = (tempfile::tempdir().unwrap(), root().join("../golden_gguf"));
    let mut compared = 0;
    for (name, how) in GgufType::ALL {
        let theirs = goldens.join(format!("qwen2.{name}.gguf"));
        if !theirs.exists() {
            continue;
        }
        let ours = folder.path().join(format!("{name}.gguf"));
        write(&root().join("qwen2"), &ours, how).unwrap();
        let [before, after] = [&theirs, &ours].map(|path| {
            let (bytes, gguf) = (fs::read(path).unwrap(), fathom_base::gguf::Gguf::open(path).unwrap());
            let tensor = |(name, tensor): (&String, &fathom_base::gguf::Tensor)| {
                let data = &bytes[tensor.start as usize..][..tensor.bytes as usize];
                (name.clone(), (tensor.kind, tensor.shape.clone(), data.to_vec()))
            };
            assert_eq!(gguf.count("general.file_type").unwrap(), {
                let theirs = fathom_base::gguf::Gguf::open(&theirs).unwrap();
                theirs.count("general.file_type").unwrap()
            });
            gguf.tensors.iter().map(tensor).collect::<BTreeMap<_, _>>()
        });
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "{name}");
        for (tensor, theirs) in &before {
            assert!(
                after[tensor] == *theirs,
                "{name}: {tensor} is {:?}, not {:?}",
                after[tensor].0,
                theirs.0
            );
        }
        let [before, after] = [&theirs, &ours].map(|path| open(path).unwrap());
        assert_eq!(before.spec, after.spec, "{name}");
        for tensor in before.source.names() {
            assert_eq!(floats(&before.source, tensor), floats(&after.source, tensor), "{name}: {tensor}");
        }
        compared += 1;
    }
    assert_eq!(compared, 5);
}

#[test]
fn what_cannot_be_expressed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for (case, part) in [
        ("falcon_7b", "falcon"),
        ("glm", "glm"),
        ("gpt2", "gpt2"),
        ("llama_dynamic", "rope_scaling"),
        ("llama_yarn_plain", "rope_scaling"),
        ("gemma2", "query_pre_attn_scalar"),
        ("qwen2_moe", "mlp_only_layers"),
        ("mixtral", "window"),
        ("llama_yarn", "beta_fast is 4"),
        ("phi3", "the window of 8 tokens would be lost"),
    ] {
        let error = write(&root().join(case), &path, GgufType::Q4KM).unwrap_err();
        assert!(error.contains(part), "{case}: {error}");
        assert!(!path.exists() && fs::read_dir(folder.path()).unwrap().count() == 0, "{case}");
    }
}

/// Wrong keys end in errors that name the key.
#[test]
fn wrong_keys_are_named() {
    use fathom_base::gguf::{Gguf, Value, header};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write(&root().join("llama2"), &path, GgufType::Plain(Kind::F32)).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    let mut tensors: Vec<_> = gguf.tensors.iter().collect();
    tensors.sort_by_key(|(_, tensor)| tensor.start);
    let layouts: Vec<_> =
        tensors.iter().map(|(name, tensor)| (name.to_string(), tensor.kind, tensor.shape.clone())).collect();
    let data = &whole[tensors[0].1.start as usize..];
    for (key, value) in [
        ("general.architecture", Some(Value::Text("mamba".into()))),
        ("general.architecture", None),
        ("llama.attention.head_count", Some(Value::Unsigned(0))),
        ("llama.attention.head_count", Some(Value::Integers(vec![1, 2]))),
        ("llama.block_count", Some(Value::Unsigned(1 << 40))),
        ("llama.attention.layer_norm_rms_epsilon", None),
        ("llama.rope.dimension_count", Some(Value::Unsigned(6))),
        ("llama.rope.scaling.type", Some(Value::Text("magic".into()))),
        ("split.count", Some(Value::Unsigned(3))),
    ] {
        let mut values = gguf.values.clone();
        match value {
            Some(value) => values.insert(key.to_string(), value),
            None => values.remove(key),
        };
        if key.ends_with("type") {
            values.insert("llama.rope.scaling.factor".into(), Value::Float(2.0));
        }
        let values: Vec<_> = values.into_iter().collect();
        let path = folder.path().join("wrong.gguf");
        fs::write(&path, [header(&values, &layouts).as_slice(), data].concat()).unwrap();
        let error = open_config(&path).unwrap_err().to_string();
        let short = key.rsplit('.').next().unwrap();
        assert!(
            error.contains("wrong.gguf") && (error.contains(short) || short == "block_count"),
            "{key}: {error}"
        );
    }
}
