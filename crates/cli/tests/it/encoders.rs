//! Training of encoders: each verb learns, its folder is read again, and what does not go together is refused.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::run::write_text;
use crate::sft::base_model;
use crate::{arg, fathom, good, refused, rows, text};

/// A tiny BERT with its tokenizer, and positions for 64 tokens.
fn bert() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/encoders/embed_bert")
}

const SMALL: [&str; 6] = [
    "stage.0.max_docs=64",
    "stage.0.micro_batches=2",
    "optimizer.lr=3e-3",
    "data.held_out_share=0",
    "model.precision=f32",
    "schedule.warmup_share=none",
];

fn args(verb: &str, model: &Path, data: &Path, out: &Path, more: &[&str]) -> Vec<String> {
    let mut args: Vec<String> = ["train", verb].map(String::from).to_vec();
    args.push(format!("model.from={}", arg(model)));
    args.push(format!("data.paths={}", arg(data)));
    args.push(format!("run.out={}", arg(out)));
    args.extend(SMALL.iter().chain(more).map(|arg| (*arg).to_string()));
    args
}

fn lines(path: &Path, rows: impl IntoIterator<Item = Value>) {
    fs::write(path, rows.into_iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
}

fn steps(out: &Path) -> Vec<Value> {
    let all = rows(&fs::read_to_string(out.join("metrics.jsonl")).unwrap());
    all.into_iter().filter(|event| event["event"] == "step").collect()
}

/// The losses fall.
#[track_caller]
fn learned(out: &Path) {
    let losses: Vec<f64> = steps(out).iter().map(|step| step["loss"].as_f64().unwrap()).collect();
    let third = (losses.len() / 3).max(1);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let (first, last) = (mean(&losses[..third]), mean(&losses[losses.len() - third..]));
    assert!(last < 0.9 * first, "{losses:?}");
}

#[test]
fn masked_tokens_are_learned_and_their_logits_inspected() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let short = ["stage.0.seq_tokens=64", "stage.0.samples_per_micro_batch=4", "stage.0.steps=30"];
    let out = good(args("mlm", &bert(), &at("text"), &at("mlm"), &short));
    assert!(
        out.contains(" inspect logits ") && out.contains("AutoModelForMaskedLM.from_pretrained"),
        "{out}"
    );
    learned(&at("mlm"));
    let config: Value = serde_json::from_slice(&fs::read(at("mlm/model/config.json")).unwrap()).unwrap();
    assert_eq!(config["architectures"], json!(["BertForMaskedLM"]));
    let (model, out) = (at("mlm/model"), at("logits.safetensors"));
    good(["inspect", "logits", arg(&model), "--ids", "2,9,30,3", "--out", arg(&out)]);
    let bytes = fs::read(&out).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    assert_eq!(header["logits"]["shape"], json!([4, 160]));
}

#[test]
fn an_embedder_learns_pairs_and_is_served_as_its_folder_says() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let words = ["sand", "salt", "sea", "wind", "river", "step", "plan", "data", "return", "add"];
    let row = |n: usize| {
        let (a, b, c) = (words[n % 10], words[(n / 10) % 10], words[(n * 7 + 3) % 10]);
        json!({"anchor": format!("what of {a} and {b}"), "positive": format!("the {b} with {a}"), "negative": c})
    };
    lines(&at("pairs.jsonl"), (0..60).map(row));
    let more = [
        "stage.0.seq_tokens=192",
        "stage.0.epochs=6",
        "objective.negatives=1",
        "objective.widths=[32, 8]",
        "data.max_text_tokens=48",
    ];
    good(args("embed", &bert(), &at("pairs.jsonl"), &at("embed"), &more));
    learned(&at("embed"));
    let model = at("embed/model");
    let modules = fs::read_to_string(model.join("modules.json")).unwrap();
    assert!(modules.contains("1_Pooling") && modules.contains("Normalize"), "{modules}");
    fs::create_dir(at("docs")).unwrap();
    fs::write(at("docs/a.txt"), "the salt with sea").unwrap();
    fs::write(at("docs/b.txt"), "the plan with data").unwrap();
    let (docs, index) = (at("docs"), at("index"));
    good(["index", arg(&docs), arg(&index), "--encoder", arg(&model)]);
}

