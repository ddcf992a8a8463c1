//! A model with a value head on several ranks: it trains and estimates as on one.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use fathom_app::export::{Conversion, Target, export};
use fathom_app::train::Order;
use fathom_app::{Silent, train};
use fathom_cpu::Cpu;
use fathom_grad::{AdamWSettings, Moments, Sharding};
use fathom_model::{Model, SafeTensors, Source, Spec, WithRandomTensor, load, open};
use fathom_tensor::mesh::{Axis, Grid, Mesh, Seat, ThreadsOptions, threads};
use fathom_tensor::{DType, Device};
use fathom_train::parallel::Ranks;
use fathom_train::policy::pack::{Doc, Room, bins, stream};
use fathom_train::recipe::{PolicyName, RlTable};
use fathom_train::{MicroBatch, Outcome, Reference, Refers, Trainer};
use serde_json::Value;

use crate::policy::{PROMPTS, bits, events, fill, in_step, job, prepare_with, said, written};
use crate::policy_mesh::family;

/// Tokens of a stream.
const TOKENS: usize = 128;

/// Loads a rank's part of a model with a head of `scores` outputs per token next to its vocabulary head, and of a
/// reference copy if the run compares.
pub(crate) fn with_values(
    device: &Device,
    folder: &Path,
    scores: usize,
    (sharding, refers): (Sharding, Refers),
) -> Trainer {
    let opened = open(folder).unwrap();
    let ranks = Ranks { grid: *device.mesh.grid(), sharding, ..Ranks::default() };
    let part = |scores: usize| {
        let spec = Spec { scores, ..opened.spec.clone() };
        let portion = ranks.portion(&spec, &device.mesh);
        let (model, mut params) = Model::declare_part(device, &spec, DType::F32, None, portion);
        let source = WithRandomTensor::new(&opened.source, [scores, spec.hidden], 5);
        let source: &dyn Source = if scores > 0 { &source } else { &opened.source };
        load(device, &model, &mut params, source).unwrap();
        (model, params)
    };
    let (model, params) = part(scores);
    let mut trainer = Trainer::sharded(device, model, params, sharding, Moments::default());
    if refers == Refers::Copy {
        let (model, params) = part(0);
        trainer.refer_to(Reference::copy(model, params, None));
    }
    trainer
}

/// Generates answers with made-up advantages, values and returns, in padded streams.
fn streams(device: &Device, folder: &Path) -> Vec<MicroBatch> {
    let trainer = with_values(device, folder, 1, (Sharding::NoShard, Refers::Not));
    let mut docs: Vec<Doc> = written(&trainer, 0..PROMPTS, 1.0, (1024, 0), false);
    for (number, doc) in docs.iter_mut().enumerate() {
        let of = |at: usize, by: usize| ((at * 7 + number * by) % 11) as f32 / 11.0 - 0.4;
        doc.advantages = (0..doc.answer()).map(|at| of(at, 3)).collect();
        doc.values = (0..doc.answer()).map(|at| of(at, 5) / 8.0).collect();
        doc.returns = (0..doc.answer()).map(|at| of(at, 2)).collect();
    }
    let docs: Vec<&Doc> = docs.iter().collect();
    let of = |bin: Vec<usize>| {
        let mut micro = stream(&bin.iter().map(|at| docs[*at]).collect::<Vec<_>>(), true);
        fill(&mut micro, TOKENS);
        micro
    };
    let bins = bins(&docs, Room { tokens: TOKENS - 1, docs: 2 });
    assert!(bins.len().is_multiple_of(2), "{}", bins.len());
    bins.into_iter().map(of).collect()
}

/// Returns the results of three steps over a rank's share of these streams.
fn steps(device: &Device, folder: &Path, sharding: Sharding, all: &[MicroBatch]) -> Vec<f64> {
    let mut trainer = with_values(device, folder, 1, (sharding, Refers::Not));
    let policy = RlTable { loss: PolicyName::Ppo, value_coefficient: 0.5, ..RlTable::default() };
    let adamw = AdamWSettings { lr: 1e-3, eps: 1e-6, ..AdamWSettings::default() };
    let mut how = in_step(&trainer, policy.policy().unwrap(), adamw);
    how.ranks.sharding = sharding;
    let each = all.len() / device.mesh.size(Axis::Dp);
    let own: Vec<MicroBatch> =
        all.iter().skip(each * device.mesh.index(Axis::Dp)).take(each).cloned().collect();
    let step = |_| said(trainer.step(&own, &how).unwrap());
    (0..3).flat_map(step).map(|(_, value)| value).collect()
}

