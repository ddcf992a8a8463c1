//! Restarted runs, and the state that they find in their folder.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fathom_base::Flow;
use fathom_base::metrics::MetricsWriter;
use fathom_cpu::Cpu;
use fathom_model::{Biases, Family, LayerSpec, Mlp, RopeScaling, Spec};
use fathom_tensor::mesh::Grid;
use fathom_tensor::{Activation, DType, Device, NormKind};
use fathom_train::recipe::{Checkpoint, FamilyName, Packing, Recipe, RopeType, Stage};
use fathom_train::{
    Checkpoints, Hooks, Outcome, Progress, Run, RunParts, Sources, StageTime, Stores, Trainer,
};

use crate::mesh::{Case, ONE, every_rank, resume, save_again};
use crate::survive::{VOCAB, Watch, mesh, recipe, run, trainer, write_store};

const EVERY_STEP: Checkpoint = Checkpoint {
    every_s: None,
    every_steps: Some(1),
    memory_every_steps: None,
    local: None,
    keep: 1,
    trained_only: false,
};

/// Runs a recipe on one rank; returns the final trainer.
fn alone(folder: &Path, recipe: &Recipe) -> Trainer {
    let stop = AtomicBool::new(false);
    alone_with(folder, recipe, &stop, &mut Watch { warnings: Vec::new(), stop_at: None, stop: &stop })
}

fn alone_with(folder: &Path, recipe: &Recipe, stop: &AtomicBool, hooks: &mut dyn Hooks) -> Trainer {
    let sources = Box::new(Stores::open(recipe, None, VOCAB).unwrap());
    let (outcome, trainer) = alone_from(folder, recipe, (sources, None), stop, hooks);
    assert_eq!(outcome, Outcome::Finished);
    trainer
}

/// Runs a recipe on one rank, with these sources and a time limit for its stages.
pub fn alone_from(
    folder: &Path,
    recipe: &Recipe,
    (sources, time): (Box<dyn Sources + '_>, Option<&dyn StageTime>),
    stop: &AtomicBool,
    hooks: &mut dyn Hooks,
) -> (Outcome, Trainer) {
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    let metrics = MetricsWriter::open(folder.join("metrics.jsonl")).unwrap();
    let trainer = trainer(recipe, &device).unwrap();
    let parts = RunParts {
        recipe,
        folder,
        trainer,
        sources,
        metrics,
        time,
        disk_sharers: 1,
        stop,
        save_requests: None,
        rebuild: None,
        base: None,
    };
    let mut run = Run::open(parts).unwrap();
    let outcome = run.train(hooks).unwrap();
    (outcome, run.finish().0)
}

/// A recipe of two stages, the second of which extends the context.
fn two_stages(folder: &Path) -> Recipe {
    write_store(&folder.join("store"));
    let mut recipe = recipe(folder, mesh(Grid::default(), 0), EVERY_STEP);
    recipe.stage[0].steps = Some(2);
    let longer =
        Stage { seq_tokens: 512, rope_type: RopeType::Linear, steps: Some(3), ..recipe.stage[0].clone() };
    recipe.stage.push(longer);
    recipe
}

#[test]
fn a_run_whose_stages_are_done_has_the_specification_of_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = two_stages(folder.path());
    let first = alone(folder.path(), &recipe).model.spec;
    assert_eq!((first.max_positions, &first.ropes[0].scaling), (512, &RopeScaling::Linear { factor: 2.0 }));
    // The state after a kill between the last save and the export.
    assert_eq!(alone(folder.path(), &recipe).model.spec, first);
}

#[test]
fn the_last_checkpoint_of_each_stage_stays_and_what_no_run_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let others = [".step-by-step", "step-00000002-best", "step-notes"];
    for name in others {
        std::fs::create_dir_all(folder.path().join("checkpoints").join(name)).unwrap();
    }
    alone(folder.path(), &two_stages(folder.path()));
    let entries = std::fs::read_dir(folder.path().join("checkpoints")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let [first, copy, notes] = others;
    assert_eq!(names, [first, "LATEST", "step-00000002", copy, "step-00000005", notes]);
}

/// Looks up the newest checkpoint while measuring.
struct CheckpointWatch {
    checkpoints: Checkpoints,
    found: Vec<Option<u64>>,
    /// Asks to stop during the first measurement.
    stops: bool,
}

