//! Plans with remembered segments compared with plans that record and run all of them, for every shipped recipe.

use std::path::{Path, PathBuf};

use fathom_base::recipe::{Form, Layers, Library, Loaded};
use fathom_model::open_config;
use fathom_tensor::{Profile, gpu};
use fathom_train::recipe::Recipe;
use fathom_train::{Budgets, Draft, Plan, adapted, distinct, new_model, stage, train_experts};

/// Maximum of layers times micro-batches in the suite; the test of the giants has no limit.
const SOME: usize = 6000;

/// Recipes that go on from an encoder or an encoder-decoder, which is read from its folder.
const OF_ENCODERS: [&str; 5] = ["mlm", "embed", "rerank", "classify", "t5"];

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes").join(path)).unwrap()
}

/// The shipped recipes of training that are files: names and texts.
fn shipped() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    files.sort();
    let name = |path: &PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
    files.iter().map(|path| (name(path), read(path))).collect()
}

/// The machine of a recipe; a processor gets the rates of a GPU, so that seconds are compared too.
fn profile(recipe: &Recipe) -> Profile {
    let known = gpu::named("dgx-h100").unwrap();
    gpu::named(&recipe.machine.profile).unwrap_or_else(|| Profile {
        rates: known.rates,
        fabric: known.fabric,
        ..Profile::portable(2)
    })
}

fn near(left: f64, right: f64) -> bool {
    (left - right).abs() <= 1e-9 * left.abs().max(right.abs())
}

fn same(plan: &Plan, whole: &Plan, what: &str) {
    assert_eq!(plan.usage, whole.usage, "{what}");
    let counts = |plan: &Plan| [plan.model_flops, plan.hardware_flops, plan.replayed];
    assert_eq!(counts(plan), counts(whole), "{what}");
    let far = |plan: &Plan| {
        let disk = [plan.disk_peak_bytes, plan.spill_peak_bytes, plan.disk_bytes];
        (disk, [plan.host_peak_bytes, plan.host_state_bytes, plan.host_bytes])
    };
    assert_eq!(far(plan), far(whole), "{what}");
    assert_eq!(plan.wires, whole.wires, "{what}");
    assert_eq!(plan.waits.len(), whole.waits.len(), "{what}");
    for (key, seconds) in &plan.waits {
        assert!(near(*seconds, whole.waits[key]), "{what}: {key:?} {seconds} {}", whole.waits[key]);
    }
    let times = |plan: &Plan| {
        let times = plan.times.unwrap();
        [times.elapsed_s(), times.matmul_s, times.attention_s, times.memory_s, times.stall_s, times.exposed_s]
    };
    assert!(times(plan).iter().zip(times(whole)).all(|(one, other)| near(*one, other)), "{what}");
    let [lane, all] = [plan, whole].map(|plan| plan.lane.clone().unwrap());
    assert_eq!(lane.acts.len(), all.acts.len(), "{what}");
    let alike = |(one, other): (&(_, f64), &(_, f64))| near(one.1, other.1);
    assert!(lane.acts.iter().zip(&all.acts).all(alike), "{what}: the passes of its lane");
}

/// Compares the plans of the first and the last kind of rank in a recipe's stages, if at most `most` layers would run.
fn compare(name: &str, library: Library<'_>, most: usize) -> usize {
    let loaded: Loaded<Recipe> = Loaded::load(Layers::with_library(library).recipe(name)).unwrap();
    let mut recipe = loaded.value;
    if recipe.objective.runs_teacher().is_some() {
        // Any model with the student's vocabulary.
        let teacher = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/llama2");
        recipe.model.vocab = open_config(&teacher).unwrap().0.vocab;
        recipe.objective.teacher = Some(teacher);
    }
    let mut spec = new_model(&recipe).unwrap();
    train_experts(&recipe, &mut spec).unwrap();
    let scores = recipe.objective.scores();
    spec = if scores > 0 { spec.scoring(scores) } else { spec };
    spec.scores = if recipe.rl.has_values() { 1 } else { spec.scores };
    spec = adapted(&recipe, spec).unwrap();
    let profile = profile(&recipe);
    let budgets = Budgets { memory: u64::MAX, host: u64::MAX, disk: u64::MAX };
    let mut compared = 0;
    for index in 0..recipe.stage.len() {
        let draft = Draft { profile: &profile, spec: &spec, recipe: recipe.clone(), index, budgets, rank: 0 };
        let ranks = draft.workload().unwrap().how.ranks;
        let kinds = distinct(&ranks, &spec);
        let ends = [kinds.first(), kinds.last().filter(|_| kinds.len() > 1)];
        let stages = ranks.grid.pp * ranks.virtual_stages;
        let runs =
            if stages == 1 { 6 * spec.layers.len() } else { 8 * spec.layers.len() * ranks.virtual_stages };
        for (rank, _) in ends.into_iter().flatten().filter(|_| runs <= most) {
            let work = Draft { rank: *rank, ..draft.clone() }.workload().unwrap();
            let (plan, whole) = (work.plan().unwrap(), work.plan_whole().unwrap());
            same(&plan, &whole, &format!("{name}, stage {index}, rank {rank}"));
            compared += 1;
        }
        spec = stage::extend(&spec, &recipe.stage[index], index).unwrap();
    }
    compared
}

fn compare_all(most: usize) -> usize {
    let texts = shipped();
    let entries: Vec<(&str, &str)> =
        texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let [form, sizes, runs] =
        ["form.txt", "sizes.toml", "runs.toml"].map(|file| read(format!("models/{file}")));
    let library = Library::new(&entries).with_form(Form { text: &form, sizes: &sizes, runs: &runs });
    let names = library.names().unwrap();
    let of_decoders = names.iter().filter(|name| !OF_ENCODERS.iter().any(|of| **name == **of));
    of_decoders.map(|name| compare(name, library, most)).sum()
}

#[test]
fn shipped_recipes_plan_as_if_every_segment_ran() {
    let compared = compare_all(SOME);
    assert!(compared >= 60, "{compared}");
}
