//! Frozen weights: they have no gradient and no state, are sharded like the others, and are omitted from checkpoints
//! over their base.

use std::path::Path;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_model::{
    FolderOptions, GenerationConfig, Init, Model, SaveOptions, TrainableWeights, initialise, load, save_hf,
};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh};
use fathom_tensor::{Category, Device, Machine, Meta};
use fathom_train::parallel::Sharding;
use fathom_train::{Base, Checkpoints, Goal, InStep, Progress, Trainer, frozen};

use crate::mesh::{ADAMW, Case, ONE, batches, every_rank, in_step, spec};

fn trained() -> TrainableWeights {
    TrainableWeights::matching(&[r"layers\.2\.mlp".into(), "norm".into()]).unwrap()
}

/// A trainer of the weights in [`trained`]; the others are frozen.
fn trainer(device: &Device, case: &Case) -> Trainer {
    let how = in_step(case);
    let portion = how.ranks.portion(&spec(false), &device.mesh);
    let (mut model, mut params) = Model::declare_part(device, &spec(false), case.dtype, None, portion);
    initialise(device, &model, &mut params, Init { deviation: 0.05, seed: 3 });
    frozen(&mut model, &mut params, &trained()).unwrap();
    Trainer::sharded(device, model, params, case.sharding, ADAMW)
}

struct FrozenResults {
    losses: Vec<[f32; 2]>,
    peak: u64,
    params: u64,
    optimizer: u64,
}

fn train(device: &Device, case: &Case) -> FrozenResults {
    let mut trainer = trainer(device, case);
    let how = InStep { goal: Goal { trained: trained(), ..Goal::default() }, ..in_step(case) };
    let usage = device.pool.usage();
    let batches = batches(device, case, 4);
    let step = |_| {
        let result = trainer.step(&batches, &how).unwrap();
        [result.loss.wait_f32() / result.count.wait_f32(), result.norm.wait_f32()]
    };
    let losses = (0..6).map(step).collect();
    let [params, optimizer] = [Category::Params, Category::Optimizer].map(|what| usage.by_category[what]);
    FrozenResults { losses, peak: device.pool.usage().peak_reserved, params, optimizer }
}

#[test]
fn frozen_weights_are_sharded_and_planned() {
    let one = &every_rank(ONE, &|device| train(device, &ONE))[0];
    assert!(one.losses[0][0] - one.losses[5][0] > 0.05, "it learns: {:?}", one.losses);
    let all = every_rank(ONE, &|device| {
        let _trainer = crate::mesh::trainer(device, &ONE);
        device.pool.usage().by_category[Category::Optimizer]
    })[0];
    assert!(one.optimizer * 4 < all, "{} of {all} bytes of optimizer state", one.optimizer);
    let grid = Grid::default();
    for (grid, sharding) in [
        (Grid { dp: 2, ..grid }, Sharding::Optim),
        (Grid { dp: 2, ..grid }, Sharding::OptimGradsParams),
        (Grid { pp: 2, ..grid }, Sharding::Optim),
        (Grid { tp: 2, sequence_parallel: true, ..grid }, Sharding::Optim),
        (Grid { cp: 2, dp: 2, ..grid }, Sharding::OptimGradsParams),
    ] {
        let case = Case { grid, sharding, ..ONE };
        // Frozen weights have the places of trained ones.
        let unfrozen = every_rank(case, &|device| {
            let _trainer = crate::mesh::trainer(device, &case);
            device.pool.usage().by_category[Category::Params]
        });
        if sharding == Sharding::OptimGradsParams {
            assert!(unfrozen[0] < one.params, "{grid}: {} of {} bytes", unfrozen[0], one.params);
        }
        for (rank, found) in every_rank(case, &|device| train(device, &case)).iter().enumerate() {
            for (a, b) in found.losses.iter().flatten().zip(one.losses.iter().flatten()) {
                assert!(
                    (a - b).abs() <= 1e-5 * b.abs().max(1.0),
                    "{grid}: {:?} {:?}",
                    found.losses,
                    one.losses
                );
            }
            assert_eq!(found.params, unfrozen[rank], "{grid}: rank {rank}");
            let machine = Meta::new(Cpu::new(1, None).profile().clone());
            let mesh = Mesh::new(grid, Box::new(CountingLink::new(rank, grid.ranks())));
            let planned = train(&Device::on_mesh(Arc::new(machine), 1 << 28, mesh), &case);
            assert_eq!((planned.peak, planned.params), (found.peak, found.params), "{grid}: rank {rank}");
        }
    }
}