impl Hooks for CheckpointWatch {
    fn stage_done(
        &mut self,
        _: &Trainer,
        _: usize,
        _: u64,
        _: &mut MetricsWriter,
    ) -> fathom_train::Result<Flow> {
        self.found.push(self.checkpoints.latest());
        Ok(if std::mem::take(&mut self.stops) { Flow::Stop } else { Flow::Continue })
    }
}

/// A run that is killed while it measures has not lost the stage.
#[test]
fn a_stage_is_saved_before_it_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = two_stages(folder.path());
    recipe.checkpoint.every_steps = None;
    let checkpoints = Checkpoints::new(&folder.path().join("checkpoints"), 1);
    let mut hooks = CheckpointWatch { checkpoints, found: Vec::new(), stops: false };
    alone_with(folder.path(), &recipe, &AtomicBool::new(false), &mut hooks);
    assert_eq!(hooks.found, [Some(2), Some(5)]);
}

#[test]
fn a_run_that_stops_while_it_measures_comes_back_to_the_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = two_stages(folder.path());
    let checkpoints = Checkpoints::new(&folder.path().join("checkpoints"), 1);
    let mut hooks = CheckpointWatch { checkpoints, found: Vec::new(), stops: true };
    let open = || (Box::new(Stores::open(&recipe, None, VOCAB).unwrap()) as _, None);
    let stop = AtomicBool::new(false);
    let mut go_on = || alone_from(folder.path(), &recipe, open(), &stop, &mut hooks);
    let outcomes = [go_on().0, go_on().0];
    assert_eq!(outcomes, [Outcome::Interrupted, Outcome::Finished]);
    assert_eq!(hooks.found, [Some(2), Some(2), Some(5)]);
}

/// A folder with one checkpoint, of step 1.
fn saved() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    every_rank(ONE, &|device| resume(device, &ONE, folder.path(), 1));
    folder
}

fn load(folder: &Path) -> Result<Option<Progress>, String> {
    let load =
        |device: &Device| Checkpoints::new(folder, 1).load_latest(&mut crate::mesh::trainer(device, &ONE));
    every_rank(ONE, &|device| load(device).map_err(|error| error.to_string())).swap_remove(0)
}

#[test]
fn what_cannot_be_read_is_not_taken_for_a_new_run() {
    let folder = saved();
    let latest = folder.path().join("LATEST");
    assert_eq!(load(folder.path()).unwrap().unwrap().step, 1);
    std::fs::write(&latest, "").unwrap();
    assert!(load(folder.path()).unwrap_err().contains("LATEST"));
    std::fs::remove_file(&latest).unwrap();
    std::fs::create_dir(&latest).unwrap();
    assert!(load(folder.path()).unwrap_err().contains("LATEST"));
    std::fs::remove_dir(&latest).unwrap();
    assert!(load(folder.path()).unwrap_err().contains("LATEST: is missing next to step-00000001"));
}

#[test]
fn a_checkpoint_that_was_put_aside_is_found() {
    let folder = saved();
    let [place, aside] = ["step-00000001", ".step-00000001.old"].map(|name| folder.path().join(name));
    std::fs::rename(&place, &aside).unwrap();
    assert_eq!(load(folder.path()).unwrap().unwrap().step, 1);
    // A checkpoint of the same step takes its place.
    let save = |device: &Device| {
        let progress = Progress { step: 1, tokens: 7, ..Progress::default() };
        let trainer = crate::mesh::trainer(device, &ONE);
        Checkpoints::new(folder.path(), 1).begin(&trainer, &progress).unwrap().finish(device).unwrap();
    };
    for _ in 0..2 {
        every_rank(ONE, &save);
        assert!(place.is_dir() && !aside.exists());
        assert_eq!(load(folder.path()).unwrap().unwrap().tokens, 7);
    }
}

#[test]
fn ranks_that_find_different_checkpoints_end() {
    let (case, other) =
        (Case { grid: Grid { dp: 2, ..Grid::default() }, ..ONE }, tempfile::tempdir().unwrap());
    let folder = saved();
    let errors = every_rank(case, &|device| {
        let place = if device.mesh.rank() == 0 { folder.path() } else { other.path() };
        let loaded = Checkpoints::new(place, 1).load_latest(&mut crate::mesh::trainer(device, &case));
        loaded.unwrap_err().to_string()
    });
    let expected = "rank 0 finds that of step 1 in stage 0 here and rank 1 no checkpoint";
    assert!(errors.iter().all(|error| error.contains(expected)), "{errors:?}");
}

