//! A server with adapters: requests without one get the answers of a server without adapters, and those for a QLoRA run
//! get the answers of the run's model.

use std::path::Path;

use fathom_app::serve::{Order, sizes};
use fathom_app::{Machine, Silent, generate, models, train};
use fathom_base::{Flow, Sampling};
use fathom_tensor::DType;
use fathom_tensor::ggml::Kind;
use fathom_train::recipe::MachineKind;
use serde_json::{Value, json};

use crate::serve_mesh::{asked, in_blocks, mesh, order};

#[test]
fn adapters_are_served_over_the_base_of_their_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Each of two ranks has whole blocks of 64 columns.
    let sizes_of = ["eval.enabled=false", "model.precision=f32", "model.kv_heads=2", "model.head_dim=64"];
    let base = crate::small(folder, &sizes_of);
    train(&base, &train::Order::default(), &Silent).unwrap();
    let row = |n: usize| format!("{{\"prompt\": \"What is {n}?\", \"completion\": \" the stone {n}\"}}\n");
    std::fs::write(folder.join("rows.jsonl"), (0..24).map(row).collect::<String>()).unwrap();
    let data = format!("data.paths=[{:?}]", folder.join("rows.jsonl").display().to_string());
    for (name, more) in [("plain", "model.quantization=none"), ("nf4", "model.quantization=nf4")] {
        let job = crate::several::job(folder, "lora", name, &[&data, more, "optimizer.lr=0.3"]);
        train(&job.unwrap(), &train::Order::default(), &Silent).unwrap();
    }
    let run = folder.join("run");
    let served = |names: &[&str], tp: usize| Order {
        adapters: names.iter().map(|name| (name.to_string(), folder.join(name))).collect(),
        ..order(&run, tp, 1)
    };
    let body =
        |model: &str| json!({"model": model, "prompt": "What is 7?", "max_tokens": 24, "temperature": 0});
    let machine = Machine::of_kind(MachineKind::Cpu, 2, &Silent);
    let said = |base: &Path, name: &str| {
        let adapter = folder.join(name);
        let model = models::open_with(base, Some(&adapter), Some(DType::F32), &machine, &Silent).unwrap();
        let request = generate::Request {
            prompt: "What is 7?".into(),
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            max_tokens: Some(24),
            context_tokens: None,
        };
        generate::generate(&model, &request, &mut |_| Flow::Continue).unwrap().text
    };
    let texts = |order: &Order, names: &[&str]| -> Vec<Value> {
        let bodies: Vec<Value> = names.iter().map(|name| body(name)).collect();
        asked(order, &bodies).0.into_iter().map(|answer| answer[0].clone()).collect()
    };
    let without = texts(&served(&[], 1), &["small"]);
    let with = texts(&served(&["plain"], 1), &["small", "plain"]);
    assert_eq!(with, [without[0].clone(), said(&run, "plain").into()]);
    // The server's base equals the run's, whole or split.
    let held = texts(&served(&["nf4"], 1), &["nf4", "small"]);
    assert_eq!(held[0], said(&run, "nf4"));
    assert_eq!(texts(&served(&["nf4"], 2), &["nf4", "small"]), held);
    let bytes = |names: &[&str]| sizes(&served(names, 1), &Silent).unwrap().remove(0).1.weights_bytes;
    assert!(bytes(&["nf4"]) < bytes(&[]) && bytes(&["plain"]) == bytes(&[]));
    // If the runs disagree, the base is kept as in its files.
    assert_eq!(bytes(&["nf4", "plain"]), bytes(&[]));
    assert_eq!(texts(&served(&["nf4", "plain"], 1), &["small", "plain"]), with);
    // A GGUF file's blocks stay packed under adapters, also when split over ranks; an adapter that does not record its
    // base is accepted.
    let file = in_blocks(&run, Kind::Q8_0);
    std::fs::remove_file(folder.join("plain/adapter/base.json")).unwrap();
    let blocks = |names: &[&str], tp, pp| Order {
        models: vec![file.clone()],
        mesh: mesh(tp, pp),
        ..served(names, tp)
    };
    let without = texts(&blocks(&[], 1, 1), &["small"]);
    let with = texts(&blocks(&["plain"], 1, 1), &["small", "plain"]);
    assert_eq!(with, [without[0].clone(), said(&file, "plain").into()]);
    let bytes = |names: &[&str]| sizes(&blocks(names, 1, 1), &Silent).unwrap().remove(0).1.weights_bytes;
    let whole = bytes(&[]);
    assert_eq!(bytes(&["plain"]), whole);
    for (tp, pp) in [(2, 1), (1, 2)] {
        let order = blocks(&["plain"], tp, pp);
        assert_eq!(texts(&order, &["small", "plain"]), with, "tp {tp}, pp {pp}");
        for (name, sizes) in sizes(&order, &Silent).unwrap() {
            assert!(sizes.weights_bytes < whole, "{name}: {} bytes of {whole}", sizes.weights_bytes);
        }
    }
}
