//! A family with a mixer of its own over ranks, compared with one rank as in `mesh.rs`.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::Places;
use fathom_model::{
    Adapter, DeltaNames, Family, GatedDelta, LayerSpec, PartKind, QkNorm, Reach, Residual, ShortConv, Size,
    Spec, StateSizes, Targets,
};
use fathom_tensor::mesh::{Axis, Grid};
use fathom_tensor::{DType, Device, Machine, Meta};
use fathom_train::parallel::stages::Order;
use fathom_train::parallel::{CpScan, Ranks};

use crate::adapters::{LORA, train_spec};
use crate::mesh::{Case, ONE, check, every_rank, moves};
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

/// Granite 4 and Falcon-H1 in small: mixers and attention in turn, and both in one layer.
fn hybrid(tied: bool) -> Spec {
    let sizes = StateSizes { heads: 8, head_dim: 16, state: 16, groups: 2 };
    let plain = crate::mesh::spec(tied);
    let mut spec = plain.into_granite_hybrid(sizes, |layer| layer == 1, (1.0, true));
    let mixer = spec.layers[3].parts[0].clone();
    let attention = PartKind::Attention { reach: Reach::Causal, rope: Some(0) };
    spec.layers[3] = LayerSpec::new([mixer.kind, attention, PartKind::Mlp]);
    spec.layers[3].parts[1].residual = Residual::SharedNorm;
    spec
}

fn mamba2(tied: bool) -> Spec {
    crate::mesh::spec(tied).into_mamba2(StateSizes { heads: 4, head_dim: 32, state: 8, groups: 2 })
}

/// Qwen3.5 in small: gated DeltaNet, and attention with gates in the second layer.
fn gated_delta(tied: bool) -> Spec {
    let names = DeltaNames::Apart;
    let sizes =
        GatedDelta { names, key_heads: 2, value_heads: 4, key: 16, value: 8, width: 4, beta: 1.0, eps: 1e-6 };
    let mut spec = crate::mesh::spec(tied);
    for index in [0, 2, 3] {
        spec.layers[index] = LayerSpec::new([PartKind::Own(Arc::new(sizes.clone())), PartKind::Mlp]);
    }
    let (family, qk_norm) = (Family::named("qwen3_5_text"), QkNorm::PerHead);
    Spec { family, attention_gate: true, qk_norm, ..spec }
}

/// LFM2 in small: short convolutions, and attention in the second layer.
fn short_convolutions(tied: bool) -> Spec {
    let mut spec = crate::mesh::spec(tied);
    for index in [0, 2, 3] {
        let conv = ShortConv { hidden: spec.hidden, width: 3, bias: true };
        spec.layers[index] = LayerSpec::new([PartKind::Own(Arc::new(conv)), PartKind::Mlp]);
    }
    Spec { family: Family::named("lfm2"), qk_norm: QkNorm::PerHead, ..spec }
}

#[test]
fn ranks_share_state_space_layers() {
    let cases = [(hybrid as fn(bool) -> Spec, true), (mamba2, false), (gated_delta, true)];
    for (spec, sequence_parallel) in cases {
        let case = Case { spec, ..ONE };
        check(Case { grid: Grid { pp: 2, ..GRID }, tile_rows: Some(128), ..case }, true);
        check(Case { grid: Grid { tp: 2, sequence_parallel, ..GRID }, ..case }, false);
    }
    let message = Ranks { grid: Grid { tp: 4, ..GRID }, ..Ranks::default() };
    let message = message.check(&mamba2(false)).unwrap_err().to_string();
    assert!(message.contains("4 does not divide the 2 groups") && message.contains("1, 2"), "{message}");
    let message = Ranks { grid: Grid { tp: 4, ..GRID }, ..Ranks::default() };
    let spec = Spec { heads: 4, kv_heads: 4, ..gated_delta(false) };
    let message = message.check(&spec).unwrap_err().to_string();
    assert!(message.contains("4 does not divide the 2 key heads"), "{message}");
}

#[test]
fn ranks_share_the_documents_of_state_space_layers() {
    for spec in [hybrid as fn(bool) -> Spec, mamba2, gated_delta, short_convolutions] {
        let case = Case { spec, ..ONE };
        check(Case { grid: Grid { cp: 2, ..GRID }, ..case }, false);
    }
    // Four ranks have the two groups, and the two key heads, twice.
    for spec in [mamba2 as fn(bool) -> Spec, gated_delta] {
        check(Case { spec, grid: Grid { cp: 4, ..GRID }, ..ONE }, false);
    }
    check(Case { spec: hybrid, grid: Grid { tp: 2, cp: 2, sequence_parallel: true, ..GRID }, ..ONE }, false);
    for (spec, cp, why) in [
        (
            mamba2 as fn(bool) -> Spec,
            3,
            "the 4 heads of a state-space layer cannot be dealt to 3 ranks that share a document; it may be 1, 2, 4",
        ),
        (gated_delta, 8, "the 4 value heads of a linear attention layer cannot be dealt to 8 ranks"),
    ] {
        let message = Ranks { grid: Grid { cp, ..GRID }, ..Ranks::default() };
        let message = message.check(&spec(false)).unwrap_err().to_string();
        assert!(message.contains("mesh.cp") && message.contains(why), "{message}");
    }
}

