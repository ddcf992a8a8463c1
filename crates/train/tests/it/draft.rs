//! A stage that is planned, changed and planned again.

use std::path::Path;

use fathom_model::{LlamaSizes, Spec};
use fathom_tensor::gpu;
use fathom_train::recipe::{GemmName, Memory, PipelineSchedule, Precision, Recipe, Stage};
use fathom_train::{Budgets, Draft, Edit, Error};

fn spec() -> Spec {
    Spec::llama(LlamaSizes {
        hidden: 512,
        layers: 6,
        heads: 8,
        kv_heads: 4,
        head_dim: 64,
        ffn: 1408,
        vocab: 8192,
        rope_theta: 1e4,
        max_positions: 8192,
        tied: true,
    })
}

fn recipe() -> Recipe {
    let stage = Stage { seq_tokens: 8192, samples_per_micro_batch: 2, micro_batches: 3, ..Stage::default() };
    Recipe { stage: vec![stage], ..Recipe::default() }
}

#[test]
fn samples_are_documents_and_micro_batches_are_counted() {
    let (profile, spec, budgets) =
        (gpu::named("h200").unwrap(), spec(), Budgets { memory: 1 << 40, host: 0, disk: 0 });
    let planned = |samples: usize, micro_batches: usize| {
        let mut recipe = recipe();
        recipe.stage[0].samples_per_micro_batch = samples;
        recipe.stage[0].micro_batches = micro_batches;
        Draft { profile: &profile, spec: &spec, recipe, index: 0, budgets, rank: 0 }.plan().unwrap()
    };
    let (one, six, packed) = (planned(1, 1), planned(1, 6), planned(6, 1));
    assert_eq!((six.model_flops, six.tokens), (6 * one.model_flops, 6 * one.tokens));
    assert_eq!(packed.model_flops, six.model_flops);
    let (one, six) = (one.times.unwrap(), six.times.unwrap());
    assert!((six.attention_s / one.attention_s / 6.0 - 1.0).abs() < 1e-9);
    // The update runs once.
    assert!(six.memory_s < 6.0 * one.memory_s);
}

#[test]
fn the_longest_sequence_fits_and_a_longer_one_does_not() {
    let (profile, spec) = (gpu::named("h100").unwrap(), spec());
    for memory in [Memory::Manual, Memory::Auto] {
        let mut recipe = recipe();
        recipe.activations.memory = memory;
        let budgets = Budgets { memory: 2 << 30, host: 0, disk: 0 };
        let draft = Draft { profile: &profile, spec: &spec, recipe, index: 0, budgets, rank: 0 };
        let longest = draft.longest().unwrap().unwrap();
        assert!(budgets.hold(&draft.with_tokens(longest).plan().unwrap()), "{memory}: {longest}");
        let longer = draft.with_tokens(longest + longest / 50 + 128).plan().unwrap();
        assert!(memory == Memory::Auto || !budgets.hold(&longer), "{longest}");
        let (of_all, settled) = draft.longest_of_all().unwrap().unwrap();
        assert!(of_all >= longest && budgets.hold(&settled.plan), "{of_all} {longest}");
    }
}

#[test]
fn the_best_single_change_is_found_by_planning_each() {
    let (profile, spec) = (gpu::named("h200").unwrap(), spec());
    let budgets = Budgets { memory: 1 << 40, host: 0, disk: u64::MAX };
    let draft = Draft { profile: &profile, spec: &spec, recipe: recipe(), index: 0, budgets, rank: 0 };
    let why = draft.why().unwrap();
    let best = why.best.unwrap();
    assert!(best.plan.usage.peak_live < why.plan.usage.peak_live);
    for edit in [Edit::TileRows(1024), Edit::Offload("all"), Edit::Halve, Edit::Offload("block")] {
        let other = draft.change(std::slice::from_ref(&edit)).unwrap().unwrap();
        assert!(other.plan.usage.peak_live >= best.plan.usage.peak_live, "{edit:?}");
    }
    let sum: u64 = why.largest.iter().map(|(_, bytes)| bytes).sum();
    assert!(sum > 0 && sum <= why.plan.usage.peak_live);
}