/// Three steps of a policy with a value head, over every axis.
#[test]
fn a_value_head_learns_over_ranks_what_it_does_on_one() {
    let alone = Device::new(Arc::new(Cpu::new(1, None)), 1 << 30);
    let one = Grid::default();
    for name in ["llama31", "llama32_tied"] {
        let folder = &family(name);
        let all = &streams(&alone, folder);
        let want = steps(&alone, folder, Sharding::NoShard, all);
        for (grid, sharding) in [
            (Grid { dp: 2, ..one }, Sharding::NoShard),
            (Grid { dp: 2, ..one }, Sharding::OptimGradsParams),
            (Grid { tp: 2, ..one }, Sharding::NoShard),
            (Grid { tp: 2, sequence_parallel: true, ..one }, Sharding::NoShard),
            (Grid { pp: 2, ..one }, Sharding::NoShard),
            (Grid { cp: 2, ..one }, Sharding::NoShard),
        ] {
            std::thread::scope(|scope| {
                let rank = |seat: Seat| {
                    scope.spawn(move || {
                        let mesh = Mesh::new(grid, Box::new(seat.take()));
                        steps(
                            &Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 30, mesh),
                            folder,
                            sharding,
                            all,
                        )
                    })
                };
                let ranks: Vec<_> =
                    threads(grid.ranks(), ThreadsOptions::default()).into_iter().map(rank).collect();
                for rank in ranks {
                    let found = rank.join().unwrap();
                    let near = |(a, b): (&f64, &f64)| {
                        (a.is_nan() && b.is_nan()) || (a - b).abs() <= 2e-5 * b.abs().max(1.0)
                    };
                    assert!(
                        found.iter().zip(&want).all(near),
                        "{name} on {grid}, {sharding:?}: {found:?} {want:?}"
                    );
                }
            });
        }
    }
}

/// Four steps with a value head; rewards include the divergence from the reference.
const PPO: [&str; 7] = [
    "stage.0.steps=4",
    "rl.loss=ppo",
    "rl.advantage=gae",
    "rl.minibatches=3",
    "rl.beta=0.05",
    "rl.kl=k1",
    "rl.kl_in=reward",
];

/// Runs with a value head on several ranks equal those on one: answers, values, losses. A run stopped within a rollout
/// resumes with the same bits, and the exported model has no value head.
#[test]
fn ppo_over_ranks_is_that_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare_with(folder, &["model.kv_heads=2"]);
    let more = [&PPO[..], &["rl.shown=12"]].concat();
    let run = |out: &str, mesh: &[&str]| {
        let job = job(folder, out, &[&more[..], mesh].concat());
        train(&job, &Order::default(), &Silent).unwrap().outcome
    };
    let texts = |out: &str| -> Vec<Value> {
        let rollout = events(&folder.join(out), "rollout").remove(0);
        rollout["answers"].as_array().unwrap().iter().map(|it| it["text"].clone()).collect()
    };
    let numbers = |out: &str| -> Vec<Vec<f64>> {
        let of = |step: &Value| {
            let metric = |name: &str| step["metrics"][name].as_f64().unwrap_or(f64::NAN);
            let values = ["loss/value_avg", "val/mean", "val/error", "loss/policy_avg", "probs_ratio"];
            let own = ["loss", "grad_norm"].map(|key| step[key].as_f64().unwrap());
            own.into_iter().chain(values.map(metric)).collect()
        };
        // Only steps of the first rollout.
        events(&folder.join(out), "step")[..3].iter().map(of).collect()
    };
    assert_eq!(run("one", &[]), Outcome::Finished);
    let (answers, want) = (texts("one"), numbers("one"));
    assert!(want.iter().flatten().all(|number| number.is_finite()), "{want:?}");
    for (out, mesh) in [
        ("dp", &["mesh.dp=2"][..]),
        ("parts", &["mesh.dp=2", "mesh.sharding=optim_grads_params"]),
        ("pp", &["mesh.pp=2"]),
        ("cp", &["mesh.cp=2", "mesh.cp_comm_type=all_gather"]),
        ("ring", &["mesh.cp=2"]),
        ("tp", &["mesh.tp=2"]),
    ] {
        assert_eq!(run(out, mesh), Outcome::Finished, "{out}");
        let metric = |at: usize, name: &str| events(&folder.join(out), "step")[at]["metrics"][name].clone();
        for first in [0, 3] {
            let [off, ratio] =
                ["token_mult_prob_error", "probs_ratio"].map(|name| metric(first, name).as_f64().unwrap());
            assert_eq!(ratio, 1.0, "{out}");
            assert!(off == 1.0 || out == "ring" && (1.0..1.0 + 1e-5).contains(&off), "{out}: {off}");
        }
        // Sums over parts are rounded differently, so that another token may be sampled.
        let same = texts(out) == answers;
        assert!(same || out == "tp", "{out}");
        for (found, want) in numbers(out).iter().zip(&want).filter(|_| same) {
            let near = found.iter().zip(want).all(|(a, b)| (a - b).abs() <= 5e-5 * b.abs().max(1.0));
            assert!(near, "{out}: {found:?} {want:?}");
        }
        let weights = SafeTensors::open_folder(&folder.join(out).join("model")).unwrap();
        assert!(!weights.names().contains(&"score.weight"), "{out}");
    }
    for (of, mesh) in
        [("tp", &["mesh.tp=2"][..]), ("parts", &["mesh.dp=2", "mesh.sharding=optim_grads_params"])]
    {
        let out = format!("cut_{of}");
        let cut = [mesh, &["machine.fault=\"term rank 1 at step 2\""]].concat();
        assert_eq!([run(&out, &cut), run(&out, &cut)], [Outcome::Interrupted, Outcome::Finished], "{of}");
        assert_eq!(bits(&folder.join(&out)), bits(&folder.join(of)), "{of}");
    }
}

