//! Several answers to a prompt, trained to their target shares.

use std::fs;
use std::path::Path;

use fathom_app::score::{Likelihood, Request, score};
use fathom_app::train::Order;
use fathom_app::{Job, Machine, Silent, library, train};
use fathom_base::metrics::read_events;
use fathom_train::recipe::{MachineKind, Precision};
use serde_json::{Value, json};

/// A run learns the shares that the rows ask for, independent of the other rows in a micro-batch.
#[test]
fn shares_of_answers_are_learned() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    train(&crate::small(folder, &["eval.enabled=false", "model.precision=f32"]), &Order::default(), &Silent)
        .unwrap();
    let at = |name: &str| folder.join(name).display().to_string();
    let response = |value: &str, wanted: f64| {
        format!(
            "{{\"value\": \" {value}\", \"log(P(a|x,y))\": {wanted}, \"log(P(y|x))\": -6, \"log(Q(y|a,x))\": -6}}"
        )
    };
    let row = |n: usize| {
        let all = [response("stone", 3.0), response("river", 0.0), response("old light", -1.0)].join(", ");
        format!("{{\"prompt\": \"What is {n}?\", \"responses\": [{all}]}}\n")
    };
    fs::write(folder.join("rows.jsonl"), (0..8).map(row).collect::<String>()).unwrap();
    let run = |out: &str, more: &[&str]| {
        let own = [
            "machine.kind=cpu".to_string(),
            "machine.threads=1".to_string(),
            format!("model.from={}", at("run")),
            format!("data.paths=[{:?}]", at("rows.jsonl")),
            format!("run.out={}", at(out)),
        ];
        let settings = [
            "objective.responses=3",
            "model.precision=f32",
            "data.held_out_share=0",
            "data.shuffle=false",
            "optimizer.lr=3e-3",
            "stage.0.seq_tokens=128",
            "stage.0.max_docs=32",
            "stage.0.micro_batches=2",
            "stage.0.epochs=none",
            "stage.0.steps=25",
            "checkpoint.every_s=none",
        ];
        let settings = own.into_iter().chain(settings.iter().chain(more).map(ToString::to_string));
        let settings: Vec<String> = settings.collect();
        Job::new(library::load(library::layers("steerlm2", &settings))?, &Silent)
    };
    train(&run("out", &[]).unwrap(), &Order::default(), &Silent).unwrap();
    let events = read_events(folder.join("out/metrics.jsonl")).unwrap();
    let kls: Vec<f64> = events
        .iter()
        .filter(|it| it["event"] == "step")
        .map(|it| it["metrics"]["kl"].as_f64().unwrap())
        .collect();
    let (first, last) = (kls[0], kls[kls.len() - 1]);
    assert!(kls.len() == 25 && last < 0.1 * first && last >= 0.0, "{kls:?}");
    let error =
        run("bad", &["objective.responses=2"]).and_then(|job| train(&job, &Order::default(), &Silent));
    assert!(error.err().unwrap().to_string().contains("objective.responses is 2"));
    let error = run("bad", &["objective.method=dpo"]).and_then(|job| train(&job, &Order::default(), &Silent));
    assert!(error.err().unwrap().to_string().contains("objective.responses"));
}

/// Chat template that writes an answer's label before it.
const TEMPLATE: &str = "{%- for message in messages -%}{%- if message.role == 'assistant' -%}\
    [{{ message.label | default('none') }}] {% generation %}{{ message.content }}{% endgeneration %}\
    {%- else -%}{{ message.content }} {% endif -%}{%- endfor -%}\
    {%- if add_generation_prompt -%}[none] {% endif -%}";

