//! Training on lessons: trained tokens, lengths, and refusals.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::resume::losses;
use crate::run::write_text;
use crate::{arg, good, refused};

const BASE: &str = "[model]\nhidden = 64\nlayers = 1\nheads = 2\nkv_heads = 1\nhead_dim = 32\nffn = 64\nvocab = 512\n\
    [[stage]]\nseq_tokens = 64\nsteps = 2\n[eval]\nenabled = false\n";

/// Trains a model into `base/model`.
pub fn base_model(folder: &Path) {
    let at = |name: &str| folder.join(name);
    write_text(&at("text"));
    fs::write(at("base.toml"), BASE).unwrap();
    let paths = format!("data.paths={}", arg(&at("text")));
    good(["train", arg(&at("base.toml")), &paths, &format!("run.out={}", arg(&at("base")))]);
}

/// Creates a folder with a model and lessons; returns the model's path.
pub fn base(folder: &Path) -> PathBuf {
    let at = |name: &str| folder.join(name);
    base_model(folder);
    let row = |n: usize| {
        format!(
            "{{\"prompt\": \"What is {n}?\", \"completion\": \" It is {}.\"}}\n",
            "one ".repeat(n % 7 + 1)
        )
    };
    fs::write(at("lessons.jsonl"), (0..30).map(row).collect::<String>()).unwrap();
    at("base/model")
}

fn args(folder: &Path, out: &str, more: &[&str]) -> Vec<String> {
    args_of("sft", folder, out, more)
}

pub fn args_of(recipe: &str, folder: &Path, out: &str, more: &[&str]) -> Vec<String> {
    let at = |name: &str| folder.join(name);
    let mut args: Vec<String> = ["train", recipe].map(String::from).to_vec();
    args.push(format!("model.from={}", arg(&at("base/model"))));
    args.push(format!("run.out={}", arg(&at(out))));
    args.push(format!("data.paths={}", arg(&at("lessons.jsonl"))));
    let small = [
        "stage.0.seq_tokens=64",
        "stage.0.max_docs=8",
        "stage.0.samples_per_micro_batch=2",
        "stage.0.micro_batches=2",
    ];
    args.extend(small.iter().chain(more).map(|arg| (*arg).to_string()));
    args
}

fn events(out: &Path, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event"] == kind).collect()
}

#[test]
fn more_documents_than_masks_hold_are_refused_before_the_first_stage() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    // The first step has one long row, a later one the short ones.
    let row = |n: usize| format!("{{\"prompt\": \"Which?\", \"completion\": \"{}\"}}\n", "word ".repeat(n));
    let rows: String = (0..20).map(|_| row(60)).chain((0..40).map(|_| row(1))).collect();
    fs::write(folder.path().join("lessons.jsonl"), rows).unwrap();
    let few = [
        "stage.0.max_docs=2",
        "stage.0.seq_tokens=256",
        "stage.0.epochs=1",
        "eval.enabled=false",
        "data.held_out_share=0",
        "data.shuffle=false",
    ];
    refused(args(folder.path(), "few", &few), &["`stage.0.max_docs`", "masks have room for 4"]);
    assert!(events(&folder.path().join("few"), "stage").is_empty());
}

/// `max_position_embeddings` of a run's model.
fn claimed(out: &Path) -> u64 {
    let config = fs::read(out.join("model/config.json")).unwrap();
    serde_json::from_slice::<Value>(&config).unwrap()["max_position_embeddings"].as_u64().unwrap()
}

/// Standard error of a run that ends well.
fn printed(args: Vec<String>) -> String {
    let output = crate::fathom(args);
    let err = crate::text(&output.stderr);
    assert!(output.status.success(), "{err}");
    err
}