#[test]
fn a_stage_that_does_not_fit_names_changes_that_do() {
    let (profile, spec) = (gpu::named("h200").unwrap(), spec());
    let mut recipe = recipe();
    recipe.model.precision = Precision::F32;
    let open = Budgets { memory: u64::MAX, host: 0, disk: u64::MAX };
    let draft = Draft { profile: &profile, spec: &spec, recipe, index: 0, budgets: open, rank: 0 };
    let memory = draft.plan().unwrap().usage.peak_reserved / 3;
    let draft = Draft { budgets: Budgets { memory, host: 0, disk: u64::MAX }, ..draft };
    let rescues = draft.rescues(3).unwrap();
    assert!(!rescues.is_empty());
    for change in &rescues {
        assert!(draft.budgets.hold(&change.plan), "{:?}", change.settings);
    }
    let costs: Vec<f64> = rescues.iter().map(|change| change.plan.step_s().unwrap()).collect();
    assert!(rescues.len() < 3 || costs.windows(2).all(|pair| pair[0] <= pair[1]), "{costs:?}");
    let error = draft.check().unwrap_err();
    assert!(matches!(error, Error::DoesNotFit { .. }));
    assert!(error.to_string().contains(&rescues[0].settings.join(" ")), "{error}");
    assert!(Budgets::new(1, &profile, &draft.recipe, Path::new("not/there"), 1).disk > 0);
}

/// Changes that a recipe refuses are skipped without ending the search.
#[test]
fn changes_that_a_recipe_cannot_have_are_passed_over() {
    let (profile, spec) = (gpu::named("h200").unwrap(), spec());
    let open = Budgets { memory: u64::MAX, host: 0, disk: u64::MAX };
    for change in [
        // Ranks share their weights, which then cannot be on disk.
        (|recipe| recipe.mesh.dp = 3) as fn(&mut Recipe),
        // A tile does not know the scale of the whole tensor.
        |recipe| recipe.precision.gemm = GemmName::Fp8Current,
    ] {
        let mut recipe = recipe();
        change(&mut recipe);
        let draft = Draft { profile: &profile, spec: &spec, recipe, index: 0, budgets: open, rank: 0 };
        let why = draft.why().unwrap();
        assert!(why.best.is_some());
        let memory = why.plan.usage.peak_reserved * 2 / 3;
        let error = Draft { budgets: Budgets { memory, ..open }, ..draft }.check().unwrap_err();
        assert!(matches!(error, Error::DoesNotFit { .. }), "{error}");
        // Four heads of keys do not divide into eight groups.
        assert!(!error.to_string().contains("head_groups=8"), "{error}");
    }
}

#[test]
fn a_refusal_names_what_is_short() {
    let (profile, spec) = (gpu::named("h200").unwrap(), spec());
    let mut recipe = recipe();
    recipe.activations.offload_modules = vec!["all".into()];
    let budgets = Budgets { memory: u64::MAX, host: 0, disk: 1 << 20 };
    let draft = Draft { profile: &profile, spec: &spec, recipe, index: 0, budgets, rank: 0 };
    let error = draft.check().unwrap_err().to_string();
    assert!(error.contains("of disk and the budget is 1.00 MiB. "), "{error}");
}

#[test]
fn bytes_a_token_add_up_by_name_and_do_not_depend_on_depth() {
    let (profile, budgets) =
        (gpu::named("h200").unwrap(), Budgets { memory: 1 << 40, host: 0, disk: u64::MAX });
    let growth = |layers: usize| {
        let spec = Spec { layers: vec![spec().layers[0].clone(); layers], ..spec() };
        let mut recipe = recipe();
        // Long enough that the head's tiles, a GiB each on a GPU, are not the peak.
        recipe.stage[0].seq_tokens = 1 << 20;
        recipe.stage[0].samples_per_micro_batch = 1;
        recipe.activations.offload_modules = vec!["all".into()];
        recipe.activations.tile_rows = Some(2048);
        let draft = Draft { profile: &profile, spec: &spec, recipe, index: 0, budgets, rank: 0 };
        let how = draft.settle().unwrap().how;
        let peak = |tokens| draft.with_tokens(tokens).plan().unwrap().usage.peak_live;
        let between = (peak(1 << 20) - peak(1 << 19)) as f64 / f64::from(1 << 19);
        let growth = draft.growth(&how).unwrap();
        assert!((growth.bytes - between).abs() < 1e-6, "{growth:?} {between}");
        growth
    };
    let two = growth(2);
    assert_eq!(two, growth(6));
    // 512 columns of two bytes, as projected and as rotated.
    assert!(two.by_name.iter().any(|(name, bytes)| name == "attn.q" && *bytes == 2048.0), "{two:?}");
}

