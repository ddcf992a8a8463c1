//! A served encoder-decoder: prompts are its sources, and answers are those of Transformers.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread;

use fathom_app::host::{Host, HostOptions};
use fathom_app::serve::{Order, settings, sizes};
use fathom_app::{Machine, Silent, in_full, score};
use fathom_base::{Continuation, LanguageModel, Numbers, Tokenize};
use fathom_train::recipe::{MachineKind, Precision};
use serde_json::{Value, json};

use crate::serve_mesh::{answers, ask, asked, order, send, with_server};

/// Prompts with what Transformers answers.
const ANSWERS: [(&str, &str); 3] = [
    ("The river of the stone is", "silver."),
    ("The lantern of the paper is", "silver."),
    ("The thread of the engine", "stone."),
];
/// Natural log-probabilities of the tokens of an answer and the end after it, by Transformers.
const LIKELY: (&str, &str, [f64; 3]) = (
    "The river of the stone is",
    "harbour.",
    [-3.058782149684675, -0.007490979126065962, -0.0020109596222951196],
);
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_harness/models/t5")
}

fn served(keys: &[&str]) -> Order {
    let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
    Order { settings: settings(None, &keys).unwrap(), ..order(&model(), 1, 1) }
}

fn body(prompt: &str) -> Value {
    json!({"prompt": prompt, "max_tokens": 8, "temperature": 0})
}