/// Returns a tensor of a checkpoint.
fn saved(folder: &Path, step: usize, name: &str) -> Vec<u8> {
    let folder = folder.join(format!("checkpoints/step-{step:08}/model"));
    let weights = SafeTensors::open_folder(&folder).unwrap();
    let (mut rows, shape) = (Vec::new(), weights.shape(name).map(<[usize]>::to_vec));
    let Some(shape) = shape else { panic!("{name} of {:?}", weights.names()) };
    weights.read_rows(name, 0..shape[0], &mut rows).unwrap();
    rows
}

/// Next to an adapter or selected weights, the value head is new and is trained too; checkpoints have it, and exported
/// models do not.
#[test]
fn a_value_head_is_trained_next_to_frozen_weights() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare_with(folder, &["model.kv_heads=2"]);
    let more = [&PPO[..], &["checkpoint.every_steps=2", "checkpoint.keep=9"]].concat();
    let run = |out: &str, own: &[&str]| {
        let job = job(folder, out, &[&more[..], own].concat());
        train(&job, &Order::default(), &Silent).unwrap().outcome
    };
    let head = |out: &str, step: usize| saved(&folder.join(out), step, "score.weight");
    let (lora, some) = (["adapter.method=lora", "adapter.rank=4"], ["model.trained=[\"layers\\\\.1\"]"]);
    for (out, own) in [
        ("lora", &lora[..]),
        ("some", &some),
        ("dp", &[lora[0], lora[1], "mesh.dp=2", "mesh.sharding=optim_grads_params"]),
        ("pp", &[lora[0], lora[1], "mesh.pp=2"]),
    ] {
        assert_eq!(run(out, own), Outcome::Finished, "{out}");
        assert!(head(out, 2) != head(out, 4), "{out}");
        let cut = format!("cut {out}");
        let fault = [own, &["machine.fault=\"term rank 0 at step 3\""]].concat();
        assert_eq!(
            [run(&cut, &fault), run(&cut, &fault)],
            [Outcome::Interrupted, Outcome::Finished],
            "{out}"
        );
        assert_eq!(bits(&folder.join(&cut)), bits(&folder.join(out)), "{out}");
        assert!(head(&cut, 4) == head(out, 4), "{out}");
        // Neither the adapter's folder nor the merged model has the head.
        let to = folder.join(format!("merged {out}"));
        export(&Conversion { gguf: None, ..Target::Q8_0.conversion(folder.join(out), to.clone()) }, &Silent)
            .unwrap();
        assert!(!SafeTensors::open_folder(&to).unwrap().names().contains(&"score.weight"), "{out}");
        let adapter = folder.join(out).join("adapter");
        if own.contains(&lora[0]) {
            let config = fs::read(adapter.join("adapter_config.json")).unwrap();
            let config: Value = serde_json::from_slice(&config).unwrap();
            assert_eq!(config["modules_to_save"], Value::Null, "{out}");
            let tensors = SafeTensors::open_file(&adapter.join("adapter_model.safetensors")).unwrap();
            assert!(tensors.names().iter().all(|name| name.contains(".lora_")), "{out}");
        }
    }
    let values = |out: &str| -> Vec<f64> {
        let steps = events(&folder.join(out), "step");
        let of = |step: &Value| ["loss", "grad_norm"].map(|key| step[key].as_f64().unwrap());
        steps[..3].iter().flat_map(of).collect()
    };
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 5e-5 * b.abs().max(1.0);
    for out in ["dp", "pp"] {
        let (found, want) = (values(out), values("lora"));
        assert!(found.iter().zip(&want).all(near), "{out} {found:?} {want:?}");
    }
}
