//! The choice of a mesh: the solver finds the meshes found by hand, recommends what a run accepts, and names a remedy
//! if nothing fits.

use fathom_base::recipe::{Layers, Loaded};
use fathom_model::{LlamaSizes, Spec};
use fathom_tensor::{Profile, gpu};
use fathom_train::recipe::Recipe;
use fathom_train::{Budgets, Candidate, Draft, MeshSolution};

const GIB: u64 = 1 << 30;

/// Llama 3 70B, and 8B.
fn spec([hidden, layers, heads, ffn]: [usize; 4]) -> Spec {
    Spec::llama(LlamaSizes {
        hidden,
        layers,
        heads,
        kv_heads: 8,
        head_dim: 128,
        ffn,
        vocab: 128_256,
        rope_theta: 5e5,
        max_positions: 1 << 17,
        tied: false,
    })
}

const LARGE: [usize; 4] = [8192, 80, 64, 28_672];
const SMALL: [usize; 4] = [4096, 32, 32, 14_336];

/// A model, a recipe and the budgets of a rank.
struct Case {
    profile: Profile,
    spec: Spec,
    text: &'static str,
    budgets: Budgets,
}

impl Case {
    fn new(sizes: [usize; 4], text: &'static str, budgets: Budgets) -> Case {
        Case { profile: gpu::named("dgx-h100").unwrap(), spec: spec(sizes), text, budgets }
    }

    /// The case with further settings.
    fn draft(&self, settings: &[String]) -> Draft<'_> {
        let recipe: Recipe =
            Loaded::load(Layers::new().text("case", self.text).sets(settings)).unwrap().value;
        let (profile, spec, budgets) = (&self.profile, &self.spec, self.budgets);
        Draft { profile, spec, recipe, index: 0, budgets, rank: 0 }
    }

    /// The best candidate for `gpus` ranks; checks that a plan with its settings agrees.
    fn solve(&self, gpus: usize) -> Result<Candidate, String> {
        let solution = self.draft(&[]).solve_mesh(gpus, &|_| ());
        let MeshSolution { best, .. } = solution.map_err(|error| error.to_string())?;
        for candidate in &best {
            let plan = self.draft(&candidate.settings).mesh().unwrap();
            let most = plan.most().unwrap().plan.usage.peak_reserved;
            assert_eq!(most, candidate.peak_bytes, "{:?}", candidate.settings);
            assert_eq!(plan.ranks.grid, candidate.ranks.grid);
            assert!(plan.kinds.iter().all(|kind| self.budgets.hold(&kind.plan)), "{:?}", candidate.settings);
        }
        Ok(best[0].clone())
    }
}

/// Llama 3 70B at 128K on DGX H100, and step times of meshes found by hand: with activations on the host (tp 4, pp 4,
/// dp 2), with the optimizer there too (tp 4, cp 2, pp 2), and on eight ranks (tp 4, pp 2).
#[test]
fn meshes_that_people_found_are_found() {
    let budgets = Budgets { memory: 76 * GIB, host: 230 * GIB, disk: u64::MAX };
    let case = Case::new(LARGE, "[[stage]]\nseq_tokens = \"128k\"\nmicro_batches = 32\n", budgets);
    for (gpus, theirs_s) in [(8, 1071.0), (16, 536.0), (32, 311.0)] {
        let found = case.solve(gpus).unwrap();
        assert!(found.step_s <= theirs_s, "{gpus} ranks: {} s with {:?}", found.step_s, found.settings);
        assert!(!found.state.changes_numbers, "{}", found.words());
    }
}

/// Settings override all keys of meshes and places in the recipe.
#[test]
fn settings_are_over_the_recipe_s_own() {
    let text = "[mesh]\ntp = 8\npp = 4\nlayout = [8, 8, 8, 8]\n[activations]\nrecompute_granularity = \"full\"\n\
                offload_modules = [\"all\"]\nhead_groups = 2\n[[activations.places]]\nname = \"mlp.*\"\nplace = \"keep\"\n\
                [[stage]]\nseq_tokens = 8192\nmicro_batches = 8\ntile_rows = 1024\nrecompute_granularity = \"linear\"\n";
    let case = Case::new(SMALL, text, Budgets { memory: 76 * GIB, host: 0, disk: 0 });
    let found = case.solve(8).unwrap();
    assert!(found.settings.contains(&"mesh.layout=[]".to_string()), "{:?}", found.settings);
}

#[test]
fn what_changes_numbers_comes_last_and_is_marked() {
    let text = "[[stage]]\nseq_tokens = 4096\nmicro_batches = 4\n";
    let solve = |memory: u64, disk: u64| {
        Case::new(SMALL, text, Budgets { memory: memory * GIB, host: 0, disk }).solve(1).unwrap()
    };
    let narrow = solve(120, 0);
    assert!(narrow.state.changes_numbers && narrow.words().contains("(changes numbers)"));
    assert!(narrow.settings.contains(&"optimizer.moments=bf16".to_string()), "{:?}", narrow.settings);
    let offloaded = solve(120, u64::MAX);
    assert!(!offloaded.state.changes_numbers, "{}", offloaded.words());
    assert!(
        offloaded.settings.contains(&"machine.offload_optimizer=true".to_string()),
        "{:?}",
        offloaded.settings
    );
}

#[test]
fn where_nothing_fits_the_refusal_says_what_would() {
    let text = "[[stage]]\nseq_tokens = 4096\nmicro_batches = 8\n";
    let case = Case::new(SMALL, text, Budgets { memory: 40 * GIB, host: 0, disk: 0 });
    let refusal = case.solve(1).unwrap_err();
    assert!(refusal.contains("nearest is pp=1 dp=1 cp=1 tp=1 with "), "{refusal}");
    let (_, rest) = refusal.split_once("The smallest number of ranks that would do is ").unwrap();
    let fewest: usize = rest.split(':').next().unwrap().parse().unwrap();
    assert!(!case.solve(fewest).unwrap().state.changes_numbers);
    let smaller = (2..fewest).filter_map(|gpus| case.solve(gpus).ok());
    assert_eq!(smaller.filter(|found| !found.state.changes_numbers).count(), 0);
}
