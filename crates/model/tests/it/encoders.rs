//! Encoders against Transformers; `oracle/encoders.py` wrote `tests/encoders`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_base::TextIds;
use fathom_cpu::Cpu;
use fathom_grad::{Counters, Grads, Labels, LossTerm, Places, Scope, Tape};
use fathom_model::{Encoder, EncoderSpec, Sentence, Task};
use fathom_tensor::{Category, DType, Device};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    texts: Vec<Text>,
}

#[derive(Deserialize)]
struct Text {
    ids: Vec<u32>,
    logits: Vec<f32>,
}

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/encoders").join(name)
}

fn device() -> Device {
    Device::new(Arc::new(Cpu::new(1, None)), 1 << 30)
}

/// Each case with its task and number of labels.
const CASES: [(&str, Task, usize); 9] = [
    ("bert", Task::OneOf, 3),
    ("bert_number", Task::Number, 1),
    ("roberta", Task::EachOf, 2),
    ("mpnet", Task::OneOf, 3),
    ("xlm_roberta", Task::OneOf, 5),
    ("modernbert_mean", Task::OneOf, 3),
    ("deberta", Task::OneOf, 4),
    ("deberta_own_keys", Task::OneOf, 2),
    ("deberta_custom", Task::OneOf, 5),
];

#[test]
fn logits_are_those_of_transformers() {
    for (name, task, labels) in CASES {
        let golden = std::fs::read(case(name).join("golden.json")).unwrap();
        let golden: Golden = serde_json::from_slice(&golden).unwrap();
        let encoder = Encoder::open(&device(), &case(name), DType::F32).unwrap();
        assert_eq!((encoder.spec.task, encoder.spec.labels.len()), (Some(task), labels), "{name}");
        let texts: Vec<TextIds> = golden.texts.iter().map(|text| text.ids.clone().into()).collect();
        let together = encoder.logits(&texts);
        for (text, found) in golden.texts.iter().zip(&together) {
            for (found, wanted) in found.iter().zip(&text.logits) {
                assert!(
                    (found - wanted).abs() <= 1e-5 * wanted.abs().max(1.0),
                    "{name}: {found} for {wanted}"
                );
            }
            // Bitwise equal when run alone.
            assert_eq!(&encoder.logits(&[text.ids.clone().into()])[0], found, "{name}");
        }
    }
}

