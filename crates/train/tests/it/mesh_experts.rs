//! Experts over ranks against one rank, as in `mesh.rs`.

use fathom_grad::RouterCosts;
use fathom_model::{Biases, Family, Mlp, Moe, QkNorm, Residual, SharedExperts, Spec};
use fathom_tensor::mesh::Grid;
use fathom_tensor::{Activation, DType};
use fathom_train::compare_checkpoints;
use fathom_train::parallel::Sharding;

use crate::mesh::{Case, ONE, check, every_rank, resume, save_again, spec};

fn moe() -> Moe {
    Moe { dense_layers: vec![0], costs: RouterCosts { aux: 1e-2, z: 1e-3 }, ..Moe::new(4, 2, 48) }
}

/// Like Qwen 3, with a dense MLP first.
pub fn experts(tied: bool) -> Spec {
    Spec { family: Family::named("qwen3_moe"), moe: Some(moe()), ..spec(tied) }
}

/// With a shared expert.
fn shared(tied: bool) -> Spec {
    let moe = Moe { shared: Some(SharedExperts { ffn: 32, gated: true }), ..moe() };
    Spec { family: Family::named("qwen2_moe"), moe: Some(moe), ..spec(tied) }
}

/// Like DeepSeek-V3: latents, sigmoids, and selection biases that follow the load. Biases move by whole steps, so one
/// token routed differently by rounding changes the loss more than rounding does.
fn biased(tied: bool) -> Spec {
    let moe = Moe { bias_rate: 1e-3, ..latents(tied).moe.unwrap() };
    Spec { moe: Some(moe), ..latents(tied) }
}

/// Like [`biased`], with constant biases.
fn latents(tied: bool) -> Spec {
    let moe = Moe { shared: Some(SharedExperts { ffn: 48, gated: false }), ..moe() };
    let mut spec = spec(tied).into_deepseek_v3(moe, 8, 24);
    spec.latent.iter_mut().for_each(|latent| latent.query = Some(20));
    spec
}

/// Like gpt-oss: sinks, biases everywhere, experts with clamped gates. Tokens go through all experts, so that rounding
/// changes no routing.
fn sinks(tied: bool) -> Spec {
    let moe = Moe {
        router_bias: true,
        expert_bias: true,
        transposed: true,
        dense_layers: vec![],
        ..Moe::new(4, 4, 48)
    };
    let mlp = Mlp { activation: Activation::ClampedSwiglu, gated: true };
    let bias = Biases { qkv: true, attn_out: true, mlp: false };
    Spec { family: Family::named("gpt_oss"), sinks: true, mlp, bias, moe: Some(moe), ..spec(tied) }
}

/// Like OLMo 2: q and k normalised over all heads, norms after sub-layers.
fn olmo2(tied: bool) -> Spec {
    let spec = Spec { family: Family::named("olmo2"), qk_norm: QkNorm::Full, ..spec(tied) };
    spec.with_residual(Residual::Post)
}

const EXPERTS: Case = Case { spec: experts, ..ONE };
const GRID: Grid = ONE.grid;

#[test]
fn expert_parallel_ranks_compute_the_same_step() {
    for sharding in [Sharding::Optim, Sharding::NoShard, Sharding::OptimGradsParams] {
        check(Case { grid: Grid { dp: 2, ep: 2, ..GRID }, sharding, ..EXPERTS }, false);
    }
    check(Case { grid: Grid { dp: 4, ep: 4, ..GRID }, tile_rows: Some(128), ..EXPERTS }, false);
    check(Case { grid: Grid { cp: 2, ep: 2, ..GRID }, ..EXPERTS }, false);
    check(Case { grid: Grid { dp: 2, ep: 2, ..GRID }, dtype: DType::Bf16, ..EXPERTS }, false);
    check(Case { grid: Grid { dp: 2, ep: 2, ..GRID }, spec: biased, ..ONE }, false);
}

#[test]
fn parts_of_experts_compute_the_same_step() {
    check(Case { grid: Grid { dp: 2, etp: 2, ..GRID }, ..EXPERTS }, false);
    check(Case { grid: Grid { dp: 4, ep: 2, etp: 2, ..GRID }, spec: shared, ..EXPERTS }, false);
}

