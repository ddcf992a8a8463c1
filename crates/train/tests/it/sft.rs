//! Fine-tuning a tiny model, compared with TRL: `tests/golden_sft`, written by `oracle/sft.py`.

use std::path::PathBuf;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{AdamWSettings, Places};
use fathom_model::{Caps, Model, load, open};
use fathom_tensor::mesh::{Grid, Mesh, Seat, ThreadsOptions, threads};
use fathom_tensor::{DType, Device};
use fathom_text::pack::{Boundaries, Doc, Packing, materialise, pack};
use fathom_text::store::{DocMeta, Header, Store, StoreWriter};
use fathom_train::parallel::Ranks;
use fathom_train::{CrossEntropy, Dft, Goal, InStep, MicroBatch, Objective, Trainer};
use serde_json::Value;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_sft")
}

fn golden() -> Value {
    serde_json::from_slice(&std::fs::read(root().join("steps.json")).unwrap()).unwrap()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

use crate::objective::joined;

/// The rows as a store, weighted by one of their masks.
fn store(rows: &[Value], mask: Option<&str>) -> Store {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("rows");
    let mut writer = StoreWriter::create(&prefix, Header::new(96)).unwrap();
    for row in rows {
        let ids: Vec<u32> = floats(&row["input_ids"]).into_iter().map(|id| id as u32).collect();
        let weights = mask.map_or_else(|| vec![1.0; ids.len()], |mask| floats(&row[mask]));
        writer.push_weighted(&ids, &weights, DocMeta::of_text("", 0)).unwrap();
    }
    writer.finish().unwrap();
    Store::open(&prefix).unwrap()
}

/// The store's samples, each as a stream of its own, padded to `whole` tokens if given.
fn samples(store: &Store, packing: Packing, longest: u32, whole: Option<usize>) -> Vec<MicroBatch> {
    let doc = |doc: usize| Doc { doc: doc as u64, tokens: store.doc_len(doc) as u64 };
    let docs: Vec<Doc> = (0..store.num_documents()).map(doc).collect();
    let stream = |sample: &Vec<_>| {
        let packed = materialise(store, sample, Boundaries::Masked).unwrap();
        let docs = packed.docs.iter().map(|(from, to)| *from as usize..*to as usize).collect();
        let ids: Vec<i32> = packed.tokens.iter().map(|id| *id as i32).collect();
        let (labels, positions, weights) = (packed.labels, packed.positions, packed.weights);
        let mut micro = MicroBatch { ids, labels, positions, docs, weights, ..MicroBatch::default() };
        let from = micro.ids.len();
        if let Some(tokens) = whole.filter(|tokens| *tokens > from) {
            micro.ids.resize(tokens, 0);
            micro.labels.resize(tokens, -100);
            micro.weights.resize(tokens, 0.0);
            micro.positions.extend(0..(tokens - from) as i32);
            micro.docs.push(from..tokens);
        }
        micro
    };
    pack(&docs, longest, packing).iter().map(stream).collect()
}

/// The update of the reference runs.
pub fn adamw(lr: f32) -> AdamWSettings {
    let plain = AdamWSettings::default();
    AdamWSettings { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, max_norm: 1.0, ..plain }
}

/// Losses and gradient norms of steps over these micro-batches, and the mean entropies and shares of most likely
/// labels.
fn train(
    device: &Device,
    steps: &[Vec<MicroBatch>],
    objective: Arc<dyn Objective>,
    rate: f32,
) -> Vec<[f32; 4]> {
    let opened = open(&root().join("model")).unwrap();
    let (model, mut params) = Model::declare(device, &opened.spec, DType::F32);
    load(device, &model, &mut params, &opened.source).unwrap();
    let mut trainer = Trainer::new(device, model, params);
    let adamw = adamw(rate);
    let how = InStep {
        caps: Caps { docs: 16, seq_tokens: 512 },
        ranks: Ranks { grid: *device.mesh.grid(), ..Ranks::default() },
        goal: Goal { objective, weighted: true, measured: true, ..Goal::default() },
        adamw,
        ..crate::step::how(Places::none(), 512)
    };
    let step = |micros: &Vec<MicroBatch>| {
        let result = trainer.step(micros, &how).unwrap();
        let sums = result.metrics.map(fathom_tensor::InFlight::wait).unwrap_or_default();
        let sums: Vec<f32> = sums.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
        // Label metrics are the last two, after the objective's own.
        let [.., entropy, labels, hits, all] = sums[..] else { panic!("{sums:?}") };
        let loss = result.loss.wait_f32() / result.count.wait_f32();
        [loss, result.norm.wait_f32(), entropy / labels, hits / all]
    };
    steps.iter().map(step).collect()
}

fn alone() -> Device {
    Device::new(Arc::new(Cpu::new(1, None)), 1 << 28)
}

fn check(name: &str, found: &[[f32; 4]], expected: &[[f32; 4]], most: f32) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        assert!((found - expected).abs() <= most * expected.abs(), "{name}: {found} and {expected}");
    }
}

