//! Training of decoders that read neighbours of their text: from nothing and from a folder, after a kill, over ranks; and what
//! does not go together.

use std::cell::Cell;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::resume::losses;
use crate::{arg, good, refused, rows};

/// A tiny RETRO of the shipped recipe.
const TINY: [&str; 19] = [
    "model.hidden=32",
    "model.layers=2",
    "model.retro_layers=[1, 2]",
    "model.heads=2",
    "model.kv_heads=2",
    "model.head_dim=16",
    "model.ffn=48",
    "model.vocab=300",
    "model.precision=f32",
    "model.init_std=0.1",
    "data.document_bytes=1024",
    "data.held_out_share=0.1",
    "schedule.warmup_steps=2",
    "optimizer.lr=1e-2",
    "stage.0.seq_tokens=256",
    "stage.0.samples_per_micro_batch=1",
    "stage.0.micro_batches=1",
    "stage.0.steps=6",
    "activations.tile_rows=128",
];

/// Texts of which each passage is in two: 24 files of two passages each.
fn write_passages(folder: &Path) {
    fs::create_dir(folder).unwrap();
    let mut state = 7u32;
    let mut draw = move |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize % below
    };
    let syllables = ["ba", "ke", "li", "mo", "nu", "ra", "se", "ti"];
    let mut passages = Vec::new();
    for _ in 0..24 {
        let words: Vec<String> = (0..12).map(|_| (0..3).map(|_| syllables[draw(8)]).collect()).collect();
        let mut text = String::new();
        for _ in 0..90 {
            let _ = write!(text, "{} ", words[draw(12)]);
        }
        passages.push(text);
    }
    for file in 0..24 {
        let text = format!("{}{}", passages[file], passages[(file + 7) % 24]);
        fs::write(folder.join(format!("{file:02}.txt")), text).unwrap();
    }
}

fn args(data: &Path, out: &Path, more: &[&str]) -> Vec<String> {
    let mut args: Vec<String> = ["train", "retro"].map(String::from).to_vec();
    args.push(format!("data.paths={}", arg(data)));
    args.push(format!("run.out={}", arg(out)));
    args.extend(more.iter().map(|arg| (*arg).to_string()));
    args
}

fn with(more: &[&'static str]) -> Vec<&'static str> {
    [&TINY[..], more].concat()
}

#[test]
fn neighbours_are_found_and_read_from_nothing_and_from_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_passages(&at("text"));
    let said = good(args(&at("text"), &at("new"), &with(&[])));
    assert!(
        said.contains("held-out, with neighbours; in windows of 256") && !said.contains("generate"),
        "{said}"
    );
    let all = rows(&fs::read_to_string(at("new/metrics.jsonl")).unwrap());
    let bits = |name: &str| {
        let found = all.iter().find(|event| event["event"] == "eval_bits" && event["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}"))["bits_per_byte"].as_f64().unwrap()
    };
    let [with_them, without] = ["with", "without"].map(|how| bits(&format!("held-out, {how} neighbours")));
    assert!(with_them > 0.0 && without > 0.0 && with_them != without, "{with_them} {without}");
    assert!(
        at("new/data/store").read_dir().unwrap().any(|it| it
            .unwrap()
            .path()
            .extension()
            .is_some_and(|end| end == "neighbours"))
    );
    let model = at("new/model");
    let config: Value = serde_json::from_slice(&fs::read(model.join("config.json")).unwrap()).unwrap();
    assert_eq!(
        (&config["model_type"], &config["retro_layer_numbers"], &config["retro_chunk_size"]),
        (&json!("retro"), &json!([1, 2]), &json!(64))
    );
    // Later rows read the neighbour of the first chunk, earlier ones do not.
    let ids: Vec<String> = (0..80).map(|id| (3 + id % 90).to_string()).collect();
    let logits = |neighbours: &str, name: &str| {
        let out = at(name);
        let model = ["inspect", "logits", arg(&model), "--neighbours", neighbours];
        good([&model[..], &["--ids", &ids.join(","), "--out", arg(&out)]].concat());
        fs::read(&out).unwrap()
    };
    let [alone, near] = [logits("[]", "alone"), logits("[[[9, 8, 7], [5]]]", "near")];
    let columns = 4 * config["vocab_size"].as_u64().unwrap() as usize;
    let from = alone.len() - 80 * columns;
    let row = |at: usize| from + at * columns..from + (at + 1) * columns;
    assert!(alone[row(62)] == near[row(62)] && alone[row(63)] != near[row(63)]);
    // The same run on two ranks that share the layers has the same losses within rounding; so has one from the folder.
    good(args(&at("text"), &at("two"), &with(&["mesh.tp=2"])));
    let of = |out: &str| -> Vec<f32> {
        losses(&at(out)).iter().take(3).map(|(_, bits)| f32::from_bits(*bits as u32)).collect()
    };
    for (one, two) in of("new").iter().zip(of("two")) {
        assert!((one / two - 1.0).abs() < 1e-4, "{one} {two}");
    }
    let from = format!("model.from={}", arg(&model));
    let more = [
        &from,
        "stage.0.seq_tokens=128",
        "stage.0.steps=2",
        "model.precision=f32",
        "data.held_out_share=0.1",
        "data.document_bytes=1024",
    ];
    good(args(&at("text"), &at("more"), &more));
    refused(["generate", arg(&model), "river"], &["reads neighbours of its text"]);
    refused(["serve", arg(&model), "--port", "0"], &["reads neighbours of its text"]);
    refused(["chat", arg(&model)], &["reads neighbours of its text"]);
    refused(["eval", arg(&model), "--data", arg(&at("text"))], &["reads neighbours of its text"]);
}

#[test]
fn neighbours_are_found_by_the_vectors_of_an_encoder() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_passages(&at("text"));
    let encoders = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/encoders");
    let by = |name: &str| format!("data.neighbour_encoder={}", arg(&encoders.join(name)));
    let column = |out: &str| {
        let files = at(out).join("data/store").read_dir().unwrap().map(|it| it.unwrap().path());
        let file = files.into_iter().find(|path| path.extension().is_some_and(|end| end == "neighbours"));
        fs::read(file.unwrap()).unwrap()
    };
    let one = ["stage.0.steps=1"];
    let embedder = by("embed_bert");
    good(args(&at("text"), &at("words"), &with(&one)));
    let vectors = [&with(&one)[..], &[&embedder]].concat();
    good(args(&at("text"), &at("vectors"), &vectors));
    good(args(&at("text"), &at("again"), &vectors));
    // The same size, other neighbours; the same when they are found again.
    assert_eq!(column("words").len(), column("vectors").len());
    assert!(column("words") != column("vectors") && column("vectors") == column("again"));
    // A run keeps what it has trained with.
    refused(args(&at("text"), &at("vectors"), &with(&["stage.0.steps=2"])), &["data.neighbour_encoder"]);
    refused(args(&at("text"), &at("none"), &[&with(&one)[..], &[&by("nothing")]].concat()), &["nothing"]);
}

