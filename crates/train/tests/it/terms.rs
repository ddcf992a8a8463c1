//! A loss over logits that no crate has, trained alone and added to others: all that it takes is in this file.

use std::sync::Arc;

use fathom_grad::{CrossEntropyLoss, EntropyLoss, LossTerm, Tile, TileLoss};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh};
use fathom_tensor::{DType, Device, Machine, Meta, Tensor, VocabularyShare};
use fathom_train::{Goal, InStep, MicroBatch, Objective, WeightedLoss};

use crate::mesh::{Case, ONE, batches, every_rank, in_step, trainer};

/// The squared logarithm of the sum of a token's exponentials: the z-loss (Chowdhery and others, 2022, section 5) as a loss of its own,
/// from a cross-entropy with it less one without.
#[derive(Debug)]
struct LogPartition;

impl LogPartition {
    fn run(
        tile: &Tile<'_>,
        z_loss: f32,
        (losses, weights): (&Tensor, Option<&Tensor>),
        dlogits: Option<&Tensor>,
    ) {
        let all = tile.statistics(1.0);
        tile.scope.device.machine.cross_entropy(&fathom_tensor::CrossEntropy {
            logits: tile.logits,
            labels: &tile.ids(),
            weights,
            loss: losses,
            dlogits,
            scale: tile.head.how.scale,
            softcap: tile.head.how.softcap,
            z_loss,
            spread: Some(VocabularyShare { first: tile.head.first, stats: None, all: Some(&all) }),
            measures: None,
        });
    }
}

impl TileLoss for LogPartition {
    fn name(&self) -> &'static str {
        "squared_log_partition"
    }

    fn losses(&self, tile: &Tile<'_>, losses: &Tensor) {
        let (machine, without) = (&tile.scope.device.machine, &tile.rows(1));
        LogPartition::run(tile, 1.0, (losses, None), None);
        LogPartition::run(tile, 0.0, (without, None), None);
        machine.scale(without, -1.0, without);
        machine.add(losses, without, losses);
    }

    fn gradient(&self, tile: &Tile<'_>, term: &LossTerm<'_>, to: Option<&Tensor>) -> Tensor {
        let machine = &tile.scope.device.machine;
        term.losses.iter().for_each(|losses| self.losses(tile, losses));
        let (scratch, weights) = (&tile.rows(1), term.products(tile));
        let (with, without) = (tile.like_logits(), tile.like_logits());
        LogPartition::run(tile, 1.0, (scratch, weights.as_ref()), Some(&with));
        LogPartition::run(tile, 0.0, (scratch, weights.as_ref()), Some(&without));
        machine.scale(&without, -1.0, &without);
        machine.add(&with, &without, &with);
        let Some(to) = to else { return with };
        machine.copy(&with, to);
        to.clone()
    }
}

/// A weighted sum of losses over logits, a mean over labels.
#[derive(Clone, Debug)]
struct Sum(Vec<WeightedLoss>);

impl Objective for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn count(&self, micro: &MicroBatch) -> f64 {
        micro.valid() as f64
    }

    fn terms(&self) -> Vec<WeightedLoss> {
        self.0.clone()
    }
}

fn alone() -> Sum {
    Sum(vec![WeightedLoss::new(1.0, LogPartition)])
}

/// With the cross-entropy.
fn added(weight: f64) -> Sum {
    Sum(vec![WeightedLoss::new(1.0, CrossEntropyLoss::PLAIN), WeightedLoss::new(weight, LogPartition)])
}

/// Three, the new one first, and distributions that are rewarded for being wide.
fn three() -> Sum {
    Sum(vec![
        WeightedLoss::new(0.3, LogPartition),
        WeightedLoss::new(0.5, CrossEntropyLoss { temperature: 1.5 }),
        WeightedLoss::new(-0.2, EntropyLoss { temperature: 0.7 }),
    ])
}

fn how(case: &Case, objective: &Sum) -> InStep {
    let goal = Goal { objective: Arc::new(objective.clone()), ..Goal::default() };
    InStep { goal, z_loss: 0.0, ..in_step(case) }
}

/// Losses, norms and what is reported of three steps, and the reserved bytes.
fn train(device: &Device, case: &Case, how: &InStep) -> (Vec<f32>, u64) {
    let (mut trainer, batches, mut seen) = (trainer(device, case), batches(device, case, 4), Vec::new());
    for _ in 0..3 {
        let result = trainer.step(&batches, how).unwrap();
        seen.extend([result.loss.wait_f32() / result.count.wait_f32(), result.norm.wait_f32()]);
        let bytes = result.metrics.map(fathom_tensor::InFlight::wait).unwrap_or_default();
        seen.extend(bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)));
    }
    (seen, device.pool.usage().peak_reserved)
}

