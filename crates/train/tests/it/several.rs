//! Several adapters over one base, in turns: each behaves like a run of its own.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fathom_base::Flow;
use fathom_base::metrics::{MetricsWriter, events, read_events};
use fathom_grad::{Param, Params, Value};
use fathom_model::{Init, LlamaSizes, Model, ModelView, Spec, adapt, initialise, share_untrained};
use fathom_tensor::mesh::Grid;
use fathom_tensor::{DType, Device, Tensor};
use fathom_train::parallel::Ranks;
use fathom_train::recipe::{
    AdapterName, AdapterTable, Checkpoint, Memory, NamedAdapter, OffloadTo, PlaceName, Precision, Recipe,
    ShardingName,
};
use fathom_train::{
    Hooks, Outcome, Rebuild, Run, RunParts, StageSettings, Stores, Trainer, adapted, fault, frozen,
    open_state_disk, rank_folder, stage, together,
};

use crate::mesh::{Case, ONE, every_rank};
use crate::survive::{VOCAB, mesh, recipe, write_store};

/// The recipes of two adapters in one run, in separate folders.
fn recipes(folder: &Path, grid: Grid, change: &dyn Fn(&mut Recipe)) -> Vec<Recipe> {
    let saves = Checkpoint { every_s: None, every_steps: Some(2), ..Checkpoint::default() };
    let mut all = recipe(folder, mesh(grid, 0), saves);
    all.adapter = AdapterTable { method: AdapterName::Lora, ..AdapterTable::default() };
    all.optimizer.lr = 3e-3;
    all.model.precision = Precision::F32;
    (all.stage[0].steps, all.stage[0].micro_batches) = (Some(6), 2);
    all.adapters = vec![
        NamedAdapter { name: "a".into(), rank: Some(4), ..NamedAdapter::default() },
        NamedAdapter { name: "b".into(), method: Some(AdapterName::Ia3), ..NamedAdapter::default() },
    ];
    change(&mut all);
    let own = |index: usize| {
        let (adapter, adapters) = (all.adapters[index].over(&all.adapter), all.among(index, &[0, 1]));
        let mut own = Recipe { adapter, adapters, ..all.clone() };
        own.run.seed = 5 + index as u64;
        own
    };
    vec![own(0), own(1)]
}

/// The trainer of an adapter over the base of another, or over one that it creates.
fn trainer(device: &Device, recipe: &Recipe, other: Option<&Trainer>) -> fathom_train::Result<Trainer> {
    let base = Spec::llama(LlamaSizes { vocab: VOCAB, ..LlamaSizes::TINY });
    let spec = adapted(recipe, base.clone())?;
    let ranks = stage::ranks(recipe, 0)?;
    let (mut model, mut params) = match other {
        Some(Trainer { model, params, .. }) => share_untrained(ModelView { device, model, params }, &spec),
        None => {
            let how = stage::in_step_among(recipe, 0, &spec)?;
            let disk = open_state_disk(device, &spec, DType::F32, &how, &std::env::temp_dir())?;
            let portion = ranks.portion(&spec, &device.mesh);
            let (model, params) = Model::declare_part(device, &spec, DType::F32, disk, portion);
            begin_base(device, &params, &base, &ranks);
            (model, params)
        }
    };
    adapt(device, &model, &mut params, recipe.run.seed).unwrap();
    frozen(&mut model, &mut params, &stage::trained(recipe)?)?;
    Ok(Trainer::sharded(device, model, params, ranks.sharding, stage::moments(recipe)))
}

/// Sets the base of a model to fixed values, the same for every adapter.
fn begin_base(device: &Device, params: &Params, base: &Spec, ranks: &Ranks) {
    let aside = Device::on_mesh(device.machine.clone(), 1 << 28, device.mesh.clone());
    let portion = ranks.portion(base, &device.mesh);
    let (plain, mut values) = Model::declare_part(&aside, base, DType::F32, None, portion);
    initialise(&aside, &plain, &mut values, Init { deviation: 0.05, seed: 3 });
    let mut found = 0;
    let of_base: BTreeMap<&str, &Value> = values.iter().map(|(_, one)| (&*one.name, &one.value)).collect();
    for (_, Param { name, value, .. }) in params.iter() {
        if let Some(from) = of_base.get(&**name) {
            let bytes = from.bytes(&aside);
            value.fill(|range: Range<usize>, to: &Tensor| {
                device.machine.write(to, &bytes[range.start * 4..range.end * 4]);
            });
            found += 1;
        }
    }
    assert_eq!(found, of_base.len());
}

