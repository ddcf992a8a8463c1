//! A minimal whole run, and the verbs on its result.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::{arg, fathom, good, refused, rows, text};

/// Recipe keys of a model that trains in a second.
pub const TINY: [&str; 16] = [
    "model.hidden=64",
    "model.layers=2",
    "model.heads=2",
    "model.kv_heads=1",
    "model.head_dim=32",
    "model.ffn=128",
    "model.vocab=384",
    "data.held_out_share=0.2",
    "data.document_bytes=4096",
    "stage.0.samples_per_micro_batch=2",
    "stage.0.seq_tokens=64",
    "stage.1.seq_tokens=128",
    "stage.2.seq_tokens=256",
    "stage.2.tile_rows=128",
    "stage.2.min_doc_tokens=0",
    "eval.needle_trials=0",
];

/// Forty documents of made-up sentences.
pub fn write_text(folder: &Path) {
    fs::create_dir(folder).unwrap();
    let words = ["river", "stone", "carries", "the", "old", "light", "under", "every", "bridge", "slowly"];
    let mut state = 7u32;
    for file in 0..40 {
        let mut text = String::new();
        for _ in 0..300 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let end = if state >> 29 == 0 { ".\n" } else { " " };
            let _ = write!(text, "{}{end}", words[(state >> 16) as usize % words.len()]);
        }
        fs::write(folder.join(format!("{file:02}.txt")), text).unwrap();
    }
}

/// Every family that a recipe can create, exported for Transformers and back.
#[test]
fn new_models_of_every_family() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    for family in ["llama", "qwen2", "qwen3", "smollm3", "granite"] {
        let (text, out) = (at("text"), at(family));
        let [family, interval] = [format!("model.family={family}"), "model.no_rope_layer_interval=2".into()];
        let run = [
            "quickstart",
            "--steps",
            "1",
            "--data",
            arg(&text),
            "--out",
            arg(&out),
            &family,
            &interval,
            "model.init=normal",
        ];
        good(run.into_iter().chain(TINY));
        good(["generate", arg(&out), "the old", "--max-tokens", "4"]);
        let config = fs::read_to_string(out.join("model/config.json")).unwrap();
        assert!(config.contains(family.trim_start_matches("model.family=")), "{config}");
    }
}

/// Files that join to a large document and a small one: the small one is held out, and counted in the log.
#[test]
fn what_is_held_out_of_a_small_corpus_is_the_smaller_part_and_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("text")).unwrap();
    for file in 0..12 {
        let lines = (0..32).map(|line| format!("the river {file} carries the stone {line} slowly\n"));
        fs::write(at("text").join(format!("{file:02}.txt")), lines.collect::<String>()).unwrap();
    }
    let [paths, out] =
        [("data.paths", "text"), ("run.out", "run")].map(|(key, name)| format!("{key}={}", arg(&at(name))));
    let tiny = TINY.into_iter().filter(|key| !key.starts_with("data."));
    let own =
        ["data.held_out_share=0.05", "data.document_bytes=13000", "data.recall_share=0", "data.curate=none"];
    let short =
        ["run.minutes=none", "eval.enabled=false", "stage.0.steps=1", "stage.1.steps=1", "stage.2.steps=1"];
    let said = text(
        &fathom(["train", "quickstart", &paths, &out].into_iter().chain(tiny).chain(own).chain(short)).stderr,
    );
    let events = rows(&fs::read_to_string(at("run/metrics.jsonl")).unwrap());
    let data = events.iter().find(|event| event["event"] == "data").unwrap();
    let count = |key: &str| data[key].as_u64().unwrap();
    assert_eq!([count("documents"), count("held_out_documents")], [1, 1], "{data}");
    assert!((12_000..18_000).contains(&count("bytes")), "{data}");
    assert!(said.contains("held out: 1 document, ") && said.contains("5.0 % was to be held out"), "{said}");
}

