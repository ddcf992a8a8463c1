//! Plans of meshes: omitted micro-batches are counted exactly, and messages take the times of the profile.

use std::sync::Arc;

use fathom_grad::Places;
use fathom_model::{Caps, LlamaSizes, Model, Spec};
use fathom_tensor::mesh::{Grid, Wires};
use fathom_tensor::{DType, Device, Fabric, Line, Machine, Meta, PoolUsage, Profile, Times};
use fathom_train::parallel::{Ranks, Sharding};
use fathom_train::recipe::{MeshTable, Recipe, ShardingName, Stage};
use fathom_train::{Budgets, Draft, InStep, MicroBatch, Trainer, distinct, plan};

const TOKENS: usize = 512;

fn spec() -> Spec {
    Spec::llama(LlamaSizes { layers: 13, max_positions: TOKENS, ..LlamaSizes::TINY })
}

fn profile(fabric: Option<Fabric>) -> Profile {
    Profile { rates: Some(crate::budgets::rates()), fabric, ..Profile::portable(1) }
}

fn fabric(node_ranks: usize, bytes_per_s: f64) -> Fabric {
    let line = Line { bytes_per_s, latency_s: 0.0 };
    Fabric {
        node_ranks,
        node: line,
        network: Line { bytes_per_s: bytes_per_s / 10.0, ..line },
        copied: false,
    }
}

fn how(ranks: Ranks, places: Places) -> InStep {
    InStep { ranks, ..InStep::plain(places, Caps { docs: 1, seq_tokens: TOKENS }) }
}

/// Runs three steps of all micro-batches; returns the last one's figures.
fn in_full(profile: &Profile, how: &InStep, micro_batches: usize) -> (PoolUsage, Wires, Times) {
    let machine = Arc::new(Meta::new(profile.clone()));
    let device = Device::on_mesh(machine.clone(), u64::MAX, how.ranks.imagined());
    let portion = how.ranks.portion(&spec(), &device.mesh);
    let (model, params) = Model::declare_part(&device, &spec(), DType::Bf16, None, portion);
    let mut trainer = Trainer::sharded(&device, model, params, how.ranks.sharding, how.adamw.moments);
    let batch = vec![MicroBatch::shape(TOKENS, TOKENS); micro_batches];
    for _ in 0..2 {
        let _ = trainer.step(&batch, how).unwrap();
    }
    let (wires, times) = (device.mesh.wires(), machine.clock().unwrap().times());
    let _ = trainer.step(&batch, how).unwrap();
    let mut last = device.mesh.wires();
    for (key, wire) in &mut last {
        wire.calls -= wires[key].calls;
        wire.bytes -= wires[key].bytes;
    }
    (device.pool.usage(), last, machine.clock().unwrap().times() - times)
}

fn near(left: f64, right: f64) -> bool {
    (left - right).abs() <= 1e-9 * left.abs().max(right.abs())
}

/// Checks that a plan equals a full step of a rank after the first.
#[track_caller]
fn stands_for_all(ranks: Ranks, places: &Places, micro_batches: usize) {
    let profile = profile(Some(fabric(2, 1e8)));
    let how = how(ranks, places.clone());
    let planned = plan(&profile, &spec(), DType::Bf16, &how, micro_batches * ranks.grid.dp, TOKENS).unwrap();
    let (usage, wires, times) = in_full(&profile, &how, micro_batches);
    let Ranks { grid, virtual_stages, rank, sharding, .. } = ranks;
    let what = format!("rank {rank} of {grid}, {virtual_stages} stages each, {micro_batches}, {sharding:?}");
    let bytes = |usage: &PoolUsage| (usage.peak_live, usage.peak_by_category, usage.peak_reserved);
    assert_eq!(bytes(&planned.usage), bytes(&usage), "{what}");
    assert_eq!(planned.wires, wires, "{what}");
    let found = planned.times.unwrap();
    assert!(near(found.elapsed_s(), times.elapsed_s()), "{what}: {found:?} {times:?}");
    assert!(near(found.exposed_s, times.exposed_s) && near(found.node_s, times.node_s), "{what}");
    let lane = planned.lane.unwrap();
    let sum = lane.before_s + lane.busy_s() + lane.after_s;
    assert!(near(sum, times.elapsed_s()), "{what}: {sum} {}", times.elapsed_s());
    assert!(near(planned.waits.values().sum::<f64>(), times.exposed_s), "{what}: {:?}", planned.waits);
}