#[test]
fn a_model_claims_the_context_that_its_documents_reached() {
    let folder = tempfile::tempdir().unwrap();
    let model = base(folder.path());
    assert_eq!(claimed(model.parent().unwrap()), 64);
    let long = [
        "stage.0.seq_tokens=512",
        "stage.0.max_docs=64",
        "stage.0.epochs=1",
        "eval.enabled=false",
        "data.held_out_share=0",
    ];
    let out = folder.path().join("short");
    let said = printed(args(folder.path(), "short", &long));
    assert!(said.contains("no document is longer than the 64"), "{said}");
    assert_eq!(claimed(&out), 64, "rows of a few tokens in samples of 512");
    let exported = folder.path().join("exported");
    good(["export", arg(&out.join("checkpoints").join("step-00000001")), arg(&exported.join("model"))]);
    assert_eq!(claimed(&exported), 64);
    let row = format!("{{\"prompt\": \"Which?\", \"completion\": \"{}\"}}\n", "the same word ".repeat(20));
    let path = folder.path().join("lessons.jsonl");
    fs::write(&path, fs::read_to_string(&path).unwrap() + &row).unwrap();
    let said = printed(args(folder.path(), "long", &long));
    let claims = claimed(&folder.path().join("long"));
    assert!(
        (65..512).contains(&claims) && said.contains(&format!("will claim {claims}")),
        "{claims}: {said}"
    );
}

#[test]
fn every_row_is_learned_in_every_pass() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    let single = [
        "stage.0.packing=single",
        "stage.0.epochs=2",
        "data.held_out_share=0",
        "eval.enabled=false",
        "data.shuffle=false",
    ];
    good(args(folder.path(), "single", &single));
    let steps = events(&folder.path().join("single"), "step");
    // 30 rows in steps of four, twice: the last step of each pass has two.
    assert_eq!(steps.len(), 16);
    let data = &events(&folder.path().join("single"), "data")[0];
    let learned = data["supervised_tokens"].as_u64().unwrap();
    assert!(learned > 0 && learned < data["tokens"].as_u64().unwrap());
    assert_eq!(steps[15]["num_tokens"], 2 * data["tokens"].as_u64().unwrap());
    assert_eq!(steps[3]["learning_rate"], steps[3]["lr"]);
    // Two replicas have streams of different lengths, and together the same tokens.
    good(args(folder.path(), "replicas", &[&single[..], &["mesh.dp=2", "stage.0.micro_batches=2"]].concat()));
    let steps = events(&folder.path().join("replicas"), "step");
    let (all, seen) =
        (2 * data["tokens"].as_u64().unwrap(), steps.last().unwrap()["num_tokens"].as_u64().unwrap());
    // Padding of a replica without rows counts, two tokens each.
    assert!((all..all + 2 * 2 * 2).contains(&seen), "{seen} of {all}");
    // A last step of two rows.
    good(args(folder.path(), "part", &[&single[..1], &["stage.0.epochs=1"], &single[2..]].concat()));
    let part = events(&folder.path().join("part"), "step");
    assert_eq!(part.len(), 8);
    let lesson = &events(&folder.path().join("part"), "lesson")[0];
    assert_eq!(lesson["pieces"][0]["text"], "What is 0?");
    assert_eq!(
        (&lesson["pieces"][0]["learned"], &lesson["pieces"][1]["learned"]),
        (&false.into(), &true.into())
    );
    let page = fs::read_to_string(folder.path().join("part/report.html")).unwrap();
    assert!(page.contains("<span>What is 0?</span><mark> It is one"), "the report shows the lesson");
    // Held-out rows are answered before and after.
    good(args(
        folder.path(),
        "held",
        &["data.held_out_share=0.2", "stage.0.epochs=1", "objective.method=dft"],
    ));
    let answers = events(&folder.path().join("held"), "eval_answers");
    assert_eq!(answers.len(), 2);
    assert!(
        answers
            .iter()
            .all(|eval| eval["tokens"].as_u64().unwrap() > 0 && eval["loss"].as_f64().unwrap() > 0.0)
    );
    let steps = events(&folder.path().join("held"), "step");
    assert!(steps[0]["metrics"]["cross_entropy"].as_f64().unwrap() > steps[0]["loss"].as_f64().unwrap());
}

