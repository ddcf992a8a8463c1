//! A student and its teacher: the same steps on every mesh, packed or not, in parts or at once, and as planned.

use std::rc::Rc;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::Places;
use fathom_model::{Init, LlamaSizes, LoadedModel, Model, Spec, StateProjections, initialise};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh};
use fathom_tensor::{DType, Device, Distance, InFlight, Machine, Meta};
use fathom_train::parallel::{Ranks, Sharding};
use fathom_train::{Best, Distill, Goal, HiddenLoss, InStep, MicroBatch, Objective, Trainer, plan};

use crate::mesh::{Case, ONE, batches, every_rank, in_step, spec, trainer};

/// A wider and shallower model than the student, of the same vocabulary.
fn teacher_spec(vocab: usize) -> Spec {
    Spec::llama(LlamaSizes { hidden: 96, kv_heads: 4, head_dim: 32, ffn: 128, vocab, ..LlamaSizes::TINY })
}

fn teacher(device: &Device, case: &Case, vocab: usize) -> LoadedModel {
    let spec = teacher_spec(vocab);
    let ranks =
        Ranks { grid: case.grid, sharding: case.sharding, rank: device.mesh.rank(), ..Ranks::default() };
    let portion = ranks.portion(&spec, &device.mesh);
    let (model, mut params) = Model::declare_part(device, &spec, case.dtype, None, portion);
    initialise(device, &model, &mut params, Init { deviation: 0.2, seed: 11 });
    LoadedModel { device: device.clone(), model, params }
}

fn distill(beta: f64, best: Option<Best>) -> Distill {
    Distill { beta, temperature: 1.7, ratio: 0.6, best, hidden: None }
}

const BEST: Option<Best> = Some(Best { tokens: 5, rest: true });

/// Adds a teacher's five best tokens to each label.
fn with_best(mut micros: Vec<MicroBatch>) -> Vec<MicroBatch> {
    for micro in &mut micros {
        let pair = |at: usize, of: usize| [((at * 7 + of * 26) % 131) as f32, -1.3 - of as f32 * 0.8];
        micro.best = (0..micro.ids.len()).flat_map(|at| (0..5).flat_map(move |of| pair(at, of))).collect();
    }
    micros
}

fn how(case: &Case, objective: &Distill, vocab: usize) -> InStep {
    let teacher = objective.best.is_none().then(|| Arc::new(teacher_spec(vocab)));
    let goal = Goal { objective: Arc::new(objective.clone()), weighted: true, teacher, ..Goal::default() };
    InStep { goal, z_loss: 0.0, ..in_step(case) }
}

type DistillResults = (Vec<[f32; 2]>, Vec<f32>, u64);

fn steps(device: &Device, trainer: &mut Trainer, micros: &[MicroBatch], how: &InStep) -> DistillResults {
    let (mut seen, mut metrics) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let result = trainer.step(micros, how).unwrap();
        seen.push([result.loss.wait_f32() / result.count.wait_f32(), result.norm.wait_f32()]);
        let bytes = result.metrics.map(InFlight::wait).unwrap_or_default();
        metrics.extend(bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)));
    }
    (seen, metrics, device.pool.usage().peak_reserved)
}

fn train(device: &Device, case: &Case, objective: &Distill, vocab: usize) -> DistillResults {
    let mut trainer = trainer(device, case);
    if objective.best.is_none() {
        trainer.teacher = Some(Rc::new(teacher(device, case, vocab)));
    }
    let micros = with_best(batches(device, case, 4));
    steps(device, &mut trainer, &micros, &how(case, objective, vocab))
}

#[track_caller]
fn check(what: &str, found: &DistillResults, one: &DistillResults, most: f32) {
    for (a, b) in found.0.iter().flatten().zip(one.0.iter().flatten()) {
        assert!((a - b).abs() <= most * b.abs().max(0.1), "{what}: {:?} {:?}", found.0, one.0);
    }
    assert_eq!(found.1.len(), one.1.len(), "{what}");
    for (a, b) in found.1.iter().zip(&one.1) {
        assert!((a - b).abs() <= most * b.abs().max(1.0), "{what}: metrics {:?} {:?}", found.1, one.1);
    }
}

