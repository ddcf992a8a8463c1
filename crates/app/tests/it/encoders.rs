//! Encoders behind a server, compared with Sentence-Transformers: `tests/encoders` was written by `oracle/encoders.py`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_app::serve::{Order, settings, sizes};
use fathom_app::{Silent, models};
use fathom_base::{Classify, Embed};
use fathom_cpu::Cpu;
use fathom_engine::TextEncoder;
use fathom_tensor::{DType, Device};
use serde_json::{Value, json};

use crate::serve_mesh::{ask, order, with_server};

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/encoders").join(name)
}

fn golden(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(case(name).join("golden.json")).unwrap()).unwrap()
}

fn served(name: &str) -> Order {
    Order { names: vec!["m".into()], ..order(&case(name), 1, 1) }
}

fn near(found: &Value, wanted: &Value, what: &str) {
    let numbers = |value: &Value| -> Vec<f64> {
        let one = std::slice::from_ref(value);
        value.as_array().map_or(one, Vec::as_slice).iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let (found, wanted) = (numbers(found), numbers(wanted));
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (found, wanted) in found.iter().zip(&wanted) {
        assert!((found - wanted).abs() <= 1e-5 * wanted.abs().max(1.0), "{what}: {found} for {wanted}");
    }
}

#[test]
fn vectors_are_those_of_sentence_transformers() {
    for name in ["embed_bert", "embed_mpnet", "embed_xlm_roberta", "embed_deberta"] {
        let (golden, order) = (golden(name), served(name));
        let texts = golden["texts"].as_array().unwrap();
        with_server(&order, |at| {
            // An empty text gets the vector of the tokenizer's special tokens alone.
            let all: Vec<&Value> = texts.iter().map(|it| &it["text"]).collect();
            assert!(all.contains(&&json!("")));
            let body = json!({"input": all, "truncate_prompt_tokens": -1});
            let found = ask(at, "/v1/embeddings", &body);
            let rows = found["data"].as_array().unwrap_or_else(|| panic!("{found}"));
            assert_eq!(rows.len(), texts.len());
            for (row, wanted) in rows.iter().zip(texts) {
                near(&row["embedding"], &wanted["vector"], name);
                // Bit-equal to a request with this text alone.
                let alone = ask(
                    at,
                    "/v1/embeddings",
                    &json!({"input": wanted["text"], "truncate_prompt_tokens": -1}),
                );
                assert_eq!(alone["data"][0]["embedding"], row["embedding"], "{name}");
            }
            let long = ask(at, "/v1/embeddings", &json!({"input": "again and again ".repeat(30)}));
            let most = golden["max_tokens"].to_string();
            let said = long["error"]["message"].as_str().unwrap_or_else(|| panic!("{long}"));
            assert!(said.contains(&most) && said.contains("truncate_prompt_tokens"), "{said}");
            for (route, body, part) in [
                ("/classify", json!({"input": "a"}), "no head that classifies"),
                ("/v1/completions", json!({"prompt": "a"}), "writes no text"),
                ("/v1/embeddings", json!({"input": [[1, 100_000]]}), "outside the vocabulary"),
            ] {
                let answer = ask(at, route, &body).to_string();
                assert!(answer.contains(part), "{answer}");
            }
            // Without a head, documents are ranked by cosine similarity.
            let ranked = ask(at, "/v1/rerank", &json!({"query": "short", "documents": ["rivers", "short"]}));
            assert_eq!(ranked["results"][0]["index"], 1, "{ranked}");
        });
        let planned = &sizes(&order, &Silent).unwrap()[0].1;
        assert!(
            planned.pages_bytes == 0
                && planned.said().contains(&format!("texts of up to {}", golden["max_tokens"]))
        );
    }
}

#[test]
fn pairs_are_scored_as_by_cross_encoders() {
    for name in ["rank_bert", "rank_xlm_roberta"] {
        let golden = golden(name);
        let pairs = golden["pairs"].as_array().unwrap();
        let tokenizer = models::tokenizer(&case(name)).unwrap();
        for pair in pairs {
            let text = |at: usize| pair["pair"][at].as_str().unwrap();
            let (ids, first) = tokenizer.encode_pair(text(0), Some(text(1)), Some(40)).unwrap();
            assert_eq!(json!(ids), pair["ids"], "{name}");
            let types: Vec<usize> = (0..ids.len()).map(|at| usize::from(at >= first)).collect();
            assert_eq!(json!(types), pair["types"], "{name}");
        }
        let order =
            Order { settings: settings(None, &["serve.context_tokens=40".into()]).unwrap(), ..served(name) };
        with_server(&order, |at| {
            let side = |at: usize| pairs.iter().map(|pair| pair["pair"][at].clone()).collect::<Value>();
            let body = json!({"text_1": side(0), "text_2": side(1), "truncate_prompt_tokens": -1});
            let found = ask(at, "/score", &body);
            for (row, pair) in found["data"].as_array().unwrap_or_else(|| panic!("{found}")).iter().zip(pairs)
            {
                near(&row["score"], &pair["score"], name);
            }
            let (query, document) = (&pairs[0]["pair"][0], &pairs[0]["pair"][1]);
            let body = json!({"query": query, "documents": [document, "sand"], "truncate_prompt_tokens": -1});
            let ranked = ask(at, "/v1/rerank", &body);
            let results = ranked["results"].as_array().unwrap_or_else(|| panic!("{ranked}"));
            let of_first = results.iter().find(|result| result["index"] == 0).unwrap();
            near(&of_first["relevance_score"], &pairs[0]["score"], name);
        });
    }
}

#[test]
fn texts_are_labelled_and_what_an_encoder_lacks_is_refused() {
    let golden = golden("bert");
    with_server(&served("bert"), |at| {
        let texts = golden["texts"].as_array().unwrap();
        let all: Vec<&Value> = texts.iter().map(|it| &it["text"]).collect();
        let found = ask(at, "/classify", &json!({"input": all, "truncate_prompt_tokens": 40}));
        for (row, text) in found["data"].as_array().unwrap_or_else(|| panic!("{found}")).iter().zip(texts) {
            let logits: Vec<f64> =
                text["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
            let sum: f64 = logits.iter().map(|x| x.exp()).sum();
            let probs: Vec<f64> = logits.iter().map(|x| x.exp() / sum).collect();
            near(&row["probs"], &json!(probs), "bert");
            let best = probs.iter().copied().fold(0.0, f64::max);
            let label = probs.iter().position(|p| *p == best).unwrap();
            assert_eq!((&row["label"], &row["num_classes"]), (&json!(format!("LABEL_{label}")), &json!(3)));
        }
        let ranked = ask(at, "/v1/rerank", &json!({"query": "a", "documents": ["b"]})).to_string();
        assert!(ranked.contains("3 labels") && ranked.contains("/classify"), "{ranked}");
    });
    let refused = |order: Order| sizes(&order, &Silent).unwrap_err().to_string();
    let draft = settings(None, &[format!("serve.draft={:?}", case("bert").display().to_string())]).unwrap();
    for (order, part) in [
        (Order { settings: draft, ..served("bert") }, "--draft"),
        (Order { adapters: vec![("a".into(), case("bert"))], ..served("bert") }, "--adapter"),
        (Order { names: vec!["m".into()], ..order(&case("bert"), 2, 1) }, "--tp"),
        (
            Order {
                settings: settings(None, &["serve.context_tokens=100".into()]).unwrap(),
                ..served("bert")
            },
            "64",
        ),
    ] {
        let said = refused(order);
        assert!(said.contains(part), "{said}");
    }
    let little = Order { memory_bytes: Some(100 << 10), ..served("bert") };
    assert!(refused(little).contains("--memory"));
}

/// Copies a folder recursively.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let file = entry.unwrap().path();
        let copied = to.join(file.file_name().unwrap());
        if file.is_dir() { copy(&file, &copied) } else { _ = std::fs::copy(&file, copied).unwrap() }
    }
}

