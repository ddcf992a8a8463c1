//! Steps of decoders that read neighbours of their text: losses are those of the formulas, plans have both streams, and ranks
//! share them.

use std::path::{Path, PathBuf};

use fathom_model::{Retrieval, Spec, open_any_config};
use fathom_tensor::DType;
use fathom_tensor::mesh::Grid;
use fathom_train::parallel::{Ranks, Sharding};
use fathom_train::retrieval::Retro;
use fathom_train::{MicroBatch, SourceTokens};
use serde_json::Value;

use crate::mesh::{Case, ONE, check};
use crate::seq2seq::{check_plan, how, trainer};

const GRID: Grid = ONE.grid;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_retro").join(name)
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
        let mut trainer = trainer(&folder(name));
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
        let (_, count) = trainer.accumulate(&[&micro], &how(Retro { sizes }, None));
        assert_eq!(count, golden["valid_tokens"].as_f64().unwrap());
        let (found, wanted) = (f64::from(trainer.loss_sum()) / count, golden["loss"].as_f64().unwrap());
        assert!((found / wanted - 1.0).abs() < 1e-6, "{name}: {found} {wanted}");
    }
}

/// Every third chunk has fewer neighbours, every fifth none.
fn thinned(shape: MicroBatch) -> MicroBatch {
    let chunks = shape.chunks.into_iter().enumerate();
    let chunks = chunks.filter(|(at, _)| at % 3 < 2 && at % 5 > 0).map(|(_, row)| row).collect();
    MicroBatch { chunks, ..shape }
}

#[test]
fn the_plan_of_a_step_with_neighbours_is_its_peak() {
    for (name, tile_rows) in [("retro", None), ("retro", Some(128)), ("retro_first", Some(256))] {
        let trainer = trainer(&folder(name));
        let how = how(Retro { sizes: trainer.model.spec.retrieval.unwrap() }, tile_rows);
        check_plan(name, trainer, &how, &thinned);
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