/// A run without text: its blend is another run's token store, and the recipe names the tokenizer.
#[test]
fn token_stores_are_blended() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let (text, first) = (at("text"), at("a"));
    let quickstart = ["quickstart", "--steps", "1", "--data", arg(&text), "--out", arg(&first)];
    good(quickstart.into_iter().chain(TINY));
    let store = at("a").join("data/store/train");
    let recipe = format!(
        "run.out = {:?}\ndata.tokenizer = {:?}\ndata.held_out_share = 0.2\n[[stage]]\nseq_tokens = 64\nsteps = 2\nblend = [{{ source = {:?}, weight = 2.0 }}]\n",
        arg(&at("b")),
        arg(&at("a").join("data/tokenizer")),
        arg(&store)
    );
    fs::write(at("blend.toml"), &recipe).unwrap();
    let train = |more: &[&str]| -> Vec<String> {
        let sizes = TINY.iter().filter(|key| key.starts_with("model.") || key.starts_with("eval."));
        let keys = sizes.map(ToString::to_string).chain(more.iter().map(ToString::to_string));
        ["train", arg(&at("blend.toml"))].map(String::from).into_iter().chain(keys).collect()
    };
    good(train(&[]));
    assert!(!at("b").join("data/store").exists());
    assert!(at("b").join("model/tokenizer.json").is_file());
    good(["eval", arg(&at("b")), "--tokens", "256", "--needle-trials", "0"]);
    refused(train(&["data.tokenizer=none", &format!("run.out={}", arg(&at("c")))]), &["data.tokenizer"]);
    // A tokenizer of the same size with other ids.
    let other = at("other");
    fs::create_dir(&other).unwrap();
    for entry in fs::read_dir(at("a/data/tokenizer")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, other.join(path.file_name().unwrap())).unwrap();
    }
    let mut tokenizer: serde_json::Value =
        serde_json::from_slice(&fs::read(other.join("tokenizer.json")).unwrap()).unwrap();
    tokenizer["model"]["merges"].as_array_mut().unwrap().swap(0, 1);
    fs::write(other.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let keys = [format!("data.tokenizer={}", arg(&other)), format!("run.out={}", arg(&at("d")))];
    refused(train(&[&keys[0], &keys[1]]), &["train.json", "the store's ids are those of the tokenizer"]);
}

#[test]
fn from_text_to_a_model_that_verbs_understand() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let train = |out: &Path, keys: &[&str]| {
        let text = at("text");
        let fixed = ["quickstart", "--steps", "2", "--data", arg(&text), "--out", arg(out)];
        good(fixed.into_iter().chain(keys.iter().copied()).chain(TINY))
    };
    train(&at("a"), &["run.tensorboard=false"]);
    // With fixed steps two runs are identical, regardless of offloading and number of threads.
    train(&at("b"), &["activations.offload_modules=all", "machine.threads=2"]);
    let weights = |run: &str| fs::read(at(run).join("model/model.safetensors")).unwrap();
    assert_eq!(weights("a"), weights("b"));
    assert!(at("a").join("report.html").is_file());

    let run = at("a");
    let table = good(["eval", arg(&run), "--needle-trials", "0"]);
    assert!(table.contains("bits per byte") && table.contains("loss by position"), "{table}");
    let data = at("text/00.txt");
    let on_file =
        good(["eval", arg(&run), "--json", "--needle-trials", "1", "--tokens", "256", "--data", arg(&data)]);
    let kinds: Vec<_> = rows(&on_file).iter().map(|row| row["event"].as_str().unwrap().to_string()).collect();
    assert_eq!(kinds, ["eval_bits", "eval_position", "needle"]);

    let said = good(["generate", arg(&run), "the old", "--max-tokens", "8", "--ids"]);
    assert!(rows(&said)[0].as_array().is_some_and(|ids| ids.len() <= 8), "{said}");
    good(["inspect", "logits", arg(&run), "--ids", "1,2,3"]);
    let same = good(["diff", arg(&run), arg(&at("b"))]);
    assert!(!same.is_empty());

    // The run's model equals that of its last checkpoint.
    good(["export", arg(&run), arg(&at("out"))]);
    assert!(at("out/tokenizer.json").is_file());
    fs::rename(run.join("model"), at("taken")).unwrap();
    good(["export", arg(&run), arg(&at("again"))]);
    let name = fs::read_to_string(run.join("checkpoints/LATEST")).unwrap();
    good(["export", arg(&run.join("checkpoints").join(name.trim())), arg(&at("third"))]);
    let read = |folder: &str, file: &str| fs::read(at(folder).join(file)).unwrap();
    for file in ["model.safetensors", "config.json", "generation_config.json", "tokenizer.json"] {
        assert!(read("out", file) == read("again", file), "{file}");
        assert!(read("out", file) == read("third", file), "{file}");
    }

    let changed = ["optimizer.lr=0.5".to_string()];
    let fixed =
        ["quickstart", "--steps", "2", "--data", arg(&at("text")), "--out", arg(&at("b"))].map(String::from);
    refused(fixed.into_iter().chain(TINY.map(String::from)).chain(changed), &["optimizer.lr"]);
}

