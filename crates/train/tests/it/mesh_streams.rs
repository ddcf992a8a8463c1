//! A family of two stacks over ranks, compared with one rank as in `mesh.rs`.

use fathom_grad::CpComm;
use fathom_model::Spec;
use fathom_tensor::DType;
use fathom_tensor::mesh::Grid;
use fathom_train::parallel::Sharding;
use fathom_train::parallel::stages::Order;
use fathom_train::{MicroBatch, SourceTokens};

use crate::mesh::{Case, ONE, check, moves};
use crate::{retrieval, streams};

const GRID: Grid = ONE.grid;

fn spec(tied: bool) -> Spec {
    Spec { tied, ..streams::spec(64, 4) }
}

/// With the stream of the model's source, if it has one.
pub fn with_source(micro: MicroBatch, spec: &Spec) -> MicroBatch {
    match spec.retrieval {
        Some(sizes) => retrieval::with_neighbours(micro, sizes),
        None => MicroBatch { source: (spec.source > 0).then(|| source(&micro)), ..micro },
    }
}

/// The first half of each document.
pub fn source(micro: &MicroBatch) -> SourceTokens {
    let mut source = SourceTokens::default();
    for doc in &micro.docs {
        let (first, half) = (source.ids.len(), doc.start..doc.start + doc.len() / 2);
        source.docs.push(first..first + half.len());
        source.positions.extend(0..half.len() as i32);
        source.ids.extend(&micro.ids[half]);
    }
    source
}

#[test]
fn stages_pass_both_streams_on() {
    let case = Case { spec, ..ONE };
    for (pp, chunks) in [(2, 1), (4, 1), (2, 2)] {
        check(Case { grid: Grid { pp, ..GRID }, chunks, ..case }, true);
    }
    let two = Grid { pp: 2, ..GRID };
    check(Case { grid: two, layout: &[1, 3], ..case }, true);
    check(Case { grid: two, layout: &[3, 1], order: Order::ZeroBubble, ..case }, true);
}

#[test]
fn ranks_share_the_layers_of_both_streams() {
    let case = Case { spec, tile_rows: Some(128), ..ONE };
    for sequence_parallel in [false, true] {
        check(Case { grid: Grid { tp: 2, sequence_parallel, ..GRID }, ..case }, false);
    }
    let grid = Grid { tp: 2, pp: 2, sequence_parallel: true, ..GRID };
    check(Case { grid, ..case }, false);
    check(Case { grid, dtype: DType::Bf16, ..case }, false);
    for sharding in [Sharding::Optim, Sharding::OptimGradsParams] {
        check(Case { grid: Grid { dp: 2, ..GRID }, sharding, ..case }, false);
    }
}

/// Without a step in between, no bit changes from any mesh to any other.
#[test]
fn two_stacks_are_the_same_from_mesh_to_mesh() {
    let case = Case { spec, ..ONE };
    let grids = [GRID, Grid { tp: 2, sequence_parallel: true, ..GRID }, Grid { pp: 2, ..GRID }, GRID];
    moves(case, grids, 60);
}

/// A tiny encoder-decoder with random weights.
fn golden(name: &str) -> Spec {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_t5").join(name);
    fathom_model::open_any_config(&folder).unwrap().0
}

fn t5(tied: bool) -> Spec {
    Spec { tied, hidden: 128, ..golden("t5_v11") }
}

fn umt5(tied: bool) -> Spec {
    Spec { tied, hidden: 128, logit_scale: 1.0, ..golden("umt5") }
}

#[test]
fn encoder_decoders_have_the_losses_of_one_rank() {
    let case = Case { spec: t5, tile_rows: Some(128), ..ONE };
    for sequence_parallel in [false, true] {
        check(Case { grid: Grid { tp: 2, sequence_parallel, ..GRID }, ..case }, false);
    }
    for sharding in [Sharding::NoShard, Sharding::Optim, Sharding::OptimGrads, Sharding::OptimGradsParams] {
        check(Case { grid: Grid { dp: 2, ..GRID }, sharding, ..case }, false);
    }
    check(Case { spec: umt5, grid: Grid { pp: 2, ..GRID }, ..ONE }, true);
}

/// Each stage has a copy of the table of distances of a stack whose layers it shares with others.
#[test]
fn stages_share_the_tables_of_distances_of_their_stacks() {
    let two = Grid { pp: 2, ..GRID };
    for layout in [&[1, 3][..], &[3, 1]] {
        check(Case { spec: t5, grid: two, layout, ..ONE }, false);
    }
    check(Case { spec: t5, grid: Grid { pp: 4, ..GRID }, ..ONE }, false);
    check(Case { spec: t5, grid: two, chunks: 2, ..ONE }, false);
    for pp in [2, 4] {
        check(Case { spec: t5, grid: Grid { tp: 2, pp, sequence_parallel: true, ..GRID }, ..ONE }, false);
        for sharding in [Sharding::Optim, Sharding::OptimGradsParams] {
            check(Case { spec: t5, grid: Grid { dp: 2, pp, ..GRID }, sharding, ..ONE }, false);
        }
    }
    let case = Case { spec: t5, ..ONE };
    moves(case, [GRID, Grid { pp: 4, ..GRID }, two, GRID], 60);
}

/// Keys of a source, and what attends to them, are gathered; those of the main stream travel as in other models.
#[test]
fn a_context_shares_both_streams() {
    let two = Grid { cp: 2, ..GRID };
    for cp_comm in [CpComm::P2p, CpComm::A2a] {
        check(Case { spec: t5, grid: two, cp_comm, ..ONE }, false);
    }
    check(Case { spec: umt5, grid: two, cp_comm: CpComm::AllGather, ..ONE }, false);
    check(Case { spec, grid: two, tile_rows: Some(128), ..ONE }, false);
    for grid in [Grid { tp: 2, ..two }, Grid { pp: 2, ..two }] {
        check(Case { spec: t5, grid, ..ONE }, false);
    }
}
