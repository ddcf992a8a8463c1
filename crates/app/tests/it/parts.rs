//! Ranks that have parts of one model each, and replicas: they write together, and on policy the ratio is one.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{Moments, Sharding};
use fathom_model::{Model, Portion, RopeSpec, load, open};
use fathom_tensor::mesh::{Grid, Mesh, Seat, ThreadsOptions, threads};
use fathom_tensor::{DType, Device};
use fathom_train::Trainer;

use crate::policy::{PROMPTS, off_policy, written};

/// What is off policy of a model over a mesh, and the answers; none where it cannot be cut so.
fn over(grid: Grid, folder: &Path, dtype: DType) -> Option<Vec<String>> {
    let opened = open(folder).unwrap();
    let rank = |seat: Seat| {
        let mesh = Mesh::new(grid, Box::new(seat.take()));
        let device = Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 30, mesh);
        let opened = open(folder).unwrap();
        let portion = Portion::of(&opened.spec, &device.mesh, 1);
        let (model, mut params) = Model::declare_part(&device, &opened.spec, dtype, None, portion);
        load(&device, &model, &mut params, &opened.source).unwrap();
        let moments = Moments { dtype: DType::F32, second: true, masters: true };
        let mut trainer = Trainer::sharded(&device, model, params, Sharding::Optim, moments);
        let (mut misses, mut answers) = (Vec::new(), Vec::new());
        for (temperature, how, turns, tokens) in [(1.0, (1024, 0), false, 512), (0.7, (7, 3), true, 128)] {
            let docs = written(&trainer, 0..PROMPTS, temperature, how, turns);
            let off = off_policy(&mut trainer, &docs, temperature, tokens);
            misses.extend(
                off.map(|it| format!("{} {dtype:?} {grid} at {temperature}: {it}", folder.display())),
            );
            answers.extend(docs.into_iter().map(|doc| doc.ids));
        }
        (misses, answers)
    };
    // Ranks that share an expert's layer have a share of the rows each, and a step of generation has any number of them.
    let shares_rows = grid.tp > 1 && opened.spec.moe.is_some();
    let stages = grid.pp <= opened.spec.layers.len() && !shares_rows;
    let link = fathom_tensor::mesh::Imagined::new(0, grid.ranks());
    let fits = Portion::of(&opened.spec, &Mesh::new(grid, Box::new(link)), 1).check(&opened.spec).is_ok();
    if !(stages && fits) {
        return None;
    }
    let found: Vec<(Vec<String>, Vec<Vec<u32>>)> = std::thread::scope(|scope| {
        let ranks: Vec<_> = threads(grid.ranks(), ThreadsOptions::default())
            .into_iter()
            .map(|seat| scope.spawn(move || rank(seat)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let all_same = found.iter().all(|(_, answers)| *answers == found[0].1);
    assert!(all_same, "{} {dtype:?} {grid}: ranks have different answers", folder.display());
    Some(found.into_iter().flat_map(|(misses, _)| misses).collect())
}

#[test]
fn parts_of_a_model_write_together() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let one = Grid::default();
    let grids = [
        (Grid { tp: 2, ..one }, DType::Bf16),
        (Grid { tp: 2, sequence_parallel: true, ..one }, DType::F32),
        (Grid { pp: 2, ..one }, DType::Bf16),
        (Grid { dp: 2, ..one }, DType::F32),
    ];
    let (mut cases, mut misses) = ([0; 4], Vec::new());
    for entry in fs::read_dir(golden).unwrap() {
        let folder = entry.unwrap().path();
        if open(&folder).unwrap().spec.ropes.iter().any(RopeSpec::looks_at_length) {
            continue;
        }
        for ((grid, dtype), cases) in grids.into_iter().zip(&mut cases) {
            let found = over(grid, &folder, dtype);
            *cases += usize::from(found.is_some());
            misses.extend(found.into_iter().flatten());
        }
    }
    assert!(misses.is_empty(), "{misses:#?}");
    assert!(cases.iter().all(|cases| *cases >= 15), "{cases:?}");
}
