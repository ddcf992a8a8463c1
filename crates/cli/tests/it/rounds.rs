//! Training in rounds on self-generated pairs.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::sft::{args_of, base};
use crate::{arg, good, refused};

fn rows(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const SMALL: [&str; 5] = [
    "stage.0.seq_tokens=128",
    "stage.0.epochs=1",
    "rounds.max_answer_tokens=4",
    "data.held_out_share=0",
    "model.precision=f32",
];

#[test]
fn each_round_prefers_the_rows_to_what_the_last_model_wrote() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    let at = |name: &str| folder.path().join(name);
    let args = args_of(
        "spin",
        folder.path(),
        "spin",
        &[&SMALL[..], &["rounds.count=2", "rounds.earlier=1"]].concat(),
    );
    let said = good(&args);
    assert!(said.contains("the model of the last round"), "{said}");
    let written = [1, 2].map(|round| rows(&at(&format!("spin/round-{round}.jsonl"))));
    for rows in &written {
        assert_eq!(rows.len(), 30);
        assert!(rows.iter().all(|row| row["chosen"].as_str().unwrap().starts_with(" It is one")));
        assert!(rows.iter().all(|row| row["rejected"].is_string()));
    }
    assert_ne!(written[0], written[1]);
    assert!(at("spin/model/config.json").is_file());
    // The second round starts from the first one's model.
    let recipe = fs::read_to_string(at("spin/round-2/recipe.toml")).unwrap();
    assert!(recipe.contains("round-1/model"), "{recipe}");
    // The second round trained on both rounds' pairs, the first on its own only.
    let log = |round: u64| fs::read_to_string(at(&format!("spin/round-{round}/metrics.jsonl"))).unwrap();
    let steps = |round: u64| {
        let last = log(round).lines().rfind(|line| line.contains("\"event\":\"step\"")).unwrap().to_string();
        serde_json::from_str::<Value>(&last).unwrap()["step"].as_u64().unwrap()
    };
    assert!(recipe.contains("round-1.jsonl") && recipe.contains("round-2.jsonl"), "{recipe}");
    assert!(steps(2) > steps(1), "{} {}", steps(1), steps(2));
    // The same command finds it done; without its last round it generates and trains the same again.
    let weights = fs::read(at("spin/model/model.safetensors")).unwrap();
    good(&args);
    fs::remove_dir_all(at("spin/round-2")).unwrap();
    fs::remove_file(at("spin/round-2.jsonl")).unwrap();
    good(&args);
    assert_eq!(rows(&at("spin/round-2.jsonl")), written[1]);
    assert!(fs::read(at("spin/model/model.safetensors")).unwrap() == weights);
    refused(
        args_of("sft", folder.path(), "none", &["rounds.write=own"]),
        &["rounds.write", "objective over pairs"],
    );
}

/// A round that trains an adapter leaves the merged model, from which the next one starts.
#[test]
fn rounds_of_an_adapter_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    let more = ["rounds.count=2", "adapter.method=lora", "optimizer.lr=1e-2"];
    good(args_of("spin", folder.path(), "spin", &[&SMALL[..], &more].concat()));
    let weights = |of: &str| fs::read(folder.path().join(of).join("model.safetensors")).unwrap();
    let recipe = fs::read_to_string(folder.path().join("spin/round-2/recipe.toml")).unwrap();
    assert!(recipe.contains("round-1/model"), "{recipe}");
    assert!(weights("spin/round-1/model") != weights("spin/model"));
    assert!(folder.path().join("spin/model/tokenizer.json").is_file());
}