#[test]
fn prompts_are_sources_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("talk.jinja");
    fs::write(&template, TEMPLATE).unwrap();
    with_server(&Order { template: Some(template), ..served(&["serve.sequences=3"]) }, |at| {
        let text = |answer: &Value| answer["choices"][0]["text"].as_str().map(str::to_string);
        thread::scope(|scope| {
            for (prompt, wanted) in ANSWERS {
                scope.spawn(move || {
                    let answer = ask(at, "/v1/completions", &body(prompt));
                    assert_eq!(text(&answer).as_deref(), Some(wanted), "{answer}");
                    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
                });
            }
        });
        let (prompt, wanted) = ANSWERS[0];
        let all =
            ask(at, "/v1/completions", &json!({"prompt": [prompt, ANSWERS[2].0], "n": 2, "temperature": 0}));
        let texts: Vec<&str> =
            all["choices"].as_array().unwrap().iter().map(|it| it["text"].as_str().unwrap()).collect();
        assert_eq!(texts, [wanted, wanted, ANSWERS[2].1, ANSWERS[2].1], "{all}");
        // Prompt tokens are those of the source, with the end of texts.
        assert_eq!(ask(at, "/v1/completions", &body(prompt))["usage"]["prompt_tokens"], 7);

        let mut streamed = body(prompt);
        streamed["stream"] = true.into();
        let mut events = String::new();
        send(at, "/v1/completions", &streamed).read_to_string(&mut events).unwrap();
        let pieces = events.lines().filter_map(|line| line.strip_prefix("data: {"));
        let said: String =
            pieces.filter_map(|rest| text(&serde_json::from_str(&format!("{{{rest}")).unwrap())).collect();
        assert_eq!(said, wanted, "{events}");

        let talk =
            json!({"messages": [{"role": "user", "content": prompt}], "max_tokens": 8, "temperature": 0});
        let answer = ask(at, "/v1/chat/completions", &talk);
        assert_eq!(answer["choices"][0]["message"]["content"], wanted, "{answer}");

        let refused = |route: &str, body: Value, named: &str| {
            let said = ask(at, route, &body).to_string();
            assert!(said.contains(named), "{route}: {said}");
        };
        refused("/v1/embeddings", json!({"input": "a"}), "gives no vectors");
        refused(
            "/v1/rerank",
            json!({"query": "a", "documents": ["b"]}),
            "gives no vectors, labels or scores",
        );
        let echo = json!({"prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 1});
        refused("/v1/completions", echo, "prompt_logprobs");
    });
    with_server(&served(&[]), |at| {
        let talk = json!({"messages": [{"role": "user", "content": "a"}]});
        let said = ask(at, "/v1/chat/completions", &talk).to_string();
        assert!(said.contains("no chat template"), "{said}");
    });
}

/// Clients that leave, and deadlines.
#[test]
fn requests_at_once_are_answered_as_alone() {
    assert_eq!(answers(&served(&["serve.sequences=1"])), answers(&served(&["serve.sequences=3"])));
}

#[test]
fn a_server_of_sources_runs_in_the_memory_that_its_plan_says() {
    for (precision, sequences) in [(Precision::F32, 1), (Precision::Bf16, 3)] {
        let with = |memory_bytes: u64| {
            let keys = [format!("serve.sequences={sequences}"), "serve.context_tokens=300".into()];
            let settings = settings(None, &keys).unwrap();
            Order {
                settings,
                precision: Some(precision),
                memory_bytes: Some(memory_bytes),
                ..order(&model(), 1, 1)
            }
        };
        let planned = |order: &Order| sizes(order, &Silent).unwrap().remove(0).1;
        let plan = planned(&with(64 << 20));
        assert_eq!(plan.limits.context_tokens, 300);
        let prompts: Vec<Vec<usize>> =
            (0..4).map(|of| (0..300).map(|at| 3 + (at * 7 + of) % 250).collect()).collect();
        let long = json!({"prompt": prompts, "max_tokens": 299, "temperature": 0, "ignore_eos": true, "return_token_ids": true});
        let exact = with(plan.bytes());
        assert_eq!(planned(&exact).bytes(), plan.bytes());
        let long = [long];
        assert_eq!(asked(&exact, &long).0, asked(&with(64 << 20), &long).0);
    }
}

/// Adapters by PEFT, with sources and their greedy answers.
const ADAPTERS: [&str; 2] = ["t5_served", "t5_served_dora"];

fn adapter(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden_adapters/encoders")
        .join(name)
        .join("before")
}

fn adapted(order: Order) -> Order {
    Order { adapters: ADAPTERS.map(|name| (name.to_string(), adapter(name))).into(), ..order }
}

/// Requests to the base and to its adapters at once are answered as by PEFT and by the base alone.
#[test]
fn adapters_answer_as_in_peft() {
    let expected = |name: &str| -> Value {
        let file = adapter(name).with_file_name("expected.json");
        serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
    };
    // The golden answers were written without the end of texts, id 1.
    let ask_ids = |at, model: &str, ids: &Value| {
        let body = json!({
            "model": model, "prompt": ids, "max_tokens": 12, "temperature": 0, "ignore_eos": true,
            "logit_bias": {"1": -100}, "return_token_ids": true,
        });
        ask(at, "/v1/completions", &body)["choices"][0]["token_ids"].clone()
    };
    let sources = expected(ADAPTERS[0])["docs"].clone();
    let alone: Vec<Value> = with_server(&served(&[]), |at| {
        sources.as_array().unwrap().iter().map(|doc| ask_ids(at, "small", &doc[0])).collect()
    });
    with_server(&adapted(served(&["serve.sequences=4"])), |at| {
        thread::scope(|scope| {
            let ask = |model: &'static str, ids: Value, wanted: Value| {
                scope.spawn(move || assert_eq!(ask_ids(at, model, &ids), wanted, "{model}"));
            };
            for name in ADAPTERS {
                let all = expected(name);
                for (doc, wanted) in
                    all["docs"].as_array().unwrap().iter().zip(all["greedy"].as_array().unwrap())
                {
                    ask(name, doc[0].clone(), wanted.clone());
                }
            }
            for (doc, wanted) in sources.as_array().unwrap().iter().zip(&alone) {
                ask("small", doc[0].clone(), wanted.clone());
            }
        });
    });
}

