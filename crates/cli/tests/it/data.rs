//! A run's data: refusals, reported omissions, and what an export needs of it.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::run::{TINY, write_text};
use crate::{arg, fathom, good, refused, rows, text};

/// A recipe of one stage and of a model that trains in a second.
fn recipe(folder: &Path, data: &str) -> String {
    let stage = "[[stage]]\nseq_tokens = 64\nsteps = 2\nmicro_batches = 1\n";
    let path = folder.join("recipe.toml");
    fs::write(&path, format!("[data]\n{data}\n{stage}")).unwrap();
    arg(&path).to_string()
}

/// Arguments of `train` into `out`, with the tiny model's keys and more.
fn train(recipe: &str, out: &Path, more: &[&str]) -> Vec<String> {
    let sizes = TINY.iter().filter(|key| !key.starts_with("stage."));
    let keys = sizes.copied().chain(more.iter().copied()).map(String::from);
    let run = ["train".into(), recipe.to_string(), format!("run.out={}", arg(out))];
    run.into_iter().chain(keys).collect()
}

/// Trains on a text into `a`; returns the recipe.
fn trained(folder: &Path, more: &[&str]) -> String {
    let text = folder.join("text");
    write_text(&text);
    let path = recipe(folder, &format!("paths = [{:?}]", arg(&text)));
    good(train(&path, &folder.join("a"), &[&["eval.enabled=false"], more].concat()));
    path
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Text and a stage are required before training.
#[test]
fn what_is_trained_on_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let plain = recipe(folder.path(), "");
    refused(train(&plain, &out, &[]), &["`data.paths`", "nothing says what is trained on", "cargo:"]);
    refused(train(&plain, &out, &["data.paths=cargo:,x"]), &["`data.paths`", "stands alone"]);
    refused(train(&plain, &out, &["data.curate=code"]), &["`data.paths`", "names no input of its own"]);
    refused(train("extend", &out, &["model.from=x"]), &["`data.paths`"]);
    good(["plan", &plain, "model.layers=1", "model.hidden=64"]);
    refused(train(&plain, &out, &["stage.1.steps=4"]), &["stage.1.steps=4", "`stage` has 1 elements"]);
    assert!(!out.join("data").exists(), "nothing was read");
}

/// Broken lines, lines without the field and text beyond a budget are reported on the console, in the log and on the
/// page; the closing hint refers to the run's own text.
#[test]
fn what_is_not_trained_on_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let line = |n: usize| {
        let text = fs::read_to_string(at("text").join(format!("{n:02}.txt"))).unwrap();
        serde_json::json!({ "text": text }).to_string() + "\n"
    };
    let lines: String = (0..40).map(line).collect();
    fs::write(at("a.jsonl"), format!("{{\"text\": \n{{\"body\": 1}}\n{lines}")).unwrap();
    let path = recipe(folder.path(), &format!("paths = [{:?}]", arg(&at("a.jsonl"))));
    let run = |out: &str, more: &[&str]| {
        let output = fathom(train(&path, &at(out), more));
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{out}\n{err}");
        (out, err)
    };
    let data = |out: &str| {
        let log = rows(&fs::read_to_string(at(out).join("metrics.jsonl")).unwrap());
        log.into_iter().find(|event| event["event"] == "data").unwrap()
    };
    let (said, err) = run("all", &[]);
    assert!(
        err.contains("not trained on: ") && err.contains("1 not JSON") && err.contains("1 no text field"),
        "{err}"
    );
    assert!(err.contains("a.jsonl: line 1"), "{err}");
    assert!(err.contains("too few to learn to find a needle"), "{err}");
    let hint = said.lines().find(|line| line.contains("talk to the model")).unwrap();
    let words = hint.split('\'').nth(1).unwrap();
    assert!(lines.contains(words) && words.split(' ').count() == 4, "{hint}");
    let (all, page) = (data("all"), fs::read_to_string(at("all/report.html")).unwrap());
    assert_eq!(all["synthetic_share"], 0.0);
    assert!(page.contains("Not read, or dropped") && page.contains("a.jsonl: line 1"));
    assert!(!page.contains("class=\"card bad\""), "a short run has no red crosses");

    let (_, err) = run("part", &["data.max_bytes=20000"]);
    assert!(err.contains("over the byte budget") && err.contains("data.max_bytes=20000"), "{err}");
    assert!(data("part")["bytes"].as_u64() < all["bytes"].as_u64());
}

/// A vocabulary smaller than the tokenizer's is refused before any text is read.
#[test]
fn a_model_has_a_row_for_every_token() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let path = trained(folder.path(), &[]);
    let given = format!("data.tokenizer={}", arg(&at("a/data/tokenizer")));
    let keys = [given.as_str(), "data.paths=nowhere", "model.vocab=300"];
    refused(train(&path, &at("b"), &keys), &["`model.vocab`: is 300", "entries; give model.vocab="]);
}

