//! Training of encoder-decoders: from nothing and from a folder, over ranks, after a kill; and what does not go together.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::resume::losses;
use crate::run::write_text;
use crate::{arg, good, refused, rows};

/// A tiny T5 of the shipped recipe.
const TINY: [&str; 14] = [
    "model.hidden=32",
    "model.layers=2",
    "model.heads=2",
    "model.head_dim=16",
    "model.ffn=48",
    "model.vocab=480",
    "model.precision=f32",
    "model.init_std=0.1",
    "data.document_bytes=2048",
    "data.held_out_share=0.1",
    "schedule.warmup_steps=2",
    "optimizer.lr=1e-2",
    "stage.0.steps=24",
    "stage.1.steps=2",
];

fn args(recipe: &str, data: &Path, out: &Path, more: &[&str]) -> Vec<String> {
    let mut args: Vec<String> = ["train", recipe].map(String::from).to_vec();
    args.push(format!("data.paths={}", arg(data)));
    args.push(format!("run.out={}", arg(out)));
    args.extend(more.iter().map(|arg| (*arg).to_string()));
    args
}

fn short(more: &[&'static str]) -> Vec<&'static str> {
    let lengths = ["stage.0.seq_tokens=128", "stage.1.seq_tokens=256", "stage.1.min_doc_tokens=0"];
    [&TINY[..], &lengths, &["activations.tile_rows=128"], more].concat()
}

/// The losses fall.
#[track_caller]
fn learned(out: &Path) {
    let all = rows(&fs::read_to_string(out.join("metrics.jsonl")).unwrap());
    let steps = all.iter().filter(|event| event["event"] == "step");
    let losses: Vec<f64> = steps.map(|step| step["loss"].as_f64().unwrap()).collect();
    assert!(losses.last().unwrap() < &(0.9 * losses[0]), "{losses:?}");
}

#[test]
fn dropped_spans_are_learned_from_nothing_and_from_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let out = good(args("t5-small", &at("text"), &at("new"), &short(&[])));
    assert!(out.contains(" generate ") && out.contains("AutoModelForSeq2SeqLM.from_pretrained"), "{out}");
    learned(&at("new"));
    let model = at("new/model");
    let config: Value = serde_json::from_slice(&fs::read(model.join("config.json")).unwrap()).unwrap();
    assert_eq!(
        (&config["architectures"], &config["decoder_start_token_id"]),
        (&json!(["T5ForConditionalGeneration"]), &json!(0))
    );
    let out = at("logits.safetensors");
    good([
        "inspect",
        "logits",
        arg(&model),
        "--ids",
        "120,130,1",
        "--decoder-ids",
        "0,1",
        "--out",
        arg(&out),
    ]);
    good(["generate", arg(&model), "river stone", "--max-tokens", "4", "--ids"]);
    // The run and its last checkpoint are written as the run's own folder.
    let weights = |folder: &Path| fs::read(folder.join("model.safetensors")).unwrap();
    for (from, to) in [(at("new"), at("whole")), (at("new/checkpoints/step-00000026"), at("last"))] {
        good(["export", arg(&from), arg(&to)]);
        assert_eq!(weights(&to), weights(&model), "{}", from.display());
        good(["generate", arg(&to), "river stone", "--max-tokens", "4", "--ids"]);
    }
    refused(["serve", arg(&model), "--tp", "2", "--port", "0"], &["an encoder-decoder", "on one rank"]);
    refused(["eval", arg(&model), "--data", arg(&at("text"))], &["an encoder-decoder"]);
    let from = format!("model.from={}", arg(&model));
    let more = [&from, "stage.0.seq_tokens=128", "stage.0.steps=3", "model.precision=f32"];
    good(args("t5", &at("text"), &at("more"), &more));
    // A killed run goes on with the same bits, and so does one over ranks that share the layers or have some of them, within
    // rounding.
    let often = short(&["checkpoint.every_steps=2", "checkpoint.every_s=none"]);
    let killed = args("t5-small", &at("text"), &at("killed"), &often);
    let mut child =
        crate::program().args(&killed).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !at("killed/checkpoints/LATEST").exists() && child.try_wait().unwrap().is_none() {
        sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    good(&killed);
    assert_eq!(losses(&at("killed")), losses(&at("new")));
    let of = |out: &str| -> Vec<f32> {
        losses(&at(out)).iter().take(3).map(|(_, bits)| f32::from_bits(*bits as u32)).collect()
    };
    for (out, mesh) in [("shared", "mesh.tp=2"), ("stages", "mesh.pp=4"), ("context", "mesh.cp=2")] {
        good(args("t5-small", &at("text"), &at(out), &short(&[mesh])));
        for (one, other) in of("new").iter().zip(of(out)) {
            assert!((one / other - 1.0).abs() < 1e-4, "{mesh}: {one} {other}");
        }
    }
}

#[test]
fn answers_to_prompts_are_learned() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    good(args("t5-small", &at("text"), &at("new"), &short(&["stage.0.steps=2", "stage.1.steps=1"])));
    let row =
        |n: usize| json!({"prompt": format!("river {}", n % 4), "completion": format!("stone {}", n % 4)});
    let lines: String = (0..32).map(|n| format!("{}\n", row(n))).collect();
    fs::write(at("rows.jsonl"), lines).unwrap();
    let from = format!("model.from={}", arg(&at("new/model")));
    let more = [
        &from,
        "objective.method=seq2seq",
        "stage.0.seq_tokens=64",
        "stage.0.steps=60",
        "stage.0.max_docs=32",
        "stage.0.micro_batches=1",
        "stage.0.samples_per_micro_batch=1",
        "model.precision=f32",
        "optimizer.lr=1e-2",
        "schedule.warmup_share=none",
        "data.held_out_share=0",
    ];
    good(args("t5", &at("rows.jsonl"), &at("taught"), &more));
    learned(&at("taught"));
    // By an adapter, which generates with its base as it does merged into it.
    let more = [&more[..], &["adapter.method=lora", "adapter.rank=8", "optimizer.lr=3e-2"]].concat();
    let out = good(args("t5", &at("rows.jsonl"), &at("adapted"), &more));
    assert!(out.contains("AutoPeftModelForSeq2SeqLM.from_pretrained"), "{out}");
    learned(&at("adapted"));
    let (base, run, merged) = (at("new/model"), at("adapted"), at("merged"));
    good(["export", arg(&base), arg(&merged), "--with", arg(&run)]);
    let ask = |more: &[&str]| {
        let words = ["river 2", "--max-tokens", "6", "--ids", "--precision", "f32"];
        good([&["generate"][..], &more[..1], &words, &more[1..]].concat())
    };
    let with = ask(&[arg(&base), "--adapter", arg(&run)]);
    assert_eq!(with, ask(&[arg(&merged)]));
    assert_ne!(with, ask(&[arg(&base)]));
}

#[test]
fn the_plan_of_a_step_of_two_streams_is_its_peak() {
    let bench = |more: &[&str]| {
        let step = ["bench", "step", "t5-small", "stages=300", "--repeat", "1"];
        let sizes = &TINY[..7];
        rows(&good([&step[..], sizes, &["activations.tile_rows=128"], more].concat()))[0].clone()
    };
    let (ran, planned) = (bench(&[]), bench(&["machine.kind=meta"]));
    assert!(ran["peak_pool_bytes"].as_u64() > Some(0));
    assert_eq!(ran["peak_pool_bytes"], planned["peak_pool_bytes"]);
}

#[test]
fn what_does_not_go_together_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    fs::write(at("rows.jsonl"), "{\"prompt\": \"a\", \"completion\": \"b\"}\n").unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    let t5 = format!("model.from={}", arg(&root.join("golden_t5/t5_v11")));
    let decoder = format!("model.from={}", arg(&root.join("golden/llama2")));
    let asked = Cell::new(0);
    let ask = |recipe: &str, data: &str, more: &[&str], names: &[&str]| {
        asked.set(asked.get() + 1);
        refused(args(recipe, &at(data), &at(&format!("out{}", asked.get())), more), names);
    };
    ask("t5", "text", &[&decoder], &["objective.method", "is \"span_corruption\"", "the folder of a T5"]);
    for verb in ["sft", "dpo", "mlm", "embed", "continue"] {
        let data = if verb == "mlm" || verb == "continue" { "text" } else { "rows.jsonl" };
        ask(verb, data, &[&t5], &["objective.method", "is an encoder-decoder (t5)", "train t5"]);
    }
    let small = short(&[]);
    let with = |more: &[&'static str]| [&small[..], more].concat();
    ask("t5-small", "text", &with(&["eval.enabled=true"]), &["eval.enabled", "give false"]);
    ask("t5-small", "text", &with(&["mesh.cp=3"]), &["mesh.cp"]);
    ask("t5-small", "text", &with(&["objective.mask_share=0"]), &["objective.mask_share"]);
    ask("t5-small", "text", &with(&["objective.masking=words"]), &["objective.masking", "\"mlm\""]);
    ask(
        "t5-small",
        "text",
        &with(&["stage.0.seq_tokens=4096"]),
        &["stage.0.seq_tokens", "205 dropped spans"],
    );
    ask("t5", "rows.jsonl", &[&t5], &["objective.method", "take seq2seq"]);
    let adapts = |more: &'static str| [t5.as_str(), "adapter.method=lora", more];
    ask("t5", "text", &adapts("adapter.dropout=0.1"), &["adapter.dropout", "read a source"]);
    ask("t5", "text", &adapts("adapter.targets=shared"), &["adapter.targets", "`shared`"]);
    ask("t5", "text", &adapts("adapter.token_rows=[3]"), &["adapter.token_rows", "an encoder-decoder"]);
    ask("t5", "text", &[&t5, "adapter.method=prefix"], &["adapter.method", "prefix"]);
    ask("t5", "text", &[&t5, "objective.method=seq2seq"], &["objective.method", "take span_corruption"]);
    let joined = [t5.as_str(), "objective.method=seq2seq", "stage.0.masked=false"];
    ask("t5", "rows.jsonl", &joined, &["stage.0.masked", "give true"]);
    // A folder without a decoder.
    let copy = at("no_decoder");
    fs::create_dir(&copy).unwrap();
    let config = fs::read_to_string(root.join("golden_t5/t5_v11/config.json")).unwrap();
    let config = config.replace("\"num_decoder_layers\": 2", "\"num_decoder_layers\": 0");
    fs::write(copy.join("config.json"), config).unwrap();
    let from = format!("model.from={}", arg(&copy));
    ask("t5", "text", &[&from], &["num_decoder_layers", "has no decoder"]);
}