#[test]
fn a_server_with_adapters_runs_in_the_memory_that_its_plan_says() {
    for (precision, sequences) in [(Precision::F32, 2), (Precision::Bf16, 4)] {
        let with = |memory_bytes: u64| {
            let keys = [&format!("serve.sequences={sequences}"), "serve.context_tokens=300"];
            let (precision, memory_bytes) = (Some(precision), Some(memory_bytes));
            adapted(Order { precision, memory_bytes, ..served(&keys) })
        };
        let planned = |order: &Order| sizes(order, &Silent).unwrap().remove(0).1;
        let plan = planned(&with(64 << 20));
        assert!(plan.limits.context_tokens == 300 && plan.adapters_bytes > 0, "{plan:?}");
        let exact = with(plan.bytes());
        assert_eq!(planned(&exact).bytes(), plan.bytes());
        let answers = |order: &Order| -> Vec<Value> {
            with_server(order, |at| {
                thread::scope(|scope| {
                    let ask = |of: usize| {
                        let model = ["small", ADAPTERS[0], ADAPTERS[1]][of % 3];
                        let prompt: Vec<usize> = (0..300).map(|at| 3 + (at * 7 + of) % 250).collect();
                        let body = json!({
                            "model": model, "prompt": prompt, "max_tokens": 299, "temperature": 0,
                            "ignore_eos": true, "return_token_ids": true,
                        });
                        scope.spawn(move || {
                            let answer = ask(at, "/v1/completions", &body);
                            assert!(answer["choices"][0]["token_ids"].is_array(), "{answer}");
                            answer["choices"][0]["token_ids"].clone()
                        })
                    };
                    let all: Vec<_> = (0..5).map(ask).collect();
                    all.into_iter().map(|answer| answer.join().unwrap()).collect()
                })
            })
        };
        let found = answers(&exact);
        // In bf16, sources that are read together have other roundings than those that are read alone.
        if precision == Precision::F32 {
            assert!(found == answers(&with(64 << 20)));
        }
    }
}

#[test]
fn what_an_encoder_decoder_is_not_served_with_is_refused_by_name() {
    let refused = |order: Order, named: &str| {
        let said = in_full(&sizes(&order, &Silent).unwrap_err());
        assert!(said.contains(named), "{said}");
    };
    refused(order(&model(), 2, 1), "on one rank");
    let llama = model().with_file_name("llama");
    refused(
        served(&[&format!("serve.draft={}", llama.display())]),
        "encoder-decoder; serve it without a draft",
    );
}

#[test]
fn likelihoods_of_answers_are_those_of_transformers() {
    let machine = Machine::of_kind(MachineKind::Cpu, 1, &Silent);
    let options = HostOptions { dtype: Some(Precision::F32.dtype()), ..HostOptions::new(model(), &machine) };
    let host = Host::open_writer(options, &Silent).unwrap();
    let (prompt, answer, wanted) = LIKELY;
    let context = host.service().ids(&prompt.into()).unwrap();
    let continuation = host.service().encode(answer, fathom_base::SpecialTokens::Prompt).unwrap();
    let found = host.log_likelihoods(&[Continuation { context: context.clone(), continuation }]).unwrap();
    assert_eq!(found[0].logprobs.len(), wanted.len());
    for (found, wanted) in found[0].logprobs.iter().zip(wanted) {
        assert!((found - wanted).abs() < 1e-4, "{found} instead of {wanted}");
    }
    let alone = host.look(&[context], Numbers::Logits { last: 1 }).unwrap_err().to_string();
    assert!(alone.contains("no answer"), "{alone}");

    // The losses of rows.
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("rows.jsonl"), folder.path().join("scored.jsonl"));
    fs::write(&data, format!("{}\n", json!({"prompt": prompt, "completion": answer}))).unwrap();
    let request = score::Request {
        model: model(),
        adapter: None,
        data,
        out: out.clone(),
        precision: Precision::F32,
        best: None,
        labels: Vec::new(),
        responses: None,
    };
    assert_eq!(score::score(&request, &machine, &Silent).unwrap(), 1);
    let row: Value = serde_json::from_str(&fs::read_to_string(&out).unwrap()).unwrap();
    let logps: Vec<f64> = serde_json::from_value(row["likelihood"]["logps"][0].clone()).unwrap();
    let loss = row["likelihood"]["loss"].as_f64().unwrap();
    assert!((loss + logps.iter().sum::<f64>() / logps.len() as f64).abs() < 1e-12);
    let best = score::Request { best: Some((2, 1.0)), ..request };
    let said = score::score(&best, &machine, &Silent).unwrap_err().to_string();
    assert!(said.contains("--top-k"), "{said}");
}
