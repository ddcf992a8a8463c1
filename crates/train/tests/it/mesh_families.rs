//! Features of single families over ranks, compared with one rank as in `mesh.rs`.

use fathom_grad::CpComm;
use fathom_model::{Biases, EncoderHead, Family, LayerSpec, Mlp, Residual, Spec};
use fathom_tensor::mesh::Grid;
use fathom_tensor::{Activation, DType, NormKind};
use fathom_train::parallel::stages::Order;
use fathom_train::parallel::{Ranks, Sharding};

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

/// Like BLOOM: slopes by distance, and a norm after the embedding.
fn bloom(tied: bool) -> Spec {
    let layer = LayerSpec::decoder(None, None);
    let (family, slopes, ropes) = (Family::named("bloom"), true, Vec::new());
    let spec = Spec { family, slopes, ropes, embed_norm: true, head_bias: false, kv_heads: 4, ..phi(tied) };
    Spec { layers: vec![layer; spec.layers.len()], ..spec }.with_residual(Residual::Pre)
}

/// Each rank has the slopes of its own heads, also of heads that it has for a part of the tokens of others.
#[test]
fn ranks_share_the_slopes_of_their_heads() {
    let case = Case { spec: bloom, ..ONE };
    for sequence_parallel in [false, true] {
        check(Case { grid: Grid { tp: 2, sequence_parallel, ..GRID }, tile_rows: Some(128), ..case }, false);
    }
    for cp_comm in [CpComm::P2p, CpComm::AllGather, CpComm::A2a] {
        check(Case { grid: Grid { cp: 2, ..GRID }, cp_comm, ..case }, false);
    }
    let comm = CpComm::A2aP2p { inner: 2 };
    check(Case { grid: Grid { cp: 4, ..GRID }, cp_comm: comm, ..case }, false);
    check(Case { grid: Grid { cp: 2, tp: 2, ..GRID }, cp_comm: CpComm::A2a, ..case }, false);
    check(Case { grid: Grid { pp: 2, ..GRID }, ..case }, true);
    check(Case { grid: Grid { pp: 2, ..GRID }, tied: true, ..case }, false);
    check(Case { grid: Grid { dp: 2, ..GRID }, sharding: Sharding::OptimGradsParams, ..case }, false);
    let sequence = Grid { tp: 2, sequence_parallel: true, ..GRID };
    moves(case, [GRID, sequence, Grid { pp: 2, dp: 2, ..GRID }, GRID], 100);
}

/// An encoder with random weights and its masked-language head.
fn encoder(name: &str) -> Spec {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/masked").join(name);
    let spec = fathom_model::open_any_config(&folder).unwrap().0.with_encoder_head(EncoderHead::Masked);
    Spec { learned_positions: spec.learned_positions.map(|_| 400), hidden: 128, ..spec }
}

/// MPNet's biases and DeBERTa's distances are weights of all layers: their gradients are summed after the first layer's.
#[test]
fn replicas_sum_the_gradients_of_tables_that_layers_share() {
    for spec in [(|_| encoder("mpnet")) as fn(bool) -> Spec, |_| encoder("deberta")] {
        for sharding in [Sharding::NoShard, Sharding::Optim, Sharding::OptimGradsParams] {
            check(Case { spec, grid: Grid { dp: 2, ..GRID }, sharding, ..ONE }, false);
        }
    }
}

/// Keys of all ranks are gathered, and tokens attend to both sides: all of a text, some tokens far, and with biases.
#[test]
fn a_context_shares_the_texts_of_encoders() {
    for (spec, grid) in [
        ((|_| encoder("bert")) as fn(bool) -> Spec, Grid { cp: 2, ..GRID }),
        (|_| encoder("modernbert"), Grid { cp: 4, ..GRID }),
        (|_| encoder("mpnet"), Grid { cp: 2, tp: 2, ..GRID }),
    ] {
        check(Case { grid, spec, cp_comm: CpComm::AllGather, ..ONE }, false);
    }
    for (name, comm, said) in
        [("bert", CpComm::P2p, "mesh.cp_comm_type"), ("deberta", CpComm::AllGather, "document by document")]
    {
        let ranks = Ranks { grid: Grid { cp: 2, ..GRID }, cp_comm: comm, ..Ranks::default() };
        let message = ranks.check(&encoder(name)).unwrap_err().to_string();
        assert!(message.contains("mesh.cp") && message.contains(said), "{message}");
    }
}

/// The first rank adds positions and types to its part of the embedding.
#[test]
fn tensor_parallel_ranks_share_encoders() {
    for (spec, sequence_parallel) in [
        ((|_| encoder("bert")) as fn(bool) -> Spec, false),
        (|_| encoder("modernbert"), true),
        (|_| encoder("deberta"), true),
    ] {
        let grid = Grid { tp: 2, sequence_parallel, ..GRID };
        check(Case { grid, spec, tile_rows: Some(128), ..ONE }, false);
    }
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