/// Returns the rows with a model's likelihoods.
fn scored(model: &Path, rows: &[Value], labels: &[&str], which: Likelihood) -> Result<Vec<Value>, String> {
    let [data, out] = ["in.jsonl", "out.jsonl"].map(|name| model.join(name));
    fs::write(&data, rows.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
    let request = Request {
        model: model.to_path_buf(),
        adapter: None,
        data,
        out: out.clone(),
        precision: Precision::F32,
        best: None,
        labels: labels.iter().map(|label| (*label).to_string()).collect(),
        responses: Some((which, 1.0)),
    };
    let machine = Machine::of_kind(MachineKind::Cpu, 0, &Silent);
    score(&request, &machine, &Silent).map_err(|error| error.to_string())?;
    let text = fs::read_to_string(out).unwrap();
    Ok(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// Rows with the three log-likelihoods: those of answers cover exactly the tokens that a run trains on, so that it
/// starts with even shares; that of a label comes from a reward model.
#[test]
fn likelihoods_are_written_by_models() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    train(&crate::small(folder, &["eval.enabled=false", "model.precision=f32"]), &Order::default(), &Silent)
        .unwrap();
    let at = |name: &str| folder.join(name).display().to_string();
    let job = |recipe: &str, data: &str, out: &str, more: &[&str]| {
        let own = [
            "machine.kind=cpu".to_string(),
            "machine.threads=1".to_string(),
            format!("model.from={}", at("run")),
            format!("data.paths=[{:?}]", at(data)),
            format!("run.out={}", at(out)),
        ];
        let small =
            ["model.precision=f32", "data.held_out_share=0", "stage.0.seq_tokens=128", "stage.0.max_docs=32"];
        let settings = own.into_iter().chain(small.iter().chain(more).map(ToString::to_string));
        let settings: Vec<String> = settings.collect();
        let job = Job::new(library::load(library::layers(recipe, &settings)).unwrap(), &Silent).unwrap();
        train(&job, &Order::default(), &Silent).unwrap();
    };
    let rated = |n: usize| {
        let row = json!({"prompt": format!("What is {n}?"), "response": " one", "helpfulness": n % 5, "verbosity": 1});
        format!("{row}\n")
    };
    fs::write(folder.join("rated.jsonl"), (0..8).map(rated).collect::<String>()).unwrap();
    let names = "objective.attributes=[\"helpfulness\", \"verbosity\"]";
    let regression = ["objective.loss=regression", names, "stage.0.micro_batches=1", "stage.0.epochs=1"];
    job("reward", "rated.jsonl", "judge", &regression);
    let template = folder.join("chat.jinja");
    fs::write(&template, TEMPLATE).unwrap();
    let models = ["run", "judge"].map(|name| folder.join(name).join("model"));
    models.iter().for_each(|model| fs::write(model.join("chat_template.jinja"), TEMPLATE).unwrap());
    let [writer, judge] = &models;
    let row = |helpfulness: usize| {
        let prompt = json!([{"role": "user", "content": "What is one?"}]);
        let answers = ["stone", "river", "old light"].map(|value| json!({"value": value}));
        json!({"prompt": prompt, "label": format!("helpfulness:{helpfulness},verbosity:1"), "responses": answers})
    };
    let rows: Vec<Value> = (0..3).map(row).collect();
    let names = ["helpfulness", "verbosity"];
    let mut rows = scored(judge, &rows, &names, Likelihood::Attributes).unwrap();
    let number =
        |row: &Value, at: usize, which: Likelihood| row["responses"][at][which.key()].as_f64().unwrap();
    for at in 0..3 {
        // The log-likelihood is a parabola in the rating.
        let [a, b, c] = [0, 1, 2].map(|row| number(&rows[row], at, Likelihood::Attributes));
        assert!((a - 2.0 * b + c + 1.0).abs() < 1e-4, "{a} {b} {c}");
    }
    for which in [Likelihood::Answer, Likelihood::Labelled] {
        rows = scored(writer, &rows, &[], which).unwrap();
    }
    let of = |at: usize| Likelihood::ALL.iter().map(move |which| (at, *which));
    let known: Vec<f64> = (0..3).flat_map(of).map(|(at, which)| number(&rows[2], at, which)).collect();
    assert!(known.iter().all(|number| *number < 0.0), "{known:?}");
    assert!(known.chunks(3).all(|of| of[1] != of[2]), "a label makes a difference: {known:?}");
    // Target shares, and even ones for comparison.
    let wanted: Vec<f64> = known.chunks(3).map(|of| of[0] + of[1] - of[2]).collect();
    let all: f64 = wanted.iter().map(|wanted| wanted.exp()).sum();
    let kl: f64 = wanted.iter().map(|wanted| wanted.exp() / all * (wanted.exp() / all * 3.0).ln()).sum();
    fs::write(folder.join("rows.jsonl"), format!("{}\n", rows[2])).unwrap();
    let named = format!("data.chat_template={}", template.display());
    let more = [
        "objective.responses=3",
        "stage.0.micro_batches=1",
        "stage.0.epochs=none",
        "stage.0.steps=1",
        &named,
    ];
    job("steerlm2", "rows.jsonl", "out", &more);
    let events = read_events(folder.join("out/metrics.jsonl")).unwrap();
    let step = events.iter().find(|event| event["event"] == "step").unwrap();
    let found = step["metrics"]["kl"].as_f64().unwrap();
    assert!((found - kl).abs() < 1e-4 * kl.max(1.0), "{found} {kl}");
    refuses([writer, judge], &rows[0]);
}

/// Refused requests, and their reasons.
fn refuses([writer, judge]: [&Path; 2], row: &Value) {
    let names = ["helpfulness", "verbosity"];
    let text = json!({"prompt": "one [a:1]", "responses": [{"value": " b"}]});
    let nameless = json!({"prompt": [{"role": "user", "content": "a"}], "responses": [{"value": "b"}]});
    for (model, row, labels, which, said) in [
        (writer, &text, &[][..], Likelihood::Answer, "contains its label"),
        (writer, row, &[], Likelihood::Attributes, "reward model"),
        (judge, row, &names[..], Likelihood::Labelled, "language model"),
        (judge, row, &[], Likelihood::Attributes, "--labels"),
        (judge, &nameless, &names[..], Likelihood::Attributes, "in.jsonl:1: has no `label`"),
    ] {
        let error = scored(model, std::slice::from_ref(row), labels, which).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
    assert!(scored(writer, &[text], &[], Likelihood::Labelled).is_ok());
}
