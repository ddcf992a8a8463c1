//! A reward model with an adapter: its head of scores is new and is trained with it.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use fathom_app::export::{Conversion, Target, export};
use fathom_app::models::{load_with, open_writer};
use fathom_app::score::{Request, score};
use fathom_app::train::Order;
use fathom_app::{Machine, Silent, train};
use fathom_cpu::Cpu;
use fathom_model::{SafeTensors, Source};
use fathom_tensor::Device;
use fathom_train::Outcome;
use fathom_train::recipe::{MachineKind, Precision};
use serde_json::Value;

use crate::several::job;

#[test]
fn the_head_of_a_reward_model_is_trained_with_its_adapter() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let base = crate::small(folder, &["eval.enabled=false", "model.precision=f32", "model.kv_heads=2"]);
    train(&base, &Order::default(), &Silent).unwrap();
    let row = |n: usize| {
        format!("{{\"prompt\": \"Is {n}?\", \"chosen\": \" Yes {n}.\", \"rejected\": \" No.\"}}\n")
    };
    fs::write(folder.join("pairs.jsonl"), (0..32).map(row).collect::<String>()).unwrap();
    let paths = folder.join("pairs.jsonl").display().to_string();
    let text = format!(
        "extends = \"reward\"\n[data]\npaths = [{paths:?}]\n[adapter]\nmethod = \"lora\"\nrank = 4\n"
    );
    fs::write(folder.join("reward.toml"), text).unwrap();
    let head = |of: &SafeTensors, name: &str| {
        let mut rows = Vec::new();
        of.read_rows(name, 0..1, &mut rows).unwrap();
        rows
    };
    for (out, more) in [("one", &[][..]), ("dp", &["mesh.dp=2"])] {
        let heard = crate::TextSink::default();
        let run = job(folder, "reward.toml", out, more).unwrap();
        assert_eq!(train(&run, &Order::default(), &heard).unwrap().outcome, Outcome::Finished, "{out}");
        let adapter = folder.join(out).join("adapter");
        let config: Value =
            serde_json::from_slice(&fs::read(adapter.join("adapter_config.json")).unwrap()).unwrap();
        assert_eq!(
            (&config["modules_to_save"][0], &config["task_type"]),
            (&"score".into(), &"SEQ_CLS".into())
        );
        let tensors = SafeTensors::open_file(&adapter.join("adapter_model.safetensors")).unwrap();
        let own = head(&tensors, "base_model.model.score.weight");
        // Merging gives a sequence classifier with the same head, which training has changed.
        let to = folder.join(format!("merged {out}"));
        let what = Target::Q8_0.conversion(folder.join(out), to.clone());
        export(&Conversion { gguf: None, ..what }, &Silent).unwrap();
        assert!(head(&SafeTensors::open_folder(&to).unwrap(), "score.weight") == own, "{out}");
        let short =
            job(folder, "reward.toml", &format!("short {out}"), &[more, &["stage.0.steps=1"]].concat());
        train(&short.unwrap(), &Order::default(), &Silent).unwrap();
        let less = folder.join(format!("short {out}/adapter/adapter_model.safetensors"));
        let less = head(&SafeTensors::open_file(&less).unwrap(), "base_model.model.score.weight");
        assert!(less != own, "{out}");
        // The base has no head; the adapter brings it.
        let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 30);
        let model = load_with(&device, &base.model(), Some(&adapter), None, &Silent).unwrap().model;
        assert!(model.spec.scores == 1 && model.spec.adapter.is_some(), "{out}");
        // Over its base, the adapter gives the merged model's scores, and generates no text.
        let machine = Machine::of_kind(MachineKind::Cpu, 1, &Silent);
        let rewards = |model: PathBuf, adapter: Option<PathBuf>| {
            let out = folder.join("scored.jsonl");
            let request = Request {
                model,
                adapter,
                data: folder.join("pairs.jsonl"),
                out: out.clone(),
                precision: Precision::F32,
                best: None,
                labels: Vec::new(),
                responses: None,
            };
            score(&request, &machine, &Silent).unwrap();
            let rows = fs::read_to_string(out).unwrap();
            let first: Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
            let rewards = first["rewards"].as_array().unwrap().clone();
            let each = |it: &Value| it.as_array().map_or_else(|| vec![it.clone()], Clone::clone);
            rewards.iter().flat_map(each).filter_map(|it| it.as_f64()).collect::<Vec<f64>>()
        };
        let own = rewards(base.model(), Some(adapter.clone()));
        let merged = rewards(to.clone(), None);
        assert!(!own.is_empty() && own.len() == merged.len(), "{out}: {own:?} {merged:?}");
        assert!(own.iter().zip(&merged).all(|(a, b)| (a - b).abs() < 1e-4), "{out}: {own:?} {merged:?}");
        for (model, adapter) in [(base.model(), Some(adapter.as_path())), (to, None)] {
            let refused = open_writer(&model, adapter, None, &machine, &Silent).err().unwrap().to_string();
            assert!(refused.contains("is a reward model"), "{out}: {refused}");
        }
    }
}