/// Logits of a Hugging Face folder, with an adapter or alone.
fn logits(at: &dyn Fn(&str) -> PathBuf, model: &Path, adapter: Option<&Path>) -> Vec<u8> {
    let out = at("logits.safetensors");
    let _ = fs::remove_file(&out);
    let mut words = vec!["inspect", "logits", arg(model), "--ids", "2,9,30,3", "--out", arg(&out)];
    words.extend(adapter.iter().flat_map(|adapter| ["--adapter", arg(adapter)]));
    good(words);
    fs::read(&out).unwrap()
}

#[test]
fn adapters_of_encoders_are_trained_and_merged() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let lora = ["adapter.method=lora", "adapter.rank=4", "optimizer.lr=2e-2", "data.max_text_tokens=48"];
    // Labels: the head is trained and saved with the adapter.
    let row = |n: usize| {
        let (label, text) = [("nature", "the sea and the river"), ("code", "return a plus b")][n % 2];
        json!({"text": format!("{text} {n}"), "label": label})
    };
    lines(&at("labels.jsonl"), (0..48).map(row));
    let more = [&lora[..], &["objective.labels=[\"nature\",\"code\"]", "stage.0.epochs=8"]].concat();
    let out = good(args("classify", &bert(), &at("labels.jsonl"), &at("labels"), &more));
    assert!(out.contains("AutoPeftModelForSequenceClassification.from_pretrained"), "{out}");
    assert!(out.contains("num_labels=2") && out.contains("merge it"), "{out}");
    learned(&at("labels"));
    let config = fs::read_to_string(at("labels/adapter/adapter_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["task_type"], "SEQ_CLS");
    assert_eq!(config["modules_to_save"], json!(["bert.pooler.dense", "classifier"]));
    let eval = |model: &Path| -> Value {
        let rows = at("labels.jsonl");
        let words = ["eval", arg(model), "--labels", arg(&rows), "--json"];
        serde_json::from_str(&good(words)).unwrap()
    };
    // The run's checkpoint is merged, or the adapter into its base.
    let (run, merged, again) = (at("labels"), at("merged"), at("again"));
    good(["export", arg(&run), arg(&merged)]);
    let base = bert();
    good(["export", arg(&base), arg(&again), "--with", arg(&run)]);
    let names: Value = serde_json::from_slice(&fs::read(merged.join("config.json")).unwrap()).unwrap();
    assert_eq!(names["id2label"], json!({"0": "nature", "1": "code"}));
    let file = "model.safetensors";
    assert_eq!(fs::read(merged.join(file)).unwrap(), fs::read(again.join(file)).unwrap());
    assert!(eval(&merged).to_string().contains("\"accuracy\":1"), "{}", eval(&merged));
    // Vectors: the merged run is a folder of Sentence-Transformers.
    let words = ["sand", "salt", "sea", "wind", "river", "step", "plan", "data"];
    let row = |n: usize| {
        let (a, b) = (words[n % 8], words[(n / 8) % 8]);
        json!({"anchor": format!("what of {a} and {b}"), "positive": format!("the {b} with {a}")})
    };
    lines(&at("pairs.jsonl"), (0..48).map(row));
    let more = [&lora[..], &["stage.0.seq_tokens=192", "stage.0.epochs=6"]].concat();
    good(args("embed", &bert(), &at("pairs.jsonl"), &at("embed"), &more));
    learned(&at("embed"));
    let (run, model) = (at("embed"), at("embed/merged"));
    good(["export", arg(&run), arg(&model)]);
    assert!(model.join("1_Pooling/config.json").is_file() && model.join("modules.json").is_file());
    // Masked words need a head, which an adapter leaves as it is.
    write_text(&at("text"));
    let short = ["stage.0.seq_tokens=64", "stage.0.samples_per_micro_batch=4", "stage.0.steps=6"];
    let more = [&short[..], &["adapter.method=lora"]].concat();
    refused(args("mlm", &bert(), &at("text"), &at("mlm"), &more), &["no masked-language head"]);
    good(args("mlm", &bert(), &at("text"), &at("head"), &short));
    let out = good(args("mlm", &at("head/model"), &at("text"), &at("masked"), &more));
    assert!(out.contains("PeftModel.from_pretrained(AutoModelForMaskedLM"), "{out}");
    let (run, model) = (at("masked"), at("masked/merged"));
    good(["export", arg(&run), arg(&model)]);
    let with = logits(&at, &at("head/model"), Some(&run));
    assert_eq!(with.len(), logits(&at, &model, None).len());
    assert_ne!(with, logits(&at, &at("head/model"), None));
}

#[test]
fn methods_that_encoders_cannot_have_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    lines(
        &at("labels.jsonl"),
        [json!({"text": "the sea", "label": "a"}), json!({"text": "b", "label": "b"})],
    );
    let labels = "objective.labels=[\"a\",\"b\"]";
    let asks = |more: &[&str]| {
        let more = [more, &["data.max_text_tokens=48"]].concat();
        args("classify", &bert(), &at("labels.jsonl"), &at("out"), &more)
    };
    refused(asks(&[labels, "adapter.method=prompt"]), &["adapter.method", "prompt"]);
    let tokens = [labels, "adapter.method=lora", "adapter.token_rows=[3]"];
    refused(asks(&tokens), &["adapter.token_rows", "the model is an encoder"]);
    let targets = [labels, "adapter.method=lora", "adapter.targets=q_proj"];
    refused(asks(&targets), &["adapter.targets", "query"]);
    let rank = [labels, "adapter.method=lora", "adapter.rank=99"];
    refused(asks(&rank), &["adapter.rank", "99"]);
}

