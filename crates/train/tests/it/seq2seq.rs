//! Steps of encoder-decoders: losses of packed pairs are Transformers', and plans have both streams.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::Places;
use fathom_model::{Caps, Model, load, open_any};
use fathom_tensor::{DType, Device};
use fathom_train::seq2seq::{Seq2seq, SpanSizes};
use fathom_train::{InStep, MicroBatch, Objective, SourceTokens, Trainer, plan};
use serde_json::Value;

const SPANS: Seq2seq = Seq2seq { spans: Some(SpanSizes { share: 0.15, mean: 3.0 }) };

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_t5").join(name)
}

/// A trainer of the model in a folder, in f32.
pub fn trainer(folder: &Path) -> Trainer {
    let device = Device::new(Arc::new(Cpu::new(2, None)), 1 << 28);
    let opened = open_any(folder).unwrap();
    let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
    load(&device, &model, &mut params, &opened.source).unwrap();
    Trainer::new(&device, model, params)
}

/// A step of up to nine documents with an objective.
pub fn how(objective: impl Objective + 'static, tile_rows: Option<usize>) -> InStep {
    let caps = Caps { docs: 9, seq_tokens: 200 };
    let mut how = InStep::plain(Places::linear().with_tiles(tile_rows), caps);
    how.goal.objective = Arc::new(objective);
    how
}

#[test]
fn losses_of_packed_pairs_are_those_of_transformers() {
    for name in ["t5_v10", "flan", "umt5"] {
        let text = std::fs::read_to_string(folder(name).join("golden.json")).unwrap();
        let golden: Value = serde_json::from_str(&text).unwrap();
        let (mut micro, mut source) = (MicroBatch::default(), SourceTokens::default());
        for pair in golden["pairs"].as_array().unwrap() {
            let ints = |key: &str| serde_json::from_value::<Vec<i32>>(pair[key].clone()).unwrap();
            let (ids, start) = (ints("source"), source.ids.len());
            source.docs.push(start..start + ids.len());
            source.positions.extend(0..ids.len() as i32);
            source.ids.extend(ids);
            let (ids, start) = (ints("decoder"), micro.ids.len());
            micro.docs.push(start..start + ids.len());
            micro.positions.extend(0..ids.len() as i32);
            micro.ids.extend(ids);
            micro.labels.extend(ints("labels"));
        }
        micro.source = Some(source);
        let mut trainer = trainer(&folder(name));
        let (tokens, count) = trainer.accumulate(&[&micro], &how(SPANS, None));
        assert_eq!((tokens, count), (micro.tokens() as u64, golden["valid_tokens"].as_f64().unwrap()));
        let (found, wanted) = (f64::from(trainer.loss_sum()) / count, golden["loss"].as_f64().unwrap());
        assert!((found / wanted - 1.0).abs() < 1e-6, "{name}: {found} {wanted}");
    }
}

/// A micro-batch of the plan's shape, with contents.
fn filled(shape: MicroBatch, seed: usize) -> MicroBatch {
    let MicroBatch { ids, docs, source, chunks, .. } = shape;
    let source = source.unwrap();
    let token = |at: usize| 2 + ((at * 7 + seed) % 60) as i32;
    let places = |docs: &[std::ops::Range<usize>]| docs.iter().flat_map(|doc| 0..doc.len() as i32).collect();
    MicroBatch {
        ids: (0..ids.len()).map(token).collect(),
        labels: (0..ids.len()).map(|at| if at % 4 == 3 { -100 } else { token(at + 1) }).collect(),
        positions: places(&docs),
        source: Some(SourceTokens {
            ids: (0..source.ids.len()).map(token).collect(),
            positions: places(&source.docs),
            docs: source.docs,
        }),
        docs,
        chunks,
        ..MicroBatch::default()
    }
}

/// Compares three steps of two micro-batches with their plan; `change` takes the plan's shape.
pub fn check_plan(name: &str, mut trainer: Trainer, how: &InStep, change: &dyn Fn(MicroBatch) -> MicroBatch) {
    let tokens = 800;
    let micro = [1, 2].map(|seed| filled(change(how.shape(tokens)), seed));
    for _ in 0..3 {
        trainer.step(&micro, how).unwrap();
    }
    let profile = trainer.device.machine.profile();
    let planned = plan(profile, &trainer.model.spec, DType::F32, how, 2, tokens).unwrap();
    let found = trainer.device.pool.usage();
    assert_eq!(
        (planned.usage.peak_reserved, planned.usage.peak_live),
        (found.peak_reserved, found.peak_live),
        "{name}"
    );
}

#[test]
fn the_plan_of_two_streams_is_the_peak_of_their_steps() {
    for (name, objective, tile_rows) in
        [("t5_v11", SPANS, None), ("t5_v10", SPANS, Some(128)), ("umt5", Seq2seq { spans: None }, Some(256))]
    {
        check_plan(name, trainer(&folder(name)), &how(objective, tile_rows), &|shape| shape);
    }
}