#[track_caller]
fn close(what: &str, found: &[f32], one: &[f32], most: f32) {
    assert_eq!(found.len(), one.len(), "{what}");
    for (a, b) in found.iter().zip(one) {
        assert!((a - b).abs() <= most * b.abs().max(0.1), "{what}: {found:?} {one:?}");
    }
}

/// Added to the cross-entropy the new loss is the z-loss that kernels have.
#[test]
fn terms_that_are_added_are_the_fused_loss() {
    for (dtype, most) in [(DType::F32, 2e-5), (DType::Bf16, 1e-2)] {
        let case = Case { dtype, ..ONE };
        let of = |how: InStep| every_rank(case, &|device| train(device, &case, &how)).remove(0).0;
        let fused = of(InStep { z_loss: 0.01, ..how(&case, &Sum(vec![WeightedLoss::cross_entropy()])) });
        let found = of(how(&case, &added(0.01)));
        assert_eq!(
            (fused.len(), found.len()),
            (6, 18),
            "two terms are reported, each with a sum and a count"
        );
        let [losses, norms] = [0, 1].map(|at| (0..3).map(|step| found[step * 6 + at]).collect::<Vec<_>>());
        let [fused_losses, fused_norms] =
            [0, 1].map(|at| (0..3).map(|step| fused[step * 2 + at]).collect::<Vec<_>>());
        close("losses", &losses, &fused_losses, most);
        close("norms", &norms, &fused_norms, most);
        let reported: f32 = found[2] + 0.01 * found[4];
        close("what is reported", &[reported / found[3]], &losses[..1], most);
    }
}

#[test]
fn a_new_loss_is_the_same_on_every_mesh_alone_and_added() {
    let grid = Grid::default();
    for objective in [alone(), added(0.3), three()] {
        let one = every_rank(ONE, &|device| train(device, &ONE, &how(&ONE, &objective))).remove(0).0;
        let step = one.len() / 3;
        assert!(one[0] - one[2 * step] > 0.01, "it learns: {one:?}");
        for (grid, tile_rows) in [
            (Grid { tp: 2, ..grid }, None),
            (Grid { tp: 2, sequence_parallel: true, ..grid }, Some(128)),
            (Grid { cp: 2, ..grid }, None),
            (Grid { pp: 2, dp: 2, ..grid }, None),
        ] {
            let case = Case { grid, tile_rows, ..ONE };
            let ranks = every_rank(case, &|device| train(device, &case, &how(&case, &objective)));
            for (rank, found) in ranks.iter().enumerate() {
                close(&format!("{grid}"), &found.0, &one, 5e-5);
                let machine = Meta::new(fathom_cpu::Cpu::new(1, None).profile().clone());
                let mesh = Mesh::new(grid, Box::new(CountingLink::new(rank, grid.ranks())));
                let device = Device::on_mesh(Arc::new(machine), 1 << 28, mesh);
                assert_eq!(
                    train(&device, &case, &how(&case, &objective)).1,
                    found.1,
                    "{grid}: plan of {rank}"
                );
            }
        }
    }
}

/// Along its own direction the gradient of the projection is the slope of the loss.
#[test]
fn the_gradient_of_new_terms_is_that_of_finite_differences() {
    every_rank(ONE, &|device| {
        for objective in [alone(), added(0.3), three()] {
            let (mut trainer, batches) = (trainer(device, &ONE), batches(device, &ONE, 2));
            let how = how(&ONE, &objective);
            trainer.accumulate(&batches, &how);
            let id = trainer.model.head(0.0).weight;
            let gradient = device.to_f32(trainer.grads().get(id).unwrap());
            let norm = gradient.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
            let weight = trainer.params.tensor(id);
            let before = device.to_f32(&weight);
            let mut at = |by: f64| {
                let moved = before.iter().zip(&gradient).map(|(x, g)| x + (f64::from(*g) * by / norm) as f32);
                let bytes: Vec<u8> = moved.flat_map(f32::to_le_bytes).collect();
                device.machine.write(&weight, &bytes);
                trainer.accumulate(&batches, &how);
                f64::from(trainer.loss_sum())
            };
            let slope = (at(0.02) - at(-0.02)) / 0.04;
            assert!((slope - norm).abs() <= 0.01 * norm, "{objective:?}: {slope} {norm}");
        }
    });
}