/// Like Llama 2's `tokenizer.json` alone: added tokens pass the normaliser, and no other file names the end token.
#[test]
fn a_bare_tokenizer_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let words = ["river", "stone", "carries", "the", "old", "light", "under", "every", "bridge", "slowly"];
    let vocab = words.iter().enumerate().map(|(id, word)| (format!("\u{2581}{word}"), Value::from(id + 3)));
    let mut vocab: serde_json::Map<String, Value> = vocab.collect();
    for (id, token) in ["<unk>", "<s>", "</s>"].iter().enumerate() {
        vocab.insert((*token).to_string(), id.into());
    }
    let added = |id: usize, content: &str| {
        serde_json::json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": true, "special": true })
    };
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
        "normalizer": { "type": "Prepend", "prepend": "\u{2581}" },
        "pre_tokenizer": { "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "never", "split": true },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<unk>" },
    });
    fs::write(at("tokenizer.json"), tokenizer.to_string()).unwrap();
    let path = recipe(folder.path(), &format!("paths = [{:?}]", arg(&at("text"))));
    let given = format!("data.tokenizer={}", arg(&at("tokenizer.json")));
    good(train(&path, &at("a"), &[&given, "eval.enabled=false"]));
    let config = json(&at("a/model/tokenizer_config.json"));
    assert_eq!((&config["eos_token"], &config["bos_token"]), (&"</s>".into(), &"<s>".into()));
    // A run that gathers no text also detects it before its first step.
    fs::write(
        at("store.toml"),
        format!(
            "[[stage]]\nseq_tokens = 64\nsteps = 1\nblend = [{{ source = {:?} }}]",
            arg(&at("a/data/store/train"))
        ),
    )
    .unwrap();
    good(train(arg(&at("store.toml")), &at("b"), &[&given, "eval.enabled=false"]));
    assert_eq!(json(&at("b/model/tokenizer_config.json"))["eos_token"], "</s>");
}

/// A folder of f32 weights is trained and exported as f32, and nothing exported has the length before extension.
#[test]
fn an_extended_model_is_long_and_as_precise_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    trained(folder.path(), &["model.precision=f32"]);
    let from = at("a/model");
    let mut config = json(&from.join("tokenizer_config.json"));
    config["model_max_length"] = 64.into();
    fs::write(from.join("tokenizer_config.json"), config.to_string()).unwrap();
    let (given, data) = (format!("model.from={}", arg(&from)), format!("data.paths={}", arg(&at("text"))));
    let more = [given.as_str(), &data, "stages=256", "stage.0.steps=1", "eval.enabled=false"];
    good(train("extend", &at("b"), &more));
    for to in ["b/model", "again"] {
        if to == "again" {
            fs::rename(at("b/model"), at("taken")).unwrap();
            good(["export", arg(&at("b")), arg(&at("again"))]);
        }
        let read = |name: &str| json(&at(to).join(name));
        assert_eq!(read("tokenizer_config.json")["model_max_length"], 256, "{to}");
        assert_eq!(read("tokenizer.json")["truncation"], Value::Null, "{to}");
        let config = read("config.json");
        assert_eq!(
            (&config["max_position_embeddings"], &config["torch_dtype"]),
            (&256.into(), &"float32".into())
        );
    }
    let written = fs::read_to_string(at("b/recipe.toml")).unwrap();
    assert!(written.contains("the weights of model.from"), "{written}");
    // Explicit settings are followed.
    good(train("extend", &at("c"), &[&more[..], &["model.precision=bf16"]].concat()));
    assert_eq!(json(&at("c/model/config.json"))["torch_dtype"], "bfloat16");
}

/// One document cannot be held out too: the model learns from it. A text that fills no bucket of positions has its bits per byte.
#[test]
fn one_document_extends_a_model_and_a_few_words_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    trained(folder.path(), &[]);
    fs::rename(at("a/model"), at("model")).unwrap();
    let (from, data) =
        (format!("model.from={}", arg(&at("model"))), format!("data.paths={}", arg(&at("text/00.txt"))));
    good(train("extend", &at("b"), &[&from, &data, "stages=256", "stage.0.steps=2", "eval.enabled=false"]));
    let events = crate::rows(&fs::read_to_string(at("b/metrics.jsonl")).unwrap());
    let of = |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
    assert_eq!((of("step").len(), &of("data")[0]["documents"]), (2, &1.into()));
    fs::write(at("few.txt"), "the old bridge").unwrap();
    let said = good(["eval", arg(&at("model")), "--data", arg(&at("few.txt")), "--needle-trials", "0"]);
    assert!(said.contains("1 document, 14 B, ") && said.contains("none, the text is too short"), "{said}");
}

/// Non-finite weights: every verb reports them and fails.
#[test]
fn a_model_without_numbers_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    trained(folder.path(), &[]);
    // A run's own folder has the hash of its exported model.
    fs::rename(at("a/model"), at("model")).unwrap();
    let weights = at("model/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let header = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    bytes[header..].as_chunks_mut::<2>().0.iter_mut().for_each(|value| *value = [0xc0, 0x7f]);
    fs::write(&weights, bytes).unwrap();
    let run = at("model");
    for more in [&["--temperature", "1"][..], &["--temperature", "0"], &["--repetition-penalty", "1.5"]] {
        let generate = ["generate", arg(&run), "the old", "--max-tokens", "4"];
        refused(generate.iter().chain(more), &["gives no numbers", "NaN"]);
    }
    let file = at("text/00.txt");
    refused(["eval", arg(&run), "--data", arg(&file), "--needle-trials", "0"], &["a loss is not finite"]);
}