#[test]
fn patterns_that_say_nothing_are_refused() {
    let device = &Device::new(Arc::new(Meta::new(Cpu::new(1, None).profile().clone())), 1 << 28);
    let (mut model, mut params) = Model::declare(device, &spec(false), ONE.dtype);
    for (patterns, said) in [
        (vec!["layers.9."], "no weight has a name with `layers.9.`"),
        (vec!["q_proj"], "are one weight here: train both or neither"),
        (vec!["("], "("),
    ] {
        let patterns: Vec<String> = patterns.into_iter().map(String::from).collect();
        let refused =
            TrainableWeights::matching(&patterns).and_then(|trained| model.freeze(&mut params, &trained));
        let message = refused.unwrap_err();
        assert!(message.contains(said), "{message}");
    }
}

/// Writes the initial model as a Hugging Face folder.
fn base(folder: &Path, seed: u64) {
    let device = &Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    let (model, mut params) = Model::declare(device, &spec(false), ONE.dtype);
    initialise(device, &model, &mut params, Init { deviation: 0.05, seed });
    let options = FolderOptions {
        weights: SaveOptions::new(ONE.dtype),
        generation: &GenerationConfig::default(),
        copy: &[],
    };
    save_hf(device, &model, &params, folder, options).unwrap();
}

#[test]
fn a_checkpoint_of_the_trained_part_goes_on_over_its_base() {
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    base(home.path(), 3);
    base(other.path(), 4);
    let saves = tempfile::tempdir().unwrap();
    let over = |folder: &Path| Checkpoints::new(saves.path(), 1).over(Some(Base::of(folder).unwrap()));
    let how = InStep { goal: Goal { trained: trained(), ..Goal::default() }, ..in_step(&ONE) };
    let device = &Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    let batches = batches(device, &ONE, 4);
    let mut whole = trainer(device, &ONE);
    (0..2).for_each(|_| drop(whole.step(&batches, &how).unwrap()));
    let progress = Progress { step: 2, ..Progress::default() };
    over(home.path()).begin(&whole, &progress).unwrap().finish(device).unwrap();
    let losses = |trainer: &mut Trainer| -> Vec<u32> {
        (0..3).map(|_| trainer.step(&batches, &how).unwrap().loss.wait_f32().to_bits()).collect()
    };
    let expected = losses(&mut whole);

    // The checkpoint contains only the trained tensors; with the base, all are found.
    let found = Checkpoints::new(saves.path(), 1).found().unwrap().unwrap();
    let bytes = |folder: &Path| std::fs::metadata(folder.join("model.safetensors")).unwrap().len();
    assert!(bytes(&found.folder().join("model")) * 4 < bytes(home.path()));
    let (model, mut params) = Model::declare(device, &spec(false), ONE.dtype);
    load(device, &model, &mut params, &found.weights().unwrap()).unwrap();

    // A trainer over the base continues with the same bits.
    let mut again = trainer(device, &ONE);
    assert_eq!(over(home.path()).load_latest(&mut again).unwrap().unwrap().step, 2);
    assert_eq!(losses(&mut again), expected);

    // The folder refuses another base, and to load as a whole model.
    let message = over(other.path()).load_latest(&mut trainer(device, &ONE)).unwrap_err().to_string();
    assert!(message.contains("holds the trained weights alone"), "{message}");
    let message =
        Checkpoints::new(saves.path(), 1).load_latest(&mut trainer(device, &ONE)).unwrap_err().to_string();
    assert!(message.contains("checkpoint.trained_only"), "{message}");
    base(home.path(), 5);
    let message = found.weights().map(drop).unwrap_err().to_string();
    assert!(message.contains("has the hash"), "{message}");
}
