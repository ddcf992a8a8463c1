//! Budgets of ranks: they plan with the same bytes, and share one disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fathom_base::metrics::{MetricsWriter, events};
use fathom_cpu::Cpu;
use fathom_cpu::isa::Isa;
use fathom_grad::Places;
use fathom_tensor::mesh::{Grid, Mesh, Seat, ThreadsOptions, threads};
use fathom_tensor::{Device, Rates};
use fathom_train::recipe::{Checkpoint, Memory, Precision, Recipe};
use fathom_train::{Budgets, Draft, Hooks, Plan, Run, RunParts, StageSettings, Stores, rank_folder};

use crate::survive::{VOCAB, mesh, parts, recipe, trainer, write_store};

fn grid() -> Grid {
    Grid { tp: 2, ..Grid::default() }
}

/// A billion of everything a second.
pub fn rates() -> Rates {
    Rates {
        matmul_bf16_flops_per_s: 1e9,
        matmul_f32_flops_per_s: 1e9,
        attention_forward_flops_per_s: 1e9,
        attention_backward_flops_per_s: 1e9,
        memory_bytes_per_s: 1e9,
        elementwise_bytes_per_s: 1e9,
        ..Rates::default()
    }
}

fn machine(isa: Isa) -> Arc<Cpu> {
    Arc::new(Cpu::new(1, Some(isa)).with_rates(Some(rates())))
}

/// Stores the places of the stage.
#[derive(Default)]
struct ChosenPlaces(Option<Places>);

impl Hooks for ChosenPlaces {
    fn stage(&mut self, _: &events::Stage, settled: &StageSettings) {
        self.0 = Some(settled.how.places.clone());
    }
}

/// The places that each rank chooses with this much memory, or its error.
fn run(folder: &Path, recipe: &Recipe, isa: Isa, memory: [u64; 2]) -> Vec<Result<Places, String>> {
    let one = |seat: Seat| {
        let mesh = Mesh::new(grid(), Box::new(seat.take()));
        let device = Device::on_mesh(machine(isa), memory[mesh.rank()], mesh.clone());
        let own = if mesh.rank() == 0 { folder.to_path_buf() } else { rank_folder(folder, mesh.rank()) };
        std::fs::create_dir_all(&own).unwrap();
        let mut chosen = ChosenPlaces::default();
        let metrics = MetricsWriter::open(own.join("metrics.jsonl")).unwrap();
        let (trainer, stores) =
            (trainer(recipe, &device).unwrap(), Stores::open(recipe, None, VOCAB).unwrap());
        // Set to stop before the first step.
        let stop = &AtomicBool::new(true);
        let plain = parts((recipe, folder), trainer, stores, metrics, stop);
        let parts = RunParts { disk_sharers: 2, ..plain };
        let ended = Run::open(parts).and_then(|mut run| run.train(&mut chosen));
        if let (Err(error), Some(link)) = (&ended, mesh.link()) {
            link.abort(&error.to_string());
        }
        ended.map(|_| chosen.0.unwrap()).map_err(|error| error.to_string())
    };
    std::thread::scope(|scope| {
        let one = &one;
        let seats = threads(2, ThreadsOptions::default());
        let ranks: Vec<_> = seats.into_iter().map(|seat| scope.spawn(move || one(seat))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A run over [`grid`], and its plan.
fn planned(folder: &Path, isa: Isa, set: impl FnOnce(&mut Recipe)) -> (Recipe, Plan) {
    write_store(&folder.join("store"));
    let saves = Checkpoint { every_s: None, ..Checkpoint::default() };
    let mut recipe = recipe(folder, mesh(grid(), 0), saves);
    recipe.model.precision = Precision::F32;
    set(&mut recipe);
    let device = Device::new(machine(isa), 1 << 28);
    let alone = Recipe { mesh: mesh(Grid::default(), 0), ..recipe.clone() };
    let spec = trainer(&alone, &device).unwrap().model.spec;
    let budgets = Budgets { memory: u64::MAX, host: 0, disk: u64::MAX };
    let profile = device.machine.profile();
    let draft = Draft { profile, spec: &spec, recipe: recipe.clone(), index: 0, budgets, rank: 0 };
    let plan = draft.plan().unwrap();
    (recipe, plan)
}

/// Runs on all instruction sets of this processor, since each has different scratch sizes and fitting places.
#[test]
fn ranks_with_unequal_memory_choose_the_same_places() {
    for isa in Isa::ALL.into_iter().filter(|isa| *isa <= Isa::detect()) {
        let folder = tempfile::tempdir().unwrap();
        let auto = |recipe: &mut Recipe| recipe.activations.memory = Memory::Auto;
        let (recipe, plan) = planned(folder.path(), isa, auto);
        let (ample, scarce) = (1 << 28, plan.usage.peak_reserved - 1);
        let roomy = run(folder.path(), &recipe, isa, [ample; 2]);
        for memory in [[ample, scarce], [scarce, ample]] {
            let folder = tempfile::tempdir().unwrap();
            let (recipe, _) = planned(folder.path(), isa, auto);
            let found = run(folder.path(), &recipe, isa, memory);
            assert!(found[0].is_ok() && found[0] == found[1], "{isa:?}, {memory:?}: {found:?}");
            assert_ne!(found[0], roomy[0], "{isa:?}, {memory:?}");
        }
    }
}

#[test]
fn ranks_share_the_disk_that_a_recipe_allows() {
    for (lack, fits) in [(0, true), (1, false)] {
        let folder = tempfile::tempdir().unwrap();
        let offloaded = |recipe: &mut Recipe| recipe.activations.offload_modules = vec!["all".into()];
        let isa = Isa::detect();
        let (mut recipe, plan) = planned(folder.path(), isa, offloaded);
        recipe.machine.disk_bytes = Some(2 * plan.disk_peak_bytes - lack);
        let found = run(folder.path(), &recipe, isa, [1 << 28; 2]);
        assert_eq!(found[0].is_ok(), fits, "{found:?}");
        let refused = found.iter().filter_map(|rank| rank.as_ref().err());
        assert!(refused.into_iter().all(|error| error.contains("disk")), "{found:?}");
    }
}