#[test]
fn a_killed_run_of_lessons_goes_on_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    let more = [
        "stage.0.packing=single",
        "stage.0.epochs=3",
        "checkpoint.every_steps=2",
        "checkpoint.every_s=none",
        "eval.enabled=false",
    ];
    good(args(folder.path(), "alone", &more));
    let alone = losses(&folder.path().join("alone"));
    assert!(alone.len() > 12);
    let out = folder.path().join("killed");
    for steps in [3, 10] {
        let mut command = crate::program();
        command.args(args(folder.path(), "killed", &more)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        while losses(&out).len() < steps && child.try_wait().unwrap().is_none() {
            sleep(Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    good(args(folder.path(), "killed", &more));
    assert_eq!(losses(&out), alone);
}

#[test]
fn what_cannot_be_taught_is_refused_by_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    let lessons = folder.path().join("lessons.jsonl");
    let good_row = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
    for (row, said) in [
        ("{\"prompt\": \"a\", \"completion\": \"\"}", "lessons.jsonl:2: has an empty completion"),
        ("{\"prompt\": ", "lessons.jsonl:2: is no JSON"),
        ("{\"question\": \"a\"}", "`question`"),
        ("{\"input_ids\": [5, 6], \"labels\": [-100, -100]}", "no supervised token"),
    ] {
        fs::write(&lessons, format!("{good_row}{row}\n{good_row}")).unwrap();
        refused(args(folder.path(), "bad", &["eval.enabled=false"]), &[said, "data.max_rows_dropped=1"]);
    }
    let allowed =
        ["eval.enabled=false", "data.max_rows_dropped=1", "data.held_out_share=0", "stage.0.epochs=1"];
    good(args(folder.path(), "allowed", &allowed));
    // Lessons that change under a run that has trained on them.
    fs::write(&lessons, good_row).unwrap();
    fs::remove_file(folder.path().join("allowed/metrics.jsonl")).unwrap();
    refused(args(folder.path(), "allowed", &allowed), &["trained on other lessons"]);
    for (more, said) in [
        (&["stage.0.steps=3", "stage.0.epochs=2"][..], "`stage.0.epochs`"),
        (&["stage.0.masked=false"], "`stage.0.masked`"),
        (&["data.format=text"], "no field `text`"),
        (&["data.recall_share=0.1"], "`data.recall_share`"),
    ] {
        refused(args(folder.path(), "keys", more), &[said]);
    }
}

const STAGES: &str = "extends = \"sft\"\n[[stage]]\nname = \"short\"\nseq_tokens = 64\nepochs = 1\npacking = \"best_fit\"\nmasked = true\n\
    [[stage]]\nname = \"long\"\nseq_tokens = 512\nepochs = 1\npacking = \"best_fit\"\nmasked = true\n";

/// A row longer than a stage's samples is truncated as configured, and never split.
#[test]
fn lessons_longer_than_a_stage_are_cut_as_truncation_says() {
    let folder = tempfile::tempdir().unwrap();
    let model = base(folder.path());
    let at = |name: &str| folder.path().join(name);
    let row = |n: usize| {
        let asked =
            if n < 4 { "What is it, and how much is it? ".repeat(10) } else { format!("What is {n}?") };
        format!("{{\"prompt\": {asked:?}, \"completion\": \" It is {n}.\"}}\n")
    };
    fs::write(at("rows.jsonl"), (0..24).map(row).collect::<String>()).unwrap();
    fs::write(at("stages.toml"), STAGES).unwrap();
    let paths = format!("data.paths={}", arg(&at("rows.jsonl")));
    let from = format!("model.from={}", arg(&model));
    let check =
        |more: &str| ["data", "check", arg(&at("stages.toml")), &paths, &from, more].map(String::from);
    for (truncation, said) in [
        (
            "keep_start",
            "stage short: samples of 64 tokens; 0 longer lessons lose their end, and 4 are left out",
        ),
        (
            "keep_end",
            "stage short: samples of 64 tokens; 4 longer lessons lose their beginning, and 0 are left out",
        ),
    ] {
        let out = at(truncation);
        let truncation = format!("data.truncation={truncation}");
        let text = good(check(&truncation));
        assert!(text.contains(said) && !text.contains("stage long"), "{text}");
        let run = format!("run.out={}", arg(&out));
        let more = [truncation.as_str(), "data.held_out_share=0", "eval.enabled=false"];
        good([&["train", arg(&at("stages.toml")), &paths, &from, &run][..], &more].concat());
        // No step without a target.
        assert!(events(&out, "step").iter().all(|step| step["loss"].as_f64().unwrap() > 0.0));
    }
    refused(check("data.truncation=error"), &["rows.jsonl:1: has ", "tokens, and a sample 64"]);
}

const TEMPLATE: &str = "{%- for message in messages %}{{- message.role + ': ' }}{%- if message.role == 'assistant' %}\
    {%- generation %}{{ message.content + eos_token }}{% endgeneration %}{%- else %}{{- message.content + '\n' }}{%- endif %}\
    {%- endfor %}{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";

/// Conversations are checked, trained with a template that the model lacked, and then held with the trained model.
#[test]
fn conversations_are_checked_taught_and_held() {
    let folder = tempfile::tempdir().unwrap();
    let (model, at) = (base(folder.path()), |name: &str| folder.path().join(name));
    let row = |n: usize| {
        format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"What is {n}?\"}}, {{\"role\": \"assistant\", \"content\": \
             \"It is {n}.\"}}]}}\n"
        )
    };
    fs::write(at("lessons.jsonl"), (0..30).map(row).collect::<String>()).unwrap();
    fs::write(at("chat.jinja"), TEMPLATE).unwrap();
    let template = format!("data.chat_template={}", arg(&at("chat.jinja")));
    let rows =
        good(["data", "check", arg(&at("lessons.jsonl")), "--model", arg(&model), &template, "--json"]);
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 30);
    for (n, row) in rows.iter().enumerate() {
        assert_eq!(row["text"], format!("user: What is {n}?\nassistant: It is {n}.<|endoftext|>"));
        let (ids, learned) = (row["ids"].as_array().unwrap(), row["supervised"].as_array().unwrap());
        assert_eq!(ids.len(), learned.len());
        assert!(learned[0] == 0 && learned[ids.len() - 1] == 1, "{row}");
    }
    let text = good(["data", "check", arg(&at("lessons.jsonl")), "--model", arg(&model), &template]);
    assert!(text.contains("30 rows") && text.contains("What is 2?"), "{text}");
    assert!(text.contains("by the chat template's own generation marks"), "{text}");
    let lessons = at("lessons.jsonl");
    refused(
        ["data", "check", arg(&lessons), "--model", arg(&model)],
        &["lessons.jsonl:1", "data.chat_template"],
    );
    fs::write(at("empty.jsonl"), "\n").unwrap();
    refused(
        ["data", "check", arg(&at("empty.jsonl")), "--model", arg(&model)],
        &["empty.jsonl", "no row to learn from"],
    );
    good(args(folder.path(), "taught", &[&template, "stage.0.epochs=2"]));
    let talk = |model: &Path, more: &[&str]| {
        let mut chat = crate::program();
        chat.args(["chat", arg(model), "--max-tokens", "4"]).args(more);
        let child = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        std::io::Write::write_all(
            &mut child.stdin.take().unwrap(),
            b"What is 3?\nAnd 4?\n/reset\nWhat is 3?\n",
        )
        .unwrap();
        let out = child.wait_with_output().unwrap();
        (out.status.success(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let (fine, said, notes) = talk(&at("taught"), &[]);
    assert!(fine && notes.matches("prompt tokens read").count() == 3, "{said}{notes}");
    // The third question repeats the first, and so does its answer.
    let answers: Vec<&str> = said.split('\n').collect();
    assert_eq!(answers.first(), answers.get(answers.len() - 2), "{said}");
    let (fine, _, error) = talk(&at("base"), &[]);
    assert!(!fine && error.contains("no chat template"), "{error}");
}
