//! Validation of a recipe: the allowed range of every number, and the relations between keys. It runs in one place,
//! before anything is planned or run, and reads neither model files nor text; if a model is read from a folder, its
//! sizes are not the recipe's.

mod addresses;
mod rows;

use std::collections::BTreeMap;

use fathom_base::recipe::{AllowedRange, Loaded, keys};
use fathom_base::{Error as Unloadable, human};

use crate::adapted::check_adapter;
use crate::error::{Error, Result, refuse};
use crate::policy::check::{check as of_policy, stages as room_for_answers};
use crate::recipe::limits::{MOST_DOCS, MOST_RANKS, MOST_TOKENS};
use crate::recipe::{AdapterName, FamilyName, MethodName, QuantizationName, Recipe, RopeType, Stage};
use crate::several::check_several;
use crate::{needs_corpus, rounded};

/// Refuses numbers that no run can have. The recipe's stages are expanded.
///
/// # Errors
/// The first such key, with its path, its value and the allowed ones.
pub fn check(loaded: &Loaded<Recipe>) -> Result<()> {
    CHECKS.iter().try_for_each(|check| check(loaded))
}

/// A value of an earlier layer that conflicts with one set by a later layer: its path, and the later layer's key. A
/// user's setting replaces such values of a shipped recipe, and a command line's those of a file; conflicts within one
/// layer are refused.
pub fn outdated(loaded: &Loaded<Recipe>) -> Option<(String, String)> {
    let found = |check: &Check| match check(loaded) {
        Err(Error::Base(Unloadable::Outdated { path, by, .. })) => Some((path, by)),
        _ => None,
    };
    CHECKS.iter().chain(&TRAINING).find_map(found)
}

type Check = fn(&Loaded<Recipe>) -> Result<()>;

/// Each check is run for outdated values even if an earlier one refuses something, so each concerns one subject.
const CHECKS: [Check; 10] = [
    check_numbers,
    addresses::check,
    model,
    adapters,
    rounded::check,
    quantization,
    batches,
    warmup,
    room_for_answers,
    rest,
];

/// Checks of [`check_training`].
const TRAINING: [Check; 7] = [given, lengths, rows::check, of_policy, z_loss, extended, ruler];

/// Checks that numbers are within the ranges of their keys, and nothing else.
///
/// # Errors
/// The first number outside, with its place.
pub fn check_numbers(loaded: &Loaded<Recipe>) -> Result<()> {
    let allowed: BTreeMap<String, AllowedRange> =
        keys::<Recipe>().into_iter().filter_map(|key| Some((key.path, key.allowed?))).collect();
    for row in loaded.rows() {
        let Some(allowed) = allowed.get(&starred(&row.path)) else { continue };
        if let Some((text, _)) = numbers(&row.value).find(|(_, number)| !allowed.holds(*number)) {
            return refuse(loaded, &row.path, format!("is {text}; it must be {allowed}"));
        }
    }
    Ok(())
}

/// A folder, or sizes that are compatible.
fn model(loaded: &Loaded<Recipe>) -> Result<()> {
    match &loaded.value.model.from {
        Some(folder) if folder.as_os_str().is_empty() => {
            let message =
                "is empty; this recipe goes on from a model: give its Hugging Face folder, model.from=DIR";
            refuse(loaded, "model.from", message)
        }
        Some(_) => Ok(()),
        None if loaded.value.checkpoint.trained_only => {
            let message = "leaves out what is frozen, and there is no model that has it; give model.from";
            refuse(loaded, "checkpoint.trained_only", message)
        }
        None => sizes(loaded),
    }
}

/// Checks the adapter, or each of several adapters in its own recipe.
fn adapters(loaded: &Loaded<Recipe>) -> Result<()> {
    if loaded.value.adapters.is_empty() { check_adapter(loaded) } else { check_several(loaded) }
}

