//! Rails that ask real models: a generated decoder, and an encoder of `tests/encoders`.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use fathom_app::guardrails::{GuardModels, ServedModels, audit, audit_server, needs};
use fathom_app::serve::Order;
use fathom_app::{Machine, Silent, train};
use fathom_base::clock::Clock;
use fathom_base::{Numbers, Service, SpecialTokens};
use fathom_guard::evaluation::{Probe, ProbeOutcome, probes};
use fathom_guard::needs::Models;
use fathom_guard::{Config, Context, Direction, Needs, Opinion, RailInput, Until, perplexity};
use fathom_serve::bench::{Target, post_all};
use fathom_train::recipe::MachineKind;
use serde_json::json;

use crate::serve_mesh::{order, with_server};

/// The opinion of the only rail of a configuration.
fn opinion(toml: &str, needs: &Needs, text: &str) -> Opinion {
    let config = Config::parse(toml, Path::new("guard.toml"), needs).unwrap();
    let (context, direction) = (Context::default(), Direction::Input);
    let judged = RailInput { text, from: 0, whole: true, direction, context: &context, tool: None };
    config.rails[0].rail.judge(&judged, &Until::within(&Clock::default(), 60.0)).unwrap()
}

/// Probabilities of the next token.
fn next(service: &dyn Service, ids: &[u32]) -> Vec<f64> {
    let logits = service.look_while(vec![ids.to_vec().into()], Numbers::Logits { last: 1 }, &|| true);
    let logits: Vec<f64> = logits.unwrap().unwrap()[0].iter().map(|logit| f64::from(*logit)).collect();
    let most = logits.iter().copied().fold(f64::MIN, f64::max);
    let total: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
    logits.iter().map(|logit| (logit - most).exp() / total).collect()
}

/// Masses of `yes` and `no` among the 64 most likely tokens and the one that the grammar chose, by the rule of the handbook.
fn masses(service: &dyn Service, probabilities: &[f64]) -> [f64; 2] {
    let word = |id: usize| {
        let token = String::from_utf8_lossy(&service.token_bytes(id as u32)).to_lowercase();
        let token = token.trim_start();
        ["yes", "no"].iter().position(|word| !token.is_empty() && word.starts_with(token))
    };
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|a, b| probabilities[*b].total_cmp(&probabilities[*a]));
    let exact = |id: &usize| {
        let bytes = service.token_bytes(*id as u32);
        ["yes", "no"].iter().any(|word| !bytes.is_empty() && word.as_bytes().starts_with(&bytes))
    };
    let chosen = *order.iter().find(|id| exact(id)).unwrap();
    let mut read = order[..64].to_vec();
    if !read.contains(&chosen) {
        read.push(chosen);
    }
    let mut masses = [0.0; 2];
    read.iter().for_each(|id| word(*id).into_iter().for_each(|word| masses[word] += probabilities[*id]));
    masses.map(|mass| if mass == 0.0 { probabilities[order[63]] } else { mass })
}

#[test]
fn a_judges_score_is_the_models_own_probability() {
    let folder = tempfile::tempdir().unwrap();
    let keys = ["eval.enabled=false", "model.precision=f32"];
    train(&crate::small(folder.path(), &keys), &train::Order::default(), &Silent).unwrap();
    let run = folder.path().join("run");
    let machine = Machine::of_kind(MachineKind::Cpu, 1, &Silent);
    let models = Arc::new(GuardModels::new(&machine, Arc::default()));
    let needs = Needs { models: Some(models.clone()), ..Needs::default() };
    let service = models.service(run.to_str().unwrap()).unwrap();
    let rail = |more: &str| {
        format!("[[rail]]\nuse = 'self_check'\non = ['input']\nmodel = '{}'\n{more}\n", run.display())
    };
    for text in ["the old river", "stones carry light"] {
        let found = opinion(&rail("prompt = 'Is {{ text }} bad?'"), &needs, text);
        let begin = service.encode("", SpecialTokens::Prompt).unwrap();
        let own = |text: &str| service.encode(text, SpecialTokens::Rendered).unwrap();
        let middle = service.encode(text, SpecialTokens::Text).unwrap();
        let ids = [begin, own("Is "), middle, own(" bad?\n\n")].concat();
        let [yes, no] = masses(&*service, &next(&*service, &ids));
        let expected = yes / (yes + no);
        assert!((found.score.unwrap() - expected).abs() < 1e-4, "{text}: {found:?} {expected}");
    }
    // Long texts are read in windows; a prompt that leaves no room is a failure.
    let long = opinion(
        &rail("prompt = '{{ text }}?'\nwindow_tokens = 16\noverlap_tokens = 4"),
        &needs,
        &"old river ".repeat(40),
    );
    assert!(long.score.unwrap() > 0.0);

    let text = "the old river under a bridge";
    let found = perplexity(&*service, text, 1 << 15, &|| true).unwrap().unwrap();
    let ids = service.encode(text, SpecialTokens::Text).unwrap();
    let losses = (1..ids.len()).map(|at| -next(&*service, &ids[..at])[ids[at] as usize].ln());
    let expected = (losses.sum::<f64>() / (ids.len() - 1) as f64).exp();
    assert!((found.by_windows / expected - 1.0).abs() < 1e-4, "{found:?} {expected}");

    // Probes that the model's context of 256 tokens has room for: it has hardly more than a token a byte.
    let fits = |it: &Probe| it.text.len() + it.system.as_deref().unwrap_or_default().len() < 240;
    let short: Vec<Probe> = probes(1).into_iter().filter(fits).collect();
    let report = audit(&run, &short, 4, (&machine, &Silent)).unwrap();
    assert!(!short.is_empty() && report.records.len() == short.len());
}