#[test]
fn tensor_parallel_ranks_route_some_tokens_each() {
    for sequence_parallel in [false, true] {
        let grid = Grid { tp: 2, sequence_parallel, ..GRID };
        check(Case { grid, ..EXPERTS }, false);
        check(Case { grid: Grid { ep: 2, ..grid }, spec: shared, tile_rows: Some(128), ..EXPERTS }, false);
        check(Case { grid: Grid { etp: 2, ..grid }, spec: shared, ..EXPERTS }, false);
    }
}

#[test]
fn both_grids_fold_over_the_same_ranks() {
    check(Case { grid: Grid { pp: 2, dp: 2, cp: 2, ep: 2, ..GRID }, ..EXPERTS }, false);
    let grid = Grid { tp: 2, dp: 2, ep: 4, sequence_parallel: true, ..GRID };
    check(Case { grid, spec: shared, ..EXPERTS }, false);
}

#[test]
fn tensor_parallel_ranks_part_latents_sinks_and_norms_of_all_heads() {
    for sequence_parallel in [false, true] {
        let grid = Grid { tp: 2, sequence_parallel, ..GRID };
        for spec in [latents as fn(bool) -> Spec, sinks, olmo2] {
            check(Case { grid, spec, tile_rows: Some(128), ..ONE }, false);
        }
        check(Case { grid: Grid { cp: 2, ep: 2, etp: 2, ..grid }, spec: sinks, ..ONE }, false);
    }
    check(
        Case { grid: Grid { tp: 2, cp: 2, ep: 2, sequence_parallel: true, ..GRID }, spec: latents, ..ONE },
        false,
    );
}

/// A checkpoint is the same for all distributions of experts over ranks.
#[test]
fn checkpoints_of_experts_do_not_know_their_mesh() {
    let grids = [
        Grid { dp: 2, ep: 2, ..GRID },
        Grid { dp: 4, ep: 2, etp: 2, ..GRID },
        Grid { tp: 2, pp: 2, sequence_parallel: true, ..GRID },
        Grid { pp: 2, dp: 2, ep: 2, ..GRID },
    ];
    for spec in [shared as fn(bool) -> Spec, biased] {
        changing_mesh(&grids, Case { spec, tied: true, ..ONE });
    }
    changing_mesh(&grids, Case { spec: biased, tied: true, sharding: Sharding::OptimGradsParams, ..ONE });
}

/// Without a step in between, no bit changes when experts move between ranks and back to one.
#[test]
fn a_checkpoint_of_experts_is_the_same_from_mesh_to_mesh() {
    let grids = [
        Grid { dp: 2, ep: 2, ..GRID },
        ONE.grid,
        Grid { dp: 4, ep: 2, etp: 2, ..GRID },
        Grid { tp: 2, dp: 2, ep: 4, sequence_parallel: true, ..GRID },
        Grid { pp: 2, dp: 2, ep: 2, ..GRID },
        ONE.grid,
    ];
    for (spec, dtype, sharding) in [
        (shared as fn(bool) -> Spec, DType::F32, Sharding::Optim),
        (biased, DType::Bf16, Sharding::OptimGradsParams),
    ] {
        let one = Case { spec, dtype, sharding, tied: false, ..ONE };
        let folders: Vec<_> = (0..=grids.len()).map(|_| tempfile::tempdir().unwrap()).collect();
        every_rank(one, &|device| resume(device, &one, folders[0].path(), 1));
        for (index, grid) in grids.into_iter().enumerate() {
            let (from, to) = (folders[index].path(), folders[index + 1].path());
            save_again(Case { grid, ..one }, from, to);
            let diff = compare_checkpoints(folders[0].path(), to).unwrap().unwrap();
            assert!(diff.differing == 0 && diff.tensors > 100, "{grid} {sharding:?}: {diff:?}");
        }
    }
}

fn changing_mesh(grids: &[Grid], one: Case) {
    let (changing, steady) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut losses, mut expected) = (Vec::new(), Vec::new());
    for grid in grids {
        let case = Case { grid: *grid, ..one };
        losses.extend(every_rank(case, &|device| resume(device, &case, changing.path(), 2)).swap_remove(0));
        expected.extend(every_rank(one, &|device| resume(device, &one, steady.path(), 2)).swap_remove(0));
    }
    let apart = |(a, b): (&f32, &f32)| (a / b - 1.0).abs() <= 1e-5;
    assert!(losses.iter().zip(&expected).all(apart), "{losses:?} {expected:?}");
}