/// Checks that quantized weights are used with something to train.
fn quantization(loaded: &Loaded<Recipe>) -> Result<()> {
    let model = &loaded.value.model;
    let several = !loaded.value.adapters.is_empty();
    let adapted = several || loaded.value.adapter.method != AdapterName::None;
    if model.quantization != QuantizationName::None && model.trained.is_empty() && !adapted {
        let message =
            "freezes the projections, and nothing says what is trained; give model.trained, as [\"norm\"]";
        let [_, by] = loaded.earlier_first(["model.trained", "adapter.method"]);
        return Err(loaded.refuse_with("model.quantization", by, message).into());
    }
    Ok(())
}

/// Copies of checkpoints, and the mesh.
fn rest(loaded: &Loaded<Recipe>) -> Result<()> {
    let saves = &loaded.value.checkpoint;
    if saves.local.is_some() && saves.memory_every_steps.is_none() {
        let message = "is where copies go, and none are made: give checkpoint.memory_every_steps as well";
        return Err(loaded.refuse_with("checkpoint.local", "checkpoint.memory_every_steps", message).into());
    }
    ranks(loaded)
}

/// Refuses recipes that can be planned but not trained: without text, with stages of unknown duration, or with a first
/// stage that extends a model that does not exist yet.
///
/// # Errors
/// The first such stage.
pub fn check_training(loaded: &Loaded<Recipe>) -> Result<()> {
    TRAINING.iter().try_for_each(|check| check(loaded))
}

/// Requires text, and a model where one is needed.
fn given(loaded: &Loaded<Recipe>) -> Result<()> {
    let recipe = &loaded.value;
    let reads = needs_corpus(recipe) || recipe.rl.is_on();
    if let Some(message) = recipe.data.without_text().filter(|_| reads) {
        return refuse(loaded, "data.paths", message);
    }
    if recipe.model.quantization != QuantizationName::None && recipe.model.from.is_none() {
        let message =
            "packs weights of a model that is there already, and checkpoints leave them out; give model.from";
        return refuse(loaded, "model.quantization", message);
    }
    if recipe.adapter.method != AdapterName::None && recipe.model.from.is_none() {
        let message =
            "adapts a model that is there already, and the run leaves an adapter alone; give model.from";
        return refuse(loaded, "adapter.method", message);
    }
    Ok(())
}

/// Exactly one duration per stage.
fn lengths(loaded: &Loaded<Recipe>) -> Result<()> {
    let recipe = &loaded.value;
    for (index, stage) in recipe.stage.iter().enumerate() {
        let path = |key: &str| format!("stage.{index}.{key}");
        let refuse = |key: &str, message: &str| refuse(loaded, &path(key), message);
        let one_of = |keys: [&str; 2]| {
            let [earlier, by] = loaded.earlier_first(keys);
            let message =
                format!("says how long the stage is trained, and so does {by}; give one, the other as none");
            Err(loaded.refuse_with(earlier, by, message).into())
        };
        match (stage.steps, stage.epochs, recipe.run.minutes) {
            (None, None, None) => {
                let message = "is none, and so are epochs and run.minutes: nothing says how long the stage is trained; give one of them";
                return refuse("steps", message);
            }
            (Some(_), Some(_), _) => return one_of([&path("epochs"), &path("steps")]),
            (None, Some(_), Some(_)) => return one_of([&path("epochs"), "run.minutes"]),
            // In one layer, some stages may have steps and the others share the time.
            (Some(_), None, Some(_)) if loaded.is_earlier(&path("steps"), "run.minutes") => {
                return one_of([&path("steps"), "run.minutes"]);
            }
            _ => {}
        }
        if let (Some(_), Some(rules)) = (stage.epochs, (stage.blend(recipe).len() > 1).then_some("blend")) {
            let message = "mixes sources, which end at different steps: a pass is of one source; give steps in place of epochs";
            return refuse(rules, message);
        }
    }
    Ok(())
}