#[test]
fn a_step_of_an_embedder_is_measured_over_rows() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = folder.path().join("embed.toml");
    let short = include_str!("../../../../recipes/embed.toml").replace("= 256", "= 16");
    fs::write(&recipe, short).unwrap();
    let from = format!("model.from={}", bert().display());
    let words =
        ["bench", "step", arg(&recipe), &from, "--once", "--scores", "flat", "stage.0.micro_batches=1"];
    let rows = ["stage.0.samples_per_micro_batch=8", "stages=16"];
    let measured: Value = serde_json::from_str(good([&words[..], &rows].concat()).trim()).unwrap();
    assert!(measured["loss"].as_f64().is_some_and(|loss| loss > 0.0), "{measured}");
    assert_eq!(measured["peak_pool_bytes"], measured["planned_peak_bytes"]);
    let one = ["stage.0.samples_per_micro_batch=1", "stages=16"];
    refused([&words[..], &one].concat(), &["samples_per_micro_batch", "two rows of 2"]);
}

#[test]
fn rerankers_and_classifiers_learn_by_every_loss() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (good_words, bad_words) = (["salt", "sea", "wind"], ["step", "plan", "data"]);
    let text = |n: usize| {
        let from = if n.is_multiple_of(2) { good_words } else { bad_words };
        format!("{} {} {}", from[n % 3], from[(n / 2) % 3], from[(n / 3) % 3])
    };
    let ranked = (0..48).map(
        |n| json!({"query": "of rivers", "documents": [text(2 * n), text(2 * n + 1)], "labels": [1, 0]}),
    );
    lines(&at("ranked.jsonl"), ranked);
    lines(
        &at("labelled.jsonl"),
        (0..48).map(|n| {
            let label = ["sea", "code"][n % 2];
            json!({"text": text(n), "label": label})
        }),
    );
    let true_of = |n: usize| -> Vec<&str> { ["sea"].into_iter().filter(|_| n.is_multiple_of(2)).collect() };
    let several = (0..48).map(|n| json!({"text": text(n), "labels": true_of(n)}));
    lines(&at("several.jsonl"), several);
    lines(&at("rated.jsonl"), (0..48).map(|n| json!({"text": text(n), "wet": 1.0 - (n % 2) as f64})));
    let words = |n: usize| -> Vec<String> { text(n).split(' ').map(str::to_string).collect() };
    let tagged = (0..48).map(|n| json!({"tokens": words(n), "labels": [n % 2, n % 2, n % 2]}));
    lines(&at("tagged.jsonl"), tagged);
    let names = "objective.labels=[\"sea\", \"code\"]";
    for (verb, name, file, more) in [
        ("rerank", "pointwise", "ranked.jsonl", &["objective.loss=pointwise"][..]),
        ("rerank", "pairs", "ranked.jsonl", &["objective.loss=pairs", "objective.negatives=1"]),
        ("rerank", "margin", "ranked.jsonl", &["objective.loss=margin", "objective.negatives=1"]),
        ("rerank", "listwise", "ranked.jsonl", &["objective.loss=listwise", "objective.negatives=1"]),
        ("classify", "one", "labelled.jsonl", &[names]),
        ("classify", "several", "several.jsonl", &[names, "objective.loss=multi_label"]),
        (
            "classify",
            "numbers",
            "rated.jsonl",
            &["objective.attributes=[\"wet\"]", "objective.loss=regression"],
        ),
        ("classify", "words", "tagged.jsonl", &[names, "objective.loss=tokens"]),
    ] {
        let shared = ["stage.0.seq_tokens=128", "stage.0.epochs=8", "data.max_text_tokens=48"];
        good(args(verb, &bert(), &at(file), &at(name), &[&shared[..], more].concat()));
        learned(&at(name));
    }
    let config = fs::read_to_string(at("one/model/config.json")).unwrap();
    assert!(
        config.contains("\"0\": \"sea\"") && config.contains("BertForSequenceClassification"),
        "{config}"
    );
}

