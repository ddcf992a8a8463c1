//! Ranks that die, hang, are slow, produce NaN or flip a bit: the run continues with the losses of an undisturbed one,
//! or ends with a message that names the rank.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fathom_base::metrics::{Event, MetricsWriter, events, read_events};
use fathom_cpu::Cpu;
use fathom_model::{Init, LlamaSizes, Model, Moe, Spec, initialise};
use fathom_tensor::mesh::{Grid, Mesh, Seat, ThreadsOptions, threads};
use fathom_tensor::{DType, Device};
use fathom_text::store::{DocMeta, Header, StoreWriter};
use fathom_train::recipe::{Blend, Checkpoint, FamilyName, MeshTable, Recipe, ShardingName, Stage};
use fathom_train::{
    Hooks, Outcome, Run, RunParts, Stores, Trainer, fault, open_state_disk, rank_folder, stage,
};

use crate::ResultCache;

const STEPS: u64 = 8;
pub const VOCAB: usize = 96;

pub fn write_store(prefix: &Path) {
    let mut writer = StoreWriter::create(prefix, Header::new(VOCAB as u64)).unwrap();
    let mut state = 7u32;
    for doc in 0..60 {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        let ids: Vec<u32> =
            (0..300 + doc * 7).map(|at| (at * at % 7 + next() % 3 * 11) % VOCAB as u32).collect();
        writer.push_document(&ids, DocMeta::of_text(&format!("document {doc}"), 0)).unwrap();
    }
    writer.finish().unwrap();
}

/// A run of one stage over a mesh, in a folder with its token store.
pub fn recipe(folder: &Path, mesh: MeshTable, checkpoint: Checkpoint) -> Recipe {
    let source = folder.join("store").display().to_string();
    let blend = vec![Blend { source, weight: 1.0 }];
    let stage = Stage {
        seq_tokens: 256,
        micro_batches: 4,
        steps: Some(STEPS),
        blend,
        masked: true,
        ..Stage::default()
    };
    let mut recipe = Recipe { stage: vec![stage], mesh, checkpoint, ..Recipe::default() };
    recipe.schedule.warmup_steps = Some(2);
    recipe
}

fn no_saves() -> Checkpoint {
    Checkpoint { every_s: None, memory_every_steps: Some(2), ..Checkpoint::default() }
}

pub fn mesh(grid: Grid, restarts: u64) -> MeshTable {
    let Grid { tp, cp, dp, pp, .. } = grid;
    MeshTable { tp, cp, dp, pp, sequence_parallel: tp > 1, restarts, ..MeshTable::default() }
}

pub fn trainer(recipe: &Recipe, device: &Device) -> fathom_train::Result<Trainer> {
    let spec = Spec::llama(LlamaSizes { layers: 4, vocab: VOCAB, ..LlamaSizes::TINY });
    let spec = match recipe.model.family {
        FamilyName::Mixtral => spec.into_mixtral(Moe::new(4, 2, 48)),
        _ => spec,
    };
    let ranks = stage::ranks(recipe, 0)?;
    let portion = ranks.portion(&spec, &device.mesh);
    let how = stage::in_step(recipe, 0)?;
    let disk = open_state_disk(device, &spec, DType::F32, &how, &std::env::temp_dir())?;
    let (model, mut params) = Model::declare_part(device, &spec, DType::F32, disk, portion);
    initialise(device, &model, &mut params, Init { deviation: 0.05, seed: 3 });
    Ok(Trainer::sharded(device, model, params, ranks.sharding, stage::moments(recipe)))
}

/// Records warnings; asks the run to stop at a step.
pub struct Watch<'a> {
    pub warnings: Vec<String>,
    pub stop_at: Option<u64>,
    pub stop: &'a AtomicBool,
}

impl Hooks for Watch<'_> {
    fn warn(&mut self, text: &str) {
        self.warnings.push(text.into());
    }
    fn step(&mut self, step: &events::Step, _: u64, _: Option<u64>) -> fathom_train::Result<()> {
        if self.stop_at == Some(step.step) {
            self.stop.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Results of a rank's run.
#[derive(Debug)]
pub struct RankResults {
    pub ended: Result<Outcome, String>,
    warnings: Vec<String>,
    pub losses: Vec<(u64, u32)>,
    recoveries: Vec<events::Recovery>,
    scores: usize,
    resumed: Vec<u64>,
}

/// A run over these stores that ends with a failure.
pub fn parts<'a>(
    (recipe, folder): (&'a Recipe, &'a Path),
    trainer: Trainer,
    stores: Stores,
    metrics: MetricsWriter,
    stop: &'a AtomicBool,
) -> RunParts<'a> {
    RunParts {
        recipe,
        folder,
        trainer,
        sources: Box::new(stores),
        metrics,
        time: None,
        disk_sharers: 1,
        stop,
        save_requests: None,
        rebuild: None,
        base: None,
    }
}