/// Only one head has a z-loss.
fn z_loss(loaded: &Loaded<Recipe>) -> Result<()> {
    let recipe = &loaded.value;
    if recipe.objective.method != MethodName::CrossEntropy && recipe.optimizer.z_loss != 0.0 {
        let message = "is of the head that makes its gradients at once, which objectives other than cross_entropy do not use; give 0";
        return Err(loaded.refuse_with("optimizer.z_loss", "objective.method", message).into());
    }
    Ok(())
}

/// A first stage that extends a model needs one.
fn extended(loaded: &Loaded<Recipe>) -> Result<()> {
    let recipe = &loaded.value;
    let extending = |stage: &Stage| match stage.rope_type {
        RopeType::Keep | RopeType::Default => stage.rope_theta.map(|_| "rope_theta"),
        _ => Some("rope_type"),
    };
    // If several stages are alike, as expanded from `stages`, the first trains the model that the others extend.
    let alike =
        |[one, other]: [&Stage; 2]| (one.rope_type, one.rope_theta) == (other.rope_type, other.rope_theta);
    if recipe.model.from.is_some() || recipe.stage.get(1).is_some_and(|next| alike([&recipe.stage[0], next]))
    {
        return Ok(());
    }
    match recipe.stage.first().and_then(extending) {
        Some(key) => {
            let message =
                "the first stage extends a model, and there is none; give model.from, the folder of one";
            refuse(loaded, &format!("stage.0.{key}"), message)
        }
        None => Ok(()),
    }
}

/// RULER's tasks take as long as they take, at lengths that the run trains.
fn ruler(loaded: &Loaded<Recipe>) -> Result<()> {
    let recipe = &loaded.value;
    let Some(most) = recipe.eval.ruler.iter().max() else { return Ok(()) };
    if !recipe.eval.enabled {
        let message = "names lengths, and nothing is evaluated; give eval.enabled=true";
        return Err(loaded.refuse_with("eval.ruler", "eval.enabled", message).into());
    }
    if recipe.run.minutes.is_some() {
        let message = "asks every row, whatever time is left; give run.minutes=none and steps";
        return Err(loaded.refuse_with("eval.ruler", "run.minutes", message).into());
    }
    let longest = recipe.stage.iter().map(|stage| stage.seq_tokens).max().unwrap_or(0);
    if *most > longest {
        let message =
            format!("asks at {most} tokens, and the longest stage has {longest}; name lengths up to that");
        return refuse(loaded, "eval.ruler", message);
    }
    Ok(())
}

/// Only one length of warm-up. Zero steps do not conflict with a share, so recipes without warm-up can set them. A
/// stage's own warm-up overrides the schedule's unless a later layer sets that.
fn warmup(loaded: &Loaded<Recipe>) -> Result<()> {
    let (table, both) = (&loaded.value.schedule, ["schedule.warmup_share", "schedule.warmup_steps"]);
    if let (Some(steps), Some(share)) = (table.warmup_steps, table.warmup_share) {
        let [earlier, by] = loaded.earlier_first(both);
        if steps > 0 || loaded.is_earlier(both[0], both[1]) {
            let message = format!(
                "warm-up is {share} of the steps by schedule.warmup_share, and {steps} of them by schedule.warmup_steps; give one, the other \
                 as none"
            );
            return Err(loaded.refuse_with(earlier, by, message).into());
        }
    }
    for (index, _) in loaded.value.stage.iter().enumerate().filter(|(_, stage)| stage.warmup_steps.is_some())
    {
        let path = format!("stage.{index}.warmup_steps");
        if let Some(by) = both.iter().find(|key| loaded.is_earlier(&path, key)) {
            return Err(loaded.refuse_with(&path, by, format!("is another warm-up than {by}")).into());
        }
    }
    Ok(())
}

/// The numbers in a row's value, each as text and as f64; several in a list.
fn numbers(value: &str) -> impl Iterator<Item = (&str, f64)> {
    let parts = value.trim_matches(['[', ']']).split(',').map(str::trim);
    parts.filter_map(|text| Some((text, text.replace('_', "").parse().ok()?)))
}