/// Records warnings and the bytes outside memory; asks the run to stop at a step.
struct Watch<'a> {
    warnings: Vec<String>,
    stop_at: Option<u64>,
    stop: &'a AtomicBool,
    /// Peak bytes in memory and outside of it, planned and measured.
    planned: [u64; 2],
    found: [u64; 2],
}

impl Hooks for Watch<'_> {
    fn stage(&mut self, _: &events::Stage, settled: &StageSettings) {
        let plan = &settled.plan;
        self.planned = [plan.usage.peak_reserved, plan.host_peak_bytes + plan.disk_peak_bytes];
    }
    fn warn(&mut self, text: &str) {
        self.warnings.push(text.into());
    }
    fn step(&mut self, step: &events::Step, _: u64, _: Option<u64>) -> fathom_train::Result<()> {
        if self.stop_at == Some(step.step) {
            self.stop.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
    fn stage_done(
        &mut self,
        trainer: &Trainer,
        _: usize,
        _: u64,
        _: &mut MetricsWriter,
    ) -> fathom_train::Result<Flow> {
        let outside = trainer.spills().map(|spill| spill.stats().peak_reserved_bytes).sum();
        self.found = [trainer.device.pool.usage().peak_reserved, outside];
        Ok(Flow::Continue)
    }
}

/// Outcome on the first rank, each run's steps, the warnings, and each run's bytes in memory and outside of it, planned
/// and measured.
#[derive(Debug)]
struct SeveralResults {
    outcome: Outcome,
    steps: Vec<Vec<String>>,
    warnings: Vec<String>,
    bytes: Vec<[[u64; 2]; 2]>,
}

/// Runs them on all ranks to their end, or until the first has taken `stop_at` steps.
fn run(folder: &Path, recipes: &[&Recipe], stop_at: Option<u64>) -> SeveralResults {
    let grid = stage::ranks(recipes[0], 0).unwrap().grid;
    let on_rank = |device: &Device| rank(device, folder, recipes, stop_at);
    every_rank(Case { grid, ..ONE }, &on_rank).remove(0)
}

fn rank(device: &Device, folder: &Path, recipes: &[&Recipe], stop_at: Option<u64>) -> SeveralResults {
    let (machine, mesh) = (device.machine.clone(), device.mesh.clone());
    let device = &Device::on_mesh(machine, recipes[0].machine.memory_bytes.unwrap_or(1 << 28), mesh);
    let stop = Arc::new(AtomicBool::new(false));
    let own = |folder: &Path| match device.mesh.rank() {
        0 => folder.to_path_buf(),
        rank => rank_folder(folder, rank),
    };
    let names = |recipe: &Recipe| folder.join(format!("{}", recipe.run.seed));
    let folders: Vec<PathBuf> = recipes.iter().map(|recipe| names(recipe)).collect();
    let mut trainers: Vec<Trainer> = Vec::new();
    for recipe in recipes {
        let made = trainer(device, recipe, trainers.first()).unwrap();
        trainers.push(made);
    }
    let rebuilds: Vec<_> = (recipes.iter())
        .map(|recipe| move |device: &Device, other: Option<&Trainer>| trainer(device, recipe, other))
        .collect();
    let mut runs = Vec::new();
    for (((recipe, folder), trainer), rebuild) in recipes.iter().zip(&folders).zip(trainers).zip(&rebuilds) {
        std::fs::create_dir_all(own(folder)).unwrap();
        let parts = RunParts {
            recipe,
            folder,
            trainer,
            sources: Box::new(Stores::open(recipe, None, VOCAB).unwrap()),
            metrics: MetricsWriter::open(own(folder).join("metrics.jsonl")).unwrap(),
            time: None,
            disk_sharers: device.mesh.grid().ranks(),
            stop: &stop,
            save_requests: None,
            rebuild: Some(rebuild as Rebuild<'_>),
            base: None,
        };
        let parts = match &recipe.machine.fault {
            None => parts,
            Some(faults) => fault::around(parts, faults, &stop).unwrap(),
        };
        runs.push(Run::open(parts).unwrap());
    }
    let watch = |_: &&Recipe| Watch {
        warnings: Vec::new(),
        stop_at: None,
        stop: &stop,
        planned: [0; 2],
        found: [0; 2],
    };
    let mut watches: Vec<Watch<'_>> = recipes.iter().map(watch).collect();
    watches[0].stop_at = stop_at.filter(|_| device.mesh.rank() == 0);
    let mut hooks: Vec<&mut dyn Hooks> = watches.iter_mut().map(|watch| watch as &mut dyn Hooks).collect();
    let outcome = together(&mut runs, &mut hooks).unwrap();
    drop(runs);
    let steps = |folder: &PathBuf| {
        let events = read_events(own(folder).join("metrics.jsonl")).unwrap();
        let steps = events.iter().filter(|event| event["event"] == "step");
        steps.map(|step| format!("{} {}", step["loss_bits"], step["grad_norm"])).collect()
    };
    SeveralResults {
        outcome,
        steps: folders.iter().map(steps).collect(),
        warnings: watches.iter().flat_map(|watch| watch.warnings.clone()).collect(),
        bytes: watches.iter().map(|watch| [watch.planned, watch.found]).collect(),
    }
}

const DP: Grid = Grid { dp: 2, ..ONE.grid };

#[test]
fn adapters_in_turns_are_what_each_is_alone() {
    // With one rank, whole replicas and parts of a model, runs are interrupted as well.
    for (grid, is_cut) in [
        (ONE.grid, true),
        (DP, true),
        (Grid { tp: 2, sequence_parallel: true, ..ONE.grid }, false),
        (Grid { cp: 2, ..ONE.grid }, false),
        (Grid { pp: 2, ..ONE.grid }, true),
    ] {
        are_as_alone(grid, is_cut, &|_| {});
    }
}

/// A method with another weight whose state can be offloaded; it reads the base initially.
fn dora(recipe: &mut Recipe) {
    recipe.adapters[1].method = Some(AdapterName::Dora);
    recipe.adapters[1].rank = Some(2);
}

fn activations(recipe: &mut Recipe, place: PlaceName) {
    recipe.activations.offload_modules = vec!["all".into()];
    recipe.activations.offload_place = place;
}

fn state(recipe: &mut Recipe, place: OffloadTo) {
    (recipe.machine.offload_optimizer, recipe.machine.offload_to) = (true, place);
}

#[test]
fn activations_and_state_of_adapters_in_turns_are_where_each_run_has_them() {
    // If memory is scarce, each has the places chosen by its plan.
    let auto = |recipe: &mut Recipe| recipe.activations.memory = Memory::Auto;
    let ample = are_as_alone(ONE.grid, false, &auto);
    let scarce = ample.iter().max().map(|most| most - 1);
    let less = are_as_alone(ONE.grid, false, &|recipe| {
        auto(recipe);
        recipe.machine.memory_bytes = scarce;
    });
    assert_ne!(ample, less);
    are_as_alone(ONE.grid, true, &|recipe| activations(recipe, PlaceName::Disk));
    are_as_alone(ONE.grid, false, &|recipe| {
        dora(recipe);
        activations(recipe, PlaceName::Host);
        state(recipe, OffloadTo::Disk);
    });
    are_as_alone(ONE.grid, true, &|recipe| {
        dora(recipe);
        state(recipe, OffloadTo::Host);
        recipe.machine.offload_weights = true;
    });
    are_as_alone(DP, false, &|recipe| {
        dora(recipe);
        activations(recipe, PlaceName::Disk);
        state(recipe, OffloadTo::Disk);
        recipe.machine.optimizer_stays_percent = 40;
    });
}

#[test]
fn ranks_share_the_base_of_adapters_in_turns() {
    are_as_alone(DP, true, &|recipe| recipe.mesh.sharding = ShardingName::OptimGradsParams);
    are_as_alone(Grid { pp: 2, ..DP }, false, &|recipe| {
        dora(recipe);
        recipe.stage[0].micro_batches = 4;
        recipe.mesh.sharding = ShardingName::OptimGradsParams;
        activations(recipe, PlaceName::Host);
    });
}

/// Checks that both take the steps that they take alone, within the bytes of their plans, and if `is_cut` also when
/// interrupted between two steps and resumed. Returns the planned memory of each.
#[track_caller]
fn are_as_alone(grid: Grid, is_cut: bool, change: &dyn Fn(&mut Recipe)) -> Vec<u64> {
    let folder = tempfile::tempdir().unwrap();
    write_store(&folder.path().join("store"));
    let recipes = recipes(folder.path(), grid, change);
    let both: Vec<&Recipe> = recipes.iter().collect();
    let at = |name: &str| folder.path().join(name);
    let SeveralResults { outcome, steps, warnings, bytes } = run(&at("both"), &both, None);
    // The first step of each matches its plan, which includes the other's memory.
    assert!(warnings.is_empty(), "{grid} {warnings:?}");
    assert!(outcome == Outcome::Finished && steps[0] != steps[1] && steps[0].len() > 4);
    // Memory and offload engines are shared: each is the maximum of the two.
    let most = [0, 1].map(|of| bytes.iter().map(|[planned, _]| planned[of]).max().unwrap());
    assert!(bytes.iter().all(|[_, found]| *found == most), "{grid} {bytes:?}");
    for (index, recipe) in recipes.iter().enumerate() {
        let alone = Recipe { adapters: Vec::new(), ..recipe.clone() };
        let alone = run(&at("alone"), &[&alone], None);
        assert_eq!(alone.steps, [steps[index].clone()], "{grid} {index}");
        assert_eq!(alone.bytes[0][0], alone.bytes[0][1], "{grid} {index}");
        assert!(alone.warnings.is_empty(), "{grid} {index}: {:?}", alone.warnings);
    }
    let planned = bytes.iter().map(|[planned, _]| planned[0]).collect();
    if !is_cut {
        return planned;
    }
    // Interrupted between two steps and resumed, each from where it was.
    let cut = run(&at("cut"), &both, Some(3));
    assert!(cut.outcome == Outcome::Interrupted && cut.steps.iter().all(|some| some.len() < steps[0].len()));
    let seen = run(&at("cut"), &both, None);
    assert_eq!((seen.outcome, seen.steps), (Outcome::Finished, steps));
    planned
}

#[test]
fn adapters_in_turns_go_on_when_a_rank_fails() {
    for (fault, change) in [
        ("kill rank 1 at step 4", (&|_: &mut Recipe| {}) as &dyn Fn(&mut Recipe)),
        ("kill rank 0 at step 5", &|recipe| {
            dora(recipe);
            recipe.mesh.sharding = ShardingName::OptimGradsParams;
        }),
        ("kill rank 1 at step 3, nan rank 0 at step 5", &|recipe| {
            dora(recipe);
            state(recipe, OffloadTo::Disk);
            activations(recipe, PlaceName::Host);
        }),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write_store(&folder.path().join("store"));
        let calm = recipes(folder.path(), DP, change);
        let calm = run(&folder.path().join("calm"), &calm.iter().collect::<Vec<_>>(), None);
        let struck = recipes(folder.path(), DP, &|recipe| {
            change(recipe);
            // Each of the two runs is hit by each fault.
            recipe.mesh.restarts = 4;
            recipe.machine.fault = Some(fault.into());
            (recipe.checkpoint.memory_every_steps, recipe.checkpoint.every_steps) = (Some(2), None);
        });
        let seen = run(&folder.path().join("struck"), &struck.iter().collect::<Vec<_>>(), None);
        assert_eq!((seen.outcome, &seen.steps), (calm.outcome, &calm.steps), "{fault} {:?}", seen.warnings);
        let faults = fault.split(',').count();
        let went_back = seen.warnings.iter().filter(|text| text.contains("went back to step")).count();
        // Both go back each time.
        assert_eq!((went_back, seen.warnings.len()), (4 * faults, 4 * faults), "{:?}", seen.warnings);
    }
}