/// Runs a recipe on all its ranks; `stop_at` asks one rank to stop after a step.
pub fn run(folder: &Path, recipe: &Recipe, stop_at: Option<(usize, u64)>) -> Vec<RankResults> {
    let grid = stage::ranks(recipe, 0).unwrap().grid;
    let deadline = Duration::from_secs_f64(recipe.mesh.timeout_s);
    let one = |seat: Seat| {
        let mesh = Mesh::new(grid, Box::new(seat.take()));
        let (rank, machine) = (mesh.rank(), Arc::new(Cpu::new(1, None)));
        let device = Device::on_mesh(machine, 1 << 28, mesh.clone());
        let own = if rank == 0 { folder.to_path_buf() } else { rank_folder(folder, rank) };
        std::fs::create_dir_all(&own).unwrap();
        let log = own.join("metrics.jsonl");
        let stop = Arc::new(AtomicBool::new(false));
        let stop_at = stop_at.filter(|(of, _)| *of == rank).map(|(_, step)| step);
        let mut watch = Watch { warnings: Vec::new(), stop_at, stop: &stop };
        let rebuild = |device: &Device, _: Option<&Trainer>| trainer(recipe, device);
        let go = || -> fathom_train::Result<Outcome> {
            let metrics = MetricsWriter::open(&log)?;
            let trainer = trainer(recipe, &device)?;
            let stores = Stores::open(recipe, None, VOCAB)?;
            let (rebuild, disk_sharers) = (Some(&rebuild as fathom_train::Rebuild<'_>), grid.ranks());
            let plain = parts((recipe, folder), trainer, stores, metrics, &stop);
            let parts = RunParts { disk_sharers, rebuild, ..plain };
            let parts = match &recipe.machine.fault {
                None => parts,
                Some(faults) => fault::around(parts, faults, &stop)?,
            };
            Run::open(parts)?.train(&mut watch)
        };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(go));
        let ended = match ended {
            Ok(ended) => ended.map_err(|error| error.to_string()),
            Err(_) => Err("it panicked".into()),
        };
        if let (Err(error), Some(link)) = (&ended, mesh.link()) {
            link.abort(error);
        }
        let mut seen = RankResults {
            ended,
            warnings: watch.warnings,
            losses: vec![],
            recoveries: vec![],
            scores: 0,
            resumed: vec![],
        };
        for event in read_events(&log).unwrap().iter().filter_map(Event::from_value) {
            match event {
                Event::Step(step) => seen.losses.push((step.step, step.loss_bits)),
                Event::Recovery(recovery) => seen.recoveries.push(recovery),
                Event::Ranks(_) => seen.scores += 1,
                Event::Resume(resume) => seen.resumed.push(resume.step),
                _ => {}
            }
        }
        seen
    };
    std::thread::scope(|scope| {
        let seats = threads(grid.ranks(), ThreadsOptions { deadline, chaos: recipe.machine.chaos });
        let one = &one;
        let ranks: Vec<_> = seats.into_iter().map(|seat| scope.spawn(move || one(seat))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A run with faults, in its own folder.
fn with(mesh: MeshTable, checkpoint: Checkpoint, fault: &str) -> Vec<RankResults> {
    let folder = tempfile::tempdir().unwrap();
    write_store(&folder.path().join("store"));
    let mut recipe = recipe(folder.path(), mesh, checkpoint);
    recipe.machine.fault = Some(fault.into()).filter(|fault: &String| !fault.is_empty());
    run(folder.path(), &recipe, None)
}

/// The losses of a run without faults.
fn calm(grid: Grid) -> Vec<(u64, u32)> {
    calm_with(mesh(grid, 0))
}

fn calm_with(table: MeshTable) -> Vec<(u64, u32)> {
    static MADE: ResultCache<Vec<(u64, u32)>> = ResultCache::new();
    let table = MeshTable { restarts: 0, ..table };
    MADE.get(format!("{table:?}"), || {
        let mut seen = with(table, no_saves(), "");
        assert!(seen.iter().all(|rank| rank.ended == Ok(Outcome::Finished)), "{seen:?}");
        seen.swap_remove(0).losses
    })
}

/// Checks that a run with faults has the losses of one without on every rank, and went back to the steps in `lost`.
#[track_caller]
fn goes_on(grid: Grid, table: MeshTable, checkpoint: Checkpoint, fault: &str, lost: &[(u64, &[u64])]) {
    let (calm, seen) = (calm_with(table.clone()), with(table, checkpoint, fault));
    assert_eq!(calm.len() as u64, STEPS);
    for (rank, seen) in seen.iter().enumerate() {
        let what = format!("rank {rank} of {grid}, {fault}: {:?} {:?}", seen.ended, seen.warnings);
        assert_eq!(seen.ended, Ok(Outcome::Finished), "{what}");
        assert_eq!(seen.losses, calm, "{what}");
        let found: Vec<(u64, &[u64])> =
            seen.recoveries.iter().map(|recovery| (recovery.step, recovery.lost.as_slice())).collect();
        assert_eq!(found, lost, "{what}");
    }
}

#[test]
fn a_rank_that_dies_is_restarted_from_its_partner() {
    let grids = [
        Grid { dp: 2, ..Grid::default() },
        Grid { tp: 2, ..Grid::default() },
        Grid { pp: 2, dp: 2, ..Grid::default() },
    ];
    for grid in grids {
        goes_on(grid, mesh(grid, 1), no_saves(), "kill rank 1 at step 6", &[(4, &[1])]);
    }
    let grid = grids[0];
    goes_on(grid, mesh(grid, 1), no_saves(), "kill rank 0 at step 2", &[(0, &[0])]);
    let table = MeshTable { sharding: ShardingName::NoShard, ..mesh(grid, 2) };
    let fault = "kill rank 1 at step 3, kill rank 0 at step 8";
    goes_on(grid, table, no_saves(), fault, &[(2, &[1]), (6, &[0])]);
}

#[test]
fn ranks_that_share_gradients_and_weights_go_on_too() {
    let grid = Grid { dp: 2, ..Grid::default() };
    for sharding in [ShardingName::OptimGrads, ShardingName::OptimGradsParams] {
        let table = || MeshTable { sharding, check_every_steps: 1, ..mesh(grid, 2) };
        goes_on(grid, table(), no_saves(), "kill rank 1 at step 6", &[(4, &[1])]);
        goes_on(grid, table(), no_saves(), "nan rank 1 at step 5", &[(4, &[])]);
    }
    let saves = Checkpoint { every_steps: Some(3), memory_every_steps: None, ..no_saves() };
    let table = MeshTable { sharding: ShardingName::OptimGradsParams, ..mesh(grid, 1) };
    let (calm, seen) = (calm_with(table.clone()), with(table, saves, "kill rank 0 at step 8"));
    for rank in seen {
        assert_eq!((&rank.ended, &rank.losses), (&Ok(Outcome::Finished), &calm));
    }
}

#[test]
fn without_copies_in_memory_the_last_checkpoint_is_used() {
    let grid = Grid { dp: 2, ..Grid::default() };
    let saves = Checkpoint { every_s: None, every_steps: Some(3), ..Checkpoint::default() };
    // The save of step 3 is published at the end of a later step, at the latest before the next save.
    let seen = with(mesh(grid, 1), saves.clone(), "kill rank 1 at step 8");
    let calm = calm(grid);
    for rank in seen {
        assert_eq!((&rank.ended, &rank.losses), (&Ok(Outcome::Finished), &calm));
        assert!([3, 6].contains(&rank.recoveries[0].step), "{:?}", rank.recoveries);
    }
    // There is no state to return to.
    let none = Checkpoint { memory_every_steps: None, ..no_saves() };
    let seen = with(mesh(grid, 5), none, "kill rank 1 at step 4");
    for rank in seen {
        let error = rank.ended.unwrap_err();
        assert!(error.contains("rank 1") && error.contains("the fault plan kills rank 1"), "{error}");
    }
}

#[test]
fn a_rank_that_hangs_is_restarted() {
    let grid = Grid { dp: 2, ..Grid::default() };
    // On a busy machine another rank may be late too, and is then restarted as well.
    let table = MeshTable { step_timeout_s: Some(2.0), ..mesh(grid, 100) };
    let (calm, seen) = (calm(grid), with(table, no_saves(), "hang rank 1 at step 5"));
    for rank in &seen {
        assert_eq!((&rank.ended, &rank.losses), (&Ok(Outcome::Finished), &calm), "{:?}", rank.warnings);
        let named =
            |recovery: &&events::Recovery| recovery.lost == [1] && recovery.why.contains("rank 1 was last");
        assert!(rank.recoveries.iter().any(|recovery| named(&recovery)), "{:?}", rank.recoveries);
    }
}

#[test]
fn a_transient_nan_is_made_again_and_a_lasting_one_ends_the_run() {
    let grid = Grid { dp: 2, ..Grid::default() };
    goes_on(grid, mesh(grid, 1), no_saves(), "nan rank 1 at step 5", &[(4, &[])]);
    for rank in with(mesh(grid, 0), no_saves(), "nan rank 0 at step 3") {
        assert!(rank.ended.unwrap_err().contains("step 3: loss"));
    }
}

#[test]
fn a_flipped_bit_is_found_and_its_rank_named() {
    let grid = Grid { dp: 3, ..Grid::default() };
    let four = Grid { dp: 4, ..Grid::default() };
    for sharding in [ShardingName::NoShard, ShardingName::Optim] {
        let table = MeshTable { check_every_steps: 1, sharding, ..mesh(four, 1) };
        goes_on(four, table, no_saves(), "flip rank 2 at step 6", &[(4, &[2])]);
    }
    let two = Grid { dp: 2, ..grid };
    let table = MeshTable { check_every_steps: 1, ..mesh(two, 5) };
    for rank in with(table, no_saves(), "flip rank 1 at step 6") {
        let error = rank.ended.unwrap_err();
        assert!(error.contains("step 6: ranks [0, 1] should have the same weights"), "{error}");
    }
}

#[test]
fn slow_ranks_are_scored_and_change_nothing() {
    let grid = Grid { dp: 2, ..Grid::default() };
    let (calm, seen) = (calm(grid), with(mesh(grid, 0), no_saves(), "slow rank 1 at step 2"));
    assert!(seen.iter().all(|rank| rank.ended == Ok(Outcome::Finished) && rank.losses == calm));
    assert_eq!([seen[0].scores, seen[1].scores], [1, 0], "the first rank tells");
}

#[test]
fn any_rank_that_is_asked_to_stop_stops_all() {
    let grid = Grid { dp: 2, pp: 2, ..Grid::default() };
    let folder = tempfile::tempdir().unwrap();
    write_store(&folder.path().join("store"));
    let only_last = Checkpoint { every_s: None, ..Checkpoint::default() };
    let mut recipe = recipe(folder.path(), mesh(grid, 0), only_last);
    recipe.machine.fault = Some("term rank 3 at step 3".into());
    for rank in run(folder.path(), &recipe, None) {
        assert_eq!(rank.ended, Ok(Outcome::Interrupted), "{:?}", rank.warnings);
        assert_eq!(rank.losses.len(), 3, "{:?}", rank.losses);
    }
    let calm = calm(grid);
    for rank in run(folder.path(), &recipe, None) {
        assert_eq!((&rank.ended, &rank.losses), (&Ok(Outcome::Finished), &calm));
    }
}

/// A stopped run continues under another mesh, with the same data and state: only rounding differs.
#[test]
fn a_run_goes_on_under_another_mesh() {
    let one = Grid::default();
    let (tp, pp, mixed) = (Grid { tp: 2, ..one }, Grid { pp: 2, ..one }, Grid { dp: 2, cp: 2, ..one });
    let calm = calm(one);
    for (before, after) in [(one, tp), (pp, mixed), (mixed, one)] {
        let folder = tempfile::tempdir().unwrap();
        write_store(&folder.path().join("store"));
        let only_last = Checkpoint { every_s: None, ..Checkpoint::default() };
        let mut recipe = recipe(folder.path(), mesh(before, 0), only_last);
        recipe.machine.fault = Some("term rank 0 at step 3".into());
        let ended = |seen: &[RankResults], outcome| seen.iter().all(|rank| rank.ended == Ok(outcome));
        let seen = run(folder.path(), &recipe, None);
        assert!(ended(&seen, Outcome::Interrupted), "{before}: {seen:?}");
        recipe.mesh = mesh(after, 0);
        let seen = run(folder.path(), &recipe, None);
        assert!(ended(&seen, Outcome::Finished), "{after}: {seen:?}");
        assert_eq!((seen[0].resumed.as_slice(), seen[0].losses.len()), (&[3][..], calm.len()));
        let apart = |(found, expected): (&(u64, u32), &(u64, u32))| {
            let [found, expected] = [found.1, expected.1].map(|bits| f64::from(f32::from_bits(bits)));
            (found / expected - 1.0).abs()
        };
        let worst = seen[0].losses.iter().zip(&calm).map(apart).fold(0.0, f64::max);
        assert!(worst <= 1e-5, "{before} to {after}: {worst}");
    }
}

#[test]
fn a_save_that_fails_is_a_warning() {
    let grid = Grid { dp: 2, ..Grid::default() };
    let folder = tempfile::tempdir().unwrap();
    write_store(&folder.path().join("store"));
    // A file blocks the checkpoints' folder.
    std::fs::write(folder.path().join("checkpoints"), "").unwrap();
    let saves = Checkpoint { every_s: None, every_steps: Some(2), ..Checkpoint::default() };
    let recipe = recipe(folder.path(), mesh(grid, 0), saves);
    for rank in run(folder.path(), &recipe, None) {
        assert_eq!(rank.ended, Ok(Outcome::Finished));
        assert!(
            rank.warnings.iter().any(|text| text.contains("no checkpoint of step 2")),
            "{:?}",
            rank.warnings
        );
    }
    for rank in run(folder.path(), &recipe, Some((0, 2))) {
        assert!(rank.ended.unwrap_err().contains("could not be saved"));
    }
}

/// Optimizer state may be on disk with a mesh, in checkpoints and in copies too.
#[test]
fn state_on_disk_survives_as_well() {
    let grid = Grid { pp: 2, dp: 2, ..Grid::default() };
    let calm = calm(grid);
    let folder = tempfile::tempdir().unwrap();
    write_store(&folder.path().join("store"));
    let saves = Checkpoint { every_steps: Some(3), ..no_saves() };
    let mut recipe = recipe(folder.path(), mesh(grid, 1), saves);
    recipe.machine.offload_optimizer = true;
    recipe.machine.fault = Some("kill rank 2 at step 6".into());
    for rank in run(folder.path(), &recipe, None) {
        assert_eq!((&rank.ended, &rank.losses), (&Ok(Outcome::Finished), &calm), "{:?}", rank.warnings);
        assert_eq!(rank.recoveries.len(), 1);
    }
}

/// Copies on a machine's disks that are newer than the last checkpoint are used by a resumed run; a damaged copy is
/// refused by name.
#[test]
fn copies_on_local_disks_are_gone_on_from() {
    let grid = Grid { dp: 2, ..Grid::default() };
    let [folder, disk] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    write_store(&folder.path().join("store"));
    let saves = Checkpoint { local: Some(disk.path().to_path_buf()), ..no_saves() };
    let mut recipe = recipe(folder.path(), mesh(grid, 0), saves);
    recipe.machine.fault = Some("kill rank 1 at step 7".into());
    assert!(run(folder.path(), &recipe, None).iter().all(|rank| rank.ended.is_err()));
    recipe.machine.fault = None;
    let copies: Vec<_> =
        files(disk.path()).into_iter().filter(|path| path.ends_with("step-00000006.copy")).collect();
    assert_eq!(copies.len(), 2, "{copies:?}");
    let sound = std::fs::read(&copies[1]).unwrap();
    std::fs::write(&copies[1], &sound[1..]).unwrap();
    for rank in run(folder.path(), &recipe, None) {
        let error = rank.ended.unwrap_err();
        assert!(error.contains("step-00000006.copy") && error.contains("altered"), "{error}");
    }
    std::fs::write(&copies[1], sound).unwrap();
    let calm = calm(grid);
    for rank in run(folder.path(), &recipe, None) {
        assert_eq!((&rank.ended, &rank.losses), (&Ok(Outcome::Finished), &calm));
        assert_eq!(rank.resumed, [6]);
    }
}

/// If the user names an older checkpoint, later copies are ignored from then on.
#[test]
fn a_run_that_is_set_back_passes_over_its_copies() {
    let grid = Grid { dp: 2, ..Grid::default() };
    let [folder, disk] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    write_store(&folder.path().join("store"));
    let local = Some(disk.path().to_path_buf());
    let saves = Checkpoint { local, every_steps: Some(2), keep: 9, ..no_saves() };
    let mut recipe = recipe(folder.path(), mesh(grid, 0), saves);
    recipe.machine.fault = Some("kill rank 1 at step 8".into());
    assert!(run(folder.path(), &recipe, None).iter().all(|rank| rank.ended.is_err()));
    std::fs::write(folder.path().join("checkpoints/LATEST"), "step-00000002").unwrap();
    recipe.checkpoint.every_steps = None;
    for (fault, resumed) in [("kill rank 0 at step 6", &[2][..]), ("", &[2, 4])] {
        recipe.machine.fault = Some(fault.into()).filter(|fault: &String| !fault.is_empty());
        for rank in run(folder.path(), &recipe, None) {
            assert_eq!((rank.ended.is_ok(), rank.resumed.as_slice()), (fault.is_empty(), resumed));
            assert!(rank.ended.is_err() || rank.losses == calm(grid));
        }
    }
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}