#[test]
fn losses_and_norms_are_those_of_trl() {
    let golden = golden();
    let (rows, rate) = (golden["rows"].as_array().unwrap(), golden["rate"].as_f64().unwrap() as f32);
    let longest = golden["longest"].as_u64().unwrap() as u32;
    for (name, case) in golden["cases"].as_object().unwrap() {
        let store = store(rows, case["mask"].as_str());
        let packed = case["packed"] == true;
        let packing = if packed { Packing::BestFit } else { Packing::Single };
        let samples = samples(&store, packing, longest, None);
        let one_by_one = case["accumulate"].as_u64().is_some();
        let steps = samples.chunks(if packed { 3 } else { 4 }).take(3);
        let steps = steps.map(|step| if one_by_one { step.to_vec() } else { vec![joined(step)] });
        let objective: Arc<dyn Objective> =
            if case["loss_type"] == "dft" { Arc::new(Dft) } else { Arc::new(CrossEntropy) };
        let found = train(&alone(), &steps.collect::<Vec<_>>(), objective, rate);
        // TRL averages the metrics of micro-batches; here a step has one mean over all of its labels.
        let measured = match name.as_str() {
            "accumulated" => Some(&golden["cases"]["assistant_only"]),
            _ => (!one_by_one).then_some(case),
        };
        let column = |case: &Value, key: &str| floats(&case[key]);
        let (losses, norms) = (column(case, "losses"), column(case, "grad_norms"));
        let said = measured.map(|case| (column(case, "entropy"), column(case, "mean_token_accuracy")));
        let expected = |step: usize| {
            let of_trl = said.as_ref().map(|(entropy, accuracy)| [entropy[step], accuracy[step]]);
            let [entropy, accuracy] = of_trl.unwrap_or([found[step][2], found[step][3]]);
            [losses[step], norms[step], entropy, accuracy]
        };
        check(name, &found, &(0..found.len()).map(expected).collect::<Vec<_>>(), 1e-5);
    }
}

/// Rows in bins, alone, one after the other and on two context parallel ranks give the same steps.
#[test]
fn packing_accumulation_and_context_parallel_ranks_change_nothing() {
    let golden = golden();
    let rows = golden["rows"].as_array().unwrap();
    let longest = golden["longest"].as_u64().unwrap() as u32;
    for objective in [Arc::new(CrossEntropy) as Arc<dyn Objective>, Arc::new(Dft)] {
        let store = store(rows, Some("assistant_masks"));
        // Every step has all rows, so that bins may contain any of them.
        let of = |packing, whole| samples(&store, packing, longest, whole);
        let (singles, bins) = (of(Packing::Single, None), of(Packing::BestFit, None));
        assert!(bins.len() < singles.len());
        let expected = train(&alone(), &vec![vec![joined(&singles)]; 3], objective.clone(), 1e-2);
        for (name, step) in
            [("accumulated", singles.clone()), ("packed", bins.clone()), ("one stream", vec![joined(&bins)])]
        {
            check(name, &train(&alone(), &vec![step; 3], objective.clone(), 1e-2), &expected, 1e-6);
        }
        let whole = of(Packing::BestFit, Some(32));
        let one = Grid::default();
        for (name, grid) in [("cp 2", Grid { cp: 2, ..one }), ("tp 2", Grid { tp: 2, ..one })] {
            let seats = threads(2, ThreadsOptions::default());
            std::thread::scope(|scope| {
                let rank = |seat: Seat| {
                    let (whole, objective) = (whole.clone(), objective.clone());
                    scope.spawn(move || {
                        let mesh = Mesh::new(grid, Box::new(seat.take()));
                        let device = Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 28, mesh);
                        train(&device, &vec![whole; 3], objective, 1e-2)
                    })
                };
                let ranks: Vec<_> = seats.into_iter().map(rank).collect();
                for rank in ranks {
                    check(name, &rank.join().unwrap(), &expected, if grid.tp > 1 { 1e-5 } else { 1e-6 });
                }
            });
        }
    }
}
