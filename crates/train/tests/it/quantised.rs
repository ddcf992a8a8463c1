//! Quantized frozen weights: a step has the bits of one over the dequantized weights, for all places of weights and
//! activations and over any ranks; and its plan is its peak.

use std::path::Path;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{AdamWSettings, OnDisk, Places};
use fathom_model::{
    FolderOptions, GenerationConfig, Init, LlamaSizes, Model, Moe, Quantization, SaveOptions, Spec,
    TrainableWeights, initialise, load, open, save_hf,
};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh};
use fathom_tensor::{BlockFormat, Category, DType, Device, Machine, Meta};
use fathom_train::parallel::Sharding;
use fathom_train::{Base, Checkpoints, Goal, InStep, Progress, Trainer, frozen, open_state_disk};

use crate::mesh::{Case, ONE, batches, every_rank, in_step};

fn dense(tied: bool) -> Spec {
    Spec::llama(LlamaSizes { hidden: 128, layers: 4, head_dim: 32, ffn: 256, tied, ..LlamaSizes::TINY })
}

fn experts(tied: bool) -> Spec {
    dense(tied).into_mixtral(Moe::new(4, 2, 128))
}

fn trained() -> TrainableWeights {
    TrainableWeights::matching(&[r"layers\.2\.self_attn".into(), "norm".into()]).unwrap()
}

fn quantized(format: BlockFormat) -> Quantization {
    Quantization { format, double: true, trained: trained() }
}

/// Places of weights and activations.
#[derive(Clone, Copy)]
struct How<'a> {
    folder: &'a Path,
    format: Option<BlockFormat>,
    places: fn() -> Places,
    /// True if weights are on disk.
    on_disk: bool,
}

fn options(dtype: DType) -> FolderOptions<'static> {
    static NONE: std::sync::LazyLock<GenerationConfig> = std::sync::LazyLock::new(GenerationConfig::default);
    FolderOptions { weights: SaveOptions::new(dtype), generation: &NONE, copy: &[] }
}

/// Folders of a quantized model, and of the same model with dequantized weights.
fn folders(case: &Case, format: BlockFormat) -> [tempfile::TempDir; 2] {
    let folders = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let device = &Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    let spec = (case.spec)(false);
    let (model, mut params) = Model::declare(device, &spec, case.dtype);
    initialise(device, &model, &mut params, Init { deviation: 0.05, seed: 3 });
    save_hf(device, &model, &params, folders[0].path(), options(case.dtype)).unwrap();
    let how = (model.portion.clone(), Some(&quantized(format)));
    let (model, mut params) = Model::declare_quantized(device, &spec, case.dtype, None, how);
    load(device, &model, &mut params, &open(folders[0].path()).unwrap().source).unwrap();
    save_hf(device, &model, &params, folders[1].path(), options(case.dtype)).unwrap();
    folders
}

fn trainer(device: &Device, case: &Case, how: How<'_>) -> (Trainer, InStep) {
    let spec = (case.spec)(false);
    let goal = Goal { trained: trained(), quantized: how.format.map(quantized), ..Goal::default() };
    let in_step = in_step(case);
    let ranks = fathom_train::parallel::Ranks { rank: device.mesh.rank(), ..in_step.ranks };
    let on_disk = OnDisk { weights: how.on_disk, ..OnDisk::default() };
    let adamw = AdamWSettings { moments: case.moments, ..AdamWSettings::default() };
    let planned = InStep { on_disk, ranks, adamw, goal: goal.clone(), ..in_step.clone() };
    let disk = open_state_disk(device, &spec, case.dtype, &planned, &std::env::temp_dir()).unwrap();
    let portion = ranks.portion(&spec, &device.mesh);
    let (mut model, mut params) =
        Model::declare_quantized(device, &spec, case.dtype, disk, (portion, goal.quantized.as_ref()));
    load(device, &model, &mut params, &open(how.folder).unwrap().source).unwrap();
    frozen(&mut model, &mut params, &goal.trained).unwrap();
    let in_step = InStep { goal, on_disk, places: (how.places)().with_tiles(case.tile_rows), ..in_step };
    (Trainer::sharded(device, model, params, case.sharding, case.moments), in_step)
}

#[derive(Debug, PartialEq)]
struct StepResults {
    steps: Vec<[u32; 2]>,
    /// The trained weights.
    weights: Vec<(String, Vec<u8>)>,
}

fn train(device: &Device, case: &Case, how: How<'_>) -> (StepResults, [u64; 2]) {
    let (mut trainer, in_step) = trainer(device, case, how);
    let params = device.pool.usage().by_category[Category::Params];
    let batches = batches(device, case, 4);
    let step = |_| {
        let result = trainer.step(&batches, &in_step).unwrap();
        [result.loss.wait_f32().to_bits(), result.norm.wait_f32().to_bits()]
    };
    let steps = (0..3).map(step).collect();
    trainer.params.settle(device);
    let trained = trainer.params.iter().filter(|(_, param)| param.trainable);
    let weights = trained.map(|(_, param)| (param.name.clone(), param.value.bytes(device))).collect();
    (StepResults { steps, weights }, [params, device.pool.usage().peak_reserved])
}

