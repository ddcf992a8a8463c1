//! Noise on embeddings (NEFTune): a function of the token and the column, whatever the mesh and the places.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::Places;
use fathom_tensor::mesh::{CountingLink, Grid, Mesh};
use fathom_tensor::{Category, DType, Device, Machine, Meta, moments};
use fathom_train::parallel::Sharding;
use fathom_train::{Goal, InStep, Noise};

use crate::mesh::{Case, ONE, batches, every_rank, in_step, trainer};

fn how(case: &Case, alpha: Option<f64>) -> InStep {
    let noise = alpha.map(|alpha| Noise { alpha, seed: 9 });
    InStep { goal: Goal { noise, ..Goal::default() }, z_loss: 0.0, ..in_step(case) }
}

fn train(device: &Device, case: &Case, how: &InStep) -> (Vec<[f32; 2]>, u64) {
    let mut trainer = trainer(device, case);
    let mut micros = batches(device, case, 4);
    // Each micro-batch has its own number, whichever rank has it.
    micros.iter_mut().for_each(|micro| micro.number = micro.ids.iter().map(|id| *id as u64).sum());
    let step = |_| {
        let result = trainer.step(&micros, how).unwrap();
        [result.loss.wait_f32() / result.count.wait_f32(), result.norm.wait_f32()]
    };
    let seen = (0..4).map(step).collect();
    (seen, device.pool.usage().peak_reserved)
}

/// Each axis, with the rows of its tiles.
pub fn axes() -> [(Grid, Option<usize>); 6] {
    let grid = Grid::default();
    [
        (Grid { cp: 2, ..grid }, None),
        (Grid { dp: 2, ..grid }, None),
        (Grid { pp: 2, ..grid }, None),
        (Grid { tp: 2, ..grid }, None),
        (Grid { tp: 2, sequence_parallel: true, ..grid }, Some(128)),
        (Grid { tp: 2, cp: 2, sequence_parallel: true, ..grid }, None),
    ]
}

#[test]
fn noise_is_the_same_on_every_mesh_and_in_every_place() {
    let one = every_rank(ONE, &|device| train(device, &ONE, &how(&ONE, Some(5.0)))).remove(0);
    let plain = every_rank(ONE, &|device| train(device, &ONE, &how(&ONE, None))).remove(0);
    assert!((one.0[0][0] - plain.0[0][0]).abs() > 1e-4, "it changes something: {one:?} {plain:?}");
    for places in [Places::none(), Places::full(), Places::full().with_segment_layers(2)] {
        let found = every_rank(ONE, &|device| {
            train(device, &ONE, &InStep { places: places.clone(), ..how(&ONE, Some(5.0)) }).0
        });
        assert_eq!(found[0], one.0, "{places:?}");
    }
    for (grid, tile_rows) in axes() {
        let case = Case { grid, tile_rows, sharding: Sharding::Optim, ..ONE };
        let how = how(&case, Some(5.0));
        let ranks = every_rank(case, &|device| train(device, &case, &how));
        for (rank, found) in ranks.iter().enumerate() {
            for (a, b) in found.0.iter().flatten().zip(one.0.iter().flatten()) {
                assert!((a - b).abs() <= 2e-5 * b.abs().max(0.1), "{grid}: {:?} {:?}", found.0, one.0);
            }
            let machine = Meta::new(Cpu::new(1, None).profile().clone());
            let mesh = Mesh::new(grid, Box::new(CountingLink::new(rank, grid.ranks())));
            let planned = train(&Device::on_mesh(Arc::new(machine), 1 << 28, mesh), &case, &how);
            assert_eq!(planned.1, found.1, "{grid}: the plan of rank {rank}");
        }
    }
}

/// Uniform between plus and minus the row's scale.
#[test]
fn noise_is_uniform() {
    let device = Device::new(Arc::new(Cpu::new(2, None)), 1 << 26);
    let (rows, cols) = (64, 512);
    let x = device.zeros(rows, cols, DType::F32, Category::Data);
    let keys: Vec<i32> = (0..rows as i32).map(|row| row * 7919).collect();
    let scales: Vec<f32> = (0..rows).map(|row| 1.0 + row as f32 / 8.0).collect();
    device.machine.jitter(
        &x,
        &device.from_i32(&keys, Category::Data),
        &device.from_f32(1, rows, &scales, Category::Data),
    );
    let values = device.to_f32(&x);
    let (mut sum, mut squares) = (0.0, 0.0);
    for (at, value) in values.iter().enumerate() {
        let (row, col) = (at / cols, at % cols);
        let unit = moments::noise(keys[row].cast_unsigned(), col as u32) as f32 / 524_288.0 - 1.0;
        assert!((value - scales[row] * unit).abs() < 1e-5);
        let unit = f64::from(value / scales[row]);
        assert!(unit.abs() <= 1.0);
        (sum, squares) = (sum + unit, squares + unit * unit);
    }
    let n = values.len() as f64;
    assert!((sum / n).abs() < 0.01 && (squares / n - 1.0 / 3.0).abs() < 0.01, "{} {}", sum / n, squares / n);
}