/// A decoder's labels are read at a text's last token, as by Transformers' classes for them.
#[test]
fn a_decoder_learns_labels_of_texts() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    base_model(folder.path());
    let row = |n: usize| {
        let (label, text) = [("nature", "the sea and the river"), ("code", "return a plus b")][n % 2];
        json!({"text": format!("{n} {text}"), "label": label})
    };
    lines(&at("labels.jsonl"), (0..48).map(row));
    let names = "objective.labels=[\"nature\",\"code\"]";
    let more = [names, "stage.0.seq_tokens=128", "stage.0.epochs=8", "data.max_text_tokens=48"];
    let base = at("base/model");
    let out = good(args("classify", &base, &at("labels.jsonl"), &at("labels"), &more));
    assert!(out.contains("AutoModelForSequenceClassification.from_pretrained"), "{out}");
    learned(&at("labels"));
    let last = steps(&at("labels")).pop().unwrap();
    assert!(last["accuracy"].as_f64().unwrap() > 0.9, "{last}");
    let config: Value = serde_json::from_slice(&fs::read(at("labels/model/config.json")).unwrap()).unwrap();
    assert_eq!(config["architectures"], json!(["LlamaForSequenceClassification"]));
    assert_eq!(config["id2label"], json!({"0": "nature", "1": "code"}));
    let words = [&more[..], &["objective.loss=tokens"]].concat();
    refused(
        args("classify", &base, &at("labels.jsonl"), &at("words"), &words),
        &["objective.loss", "a decoder"],
    );
}