/// Samples of uneven lengths are padded if ranks share their tokens or exchange rows.
#[test]
fn samples_of_any_length_go_over_any_mesh() {
    let grid = |tp, cp, dp, ep| Grid { tp, cp, dp, ep, ..Grid::default() };
    let losses = |family, grid: Grid| {
        let folder = tempfile::tempdir().unwrap();
        write_store(&folder.path().join("store"));
        let mut recipe = recipe(folder.path(), mesh(grid, 0), Checkpoint { every_steps: None, ..EVERY_STEP });
        (recipe.model.family, recipe.mesh.ep) = (family, grid.ep);
        recipe.stage[0].packing = Packing::BestFit;
        let ranks = run(folder.path(), &recipe, None);
        let ended = ranks.iter().all(|rank| rank.ended == Ok(Outcome::Finished));
        assert!(ended, "{grid}: {:?}", ranks.iter().map(|rank| &rank.ended).collect::<Vec<_>>());
        ranks[0].losses.iter().map(|(_, bits)| f32::from_bits(*bits)).collect::<Vec<_>>()
    };
    let cases = [
        (FamilyName::Llama, vec![grid(2, 1, 1, 1), grid(1, 2, 2, 1)]),
        (FamilyName::Mixtral, vec![grid(1, 1, 2, 2), grid(2, 1, 1, 2)]),
    ];
    for (family, grids) in cases {
        let one = losses(family, Grid::default());
        for grid in grids {
            let apart =
                losses(family, grid).iter().zip(&one).map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f32::max);
            assert!(apart <= 1e-4, "{grid}: {apart}");
        }
    }
}

#[test]
fn more_documents_than_masks_have_room_for_are_an_error_with_its_key() {
    let folder = tempfile::tempdir().unwrap();
    write_store(&folder.path().join("store"));
    let mut recipe = recipe(folder.path(), mesh(Grid { dp: 2, ..Grid::default() }, 0), EVERY_STEP);
    recipe.stage[0].max_docs = 1;
    for rank in run(folder.path(), &recipe, None) {
        let error = rank.ended.unwrap_err();
        assert!(error.contains("stage.0.max_docs: a micro batch has 2 documents"), "{error}");
    }
    recipe.stage[0].max_docs = 4;
    for rank in run(folder.path(), &recipe, None) {
        assert_eq!(rank.ended, Ok(Outcome::Finished));
    }
}

/// Like GPT-2: positions are a table, which the last pipeline stage does not have although it has the embedding.
fn positions(tied: bool) -> Spec {
    let layers = vec![LayerSpec::decoder(None, None); 4];
    Spec {
        family: Family::named("gpt2"),
        kv_heads: 4,
        norm: NormKind { centred: true, plus_one: false, round_first: false, eps: 1e-5 },
        norm_bias: true,
        bias: Biases { qkv: true, attn_out: true, mlp: true },
        mlp: Mlp { activation: Activation::GeluTanh, gated: false },
        layers,
        ropes: Vec::new(),
        learned_positions: Some(256),
        ..crate::mesh::spec(tied)
    }
}

#[test]
fn a_tied_pipeline_saves_the_positions_that_it_trained() {
    let one = Case { spec: positions, tied: true, dtype: DType::F32, ..ONE };
    let two = Case { grid: Grid { pp: 2, ..Grid::default() }, ..one };
    let [parted, whole, copied] = [0, 1, 2].map(|_| tempfile::tempdir().unwrap());
    every_rank(two, &|device| resume(device, &two, parted.path(), 3));
    every_rank(one, &|device| resume(device, &one, whole.path(), 3));
    let losses = |folder: &Path| every_rank(one, &|device| resume(device, &one, folder, 1)).swap_remove(0)[0];
    save_again(two, parted.path(), copied.path());
    let (whole, parted, copied) = (losses(whole.path()), losses(parted.path()), losses(copied.path()));
    assert!((parted / whole - 1.0).abs() <= 1e-5 && parted == copied, "{whole} {parted} {copied}");
}
