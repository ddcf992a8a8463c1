//! Uses of a reward model: a server ranks with its head of scores, and requests for text are refused.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use std::{fs, thread};

use fathom_app::serve::{ServerLinks, serve};
use fathom_app::{Machine, Silent, evaluate, generate, models, train};
use fathom_base::{Flow, Sampling};
use fathom_cpu::Cpu;
use fathom_engine::{Engine, Limits};
use fathom_model::ModelView;
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;
use fathom_train::recipe::MachineKind;
use serde_json::{Value, json};

use crate::serve_mesh::{ask, order};
use crate::several::job;

/// A model whose configuration uses the end-of-text token as padding is scored at the token before it, as in
/// Transformers.
fn reads_before_padding(run: &Path, machine: &Machine) {
    let file = run.join("model/config.json");
    let text = fs::read(&file).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    let end = config["eos_token_id"].as_u64().unwrap() as u32;
    assert_eq!(config["pad_token_id"], Value::Null, "of a base without padding");
    let mut scores = |pad: Value| {
        config["pad_token_id"] = pad;
        fs::write(&file, config.to_string()).unwrap();
        let model = models::open(run, Some(DType::F32), machine, &Silent).unwrap();
        let limits = Limits { context_tokens: 256, ..Limits::default() };
        let engine = Engine::new(model.loaded.view(), &model.tokenizer, limits);
        engine.scores_of(&[vec![5, 6, 7], vec![5, 6, 7, end]]).unwrap()
    };
    let (plain, padded) = (scores(Value::Null), scores(json!(end)));
    assert_ne!(plain[0], plain[1]);
    assert_eq!((&padded[0], &padded[1]), (&plain[0], &plain[0]));
    fs::write(&file, text).unwrap();
}

/// Scores of `LlamaForSequenceClassification` (Transformers 5.23) with and without a padding token.
#[test]
fn scores_are_read_where_transformers_reads_them() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_preferences/reward");
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 26);
    let fathom_model::LoadedModel { mut model, params, .. } =
        models::load(&device, &golden, Some(DType::F32), &Silent).unwrap();
    let tokenizer = Tokenizer::train_bpe(std::iter::empty(), 257, &["<|endoftext|>"]).unwrap();
    let texts = [vec![5, 6, 9, 7], vec![5, 6, 9], vec![5, 7, 9, 7, 7], vec![5, 7, 9]];
    for (padding, wanted) in [
        (None, [-0.886_938_75, -0.775_425_4, -0.367_435_66, -0.301_874_82]),
        (Some(7), [-0.775_425_26, -0.775_425_4, -0.301_874_7, -0.301_874_82]),
    ] {
        model.spec.padding = padding;
        let limits = Limits { context_tokens: 64, ..Limits::default() };
        let found =
            Engine::new(ModelView { device: &device, model: &model, params: &params }, &tokenizer, limits)
                .scores_of(&texts)
                .unwrap();
        for (found, wanted) in found.iter().zip(wanted) {
            assert!((found[0] - wanted).abs() < 1e-5, "{padding:?}: {found:?} {wanted}");
        }
    }
}

#[test]
fn a_port_that_is_taken_is_noticed_before_a_model_is_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut late = order(&folder.path().join("none"), 1, 1);
    late.at.port = taken.local_addr().unwrap().port();
    let ended = Arc::new(AtomicBool::new(true));
    let around = ServerLinks { stop: &ended, log: None, heard: &|_| (), events: &Silent };
    let refused = serve(&late, &around).unwrap_err().to_string();
    assert!(refused.contains("another program listens there"), "{refused}");
}