#[test]
fn a_pipeline_s_plan_is_that_of_all_its_micro_batches() {
    for (pp, virtual_stages, micro_batches) in
        [(1, 1, 7), (2, 1, 9), (4, 1, 6), (4, 1, 12), (2, 2, 12), (4, 2, 24), (4, 3, 20)]
    {
        for places in [Places::none(), Places::linear().with_tiles(Some(128))] {
            for rank in 0..2 * pp {
                let grid = Grid { tp: 2, pp, sequence_parallel: true, ..Grid::default() };
                stands_for_all(
                    Ranks { grid, virtual_stages, rank, ..Ranks::default() },
                    &places,
                    micro_batches,
                );
            }
        }
    }
}

/// Updated weights are waited for once per step, and once in the plan.
#[test]
fn updated_weights_are_waited_for_once() {
    for (pp, virtual_stages, micro_batches) in [(1, 1, 7), (2, 1, 9), (4, 1, 12), (2, 2, 12)] {
        for sharding in [Sharding::NoShard, Sharding::Optim] {
            for rank in 0..2 * pp {
                let grid = Grid { dp: 2, pp, ..Grid::default() };
                let ranks = Ranks { grid, virtual_stages, rank, sharding, ..Ranks::default() };
                stands_for_all(ranks, &Places::none(), micro_batches);
            }
        }
    }
}

/// Tables are freed with their micro-batch.
#[test]
fn a_pipeline_s_memory_does_not_grow_with_micro_batches() {
    let profile = profile(None);
    for (pp, chunks) in [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2)] {
        for rank in 0..pp {
            let grid = Grid { pp, ..Grid::default() };
            let how = how(Ranks { grid, virtual_stages: chunks, rank, ..Ranks::default() }, Places::linear());
            let [few, many] = [16, 64].map(|micro_batches| in_full(&profile, &how, micro_batches).0);
            assert_eq!(few.peak_live, many.peak_live, "rank {rank} of {grid}, {chunks} stages each");
        }
    }
}

#[test]
fn a_planned_rank_stands_for_those_that_need_no_more() {
    let profile = profile(None);
    let grids = [
        Grid { tp: 2, cp: 2, dp: 2, sequence_parallel: true, ..Grid::default() },
        Grid { pp: 2, dp: 4, ..Grid::default() },
        Grid { tp: 2, pp: 2, cp: 2, ..Grid::default() },
    ];
    for grid in grids {
        for sharding in [Sharding::NoShard, Sharding::Optim] {
            let ranks = Ranks { grid, sharding, ..Ranks::default() };
            let peak = |rank| {
                let how = how(Ranks { rank, ..ranks }, Places::linear());
                plan(&profile, &spec(), DType::Bf16, &how, 8, TOKENS).unwrap().usage.peak_reserved
            };
            let kinds = distinct(&ranks, &spec());
            assert_eq!(kinds.iter().map(|(_, alike)| alike).sum::<usize>(), grid.ranks(), "{grid}");
            let most = kinds.iter().map(|(rank, _)| peak(*rank)).max();
            assert_eq!(most, (0..grid.ranks()).map(peak).max(), "{grid} {sharding:?}");
        }
    }
}

/// Seconds that a rank waits, by collective, with these lines.
fn waits(grid: Grid, fabric: Fabric, places: &Places) -> Vec<(String, f64)> {
    let profile = profile(Some(fabric));
    let ranks = Ranks { grid, ..Ranks::default() };
    let plan = plan(&profile, &spec(), DType::Bf16, &how(ranks, places.clone()), grid.dp, TOKENS).unwrap();
    plan.waits.into_iter().map(|((axes, name), seconds)| (format!("{axes} {name}"), seconds)).collect()
}