#[test]
fn a_student_learns_the_same_on_every_mesh() {
    let grid = Grid::default();
    let objectives = [distill(0.0, None), distill(1.0, None), distill(0.4, None), distill(0.4, BEST)];
    for (index, objective) in objectives.into_iter().enumerate() {
        let one = &every_rank(ONE, &|device| train(device, &ONE, &objective, 131))[0];
        assert!(one.0[0][0] - one.0[3][0] > 0.02, "it learns: {:?}", one.0);
        for (grid, tile_rows, most) in [
            (Grid { cp: 2, ..grid }, None, 1e-6),
            (Grid { dp: 2, ..grid }, None, 1e-6),
            (Grid { tp: 2, ..grid }, None, 2e-5),
            (Grid { tp: 2, sequence_parallel: true, ..grid }, Some(128), 2e-5),
        ] {
            // Sharded one way and the other in turns.
            let sharding = [Sharding::Optim, Sharding::OptimGradsParams][index % 2];
            let case = Case { grid, tile_rows, sharding, ..ONE };
            let ranks = every_rank(case, &|device| train(device, &case, &objective, 131));
            for (rank, found) in ranks.iter().enumerate() {
                check(&format!("{grid}, {objective:?}"), found, one, most);
                let machine = Meta::new(Cpu::new(1, None).profile().clone());
                let mesh = Mesh::new(grid, Box::new(CountingLink::new(rank, grid.ranks())));
                let device = Device::on_mesh(Arc::new(machine), 1 << 28, mesh);
                let planned = train(&device, &case, &objective, 131);
                assert_eq!(planned.2, found.2, "{grid}: the plan of rank {rank}");
            }
        }
    }
}

/// The vocabularies of teacher and student differ in size; only the common part is compared.
#[test]
fn what_both_vocabularies_have_is_compared() {
    for (vocab, most) in [(136, 1.0), (128, 1.0)] {
        let seen = every_rank(ONE, &|device| train(device, &ONE, &distill(0.0, None), vocab));
        assert!(seen[0].0.iter().flatten().all(|x| x.is_finite() && *x < 10.0 * most), "{:?}", seen[0].0);
    }
}

/// Documents one by one, packed, and in several micro-batches.
#[test]
fn packing_and_accumulation_change_nothing() {
    for objective in [distill(0.0, None), distill(1.0, None), distill(0.5, None), distill(0.5, BEST)] {
        let seen = every_rank(ONE, &|device| {
            let packed = with_best(batches(device, &ONE, 1));
            let whole = &packed[0];
            let single = |doc: &std::ops::Range<usize>| MicroBatch {
                ids: whole.ids[doc.clone()].to_vec(),
                labels: whole.labels[doc.clone()].to_vec(),
                positions: whole.positions[doc.clone()].to_vec(),
                docs: std::iter::once(0..doc.len()).collect(),
                best: whole.best[doc.start * 10..doc.end * 10].to_vec(),
                ..MicroBatch::default()
            };
            let singles: Vec<MicroBatch> = whole.docs.iter().map(single).collect();
            [&packed, &singles].map(|micros| {
                let mut trainer = trainer(device, &ONE);
                if objective.best.is_none() {
                    trainer.teacher = Some(Rc::new(teacher(device, &ONE, 131)));
                }
                steps(device, &mut trainer, micros, &how(&ONE, &objective, 131))
            })
        });
        check("packed", &seen[0][0], &seen[0][1], 1e-6);
    }
}

