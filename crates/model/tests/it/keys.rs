//! Golden models under other keys of their configurations, against Transformers; `oracle/keys.py` wrote
//! `tests/golden_keys.json`.

use std::path::Path;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{Counters, Eval, Scope};
use fathom_model::{Caps, Family, LoadedModel, Model, PackedTokens, Spec, load, open_any};
use fathom_tensor::{DType, Device};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::encoder_decoders::Run;
use crate::golden_files::{loaded, object, root};

#[derive(Deserialize)]
struct Case {
    /// Below `tests`.
    folder: String,
    /// `null` removes a key.
    keys: Map<String, Value>,
    ids: Vec<i32>,
    /// Ids of the decoder, if there is one.
    decoder: Option<Vec<i32>>,
    logits: Vec<f32>,
}

/// The folder of a golden model with other keys.
fn changed(folder: &str, keys: &Map<String, Value>) -> tempfile::TempDir {
    let (from, to) = (root().join("..").join(folder), tempfile::tempdir().unwrap());
    std::fs::copy(from.join("model.safetensors"), to.path().join("model.safetensors")).unwrap();
    let mut config = object(&from.join("config.json"));
    for (key, value) in keys {
        config.remove(key);
        config.extend((!value.is_null()).then(|| (key.clone(), value.clone())));
    }
    std::fs::write(to.path().join("config.json"), json!(config).to_string()).unwrap();
    to
}

/// Logits of documents next to each other.
fn logits(of: &LoadedModel, documents: &[&[i32]]) -> Vec<f32> {
    let LoadedModel { device, model, params } = of;
    let (ids, mut positions, mut docs) = (documents.concat(), Vec::new(), Vec::new());
    for document in documents {
        docs.push(positions.len()..positions.len() + document.len());
        positions.extend(0..document.len() as i32);
    }
    let packed = PackedTokens { ids: &ids, positions: &positions, docs: &docs };
    let batch = model.batch(device, packed, Caps { docs: 4, seq_tokens: ids.len() });
    let counters = Counters::default();
    let scope = || Scope { device, params, batch: (&batch).into(), counters: &counters };
    let hidden = model.forward(&mut Eval::new(scope(), None, None));
    device.to_f32(&model.head(0.0).logits(&scope(), &hidden))
}

fn cases() -> Vec<Case> {
    let all = object(&root().join("../golden_keys.json"));
    serde_json::from_value(all["cases"].clone()).unwrap()
}

#[test]
fn keys_mean_what_they_mean_to_transformers() {
    let mut wrong = Vec::new();
    for Case { folder, keys, ids, decoder, logits: wanted } in cases() {
        let changed = changed(&folder, &keys);
        let found = match &decoder {
            Some(decoder) => {
                let pair = json!({ "source": ids, "decoder": decoder });
                Run::new(changed.path(), &[pair], 1).logits()
            }
            None => logits(&loaded(changed.path()), &[&ids]),
        };
        assert_eq!(found.len(), wanted.len(), "{folder}");
        let most = wanted.iter().fold(0f32, |most, x| most.max(x.abs()));
        let far = found.iter().zip(&wanted).fold(0f32, |far, (a, b)| far.max((a - b).abs())) / most;
        println!("{folder} {}: {far:.1e}", json!(keys));
        if far.is_nan() || far > 1e-5 {
            wrong.push(format!("{folder} {}: {far:.1e}", json!(keys)));
        }
        // Written and read again, it is the same.
        let spec =
            Family::read(Path::new("config.json"), &object(&changed.path().join("config.json"))).unwrap();
        let again = Family::write(Path::new("config.json"), &spec).unwrap();
        let read = Family::read(Path::new("config.json"), &again).unwrap();
        assert!(read == Spec { padding: read.padding, ..spec }, "{folder} {}", json!(keys));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Padding inside a document moves none of the documents next to it.
#[test]
fn positions_of_padding_are_counted_in_each_document() {
    for Case { folder, keys, ids, .. } in cases().into_iter().take(5) {
        let of = loaded(changed(&folder, &keys).path());
        let short = &ids[2..6];
        let [long, little] = [&ids[..], short].map(|document| logits(&of, &[document]));
        assert_eq!(logits(&of, &[short, &ids, short]), [&little[..], &long, &little].concat(), "{folder}");
    }
}

#[test]
fn what_would_differ_is_refused_by_key() {
    let local = json!({
        "architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": "mean",
        "layer_types": vec!["sliding_attention"; 4],
    });
    for (folder, keys, parts) in [
        (
            "golden_t5/t5_v11",
            json!({ "architectures": ["T5EncoderModel"] }),
            ["`architectures`", "T5ForConditionalGeneration"],
        ),
        ("golden_t5/t5_v11", json!({ "dense_act_fn": "mish" }), ["`dense_act_fn`", "mish"]),
        (
            "golden_t5/t5_v11",
            json!({ "dense_act_fn": null, "feed_forward_proj": "gated-mish" }),
            ["`feed_forward_proj`", "mish"],
        ),
        ("masked/modernbert", json!({ "classifier_pooling": "max" }), ["`classifier_pooling`", "cls, mean"]),
        ("masked/modernbert", local, ["`layer_types`", "full_attention"]),
        ("masked/electra", json!({ "embedding_size": 1 }), ["`embedding_size`", "2 to"]),
        ("golden/nemotron_h", json!({ "time_step_min": -1.0 }), ["`time_step_min`", "at least 0"]),
        (
            "golden/granite",
            json!({ "attention_multiplier": -0.2 }),
            ["`attention_multiplier`", "a positive one"],
        ),
    ] {
        let changed = changed(folder, keys.as_object().unwrap());
        let map = object(&changed.path().join("config.json"));
        let message = Family::read(Path::new("config.json"), &map).unwrap_err().to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        assert!(!message.contains("GenerationForSequence"), "{message}");
    }
}

/// Transformers would not tie a head that differs from the embedding; a file's own copy of it is fine.
#[test]
fn a_masked_head_that_differs_from_its_embedding_is_not_tied() {
    for folder in ["masked/roberta_untied", "masked/distilbert_untied"] {
        let keys = json!({ "tie_word_embeddings": null });
        let changed = changed(folder, keys.as_object().unwrap());
        let opened = open_any(changed.path()).unwrap();
        let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 30);
        let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
        let message = load(&device, &model, &mut params, &opened.source).unwrap_err().to_string();
        assert!(message.contains("set that key to false"), "{message}");
    }
}