/// Only lengths, one of them twice: verbs find the trained stages.
#[test]
fn stages_in_their_short_form_are_what_verbs_find() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let out = at("out");
    let stages = "stages = [64, 128, 128]\n[[stage]]\nsteps = 2\nmicro_batches = 1\nrope_type = \"yarn\"\n";
    fs::write(at("short.toml"), stages).unwrap();
    let (data, run_out) = (format!("data.paths={}", arg(&at("text"))), format!("run.out={}", arg(&out)));
    let sizes = TINY.iter().filter(|key| !key.starts_with("stage."));
    let keys = [data, run_out, "eval.enabled=false".into(), "run.profile=true".into()];
    let run: Vec<String> = ["train".into(), arg(&at("short.toml")).to_string()]
        .into_iter()
        .chain(sizes.map(ToString::to_string))
        .chain(keys)
        .collect();
    good(run.iter());
    for trace in ["trace-64.json", "trace-128.json", "trace-128-2.json"] {
        assert!(out.join(trace).is_file(), "{trace}");
    }
    // Every stage is on the page.
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    for stage in ["64", "128", "128-2"] {
        assert!(page.contains(&format!("Memory over one step, {stage}<")), "{stage}");
    }
    // Same state as after a kill between the last event and the page.
    fs::remove_file(out.join("report.html")).unwrap();
    good(run.iter());
    assert!(out.join("report.html").is_file());
    good(["eval", arg(&out), "--needle-trials", "0", "--seconds", "inf"]);
    fs::rename(out.join("model"), at("taken")).unwrap();
    good(["export", arg(&out), arg(&at("again"))]);
    let config = |name: &str| fs::read_to_string(at(name).join("config.json")).unwrap();
    assert_eq!(config("again"), config("taken"));
}

/// A model trained from another keeps its tokenizer's files, including a chat template, and its sampling defaults.
#[test]
fn a_chat_template_stays_with_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let train = |out: &Path, more: &[&str]| {
        let run =
            ["quickstart", "--steps", "1", "--data", arg(&at("text")), "--out", arg(out)].map(String::from);
        let keys = TINY.iter().chain(["eval.enabled=false"].iter()).chain(more).map(ToString::to_string);
        good(run.into_iter().chain(keys));
    };
    train(&at("a"), &[]);
    let from = at("a").join("model");
    fs::write(from.join("chat_template.jinja"), "{{ messages[0] }}").unwrap();
    fs::write(from.join("tokenizer_config.json"), "{\"eos_token\": \"<|endoftext|>\", \"pad_token\": \"x\"}")
        .unwrap();
    let read = |folder: &Path, name: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap()
    };
    let mut generation = read(&from, "generation_config.json");
    generation["temperature"] = 0.6.into();
    fs::write(from.join("generation_config.json"), generation.to_string()).unwrap();
    train(&at("b"), &[&format!("model.from={}", arg(&from))]);
    fs::rename(at("b").join("model"), at("taken")).unwrap();
    good(["export", arg(&at("b")), arg(&at("again"))]);
    for to in ["taken", "again"] {
        for name in ["chat_template.jinja", "tokenizer.json"] {
            assert!(
                fs::read(at(to).join(name)).unwrap() == fs::read(from.join(name)).unwrap(),
                "{to}: {name}"
            );
        }
        assert_eq!(read(&at(to), "generation_config.json"), generation, "{to}");
        let config = read(&at(to), "tokenizer_config.json");
        assert_eq!((&config["eos_token"], &config["pad_token"]), (&"<|endoftext|>".into(), &"x".into()));
    }
}