/// States go from piece to piece of packed documents that span ranks, and each rank's plan has its peak and its traffic.
#[test]
fn ranks_pass_states_of_documents() {
    for (spec, cp) in [
        (hybrid as fn(bool) -> Spec, 2),
        (hybrid, 4),
        (mamba2, 4),
        (gated_delta, 2),
        (gated_delta, 4),
        (short_convolutions, 2),
    ] {
        let case = Case { spec, cp_scan: CpScan::States, ..ONE };
        check(Case { grid: Grid { cp, ..GRID }, ..case }, false);
    }
    for spec in [hybrid as fn(bool) -> Spec, gated_delta] {
        let case = Case { spec, cp_scan: CpScan::States, ..ONE };
        check(Case { grid: Grid { tp: 2, cp: 2, sequence_parallel: true, ..GRID }, ..case }, false);
        check(Case { grid: Grid { cp: 2, ..GRID }, dtype: DType::Bf16, ..case }, false);
        // Documents on few ranks pass states where they span some.
        check(Case { grid: Grid { cp: 4, ..GRID }, cp_dynamic: true, ..case }, false);
    }
}

#[test]
fn states_are_passed_where_they_are_fewer_bytes() {
    let by = |cp_scan, cp| Ranks { grid: Grid { cp, ..GRID }, cp_scan, ..Ranks::default() };
    let passes = |spec: &Spec, tokens| by(CpScan::Auto, 2).passes(spec, tokens, DType::F32);
    // A token sends 292 columns there and back, a piece 1,028 numbers of a state and its decays, and three rows of 160.
    let spec = mamba2(false);
    assert_eq!([32, 256, 1 << 14].map(|tokens| passes(&spec, tokens)), [None, Some(3), Some(3)]);
    // A token of gated DeltaNet sends 136 columns; a piece sends 1,536 numbers of states and matrices, and three rows of 96.
    let delta = gated_delta(false);
    assert_eq!([32, 256, 1 << 14].map(|tokens| passes(&delta, tokens)), [None, Some(3), Some(3)]);
    assert_eq!(by(CpScan::A2a, 2).passes(&spec, 1 << 14, DType::F32), None);
    // Heads that cannot be dealt pass states at any length.
    assert_eq!(by(CpScan::Auto, 3).passes(&spec, 6, DType::F32), Some(3));
    assert!(by(CpScan::Auto, 3).check(&spec).is_ok() && by(CpScan::States, 3).check(&spec).is_ok());
    assert!(by(CpScan::States, 8).check(&delta).is_ok());
    let message = by(CpScan::States, 2).check(&recurrent::spec(64, 4)).unwrap_err().to_string();
    assert!(message.contains("mesh.cp_scan_comm_type") && message.contains("a2a"), "{message}");
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

/// Low-rank terms of the projections, over weights in f32 and in NF4: they learn, places change no bit, and a plan has
/// the peak of the run.
#[test]
fn projections_of_mixers_are_adapted_and_kept_in_few_bits() {
    let cases =
        [(gated_delta as fn(bool) -> Spec, ["in_proj_qkv", "out_proj"]), (mamba2, ["in_proj", "out_proj"])];
    for (spec, ends) in cases {
        let adapted = || {
            let names = spec(false).targeted(&Targets::Ends(ends.map(String::from).to_vec())).unwrap();
            let modules = names.into_iter().map(|name| (name, Size { rank: 4, alpha: 6.0 })).collect();
            spec(false).with_adapter(Adapter::of(LORA, modules, Default::default())).unwrap()
        };
        for dtype in [DType::F32, DType::Bf16] {
            let case = Case { dtype, spec, ..ONE };
            let run = |case: Case, places: &(dyn Fn() -> Places + Sync)| {
                let train = |device: &Device| train_spec(device, &case, adapted(), places());
                let seen = every_rank(case, &train).remove(0);
                let machine = Meta::new(Cpu::new(1, None).profile().clone());
                assert_eq!(
                    train(&Device::new(Arc::new(machine), 1 << 28)).peak,
                    seen.peak,
                    "{ends:?} {dtype:?}"
                );
                seen.losses
            };
            let kept = run(case, &Places::none);
            assert!(kept[0][0] - kept[3][0] > 0.005, "{ends:?} {dtype:?}: {kept:?}");
            assert_eq!(run(case, &Places::linear), kept, "{ends:?} {dtype:?}");
            assert_eq!(run(Case { tile_rows: Some(128), ..case }, &Places::full), kept, "{ends:?} {dtype:?}");
        }
    }
}