/// A tokenizer's limit far beyond the encoder's positions means no limit; Transformers writes it so.
#[test]
fn a_limit_of_a_tokenizer_beyond_all_texts_takes_no_memory() {
    for name in ["embed_bert", "embed_deberta"] {
        let folder = tempfile::tempdir().unwrap();
        copy(&case(name), folder.path());
        let order = Order { names: vec!["m".into()], ..order(folder.path(), 1, 1) };
        let bytes = |limit: Option<Value>| {
            let file = folder.path().join("tokenizer_config.json");
            let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            config.as_object_mut().unwrap().remove("model_max_length");
            config.as_object_mut().unwrap().extend(limit.map(|limit| ("model_max_length".into(), limit)));
            std::fs::write(&file, config.to_string()).unwrap();
            sizes(&order, &Silent).unwrap()[0].1.bytes()
        };
        let without = bytes(None);
        for limit in [json!(1_000_000_000), json!(1u64 << 62), json!(u64::MAX), json!(1e30)] {
            assert_eq!(bytes(Some(limit.clone())), without, "{name} {limit}");
        }
        let asked = settings(None, &["serve.context_tokens=4294967296".into()]).unwrap();
        let said = sizes(&Order { settings: asked, ..order.clone() }, &Silent).unwrap_err().to_string();
        assert!(said.contains("max_tokens is 4294967296"), "{said}");
    }
}

/// The planned memory of an encoder equals the memory that it uses.
#[test]
fn the_plan_of_an_encoder_holds() {
    for (name, chunk) in [("bert", 16usize), ("embed_deberta", 200)] {
        let keys = [format!("serve.chunk_tokens={chunk}"), "serve.context_tokens=40".into()];
        let order = Order { settings: settings(None, &keys).unwrap(), ..served(name) };
        let planned = sizes(&order, &Silent).unwrap()[0].1.clone();
        let device = Device::new(Arc::new(Cpu::new(2, None)), planned.bytes());
        let tokenizer = Arc::new(models::tokenizer(&case(name)).unwrap());
        let encoder =
            TextEncoder::open(&device, &case(name), (DType::F32, tokenizer.clone()), Some(40), chunk)
                .unwrap();
        let texts = ["again and again ".repeat(20), "short".into()];
        let long = texts.iter().cycle().take(11).map(String::as_str);
        let texts: Vec<&str> = long.chain(std::iter::repeat_n("x", 300)).collect();
        let mut encoder = encoder;
        let rows = if name == "bert" { encoder.classify(&texts) } else { encoder.embed(&texts) };
        assert_eq!(rows.unwrap().len(), 311);
        assert!(device.pool.usage().peak_reserved <= planned.bytes(), "{name}");
    }
}
