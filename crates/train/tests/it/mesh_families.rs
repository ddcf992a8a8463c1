//! Features of single families over ranks, compared with one rank as in `mesh.rs`.

use fathom_model::{Biases, Family, LayerSpec, Mlp, Residual, Spec};
use fathom_tensor::mesh::Grid;
use fathom_tensor::{Activation, DType, NormKind};
use fathom_train::parallel::Sharding;
use fathom_train::parallel::stages::Order;

use crate::mesh::{Case, ONE, check, moves, spec};

const GRID: Grid = ONE.grid;
const LAYER: NormKind = NormKind { centred: true, plus_one: false, round_first: false, eps: 1e-5 };

/// Like Phi-2: one norm for attention and the MLP, biases everywhere, including the head.
fn phi(tied: bool) -> Spec {
    Spec {
        family: Family::named("phi"),
        norm: LAYER,
        norm_bias: true,
        bias: Biases { qkv: true, attn_out: true, mlp: true },
        mlp: Mlp { activation: Activation::GeluTanh, gated: false },
        head_bias: true,
        ..spec(tied)
    }
    .with_residual(Residual::SharedNorm)
}

/// Like Cohere 2: one norm without bias, window layers that rotate adjacent columns, and full-attention layers without
/// rotation.
fn cohere2(tied: bool) -> Spec {
    let mut spec = Spec {
        family: Family::named("cohere2"),
        norm: LAYER,
        norm_bias: false,
        logit_scale: 0.5,
        ..spec(tied)
    };
    spec.ropes[0].interleaved = true;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        *layer = match index % 2 {
            0 => LayerSpec::decoder(Some(32), Some(0)),
            _ => LayerSpec::decoder(None, None),
        };
    }
    spec.with_residual(Residual::SharedNorm)
}

/// Like Falcon 40B: two norms, both of the block's input.
fn falcon(tied: bool) -> Spec {
    let spec = Spec { family: Family::named("falcon"), head_bias: false, ..phi(tied) };
    spec.with_residual(Residual::Parallel)
}

#[test]
fn tensor_parallel_ranks_share_a_norm_and_part_the_head_s_bias() {
    for sequence_parallel in [false, true] {
        let grid = Grid { tp: 2, sequence_parallel, ..GRID };
        for spec in [phi as fn(bool) -> Spec, cohere2, falcon] {
            check(Case { grid, spec, tile_rows: Some(128), ..ONE }, false);
        }
        check(Case { grid, spec: phi, tied: true, dtype: DType::Bf16, ..ONE }, false);
    }
}

#[test]
fn other_axes_keep_the_head_s_bias_too() {
    let case = Case { spec: phi, ..ONE };
    for tied in [false, true] {
        check(Case { grid: Grid { pp: 2, ..GRID }, tied, ..case }, !tied);
    }
    check(Case { grid: Grid { pp: 2, ..GRID }, order: Order::ZeroBubble, ..case }, true);
    for sharding in [Sharding::OptimGrads, Sharding::OptimGradsParams] {
        check(Case { grid: Grid { dp: 2, ..GRID }, sharding, ..case }, false);
    }
    check(Case { grid: Grid { dp: 2, ..GRID }, on_disk: true, dtype: DType::Bf16, ..case }, false);
    check(Case { grid: Grid { cp: 2, ..GRID }, ..case }, false);
    check(Case { grid: Grid { cp: 2, ..GRID }, spec: cohere2, ..ONE }, false);
}

/// Without a step in between, no bit changes from any mesh to any other.
#[test]
fn a_head_s_bias_is_the_same_from_mesh_to_mesh() {
    let case = Case { spec: phi, ..ONE };
    let grids = [GRID, Grid { tp: 2, sequence_parallel: true, ..GRID }, Grid { pp: 2, dp: 2, ..GRID }, GRID];
    moves(case, grids, 100);
}