/// A student that is its own teacher learns nothing, and places change no bit of another's training.
#[test]
fn plans_hold_the_teacher_and_places_change_nothing() {
    for (objective, dtype) in [
        (distill(0.0, None), DType::F32),
        (distill(0.5, None), DType::Bf16),
        (distill(0.5, BEST), DType::Bf16),
    ] {
        let mut bits = None;
        for places in [Places::none(), Places::linear().with_tiles(Some(128)), Places::full()] {
            let case = Case { dtype, ..ONE };
            let seen = every_rank(case, &|device| {
                let how = InStep { places: places.clone(), ..how(&case, &objective, 131) };
                let mut trainer = trainer(device, &case);
                if objective.best.is_none() {
                    trainer.teacher = Some(Rc::new(teacher(device, &case, 131)));
                }
                let micros = with_best(batches(device, &case, 3));
                let found = steps(device, &mut trainer, &micros, &how);
                let profile = device.machine.profile();
                let planned = plan(profile, &spec(false), dtype, &how, 3, 256).unwrap();
                assert_eq!(planned.usage.peak_reserved, found.2, "{objective:?}, {places:?}");
                assert_eq!(planned.usage.peak_live, device.pool.usage().peak_live);
                let bits: Vec<u32> = found.0.iter().flatten().map(|x| x.to_bits()).collect();
                bits
            });
            assert_eq!(bits.get_or_insert_with(|| seen[0].clone()), &seen[0], "{objective:?}, {places:?}");
        }
    }
    let own = every_rank(ONE, &|device| {
        let mut student = trainer(device, &ONE);
        let Trainer { model, params, .. } = trainer(device, &ONE);
        student.teacher = Some(Rc::new(LoadedModel { device: device.clone(), model, params }));
        let objective = Distill { ratio: 1.0, ..distill(0.0, None) };
        let goal = Goal { objective: Arc::new(objective), weighted: true, ..Goal::default() };
        let how = InStep { goal, z_loss: 0.0, ..in_step(&ONE) };
        let result = student.step(&batches(device, &ONE, 1), &how).unwrap();
        [result.loss.wait_f32() / result.count.wait_f32(), result.norm.wait_f32()]
    });
    assert!(own[0].iter().all(|x| x.abs() < 1e-5), "{own:?}");
    assert_eq!(distill(0.0, None).name(), "distill");
}

/// Distillation of the states of these pairs of layers, together with the divergence.
fn of_states(distance: Distance, pairs: &[[usize; 2]]) -> Distill {
    Distill {
        hidden: Some(HiddenLoss { pairs: pairs.to_vec(), distance, weight: 0.8 }),
        ..distill(0.0, None)
    }
}

/// A student and a teacher of the same sizes with different initial weights.
fn with_states(device: &Device, case: &Case) -> Trainer {
    let mut student = trainer(device, case);
    let Trainer { model, mut params, .. } = trainer(device, case);
    initialise(device, &model, &mut params, Init { deviation: 0.3, seed: 12 });
    student.teacher = Some(Rc::new(LoadedModel { device: device.clone(), model, params }));
    student
}

fn how_of_states(case: &Case, objective: &Distill) -> InStep {
    let goal = Goal {
        objective: Arc::new(objective.clone()),
        weighted: true,
        teacher: Some(Arc::new(spec(case.tied))),
        ..Goal::default()
    };
    InStep { goal, z_loss: 0.0, ..in_step(case) }
}

const PAIRS: [[usize; 2]; 4] = [[0, 1], [1, 2], [2, 2], [2, 3]];
/// Pairs with the wider teacher, which has fewer layers.
const WIDER: [[usize; 2]; 4] = [[0, 1], [1, 2], [2, 0], [2, 2]];

/// The student's specification, with projections to the wider teacher's width.
fn projected(tied: bool) -> Spec {
    Spec { projections: Some(StateProjections { count: WIDER.len(), columns: 96 }), ..spec(tied) }
}

/// A student with a teacher of its own width, or with a wider one.
fn to_pull(device: &Device, case: &Case, wider: bool) -> Trainer {
    if !wider {
        return with_states(device, case);
    }
    let mut student = trainer(device, &Case { spec: projected, ..*case });
    student.teacher = Some(Rc::new(teacher(device, case, spec(case.tied).vocab)));
    student
}

/// Settings with one of these objectives, with steps small enough that gradients change little between them. If the
/// norm fell to a third in two steps, the last bits of the first would be 1e-6 of the second's.
fn pulling(case: &Case, distance: Distance, wider: bool) -> InStep {
    let mut how = if wider {
        how(case, &of_states(distance, &WIDER), spec(case.tied).vocab)
    } else {
        how_of_states(case, &of_states(distance, &PAIRS))
    };
    how.adamw.lr = 5e-4;
    how
}