#[test]
fn a_reward_model_ranks_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let base = crate::small(folder, &["eval.enabled=false", "model.precision=f32"]);
    train(&base, &train::Order::default(), &Silent).unwrap();
    let row = |n: usize| {
        format!("{{\"prompt\": \"Is {n}?\", \"chosen\": \" Yes {n}.\", \"rejected\": \" No.\"}}\n")
    };
    fs::write(folder.join("pairs.jsonl"), (0..8).map(row).collect::<String>()).unwrap();
    let paths = folder.join("pairs.jsonl").display().to_string();
    fs::write(folder.join("reward.toml"), format!("extends = \"reward\"\n[data]\npaths = [{paths:?}]\n"))
        .unwrap();
    train(
        &job(folder, "reward.toml", "scorer", &["stage.0.steps=1"]).unwrap(),
        &train::Order::default(),
        &Silent,
    )
    .unwrap();
    let run = folder.join("scorer");
    let machine = Machine::of_kind(MachineKind::Cpu, 2, &Silent);
    let model = models::open(&run, Some(DType::F32), &machine, &Silent).unwrap();
    let wanted: Vec<f32> = {
        let limits = Limits { context_tokens: 256, ..Limits::default() };
        let engine = Engine::new(model.loaded.view(), &model.tokenizer, limits);
        let ids = |text: &str| model.tokenizer.encode_prompt(text).unwrap();
        let pair = |document: &str| [ids("Is 3?"), ids(document)].concat();
        let scores = engine.scores_of(&[" Yes 3.", " No.", " Perhaps."].map(pair)).unwrap();
        scores.into_iter().map(|row| row[0]).collect()
    };
    reads_before_padding(&run, &machine);
    let stop = Arc::new(AtomicBool::new(false));
    let (send, address) = channel();
    let order = order(&run, 1, 1);
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let heard = |all: &[SocketAddr]| send.send(all[0]).unwrap();
            serve(&order, &ServerLinks { stop: &stop, log: None, heard: &heard, events: &Silent })
        });
        let at = address.recv_timeout(Duration::from_secs(60)).unwrap();
        let ranked =
            ask(at, "/v1/rerank", &json!({"query": "Is 3?", "documents": [" Yes 3.", " No.", " Perhaps."]}));
        let turns = json!([{"role": "user", "content": "a"}]);
        let refused = [
            ("/v1/completions", json!({"prompt": "a", "max_tokens": 2})),
            ("/v1/chat/completions", json!({"messages": turns, "max_tokens": 2})),
            ("/v1/messages", json!({"model": "small", "messages": turns, "max_tokens": 2})),
            ("/v1/responses", json!({"input": "a"})),
        ]
        .map(|(route, body)| ask(at, route, &body));
        let vector = ask(at, "/v1/embeddings", &json!({"input": "a"}));
        stop.store(true, Ordering::Relaxed);
        serving.join().unwrap().unwrap();
        let mut best = f64::INFINITY;
        let results = ranked["results"].as_array().unwrap_or_else(|| panic!("{ranked}"));
        assert_eq!(results.len(), 3);
        for result in results {
            let score = result["relevance_score"].as_f64().unwrap();
            let own = f64::from(wanted[result["index"].as_u64().unwrap() as usize]);
            assert!((score - own).abs() <= 1e-6 * own.abs().max(1.0) && score <= best, "{ranked} {wanted:?}");
            best = score;
        }
        for answer in refused {
            assert!(answer.to_string().contains("writes no text; ask /v1/rerank"), "{answer}");
        }
        assert_eq!(vector["data"][0]["embedding"].as_array().map(Vec::len), Some(64), "{vector}");
    });
    let request = generate::Request {
        prompt: "Is 3?".into(),
        sampling: Sampling::default(),
        max_tokens: Some(2),
        context_tokens: None,
    };
    let error = generate::generate(&model, &request, &mut |_| Flow::Continue).unwrap_err().to_string();
    assert!(error.contains("head of scores"), "{error}");
    let request =
        evaluate::Request { model: run, data: vec![folder.join("text")], ..evaluate::Request::default() };
    let error = evaluate::evaluate(&request, &machine, &Silent).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("head of scores"), "{error}");
}
