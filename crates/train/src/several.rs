//! Several adapters in one run: each has its own trainer over the weights of one base, and they take turns
//! ([`crate::together`]). Each learns the same as alone, to the bit, and memory holds the base once.

use std::collections::BTreeSet;
use std::sync::Arc;

use fathom_base::recipe::Loaded;
use fathom_model::Spec;

use crate::adapted::adapted;
use crate::error::Result;
use crate::recipe::{AdapterName, GemmName, NamedAdapter, QatName, Recipe};

/// Specifications of the other adapters of a run over the base of `spec`, for plans: those created before the recipe's
/// own, and those after it.
pub(crate) fn other_adapters(recipe: &Recipe, spec: &Spec) -> Result<[Vec<Arc<Spec>>; 2]> {
    let base = spec.without_adapter();
    let made = |other: Recipe| Ok(Arc::new(adapted(&other, base.clone())?));
    let mut before: Vec<_> = recipe.over_same_base().map(made).collect::<Result<_>>()?;
    let after =
        before.split_off(recipe.adapters.iter().take_while(|one| !one.is_own()).count().min(before.len()));
    Ok([before, after])
}

/// Refuses settings that do not work with several adapters in one run.
///
/// # Errors
/// The key to change.
pub fn check_several(loaded: &Loaded<Recipe>) -> Result<()> {
    check_each(loaded)?;
    if loaded.value.adapters.is_empty() { Ok(()) } else { check_run(loaded) }
}

/// Checks names, lessons and methods.
fn check_each(loaded: &Loaded<Recipe>) -> Result<()> {
    let recipe = &loaded.value;
    let mut names = BTreeSet::new();
    for (index, one) in recipe.adapters.iter().enumerate() {
        let refuse = |key: &str, message: String| {
            Err(loaded.refuse(&format!("adapters.{index}.{key}"), message).into())
        };
        let NamedAdapter { name, paths, .. } = one;
        let is_plain = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
        if name.is_empty() || !name.chars().all(is_plain) {
            let message = format!("is \"{name}\", which is a folder's name: letters, digits, - and _");
            return refuse("name", message);
        }
        if !names.insert(name.to_lowercase()) {
            return refuse("name", format!("is \"{name}\", and so is another's; give each its own"));
        }
        if paths.is_empty() {
            return refuse("paths", format!("is empty; give the lessons of the adapter \"{name}\""));
        }
        if one.reward.is_some() && !recipe.rl.is_on() {
            let message =
                "is of runs that learn from rewards, and rl.loss is none; begin from a recipe like grpo";
            return refuse("reward", message.into());
        }
        match one.over(&recipe.adapter).method {
            AdapterName::None => {
                return refuse(
                    "method",
                    "is none; give a method here, or one for all (adapter.method)".into(),
                );
            }
            AdapterName::Pissa => {
                let message =
                    "is pissa, which changes the base that all share; take lora, or a run of its own";
                return refuse("method", message.into());
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks the common settings of the run.
fn check_run(loaded: &Loaded<Recipe>) -> Result<()> {
    let recipe = &loaded.value;
    let Recipe { model, objective, precision, data, .. } = recipe;
    let refused = [
        ("model.from", model.from.is_none(), "is none, and adapters are of a model; give its folder"),
        ("model.trained", !model.trained.is_empty(), "trains weights that all adapters share; leave it out"),
        (
            "data.paths",
            !data.paths.is_empty(),
            "is of one adapter; each of several has its own (adapters.*.paths)",
        ),
        (
            "objective.sync_ref_model",
            objective.sync_ref_model,
            "moves a copy of the model that all adapters are compared with; leave it out",
        ),
        (
            "precision.qat",
            precision.qat != QatName::None,
            "rounds weights that all adapters share; leave it out",
        ),
        (
            "precision.gemm",
            precision.gemm == GemmName::Fp8Delayed,
            "keeps a history with the weights that all adapters share; take another format",
        ),
    ];
    match refused.iter().find(|(_, is_so, _)| *is_so) {
        Some((key, _, message)) => Err(loaded.refuse(key, *message).into()),
        None => Ok(()),
    }
}