#[test]
fn answers_are_revised_by_principles() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    let at = |name: &str| folder.path().join(name);
    // The model reads at most 64 tokens.
    let template = "{% for message in messages %}{{ message.content + '|' }}{% endfor %}";
    fs::write(at("chat.jinja"), template).unwrap();
    let chat = format!("data.chat_template={}", arg(&at("chat.jinja")));
    let principles = format!("rounds.principles={}", arg(&at("principles.jsonl")));
    let more =
        [&SMALL[..], &[chat.as_str(), principles.as_str(), "stage.0.seq_tokens=512", "stage.0.max_docs=32"]]
            .concat();
    refused(args_of("rlaif", folder.path(), "none", &more), &["principles.jsonl"]);
    fs::write(at("principles.jsonl"), "{\"critique\": \"short?\", \"revision\": \"say\"}\n").unwrap();
    good(args_of("rlaif", folder.path(), "rlaif", &more));
    let written = rows(&at("rlaif/round-1.jsonl"));
    assert_eq!(written.len(), 30);
    for row in &written {
        assert_eq!(row["prompt"][0]["role"], "user");
        assert!(
            row["chosen"][0]["content"].is_string() && row["rejected"][0]["content"].is_string(),
            "{row}"
        );
    }
    assert!(at("rlaif/model/config.json").is_file());
    refused(
        args_of("rlaif", folder.path(), "none", &SMALL),
        &["rounds.principles", "is needed to revise by"],
    );
}

/// Labels precede answers and are not trained; a question asks for the best unless it says otherwise.
#[test]
fn labels_stand_before_answers() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    let at = |name: &str| folder.path().join(name);
    let row = |n: usize| {
        let label = format!("helpfulness:{},verbosity:{}", n % 5, n % 3);
        let own = serde_json::json!({"role": "assistant", "content": "It is one.", "label": label});
        let row =
            serde_json::json!({"messages": [{"role": "user", "content": format!("What is {n}?")}, own]});
        format!("{row}\n")
    };
    fs::write(at("lessons.jsonl"), (0..20).map(row).collect::<String>()).unwrap();
    good(args_of("steerlm", folder.path(), "out", &["stage.0.epochs=1", "stage.0.seq_tokens=128"]));
    assert!(fs::read_to_string(at("out/model/chat_template.jinja")).unwrap().contains("SteerLM"));
    let report =
        good(["data", "check", arg(&at("lessons.jsonl")), "--model", arg(&at("out/model")), "--json"]);
    let first: Value = serde_json::from_str(report.lines().next().unwrap()).unwrap();
    let text = first["text"].as_str().unwrap();
    assert!(text.contains("<extra_id_2>helpfulness:0,verbosity:0\nIt is one."), "{text}");
    let supervised = first["supervised"].as_array().unwrap().iter().filter(|one| **one == 1).count();
    let ids = first["ids"].as_array().unwrap().len();
    assert!(supervised > 0 && supervised < ids / 2, "{supervised} of {ids}");
    // Labels come from a scoring model.
    let rated = |n: usize| {
        format!(
            "{{\"prompt\": \"What is {n}?\", \"response\": \" One.\", \"helpfulness\": {}, \"verbosity\": 1}}\n",
            n % 5
        )
    };
    fs::write(at("rated.jsonl"), (0..12).map(rated).collect::<String>()).unwrap();
    let paths = format!("data.paths={}", arg(&at("rated.jsonl")));
    let regression = ["objective.loss=regression", "objective.attributes=[\"helpfulness\", \"verbosity\"]"];
    let more =
        [&regression[..], &[paths.as_str(), "data.chat_template=steerlm", "stage.0.epochs=1"]].concat();
    good(args_of("reward", folder.path(), "judge", &more));
    let (judge, rows_in, out) = (at("judge/model"), at("lessons.jsonl"), at("labelled.jsonl"));
    let score = ["score", arg(&judge), arg(&rows_in), "--out", arg(&out), "--labels"];
    good([&score[..], &["helpfulness,verbosity"]].concat());
    let labelled = rows(&out);
    assert_eq!(labelled.len(), 20);
    for row in &labelled {
        let label = row["messages"][1]["label"].as_str().unwrap();
        assert!(label.starts_with("helpfulness:") && label.contains(",verbosity:"), "{label}");
    }
    refused([&score[..], &["one"]].concat(), &["--labels names 1 scores", "has 2"]);
}
