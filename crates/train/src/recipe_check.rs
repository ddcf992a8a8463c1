//! Validation of a recipe: the allowed range of every number, and the relations between keys. It runs in one place,
//! before anything is planned or run, and reads neither model files nor text; if a model is read from a folder, its
//! sizes are not the recipe's.

mod addresses;
mod rows;
#[cfg(test)]
mod tests;

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