/// Where tp ranks shard the dense weights, experts have replicas, which share their state.
#[test]
fn experts_on_disk_are_whole_on_every_rank() {
    let (profile, spec) = (gpu::named("h200").unwrap(), crate::mesh_experts::experts(false));
    let planned = |[tp, ep]: [usize; 2]| {
        let mut recipe = recipe();
        recipe.stage[0].tile_rows = None;
        (recipe.mesh.tp, recipe.mesh.ep, recipe.machine.offload_weights) = (tp, ep, true);
        let budgets = Budgets { memory: 1 << 40, host: 0, disk: 1 << 40 };
        Draft { profile: &profile, spec: &spec, recipe, index: 0, budgets, rank: 0 }.plan().map(drop)
    };
    let refusal = planned([2, 1]).unwrap_err().to_string();
    assert!(refusal.starts_with("mesh.sharding: weights on disk"), "{refusal}");
    assert!(planned([1, 1]).is_ok() && planned([2, 2]).is_ok());
}

/// A change of a recipe, the beginning of the refusal, and its remedy.
type Refusal = (fn(&mut Recipe), &'static str, &'static str);

/// Meshes that do not divide a model or a step: the key, and the remedy.
#[test]
fn meshes_that_do_not_divide_are_refused() {
    let (profile, spec, budgets) =
        (gpu::named("h200").unwrap(), spec(), Budgets { memory: 1 << 40, host: 0, disk: 0 });
    let refused = |change: fn(&mut Recipe)| {
        let mut recipe = recipe();
        change(&mut recipe);
        let draft = Draft { profile: &profile, spec: &spec, recipe, index: 0, budgets, rank: 0 };
        draft.plan().unwrap_err().to_string()
    };
    let cases: [Refusal; 10] = [
        (|recipe| recipe.mesh.tp = 8, "mesh.tp: 8 does not divide kv_heads=4", "it may be 1, 2, 4"),
        (|recipe| recipe.mesh.tp = 0, "mesh.tp", "at least 1"),
        (|recipe| recipe.mesh.dp = 2, "stage.0.micro_batches: 3 micro batches", "take a multiple of 2"),
        (|recipe| recipe.mesh.pp = 7, "mesh.pp: 6 layers are fewer", "7 stages"),
        (
            |recipe| (recipe.mesh.pp, recipe.mesh.virtual_stages) = (2, 2),
            "mesh.virtual_stages: 3 micro batches",
            "take a multiple of 2",
        ),
        (|recipe| recipe.mesh.virtual_stages = 2, "mesh.virtual_stages: is 2", "mesh.pp=1"),
        (|recipe| recipe.mesh.cp = 3, "mesh.cp: 16384 tokens", "3 ranks"),
        (
            |recipe| (recipe.mesh.dp, recipe.machine.offload_weights) = (3, true),
            "mesh.sharding: weights on disk",
            "no_shard",
        ),
        (
            |recipe| (recipe.mesh.pp, recipe.mesh.layout) = (2, vec![3, 4]),
            "mesh.layout: 2 stages with 7 layers",
            "6 layers",
        ),
        (
            |recipe| {
                recipe.stage[0].micro_batches = 4;
                (recipe.mesh.pp, recipe.mesh.virtual_stages) = (2, 2);
                recipe.mesh.schedule = PipelineSchedule::ZeroBubble;
            },
            "mesh.virtual_stages: a zero-bubble schedule",
            "must be 1",
        ),
    ];
    for (change, what, remedy) in cases {
        let message = refused(change);
        assert!(message.starts_with(what) && message.contains(remedy), "{message}");
    }
}