#[track_caller]
fn check(case: Case, format: BlockFormat, places: fn() -> Places, on_disk: bool) {
    let folders = folders(&case, format);
    let [packed, plain] = [(0, Some(format)), (1, None)].map(|(index, format)| {
        let how = How { folder: folders[index].path(), format, places, on_disk };
        every_rank(case, &|device| train(device, &case, how))
    });
    let at = format!("{:?} {}, {:?}, on disk {on_disk}", format, case.grid, case.sharding);
    for (rank, ((packed, found), (plain, whole))) in packed.iter().zip(&plain).enumerate() {
        assert!(packed.steps == plain.steps, "{at}: {:?} {:?}", packed.steps, plain.steps);
        assert!(packed.weights == plain.weights, "{at}: weights of rank {rank}");
        assert!(f32::from_bits(packed.steps[2][0]).is_finite());
        if !on_disk {
            assert!(found[0] < whole[0], "{at}: {} of {} bytes of weights", found[0], whole[0]);
        }
        let machine = Meta::new(Cpu::new(1, None).profile().clone());
        let mesh = Mesh::new(case.grid, Box::new(CountingLink::new(rank, case.grid.ranks())));
        let device = Device::on_mesh(Arc::new(machine), 1 << 28, mesh);
        let how = How { folder: folders[0].path(), format: Some(format), places, on_disk };
        assert_eq!(train(&device, &case, how).1, *found, "{at}: plan of rank {rank}");
    }
}

const NF4: BlockFormat = BlockFormat::Nf4;

#[test]
fn placements_do_not_change_a_bit() {
    for dtype in [DType::F32, DType::Bf16] {
        let case = Case { spec: dense, dtype, ..ONE };
        for places in [Places::none, Places::linear, Places::full, || Places::full().with_segment_layers(2)] {
            check(case, NF4, places, false);
            check(case, NF4, places, true);
        }
        check(Case { tile_rows: Some(128), ..case }, NF4, Places::linear, false);
        check(case, BlockFormat::Int8, Places::linear, false);
    }
}

#[test]
fn ranks_do_not_change_a_bit() {
    let (grid, one) = (Grid::default(), Case { spec: dense, dtype: DType::Bf16, ..ONE });
    for (grid, sharding) in [
        (Grid { dp: 2, ..grid }, Sharding::Optim),
        (Grid { dp: 2, ..grid }, Sharding::OptimGradsParams),
        (Grid { cp: 2, ..grid }, Sharding::Optim),
        (Grid { pp: 2, ..grid }, Sharding::Optim),
        (Grid { tp: 2, sequence_parallel: true, ..grid }, Sharding::Optim),
        (Grid { tp: 2, dp: 2, ..grid }, Sharding::OptimGradsParams),
    ] {
        check(Case { grid, sharding, ..one }, NF4, Places::linear, false);
    }
    check(
        Case { grid: Grid { dp: 2, ..grid }, sharding: Sharding::OptimGradsParams, ..one },
        BlockFormat::Int8,
        Places::full,
        false,
    );
}

#[test]
fn experts_are_packed_too() {
    let (grid, one) = (Grid::default(), Case { spec: experts, dtype: DType::Bf16, ..ONE });
    check(one, NF4, Places::linear, false);
    check(Case { grid: Grid { dp: 2, ep: 2, ..grid }, ..one }, NF4, Places::linear, false);
}

#[test]
fn a_run_goes_on_from_its_checkpoint() {
    let case = Case { spec: dense, dtype: DType::Bf16, ..ONE };
    let folders = folders(&case, NF4);
    let how = How { folder: folders[0].path(), format: Some(NF4), places: Places::linear, on_disk: false };
    let device = &Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    let (mut whole, in_step) = trainer(device, &case, how);
    let batches = batches(device, &case, 4);
    let losses = |trainer: &mut Trainer| -> Vec<u32> {
        (0..2).map(|_| trainer.step(&batches, &in_step).unwrap().loss.wait_f32().to_bits()).collect()
    };
    losses(&mut whole);
    let saves = tempfile::tempdir().unwrap();
    let over = Checkpoints::new(saves.path(), 1).over(Some(Base::of(how.folder).unwrap()));
    over.begin(&whole, &Progress { step: 2, ..Progress::default() }).unwrap().finish(device).unwrap();
    let expected = losses(&mut whole);
    let (mut again, _) = trainer(device, &case, how);
    assert_eq!(over.load_latest(&mut again).unwrap().unwrap().step, 2);
    assert_eq!(losses(&mut again), expected);
}