#[test]
fn messages_take_the_time_of_the_line_they_are_on() {
    let of = |waits: &[(String, f64)], name: &str| -> f64 {
        waits.iter().find(|(key, _)| key == name).map_or(0.0, |(_, seconds)| *seconds)
    };
    let grid = Grid { tp: 2, sequence_parallel: true, ..Grid::default() };
    let bytes = |name: &str| {
        let how = how(Ranks { grid, ..Ranks::default() }, Places::none());
        let plan = plan(&profile(None), &spec(), DType::Bf16, &how, 1, TOKENS).unwrap();
        plan.wires.iter().find(|((_, key), _)| *key == name).map_or(0, |(_, wire)| wire.bytes) as f64
    };
    // Gathering overlaps with little computation: nearly all of it is waited for, between two nodes at the network's
    // rate.
    let name = "tp all_gather";
    let [inside, outside] =
        [2, 1].map(|node_ranks| of(&waits(grid, fabric(node_ranks, 1e6), &Places::none()), name));
    let all_s = bytes("all_gather") / 1e6;
    assert!(inside <= all_s && inside > 0.5 * all_s, "{inside} of {all_s}");
    assert!(outside <= 10.0 * all_s && outside > 5.0 * all_s, "{outside} of {}", 10.0 * all_s);
    // Keys travel while attention runs: a slow line is waited for, a fast one is not.
    let ring = Grid { cp: 2, ..Grid::default() };
    assert_eq!(of(&waits(ring, fabric(2, 1e12), &Places::none()), "cp ring"), 0.0);
    // Threads copy their own messages: all of that time is waiting, however fast.
    let how = how(Ranks { grid: ring, ..Ranks::default() }, Places::none());
    let of_threads = profile(Some(Fabric::threads(fabric(2, 1e7).node)));
    let plan = plan(&of_threads, &spec(), DType::Bf16, &how, 1, TOKENS).unwrap();
    let (key, wire) = plan.wires.iter().find(|((_, name), _)| *name == "ring").unwrap();
    assert!(wire.bytes > 0 && near(plan.waits[key], wire.bytes as f64 / 1e7), "{wire:?} {:?}", plan.waits);
    assert!(of(&waits(ring, fabric(2, 1e5), &Places::none()), "cp ring") > 0.0);
}

fn recipe(mesh: MeshTable, micro_batches: usize) -> Recipe {
    let stage = Stage { seq_tokens: TOKENS, micro_batches, ..Stage::default() };
    Recipe { stage: vec![stage], mesh, ..Recipe::default() }
}

#[test]
fn a_mesh_s_step_is_that_of_all_stages() {
    let spec = spec();
    let budgets = Budgets { memory: u64::MAX, host: 0, disk: 0 };
    let plan = |mesh: MeshTable, fabric: Option<Fabric>| {
        let (profile, recipe) = (profile(fabric), recipe(mesh, 8));
        Draft { profile: &profile, spec: &spec, recipe, index: 0, budgets, rank: 0 }.mesh().unwrap()
    };
    let one = plan(MeshTable::default(), None);
    assert!(near(one.step_s().unwrap(), one.kinds[0].plan.step_s().unwrap()));
    let stages = |virtual_stages| MeshTable { pp: 4, virtual_stages, ..MeshTable::default() };
    let (plain, interleaved) = (plan(stages(1), None), plan(stages(3), None));
    assert_eq!(plain.tokens, one.tokens);
    // The products are the same, except an unused one of the head: FLOPs of all ranks equal those of one.
    assert_eq!(plain.model_flops, one.model_flops);
    let bubble = |mesh: &fathom_train::MeshPlan| mesh.gantt.as_ref().unwrap().bubble();
    assert!(bubble(&interleaved) < bubble(&plain), "{} {}", bubble(&interleaved), bubble(&plain));
    assert!(
        plain.step_s().unwrap() < one.step_s().unwrap()
            && plain.step_s().unwrap() > one.step_s().unwrap() / 4.0
    );
    assert!(plan(stages(1), Some(fabric(1, 1e7))).step_s() > plain.step_s());
    let data = MeshTable { dp: 2, sharding: ShardingName::NoShard, ..MeshTable::default() };
    let slow = plan(data, Some(fabric(1, 1e6)));
    assert!(slow.kinds[0].plan.waits.values().sum::<f64>() > 0.0);
    assert!(slow.step_s() > one.step_s());
}
