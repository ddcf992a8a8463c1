//! Optimizer variants over ranks, compared with one rank as in `mesh.rs`.

use fathom_grad::Moments;
use fathom_tensor::DType;
use fathom_tensor::mesh::Grid;
use fathom_train::parallel::Sharding;

use crate::mesh::{ADAMW, CODED, Case, ONE, STEPS, check, world};

/// SGD with momentum, moments in bf16 and eight bits, and weights without masters, along every axis.
#[test]
fn other_optimizers_compute_the_same_step() {
    let sgd = Case { moments: Moments { second: false, ..ADAMW }, ..ONE };
    check(Case { grid: Grid { pp: 2, ..Grid::default() }, ..sgd }, true);
    for grid in [
        Grid { tp: 2, sequence_parallel: true, ..Grid::default() },
        Grid { cp: 2, ..Grid::default() },
        Grid { dp: 2, ..Grid::default() },
        Grid { tp: 2, pp: 2, dp: 2, sequence_parallel: true, ..Grid::default() },
    ] {
        check(Case { grid, sharding: Sharding::OptimGrads, ..sgd }, false);
    }
    let narrow = Case { moments: Moments { dtype: DType::Bf16, ..ADAMW }, ..ONE };
    let grid = Grid { pp: 2, ..Grid::default() };
    check(Case { grid, ..narrow }, true);
    check(Case { grid, on_disk: true, ..narrow }, true);
    let coded = Case { moments: CODED, ..ONE };
    check(Case { grid, ..coded }, true);
    check(Case { grid, on_disk: true, dtype: DType::Bf16, ..coded }, true);
    let bare = Case { moments: Moments { masters: false, ..ADAMW }, dtype: DType::Bf16, ..ONE };
    check(Case { grid, on_disk: true, ..bare }, true);
    check(Case { grid: Grid { dp: 2, ..Grid::default() }, ..bare }, false);
}

/// Moments as e4m3 codes: the losses are near those with f32 moments, and nearer than those with another learning rate.
#[test]
fn losses_with_moments_of_eight_bits() {
    let run = |moments| world(Case { moments, ..ONE }, STEPS).swap_remove(0);
    let (wide, coded) = (run(ADAMW), run(CODED));
    let apart = |(a, b): (&f32, &f32)| (a / b - 1.0).abs();
    let worst = coded.losses.iter().zip(&wide.losses).map(apart).fold(0.0, f32::max);
    assert!(worst > 0.0 && worst < 0.02, "{worst}: {:?} {:?}", coded.losses, wide.losses);
    assert!(coded.peak < wide.peak, "{} of {}", coded.peak, wide.peak);
}