/// A path as in the list of keys, with `*` for an index.
fn starred(path: &str) -> String {
    let star = |part: &str| {
        if part.bytes().all(|byte| byte.is_ascii_digit()) { "*".into() } else { part.to_string() }
    };
    path.split('.').map(star).collect::<Vec<_>>().join(".")
}

/// Sizes of a new model that are compatible.
fn sizes(loaded: &Loaded<Recipe>) -> Result<()> {
    let Recipe { model, moe, activations, data, .. } = &loaded.value;
    let latent = model.family == FamilyName::DeepseekV3;
    let kv_heads = if latent { model.heads } else { model.kv_heads };
    let refuse = |key: &str, message: String| refuse(loaded, key, message);
    if !model.heads.is_multiple_of(kv_heads) {
        let message = format!("is {kv_heads}; it must divide the {} heads of model.heads", model.heads);
        return refuse("model.kv_heads", message);
    }
    if !model.head_dim.is_multiple_of(8) {
        let message = format!(
            "is {}; it must be a multiple of 8, as the tensor cores of GPUs take them",
            model.head_dim
        );
        return refuse("model.head_dim", message);
    }
    if !kv_heads.is_multiple_of(activations.head_groups) {
        let message =
            format!("is {}; it must divide the {kv_heads} heads of keys and values", activations.head_groups);
        return refuse("activations.head_groups", message);
    }
    if moe.dense_layers > model.layers {
        let message = format!("is {}; the model has model.layers={}", moe.dense_layers, model.layers);
        return refuse("moe.dense_layers", message);
    }
    let trained = data.tokenizer.is_none() && needs_corpus(&loaded.value);
    if trained && model.vocab < 257 {
        let message =
            format!("is {}; a tokenizer of 256 bytes and one special token needs 257 or more", model.vocab);
        return refuse("model.vocab", message);
    }
    for (index, stage) in loaded.value.stage.iter().enumerate() {
        // Four products over all pairs of tokens, with two FLOPs per column and pair, half of them masked.
        let tokens = (stage.seq_tokens * stage.samples_per_micro_batch) as f64;
        let columns = (model.heads * model.head_dim) as f64;
        let most = (u64::MAX as f64 / (4.0 * columns)).sqrt();
        if tokens > most {
            let message = format!(
                "makes micro batches of {tokens} tokens; with heads of {columns} columns together they may have {}",
                most as u64
            );
            return refuse(&format!("stage.{index}.seq_tokens"), message);
        }
    }
    Ok(())
}

/// Numbers of micro-batches that can be counted.
fn batches(loaded: &Loaded<Recipe>) -> Result<()> {
    let stages = &loaded.value.stage;
    for (index, stage) in stages.iter().enumerate() {
        let samples = stage.samples_per_micro_batch;
        for (what, each, most) in
            [("tokens", stage.seq_tokens, MOST_TOKENS), ("documents", stage.max_docs, MOST_DOCS)]
        {
            if (samples * each) as u64 > most {
                let message = format!(
                    "is {samples}; with {each} {what} a sample a micro batch may have up to {}",
                    (most / each as u64).max(1)
                );
                return refuse(loaded, &format!("stage.{index}.samples_per_micro_batch"), message);
            }
        }
    }
    let shares = |stage: &Stage| stage.minutes_share;
    if loaded.value.run.minutes.is_some() && stages.iter().map(shares).sum::<f64>() <= 0.0 {
        let message = "is 0, as it is for every stage: one of them has to have a share of run.minutes";
        return refuse(loaded, "stage.0.minutes_share", message);
    }
    Ok(())
}

