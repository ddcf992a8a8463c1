//! Whether the rules of `activations.places` speak of activations that the model has.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use fathom_base::recipe::suggest_name;
use fathom_model::Spec;
use fathom_tensor::Profile;
use fathom_train::activations::activations;
use fathom_train::recipe::Recipe;
use fathom_train::stage;

use crate::device;

/// Tokens of the step that is recorded for its names.
const TOKENS: usize = 128;

/// Refuses a rule whose name is that of no activation in any stage; `specs` are the specifications before each.
pub fn check(recipe: &Recipe, specs: &[Spec], profile: &Profile) -> Result<()> {
    let rules = &recipe.activations.places;
    if rules.is_empty() {
        return Ok(());
    }
    let mut names = BTreeSet::new();
    for (index, (table, spec)) in recipe.stage.iter().zip(specs).enumerate() {
        let (spec, places) = (stage::extend(spec, table, index)?, stage::places(recipe, index)?);
        let dtype = device::precision(recipe.model.precision);
        let segments = activations(profile, &spec, dtype, &places, TOKENS);
        names.extend(segments.iter().flat_map(|segment| &segment.activations).map(|one| one.name));
    }
    let names: Vec<&str> = names.into_iter().collect();
    for (index, rule) in rules.iter().enumerate() {
        let known = |name: &&str| match rule.name.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => **name == rule.name,
        };
        if !names.iter().any(known) {
            let hint = suggest_name(&rule.name, &names, "the model has");
            bail!("activations.places.{index}.name: no activation is called `{}`; {hint}", rule.name);
        }
    }
    Ok(())
}
