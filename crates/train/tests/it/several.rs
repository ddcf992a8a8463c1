//! Several adapters over one base, in turns: each is the run that it would be alone.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use fathom_base::metrics::{MetricsWriter, read_events};
use fathom_model::{Init, LlamaSizes, Model, Spec, adapt, initialise, share_untrained};
use fathom_tensor::mesh::Grid;
use fathom_tensor::{DType, Device};
use fathom_train::recipe::{AdapterName, AdapterTable, Checkpoint, NamedAdapter, Precision, Recipe};
use fathom_train::{
    Hooks, Outcome, Run, RunParts, Stores, Trainer, adapted, frozen, rank_folder, stage, together,
};

use crate::mesh::{Case, ONE, every_rank};
use crate::survive::{VOCAB, Watch, mesh, recipe, write_store};

/// The recipes of two adapters that know of each other, in folders of their own.
fn recipes(folder: &Path, grid: Grid) -> Vec<Recipe> {
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
    let own = |index: usize| {
        let (adapter, adapters) = (all.adapters[index].over(&all.adapter), all.others(index, &[0, 1]));
        let mut own = Recipe { adapter, adapters, ..all.clone() };
        own.run.seed = 5 + index as u64;
        own
    };
    vec![own(0), own(1)]
}

/// Trainers of adapters over one base.
fn trainers(device: &Device, recipes: &[&Recipe]) -> Vec<Trainer> {
    let spec = Spec::llama(LlamaSizes {
        hidden: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 96,
        vocab: VOCAB,
        rope_theta: 1e4,
        max_positions: 256,
        tied: true,
    });
    let (base, mut params) = Model::declare(device, &spec, DType::F32);
    initialise(device, &base, &mut params, Init { deviation: 0.05, seed: 3 });
    let one = |recipe: &&Recipe| {
        let spec = adapted(recipe, spec.clone()).unwrap();
        let (mut model, mut own) = share_untrained(device, (&base, &params), &spec);
        adapt(device, &model, &mut own, recipe.run.seed).unwrap();
        frozen(&mut model, &mut own, &stage::trained(recipe).unwrap()).unwrap();
        let ranks = stage::ranks(recipe, 0).unwrap();
        Trainer::sharded(device, model, own, ranks.sharding, stage::moments(recipe))
    };
    recipes.iter().map(one).collect()
}

/// Runs them on all ranks to their end, or until the first has made so many steps; what each step of each was on the first rank.
fn run(folder: &Path, recipes: &[&Recipe], stop_at: Option<u64>) -> (Outcome, Vec<Vec<String>>) {
    let grid = stage::ranks(recipes[0], 0).unwrap().grid;
    let on_rank = |device: &Device| rank(device, folder, recipes, stop_at);
    every_rank(Case { grid, ..ONE }, &on_rank).remove(0)
}

fn rank(
    device: &Device,
    folder: &Path,
    recipes: &[&Recipe],
    stop_at: Option<u64>,
) -> (Outcome, Vec<Vec<String>>) {
    let stop = AtomicBool::new(false);
    let own = |folder: &Path| match device.mesh.rank() {
        0 => folder.to_path_buf(),
        rank => rank_folder(folder, rank),
    };
    let names = |recipe: &Recipe| folder.join(format!("{}", recipe.run.seed));
    let folders: Vec<_> = recipes.iter().map(|recipe| names(recipe)).collect();
    let mut runs = Vec::new();
    for ((recipe, folder), trainer) in recipes.iter().zip(&folders).zip(trainers(device, recipes)) {
        std::fs::create_dir_all(own(folder)).unwrap();
        let parts = RunParts {
            recipe,
            folder,
            trainer,
            sources: Box::new(Stores::open(recipe, None, VOCAB).unwrap()),
            metrics: MetricsWriter::open(own(folder).join("metrics.jsonl")).unwrap(),
            seconds: Vec::new(),
            disk_sharers: 1,
            stop: &stop,
            rebuild: None,
            base: None,
        };
        runs.push(Run::open(parts).unwrap());
    }
    let mut watches: Vec<Watch<'_>> =
        recipes.iter().map(|_| Watch { warnings: Vec::new(), stop_at: None, stop: &stop }).collect();
    watches[0].stop_at = stop_at.filter(|_| device.mesh.rank() == 0);
    let mut hooks: Vec<&mut dyn Hooks> = watches.iter_mut().map(|watch| watch as &mut dyn Hooks).collect();
    let outcome = together(&mut runs, &mut hooks).unwrap();
    // The first step of each has the memory that its plan says, with what the other has in it.
    let warnings: Vec<&String> = watches.iter().flat_map(|watch| &watch.warnings).collect();
    assert!(warnings.is_empty(), "{warnings:?}");
    drop(runs);
    let steps = |folder: &std::path::PathBuf| {
        let events = read_events(own(folder).join("metrics.jsonl")).unwrap();
        let steps = events.iter().filter(|event| event["event"] == "step");
        steps.map(|step| format!("{} {}", step["loss_bits"], step["grad_norm"])).collect()
    };
    (outcome, folders.iter().map(steps).collect())
}

#[test]
fn adapters_in_turns_are_what_each_is_alone() {
    let one = Grid::default();
    // One rank, whole replicas and parts of a model are interrupted as well.
    for (grid, is_cut) in [
        (one, true),
        (Grid { dp: 2, ..one }, true),
        (Grid { tp: 2, sequence_parallel: true, ..one }, false),
        (Grid { cp: 2, ..one }, false),
        (Grid { pp: 2, ..one }, true),
    ] {
        on_mesh(grid, is_cut);
    }
}

fn on_mesh(grid: Grid, is_cut: bool) {
    let folder = tempfile::tempdir().unwrap();
    write_store(&folder.path().join("store"));
    let recipes = recipes(folder.path(), grid);
    let both: Vec<&Recipe> = recipes.iter().collect();
    let at = |name: &str| folder.path().join(name);
    let (outcome, steps) = run(&at("both"), &both, None);
    assert!(outcome == Outcome::Finished && steps[0] != steps[1] && steps[0].len() > 4);
    for (index, recipe) in recipes.iter().enumerate() {
        let alone = Recipe { adapters: Vec::new(), ..recipe.clone() };
        assert_eq!(run(&at("alone"), &[&alone], None).1, [steps[index].clone()], "{grid} {index}");
    }
    if !is_cut {
        return;
    }
    // Interrupted between two steps, and gone on with: each from where it was.
    let (outcome, some) = run(&at("cut"), &both, Some(3));
    assert!(outcome == Outcome::Interrupted && some.iter().all(|some| some.len() < steps[0].len()));
    assert_eq!(run(&at("cut"), &both, None), (Outcome::Finished, steps));
}