fn ranks(loaded: &Loaded<Recipe>) -> Result<()> {
    let mesh = &loaded.value.mesh;
    let all = [mesh.pp, mesh.dp, mesh.cp, mesh.tp].into_iter().map(|axis| axis as u128).product::<u128>();
    if all > u128::from(MOST_RANKS) {
        let message = format!(
            "is {}; pp x dp x cp x tp are {all} ranks, of {} at most",
            mesh.dp,
            human::grouped(MOST_RANKS)
        );
        return refuse(loaded, "mesh.dp", message);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fathom_base::recipe::Layers;

    use super::*;

    fn load(settings: &str) -> Loaded<Recipe> {
        let layers = Layers::new().text(
            "small",
            "data.paths = [\"text\"]\n[[stage]]\nsteps = 1\nblend = [{ source = \"text\" }]\nlength_weights = [{ min_tokens = 8 }]\n",
        );
        let settings: Vec<&str> = settings.split_whitespace().collect();
        Loaded::load(layers.sets(&settings)).unwrap()
    }

    #[test]
    fn every_number_has_a_range() {
        for key in keys::<Recipe>() {
            assert_eq!(key.expected.contains("number"), key.allowed.is_some(), "{}", key.path);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_key() {
        let cases = "optimizer.lr=-1 optimizer.lr=nan optimizer.lr=inf optimizer.clip=-1 optimizer.clip=0 optimizer.beta2=1 \
            stage.0.micro_batches=0 stage.0.steps=0 stage.0.rope_factor=0 stage.0.rope_factor=-1 stage.0.rope_theta=0 \
            stage.0.samples_per_micro_batch=0 stage.0.max_docs=0 stage.0.max_docs=1000000000 stage.0.seq_tokens=1 \
            stage.0.seq_tokens=1000000000 stage.0.blend.0.weight=0 stage.0.length_weights.0.weight=-1 stages=0 stages=100000000000000 stages=1k,0 \
            activations.head_groups=0 activations.head_groups=7 activations.offload_fraction=0 \
            run.minutes=0 run.minutes=-1 run.minutes=nan checkpoint.every_steps=0 checkpoint.every_s=-1 \
            model.init_std=nan model.rope_theta=0 model.rope_theta=-1 model.layers=0 model.layers=1000000000 \
            model.kv_heads=3 model.kv_heads=0 model.head_dim=0 model.head_dim=7 model.hidden=0 model.kv_latent=0 \
            model.heads=0 model.vocab=0 model.vocab=1 model.vocab=256 model.from= moe.ffn=0 moe.dense_layers=9 \
            moe.capacity_factor=0 mesh.virtual_stages=0 mesh.cp=0 mesh.dp=0 mesh.pp=0 mesh.ep=0 mesh.etp=0 mesh.tp=0 \
            mesh.timeout_s=0 schedule.warmup_share=1 schedule.warmup_share=-0.1 data.held_out_share=1 data.recall_share=-1 data.max_bytes=0 data.tokenizer_bytes=0";
        for case in cases.split_whitespace() {
            let (key, _) = case.split_once('=').unwrap();
            let error = check(&load(case)).expect_err(case).to_string();
            assert!(error.contains(&format!("`{key}`")) && error.contains("command line"), "{case}: {error}");
        }
    }

    #[test]
    fn relations_name_the_key_that_does_not_fit() {
        for (settings, key) in [
            ("model.heads=3", "model.kv_heads"),
            ("model.head_dim=12", "model.head_dim"),
            ("stage.0.seq_tokens=1m stage.0.samples_per_micro_batch=64", "stage.0.samples_per_micro_batch"),
            ("stage.0.seq_tokens=16m model.heads=512", "stage.0.seq_tokens"),
            ("mesh.pp=65536 mesh.tp=65536", "mesh.dp"),
            ("run.minutes=1 stage.0.minutes_share=0", "stage.0.minutes_share"),
            ("checkpoint.local=/tmp", "checkpoint.local"),
            ("schedule.warmup_steps=10 schedule.warmup_share=0.1", "schedule.warmup_share"),
            ("adapter.method=prompt adapter.rank=4", "adapter.rank"),
            ("adapter.method=prompt adapter.targets=all-linear", "adapter.targets"),
            ("adapter.method=prefix adapter.encoder_hidden_size=8", "adapter.encoder_hidden_size"),
            ("adapter.method=lora adapter.virtual_tokens=8", "adapter.virtual_tokens"),
            ("adapter.method=dora adapter.dropout=0.1", "adapter.dropout"),
            ("adapter.method=lora adapter.dropout=1", "adapter.dropout"),
            ("adapter.method=lora adapter.dropout=0.1 mesh.tp=2", "mesh.sequence_parallel"),
            ("adapter.method=ia3 adapter.token_rows=[3]", "adapter.token_rows"),
            ("adapter.method=prefix mesh.tp=2", "mesh.tp"),
            ("adapter.method=prompt mesh.tp=2", "mesh.sequence_parallel"),
            ("adapter.method=p_tuning objective.method=dft", "objective.method"),
            ("adapter.method=prompt model.trained=[\"norm\"]", "model.trained"),
            ("precision.qat=mxfp4 model.precision=f32", "model.precision"),
            ("precision.qat=int4 optimizer.master_weights=false", "optimizer.master_weights"),
            ("precision.qat=nvfp4 adapter.method=lora", "adapter.method"),
            ("precision.qat=mxfp4 model.trained=[\"norm\"]", "model.trained"),
            ("adapter.method=prompt stage.0.masked=false", "stage.0.masked"),
            ("adapter.method=prompt stage.0.masked=true stage.0.seq_tokens=21", "stage.0.seq_tokens"),
        ] {
            let error = check(&load(settings)).expect_err(settings).to_string();
            assert!(error.contains(&format!("`{key}`")), "{settings}: {error}");
        }
    }

    #[test]
    fn what_can_be_is_not_refused() {
        for settings in [
            "",
            "optimizer.lr=1e30 optimizer.clip=none checkpoint.every_s=none stage.0.seq_tokens=1m",
            "model.family=deepseek_v3 model.heads=3 moe.dense_layers=6",
            "model.from=out model.heads=3 activations.head_groups=3",
        ] {
            check(&load(settings)).unwrap();
        }
    }

    #[test]
    fn something_names_the_text() {
        let good = [
            "",
            "data.paths=cargo:",
            "data.paths=[] data.curate=books",
            "data.paths=[] stage.0.blend.0.source=store/train",
        ];
        good.into_iter().for_each(|settings| check_training(&load(settings)).unwrap());
        for bad in ["data.paths=[]", "data.paths=[] data.curate=none", "data.paths=cargo:,text"] {
            check(&load(bad)).unwrap();
            let error = check_training(&load(bad)).unwrap_err().to_string();
            assert!(error.contains("`data.paths`") && error.contains("cargo:"), "{error}");
        }
    }

    #[test]
    fn a_stage_has_an_end() {
        check_training(&load("")).unwrap();
        check_training(&load("stage.0.steps=none run.minutes=1")).unwrap();
        let error = check_training(&load("stage.0.steps=none")).unwrap_err().to_string();
        assert!(error.contains("stage.0.steps") && error.contains("run.minutes"), "{error}");
    }

    #[test]
    fn a_model_from_nothing_is_not_extended_at_once() {
        for set in ["rope_type=yarn", "rope_theta=40000"] {
            let error = check_training(&load(&format!("stage.0.{set}"))).unwrap_err().to_string();
            let key = set.split('=').next().unwrap();
            assert!(error.contains(&format!("`stage.0.{key}`")) && error.contains("model.from"), "{error}");
            check_training(&load(&format!("stage.0.{set} model.from=out"))).unwrap();
        }
        check_training(&load("stage.0.rope_type=default")).unwrap();
        let stretched = |tokens: &[usize]| {
            let mut loaded = load("stage.0.rope_type=yarn");
            let stage = loaded.value.stage[0].clone();
            let stages = tokens.iter().map(|tokens| Stage { seq_tokens: *tokens, ..stage.clone() });
            loaded.value.stage = stages.collect();
            check_training(&loaded)
        };
        stretched(&[16 << 10, 64 << 10]).unwrap();
        assert!(stretched(&[64 << 10]).is_err());
    }
}