/// Lengths of a shipped recipe fit the model; those that are asked for are refused with what fits.
#[test]
fn lengths_that_are_not_asked_for_fit_the_models_positions() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    lines(&at("pairs.jsonl"), (0..8).map(|n| json!({"anchor": format!("river {n}"), "positive": "sand"})));
    for (verb, data, length, key) in [
        ("mlm", "text", "stage.0.steps=2", "stage.0.seq_tokens"),
        ("embed", "pairs.jsonl", "stage.0.epochs=1", "data.max_text_tokens"),
    ] {
        let out = at(verb);
        let output = fathom(args(verb, &bert(), &at(data), &out, &[length]));
        let err = text(&output.stderr);
        assert!(
            output.status.success() && err.contains(&format!("{key} is 64: the positions of model.from")),
            "{err}"
        );
        let recipe = fs::read_to_string(out.join("recipe.toml")).unwrap();
        let fitted = |line: &&str| line.contains("= 64") && line.contains("the positions of model.from");
        assert_eq!(recipe.lines().filter(fitted).count(), 1, "{recipe}");
        let asked = format!("{key}=65");
        refused(args(verb, &bert(), &at(data), &at("asked"), &[&asked]), &[key, "for 64", "give 64"]);
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    lines(&at("lessons.jsonl"), [json!({"prompt": "a", "completion": "b"})]);
    let ask = |verb: &str, model: &Path, data: &str, more: &[&str], names: &[&str]| {
        refused(args(verb, model, &at(data), &at("out"), more), names);
    };
    let decoder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/llama2");
    ask(
        "sft",
        &bert(),
        "lessons.jsonl",
        &["stage.0.seq_tokens=64"],
        &["objective.method", "is an encoder (bert)", "train mlm"],
    );
    ask(
        "mlm",
        &decoder,
        "text",
        &["stage.0.seq_tokens=64"],
        &["objective.method", "is a decoder", "encoder's folder"],
    );
    ask(
        "mlm",
        &bert(),
        "text",
        &["stage.0.seq_tokens=128"],
        &["stage.0.seq_tokens", "learned positions for 64"],
    );
    ask(
        "mlm",
        &bert(),
        "text",
        &["stage.0.seq_tokens=64", "eval.enabled=true"],
        &["eval.enabled", "give false"],
    );
    ask(
        "mlm",
        &bert(),
        "text",
        &["stage.0.seq_tokens=64", "objective.mask_share=0"],
        &["objective.mask_share"],
    );
    ask(
        "embed",
        &bert(),
        "lessons.jsonl",
        &["data.max_text_tokens=65"],
        &["data.max_text_tokens", "give 64"],
    );
    let short = &["data.max_text_tokens=48", "stage.0.seq_tokens=96"][..];
    ask("embed", &bert(), "lessons.jsonl", short, &["lessons.jsonl:1", "has `anchor`, `positive`"]);
    lines(&at("alone.jsonl"), [json!({"anchor": "a river"})]);
    ask("embed", &bert(), "alone.jsonl", short, &["alone.jsonl:1", "no `positive`"]);
    lines(&at("empty.jsonl"), [json!({"anchor": " ", "positive": "b"})]);
    ask("embed", &bert(), "empty.jsonl", short, &["empty.jsonl:1", "has an empty `anchor`"]);
    lines(&at("pair.jsonl"), [json!({"anchor": "a", "positive": "b"})]);
    let negatives = [short, &["objective.negatives=2"]].concat();
    ask("embed", &bert(), "pair.jsonl", &negatives, &["has 0 negatives", "objective.negatives=2"]);
    lines(&at("unranked.jsonl"), [json!({"query": "a", "documents": ["b", "c"], "labels": [0, 0]})]);
    let listwise = [short, &["objective.loss=listwise", "objective.negatives=1"]].concat();
    ask("rerank", &bert(), "unranked.jsonl", &listwise, &["no text with a label above 0"]);
    ask("classify", &bert(), "pair.jsonl", short, &["objective.labels", "at least 2"]);
    lines(&at("label.jsonl"), [json!({"text": "a", "label": "x"})]);
    let labels = [short, &["objective.labels=[\"y\", \"z\"]"]].concat();
    ask("classify", &bert(), "label.jsonl", &labels, &["has the label \"x\"", "are y, z"]);
    for verb in ["generate", "chat"] {
        let output = fathom([verb, arg(&bert()), "--prompt", "a"]);
        assert!(!output.status.success(), "{verb}: {}", text(&output.stderr));
    }
    refused(["inspect", "logits", arg(&bert()), "--ids", "2,3"], &["an encoder without a head"]);
}