/// Copies a case with a changed configuration.
fn changed(
    name: &str,
    change: impl Fn(&mut serde_json::Map<String, serde_json::Value>),
) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(case(name).join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let mut config = serde_json::from_slice(&std::fs::read(case(name).join("config.json")).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(folder.path().join("config.json"), serde_json::to_vec(&config).unwrap()).unwrap();
    folder
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let refused = |name, key: &str, value: serde_json::Value| {
        let folder = changed(name, |config| drop(config.insert(key.to_owned(), value.clone())));
        EncoderSpec::open(folder.path()).unwrap_err().to_string()
    };
    for (name, key, value, part) in [
        ("bert", "position_embedding_type", "relative_key".into(), "\"absolute\""),
        ("bert", "is_decoder", true.into(), "false"),
        ("bert", "my_key", 1.into(), "is not known"),
        ("bert", "model_type", "t5".into(), "deberta-v2"),
        ("bert", "architectures", vec!["BertForQuestionAnswering"].into(), "BertForMaskedLM"),
        ("bert", "architectures", vec!["BertForTokenClassification"].into(), "not served"),
        ("bert", "sbert_ce_default_activation_function", "torch.nn.ReLU".into(), "Sigmoid, Identity"),
        ("bert", "problem_type", "ranking".into(), "regression"),
        ("deberta", "conv_kernel_size", 3.into(), "only 0"),
        ("deberta", "pos_att_type", "p2p".into(), "c2p, p2c"),
        ("deberta", "relative_attention", false.into(), "`pos_att_type` names terms"),
        ("deberta", "position_buckets", 1.into(), "half of them"),
        ("roberta", "pad_token_id", 64.into(), "position table"),
        ("mpnet", "relative_attention_num_buckets", 16.into(), "only 32"),
    ] {
        let message = refused(name, key, value);
        assert!(message.contains(key) && message.contains(part), "{message}");
    }
    let folder = changed("bert", |config| drop(config.insert("num_hidden_layers".to_owned(), 1.into())));
    let message = Encoder::open(&device(), folder.path(), DType::F32).err().unwrap().to_string();
    assert!(
        message.contains("encoder.layer.1.") && message.contains("is no weight of a bert model"),
        "{message}"
    );
    let folder = changed("deberta_custom", |_| ());
    let message = EncoderSpec::open(folder.path()).unwrap_err().to_string();
    assert!(message.contains("base_model") && message.contains("base/config.json"), "{message}");
}

/// Published folders have keys without effect, pretraining heads, names without a prefix, and TensorFlow's names of
/// norms.
#[test]
fn folders_as_they_are_published_are_read() {
    let folder = changed("bert", |config| {
        config.insert("architectures".to_owned(), vec!["BertForMaskedLM"].into());
        config.insert("output_past".to_owned(), true.into());
        config.insert("sbert_ce_default_activation_function".to_owned(), "torch.nn.Identity".into());
    });
    let bytes = std::fs::read(case("bert").join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let names = std::str::from_utf8(&bytes[8..8 + header]).unwrap();
    let names = names.replace("\"bert.", "\"").replace("LayerNorm.weight", "LayerNorm.gamma");
    let names = names.replace("LayerNorm.bias", "LayerNorm.beta").replace("\"classifier.", "\"cls.");
    let mut renamed = (names.len() as u64).to_le_bytes().to_vec();
    renamed.extend(names.bytes().chain(bytes[8 + header..].iter().copied()));
    std::fs::write(folder.path().join("model.safetensors"), renamed).unwrap();
    let bare = Encoder::open(&device(), folder.path(), DType::F32).unwrap();
    assert_eq!((bare.spec.task, bare.spec.labels.len()), (None, 0));
    // The head reads the first token's state, through a pooler.
    let whole = Encoder::open(&device(), &case("bert"), DType::F32).unwrap();
    let text = TextIds { ids: vec![2, 17, 9, 3, 20, 3], first: 4 };
    let found = bare.hidden(std::slice::from_ref(&text))[0].clone();
    let of = |name: &str| {
        let named: Vec<&str> = whole.loaded.params.iter().map(|(_, param)| param.name.as_str()).collect();
        let at = named.iter().position(|it| *it == name).unwrap_or_else(|| panic!("{name} of {named:?}"));
        let (id, _) = whole.loaded.params.iter().nth(at).unwrap();
        whole.loaded.device.to_f32(&whole.loaded.params.tensor(id))
    };
    let dense = |w: &[f32], b: &[f32], x: &[f32]| -> Vec<f32> {
        let row = |(w, b): (&[f32], &f32)| w.iter().zip(x).map(|(w, x)| w * x).sum::<f32>() + b;
        w.chunks_exact(x.len()).zip(b).map(row).collect()
    };
    let pooled: Vec<f32> =
        dense(&of("pool.weight"), &of("pool.bias"), &found[..32]).into_iter().map(f32::tanh).collect();
    let logits = dense(&of("labels.weight"), &of("labels.bias"), &pooled);
    for (own, wanted) in logits.iter().zip(&whole.logits(std::slice::from_ref(&text))[0]) {
        assert!((own - wanted).abs() < 1e-5, "{own} for {wanted}");
    }
    // The second text has another type.
    assert_ne!(found, bare.hidden(&[text.ids.into()])[0]);
}

/// Unsupported settings of a folder's vectors are refused by file and key, never ignored.
#[test]
fn modules_that_are_not_followed_are_refused() {
    let refused = |file: &str, change: &dyn Fn(&str) -> String| {
        let folder = tempfile::tempdir().unwrap();
        let from = case("embed_xlm_roberta");
        for module in ["1_Pooling", "2_Dense"] {
            std::fs::create_dir(folder.path().join(module)).unwrap();
        }
        for name in [
            "modules.json",
            "config_sentence_transformers.json",
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
        ] {
            std::fs::copy(from.join(name), folder.path().join(name)).unwrap();
        }
        assert_eq!(Sentence::open(folder.path(), 32).unwrap().unwrap().size(32), 24);
        let text = std::fs::read_to_string(folder.path().join(file)).unwrap();
        assert_ne!(change(&text), text, "{file}");
        std::fs::write(folder.path().join(file), change(&text)).unwrap();
        Sentence::open(folder.path(), 32).unwrap_err().to_string()
    };
    let pooling = "1_Pooling/config.json";
    for (file, from, to, part) in [
        ("modules.json", "normalize.Normalize", "router.Router", "is Router in place 3"),
        ("modules.json", "1_Pooling", "../1_Pooling", "leaves the folder"),
        ("modules.json", "\"path\": \"\"", "\"path\": \"0_Transformer\"", "move them there"),
        ("modules.json", "pooling.Pooling", "dense.Dense", "is Dense in place 1"),
        (pooling, "\"max\"", "\"median\"", "weightedmean"),
        (pooling, "\"include_prompt\": true", "\"include_prompt\": false", "default_prompt_name"),
        (pooling, "\"mean\",", "", "in_features"),
        ("2_Dense/config.json", "Tanh", "ReLU", "Tanh, Identity"),
        ("2_Dense/config.json", "24", "0", "out_features"),
        ("2_Dense/config.json", "24", "25", "linear.weight"),
        ("2_Dense/config.json", "{", "{\"use_residual\": true,", "use_residual"),
        (
            "config_sentence_transformers.json",
            "\"default_prompt_name\": \"query\"",
            "\"default_prompt_name\": \"passage\"",
            "passage",
        ),
    ] {
        let message = refused(file, &|text| text.replacen(from, to, 1));
        assert!(message.contains(part), "{message}");
    }
    assert!(Sentence::open(&case("bert"), 32).unwrap().is_none());
}

/// Loss of each text's first token, and the gradients of all weights.
fn pass(encoder: &Encoder, texts: &[TextIds], places: &Places) -> (f64, Grads) {
    let (device, (batch, docs)) = (&encoder.loaded.device, encoder.batch(texts));
    let (params, counters) = (&encoder.loaded.params, Counters::default());
    let mut grads = Grads::zeros(device, params);
    let mut labels = vec![-1; batch.tokens];
    docs.iter().enumerate().for_each(|(text, doc)| labels[doc.start] = (text % 2) as i32);
    let labels = Labels::plain(device.from_i32(&labels, Category::Data));
    let losses = device.zeros(1, batch.tokens, DType::F32, Category::Activations);
    let mut tape = Tape::new(Scope { device, params, batch: (&batch).into(), counters: &counters }, places);
    let x = encoder.loaded.model.forward(&mut tape);
    let dx = encoder.loaded.model.head(0.0).loss(
        tape.scope(),
        &x,
        &labels,
        &[LossTerm::cross_entropy(&losses)],
        &mut grads,
    );
    drop(x);
    tape.backward(dx, &mut grads);
    (device.to_f32(&losses).iter().map(|loss| f64::from(*loss)).sum(), grads)
}

/// A step along the gradient changes the loss by the gradient's square.
#[test]
fn encoders_have_gradients() {
    for name in ["bert", "roberta", "mpnet", "deberta", "deberta_own_keys", "modernbert_mean"] {
        let golden = std::fs::read(case(name).join("golden.json")).unwrap();
        let golden: Golden = serde_json::from_slice(&golden).unwrap();
        // A second text from the third token on, of another type.
        let text = |text: &Text| TextIds { first: 2, ids: text.ids.clone() };
        let texts: Vec<TextIds> = golden.texts.iter().map(text).collect();
        let encoder = Encoder::open(&device(), &case(name), DType::F32).unwrap();
        let (device, params) = (&encoder.loaded.device, &encoder.loaded.params);
        let (_, grads) = pass(&encoder, &texts, &Places::none());
        let all = |grads: &Grads| -> Vec<Vec<f32>> {
            params.iter().map(|(id, _)| device.to_f32(grads.get(id).unwrap())).collect()
        };
        let gradients = all(&grads);
        for places in [Places::full(), Places::linear().with_tiles(Some(128)).with_segment_layers(2)] {
            assert!(gradients == all(&pass(&encoder, &texts, &places).1), "{name}: places change bits");
        }
        let loss = || pass(&encoder, &texts, &Places::none()).0;
        crate::pretend::check_slope(name, device, params, (&gradients, &loss));
    }
}

/// bf16 logits equal those of f32 up to rounding.
#[test]
fn encoders_run_in_bf16() {
    for (name, ..) in CASES {
        let golden = std::fs::read(case(name).join("golden.json")).unwrap();
        let golden: Golden = serde_json::from_slice(&golden).unwrap();
        let encoder = Encoder::open(&device(), &case(name), DType::Bf16).unwrap();
        for text in &golden.texts {
            let most = text.logits.iter().fold(1.0f32, |most, x| most.max(x.abs()));
            for (found, wanted) in encoder.logits(&[text.ids.clone().into()])[0].iter().zip(&text.logits) {
                assert!((found - wanted).abs() <= 0.06 * most, "{name}: {found} for {wanted}");
            }
        }
    }
}