/// Distances of hidden states are the same on every mesh, as planned, and become smaller.
#[test]
fn hidden_states_are_learned_the_same_on_every_mesh() {
    let grid = Grid::default();
    for (distance, wider) in
        [(Distance::Mse, false), (Distance::Cosine, false), (Distance::Mse, true), (Distance::Cosine, true)]
    {
        let train = |device: &Device, case: &Case| {
            let mut trainer = to_pull(device, case, wider);
            steps(device, &mut trainer, &batches(device, case, 4), &pulling(case, distance, wider))
        };
        let one = &every_rank(ONE, &|device| train(device, &ONE))[0];
        let distances: Vec<f32> = one.1.chunks(6).map(|sums| sums[4] / sums[5]).collect();
        assert!(distances[0] > 0.01 && distances[3] < distances[0], "{distances:?}");
        for (grid, most) in
            [(Grid { cp: 2, ..grid }, 1e-6), (Grid { dp: 2, ..grid }, 1e-6), (Grid { tp: 2, ..grid }, 2e-5)]
        {
            let case = Case { grid, ..ONE };
            for (rank, found) in every_rank(case, &|device| train(device, &case)).iter().enumerate() {
                check(&format!("{grid}, {distance:?}, {wider}"), found, one, most);
                let machine = Meta::new(Cpu::new(1, None).profile().clone());
                let mesh = Mesh::new(grid, Box::new(CountingLink::new(rank, grid.ranks())));
                let device = Device::on_mesh(Arc::new(machine), 1 << 28, mesh);
                assert_eq!(train(&device, &case).2, found.2, "{grid}: the plan of rank {rank}");
            }
        }
    }
}

/// The gradient agrees with finite differences, and places change no bit of it.
#[test]
fn gradients_of_hidden_states_are_slopes() {
    for (distance, wider) in
        [(Distance::Mse, false), (Distance::Cosine, false), (Distance::Mse, true), (Distance::Cosine, true)]
    {
        let mut bits = None;
        for places in [Places::none(), Places::linear().with_tiles(Some(128)), Places::full()] {
            let seen = every_rank(ONE, &|device| {
                let how = InStep { places: places.clone(), ..pulling(&ONE, distance, wider) };
                let mut trainer = to_pull(device, &ONE, wider);
                let micros = batches(device, &ONE, 2);
                trainer.accumulate(&micros, &how);
                let grads: Vec<_> =
                    trainer.grads().iter().map(|(id, grad)| (id, device.to_f32(grad))).collect();
                let all: Vec<u32> = grads.iter().flat_map(|(_, grad)| grad).map(|x| x.to_bits()).collect();
                // The difference along the gradient itself.
                let norm =
                    grads.iter().flat_map(|(_, grad)| grad).map(|x| f64::from(x * x)).sum::<f64>().sqrt();
                let step = 0.002;
                let at = |sign: f64| {
                    let mut moved = to_pull(device, &ONE, wider);
                    for (id, grad) in &grads {
                        let weight = moved.params.tensor(*id);
                        let old = device.to_f32(&weight);
                        let by = sign * step / norm;
                        let new =
                            old.iter().zip(grad).map(|(x, g)| (f64::from(*x) + by * f64::from(*g)) as f32);
                        let bytes: Vec<u8> = new.flat_map(f32::to_le_bytes).collect();
                        device.machine.write(&weight, &bytes);
                    }
                    moved.accumulate(&micros, &how);
                    f64::from(moved.loss_sum())
                };
                let slope = (at(1.0) - at(-1.0)) / (2.0 * step);
                (all, slope / norm)
            });
            let (all, ratio) = &seen[0];
            assert!((ratio - 1.0).abs() < 5e-3, "{distance:?}: {ratio}");
            assert!(bits.get_or_insert_with(|| all.clone()) == all, "{distance:?}, {places:?}");
        }
    }
}