#[test]
fn what_does_not_go_together_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_passages(&at("text"));
    fs::write(at("rows.jsonl"), "{\"prompt\": \"a\", \"completion\": \"b\"}\n").unwrap();
    let asked = Cell::new(0);
    let ask = |data: &str, more: &[&str], names: &[&str]| {
        asked.set(asked.get() + 1);
        refused(args(&at(data), &at(&format!("out{}", asked.get())), more), names);
    };
    ask("text", &with(&["model.family=llama"]), &["objective.method", "is \"retro\"", "model.family=retro"]);
    ask("text", &with(&["objective.method=cross_entropy"]), &["objective.method", "train retro"]);
    ask("text", &with(&["objective.loss=sft"]), &["objective.loss"]);
    ask("text", &with(&["model.retro_layers=[3]"]), &["model.retro_layers", "from 1 to 2"]);
    ask("text", &with(&["eval.enabled=true"]), &["eval.enabled", "give false"]);
    ask("text", &with(&["mesh.cp=2"]), &["mesh.cp"]);
    ask("text", &with(&["mesh.pp=2"]), &["mesh.pp", "meet in the middle"]);
    ask("text", &with(&["stage.0.masked=false"]), &["stage.0.masked", "give true"]);
    ask("text", &with(&["stage.0.seq_tokens=32"]), &["stage.0.seq_tokens", "less than a chunk"]);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_retro/retro");
    let from = format!("model.from={}", arg(&golden));
    ask("rows.jsonl", &[&from, "data.max_bytes=none"], &["objective.method", "reads texts"]);
    ask("text", &with(&["data.neighbours=none.here"]), &["none.here"]);
    // Neighbours in a store of another tokenizer.
    good(args(&at("text"), &at("other"), &with(&["model.vocab=280", "stage.0.steps=1"])));
    let store = fs::read_dir(at("other/data/store")).unwrap().map(|it| it.unwrap().path());
    let index = store.into_iter().find(|path| path.extension().is_some_and(|end| end == "idx")).unwrap();
    let prefix = format!("data.neighbours={}", arg(&index.with_extension("")));
    let small = with(&[]);
    ask("text", &[&small[..], &[prefix.as_str()]].concat(), &["tokenizer"]);
}
