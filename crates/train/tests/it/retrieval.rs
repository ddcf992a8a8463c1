//! Steps of decoders that read neighbours of their text: losses are those of the formulas, plans have both streams, and ranks
//! share them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::Places;
use fathom_model::{Caps, Model, Retrieval, Spec, load, open_any, open_any_config};
use fathom_tensor::mesh::Grid;
use fathom_tensor::{DType, Device};
use fathom_train::parallel::{Ranks, Sharding};
use fathom_train::retrieval::Retro;
use fathom_train::{InStep, MicroBatch, SourceTokens, Trainer, plan};
use serde_json::Value;

use crate::mesh::{Case, ONE, check};

const GRID: Grid = ONE.grid;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_retro").join(name)
}

fn trainer(name: &str) -> Trainer {
    let device = Device::new(Arc::new(Cpu::new(2, None)), 1 << 28);
    let opened = open_any(&folder(name)).unwrap();
    let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
    load(&device, &model, &mut params, &opened.source).unwrap();
    Trainer::new(&device, model, params)
}

fn how(sizes: Retrieval, tile_rows: Option<usize>) -> InStep {
    let caps = Caps { docs: 9, seq_tokens: 200 };
    let mut how = InStep::plain(Places::linear().with_tiles(tile_rows), caps);
    how.goal.objective = Arc::new(Retro { sizes });
    how
}

fn push(source: &mut SourceTokens, ids: &[i32]) {
    let start = source.ids.len();
    source.ids.extend(ids);
    source.positions.extend(0..ids.len() as i32);
    source.docs.push(start..source.ids.len());
}

#[test]
fn losses_of_packed_documents_are_those_of_the_formulas() {
    for name in ["retro", "retro_first"] {
        let text = std::fs::read_to_string(folder(name).join("golden.json")).unwrap();
        let golden: Value = serde_json::from_str(&text).unwrap();
        let mut trainer = trainer(name);
        let sizes = trainer.model.spec.retrieval.unwrap();
        let (mut micro, mut source) = (MicroBatch::default(), SourceTokens::default());
        for document in golden["documents"].as_array().unwrap() {
            let ints = |key: &str| serde_json::from_value::<Vec<i32>>(document[key].clone()).unwrap();
            let (ids, start) = (ints("ids"), micro.ids.len());
            let neighbours: Vec<Vec<Vec<i32>>> =
                serde_json::from_value(document["neighbours"].clone()).unwrap();
            for (index, neighbour) in
                neighbours.iter().enumerate().flat_map(|(at, all)| all.iter().map(move |ids| (at, ids)))
            {
                push(&mut source, neighbour);
                micro.chunks.push(start + index * sizes.chunk);
            }
            micro.docs.push(start..start + ids.len());
            micro.positions.extend(0..ids.len() as i32);
            micro.ids.extend(ids);
            micro.labels.extend(ints("labels"));
        }
        micro.source = Some(source);
        let (_, count) = trainer.accumulate(&[&micro], &how(sizes, None));
        assert_eq!(count, golden["valid_tokens"].as_f64().unwrap());
        let (found, wanted) = (f64::from(trainer.loss_sum()) / count, golden["loss"].as_f64().unwrap());
        assert!((found / wanted - 1.0).abs() < 1e-6, "{name}: {found} {wanted}");
    }
}

/// A micro-batch of the plan's shape, with contents; every third chunk has fewer neighbours, every fifth none.
fn filled(how: &InStep, tokens: usize, seed: usize) -> MicroBatch {
    let MicroBatch { ids, docs, source, chunks, .. } = how.shape(tokens);
    let source = source.unwrap();
    let token = |at: usize| 2 + ((at * 7 + seed) % 60) as i32;
    let places = |docs: &[std::ops::Range<usize>]| docs.iter().flat_map(|doc| 0..doc.len() as i32).collect();
    MicroBatch {
        ids: (0..ids.len()).map(token).collect(),
        labels: (0..ids.len()).map(|at| if at % 4 == 3 { -100 } else { token(at + 1) }).collect(),
        positions: places(&docs),
        chunks: chunks
            .into_iter()
            .enumerate()
            .filter(|(at, _)| at % 3 < 2 && at % 5 > 0)
            .map(|(_, row)| row)
            .collect(),
        source: Some(SourceTokens {
            ids: (0..source.ids.len()).map(token).collect(),
            positions: places(&source.docs),
            docs: source.docs,
        }),
        docs,
        ..MicroBatch::default()
    }
}

#[test]
fn the_plan_of_a_step_with_neighbours_is_its_peak() {
    for (name, tile_rows) in [("retro", None), ("retro", Some(128)), ("retro_first", Some(256))] {
        let mut trainer = trainer(name);
        let (how, tokens) = (how(trainer.model.spec.retrieval.unwrap(), tile_rows), 800);
        let micro = [filled(&how, tokens, 1), filled(&how, tokens, 2)];
        for _ in 0..3 {
            trainer.step(&micro, &how).unwrap();
        }
        let profile = trainer.device.machine.profile();
        let planned = plan(profile, &trainer.model.spec, DType::F32, &how, 2, tokens).unwrap();
        let found = trainer.device.pool.usage();
        assert_eq!(
            (planned.usage.peak_reserved, planned.usage.peak_live),
            (found.peak_reserved, found.peak_live),
            "{name}"
        );
    }
}

/// A stream with neighbours of its chunks: the chunks of another document, in another order.
pub fn with_neighbours(micro: MicroBatch, sizes: Retrieval) -> MicroBatch {
    let (mut source, mut chunks) = (SourceTokens::default(), Vec::new());
    for doc in &micro.docs {
        for chunk in 0..doc.len() / sizes.chunk {
            for at in 0..(chunk + 1) % (sizes.neighbours + 1) {
                let from = (chunk * 31 + at * 17) % (micro.ids.len() - sizes.neighbour());
                push(&mut source, &micro.ids[from..from + sizes.neighbour() - at]);
                chunks.push(doc.start + chunk * sizes.chunk);
            }
        }
    }
    let rest = source.ids.len().next_multiple_of(128) - source.ids.len();
    push(&mut source, &vec![0; rest + 128]);
    MicroBatch { source: Some(source), chunks, ..micro }
}

fn spec(tied: bool) -> Spec {
    let golden = open_any_config(&folder("retro")).unwrap().0;
    Spec { tied, hidden: 64, vocab: 131, ..golden }
}

#[test]
fn ranks_share_the_layers_of_a_text_and_of_its_neighbours() {
    let case = Case { spec, tile_rows: Some(128), ..ONE };
    for sequence_parallel in [false, true] {
        check(Case { grid: Grid { tp: 2, sequence_parallel, ..GRID }, ..case }, false);
    }
    check(Case { grid: Grid { tp: 2, ..GRID }, dtype: DType::Bf16, tied: true, ..case }, false);
    for sharding in [Sharding::Optim, Sharding::OptimGradsParams] {
        check(Case { grid: Grid { dp: 2, ..GRID }, sharding, ..case }, false);
    }
}

#[test]
fn neither_stages_nor_a_context_share_a_text_with_neighbours() {
    for (grid, key) in [(Grid { pp: 2, ..GRID }, "mesh.pp"), (Grid { cp: 2, ..GRID }, "mesh.cp")] {
        let message = Ranks { grid, ..Ranks::default() }.check(&spec(false)).unwrap_err().to_string();
        assert!(message.contains(key), "{message}");
    }
}
