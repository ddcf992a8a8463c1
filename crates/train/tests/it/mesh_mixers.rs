//! A family with a mixer of its own over ranks, compared with one rank as in `mesh.rs`.

use fathom_model::Spec;
use fathom_tensor::mesh::{Axis, Grid};
use fathom_train::parallel::Ranks;
use fathom_train::parallel::stages::Order;

use crate::mesh::{Case, ONE, check, moves};
use crate::recurrent;

const GRID: Grid = ONE.grid;

fn spec(tied: bool) -> Spec {
    Spec { tied, ..recurrent::spec(64, 4) }
}

#[test]
fn ranks_share_a_recurrence_over_packed_documents() {
    let case = Case { spec, ..ONE };
    for (pp, chunks) in [(2, 1), (2, 2)] {
        check(Case { grid: Grid { pp, ..GRID }, chunks, ..case }, true);
    }
    check(Case { grid: Grid { pp: 2, ..GRID }, order: Order::ZeroBubble, ..case }, true);
    let alone = |_| recurrent::without_attention(64, 4);
    check(Case { grid: Grid { pp: 2, ..GRID }, spec: alone, ..case }, true);
    for sequence_parallel in [false, true] {
        let grid = Grid { tp: 2, sequence_parallel, ..GRID };
        check(Case { grid, tile_rows: Some(128), ..case }, false);
    }
    check(Case { grid: Grid { tp: 2, pp: 2, sequence_parallel: true, ..GRID }, ..case }, false);
}

/// Without a step in between, no bit changes from any mesh to any other.
#[test]
fn a_recurrence_is_the_same_from_mesh_to_mesh() {
    let case = Case { spec, ..ONE };
    let grids = [GRID, Grid { tp: 2, sequence_parallel: true, ..GRID }, Grid { pp: 2, ..GRID }, GRID];
    moves(case, grids, 60);
}

#[test]
fn axes_that_cannot_share_a_recurrence_are_refused() {
    let check = |grid| Ranks { grid, ..Ranks::default() }.check(&spec(false)).unwrap_err().to_string();
    for (grid, axis, why) in [
        (Grid { cp: 2, ..GRID }, Axis::Cp, "reads in order"),
        (Grid { tp: 2, cp: 2, ..GRID }, Axis::Cp, "reads in order"),
    ] {
        let message = check(grid);
        assert!(message.contains(&format!("mesh.{}", axis.name())) && message.contains(why), "{message}");
    }
}