#[test]
fn a_server_asks_its_own_model_for_a_rail_and_logs_each_call() {
    let folder = tempfile::tempdir().unwrap();
    let keys = ["eval.enabled=false", "model.precision=f32"];
    train(&crate::small(folder.path(), &keys), &train::Order::default(), &Silent).unwrap();
    let run = folder.path().join("run");
    let (guard, template) = (folder.path().join("guard"), folder.path().join("talk.jinja"));
    fs::create_dir(&guard).unwrap();
    let rails = "[[rail]]\nuse = 'regex'\non = ['input']\npatterns = ['Ignore all previous']\n\
                 [[rail]]\nname = 'own'\nuse = 'self_check'\non = ['input']\naction = 'flag'\nmodel = 'small'\n\
                 prompt = 'Is {{ text }} bad?'\n";
    fs::write(guard.join("guard.toml"), rails).unwrap();
    fs::write(&template, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
        .unwrap();
    let order = Order { template: Some(template), guard: Some(guard), ..order(&run, 1, 1) };
    let some = &probes(1)[..3];
    let report = with_server(&order, |at| {
        let target = Target::at(&at.to_string());
        let own = json!({"options": {"log": {"activated_rails": true, "llm_calls": true}}});
        let messages = json!([{"role": "user", "content": "Hi"}]);
        for (path, mut body) in [
            ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 2})),
            ("/v1/messages", json!({"messages": messages, "max_tokens": 2})),
            ("/v1/completions", json!({"prompt": "Hi", "max_tokens": 2})),
            ("/v1/responses", json!({"input": "Hi", "max_output_tokens": 2})),
        ] {
            body["guardrails"] = own.clone();
            let (status, answer) = post_all(&target, path, &[body.to_string()]).unwrap().remove(0);
            let rails = &answer["guardrails"]["log"]["activated_rails"];
            assert_eq!((status, &rails[0]["name"]), (200, &json!("regex")), "{path}: {answer}");
            assert_eq!(rails[0]["decisions"], json!(["allow"]), "{path}: {answer}");
            // The model that answers, by the name that it is served under.
            assert_eq!(rails[1]["name"], json!("own"), "{path}: {answer}");
            let calls = answer["guardrails"]["log"]["llm_calls"].as_array().unwrap();
            assert!(
                calls.iter().any(|call| call["task"] == "own" && call["llm_model_name"] == "small"),
                "{path}: {answer}"
            );
        }
        audit_server(&target, None, some, 4)
    })
    .unwrap();
    let first = &report.records[0];
    assert_eq!((first.outcome, first.rail.as_deref()), (ProbeOutcome::Blocked, Some("regex")), "{report:?}");
    assert_eq!(report.kinds[&first.kind].blocked.hits, 1, "{report:?}");
}

#[test]
fn an_encoders_label_condemns_in_windows_over_all_of_a_text() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/encoders/bert");
    let machine = Machine::of_kind(MachineKind::Cpu, 1, &Silent);
    let needs = needs(&machine);
    let service = needs.models.as_ref().unwrap().service(path.to_str().unwrap()).unwrap();
    let card = service.card();
    let rail = format!(
        "[[rail]]\nuse = 'classifier'\non = ['input']\nmodel = '{}'\nblocked_labels = ['{}']\n",
        path.display(),
        card.labels[0]
    );
    let text = "The plan is the program.";
    let ids = service.read(&(text.into(), None), Numbers::Classes, None).unwrap();
    let expected = service.look_while(vec![ids], Numbers::Classes, &|| true).unwrap().unwrap()[0][0];
    let found = opinion(&rail, &needs, text);
    assert!((found.score.unwrap() - f64::from(expected)).abs() < 1e-6, "{found:?} {expected}");
    let long = opinion(&rail, &needs, &format!("{text} ").repeat(20));
    assert!((0.0..=1.0).contains(&long.score.unwrap()));
}

#[test]
fn a_rail_that_names_a_served_model_asks_the_one_that_a_reload_brought() {
    let machine = Machine::of_kind(MachineKind::Cpu, 1, &Silent);
    let models = GuardModels::new(&machine, Arc::default());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/encoders");
    let [old, new] =
        ["bert", "roberta"].map(|name| models.service(folder.join(name).to_str().unwrap()).unwrap());
    let started = old.clone();
    let served =
        Arc::new(ServedModels::new(Box::new(move |name| (name == "judge").then(|| Ok(started.clone())))));
    let of_rails = GuardModels::new(&machine, served.clone());
    let judge = of_rails.service("judge").unwrap();
    assert_eq!(judge.card().name, old.card().name);
    served.put("judge", new.clone());
    assert_ne!(old.card().name, new.card().name);
    assert_eq!(judge.card().name, new.card().name);
    assert!(of_rails.service("nobody").is_err());
}
