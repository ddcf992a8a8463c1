//! Checks that the rules of `activations.places` affect the model.

use std::collections::BTreeSet;

use fathom_base::recipe::suggest_name;
use fathom_grad::Places;
use fathom_model::{MODULES, Spec};
use fathom_tensor::{DType, Profile};

use crate::activations::{Segment, activations};
use crate::error::{Error, Result};
use crate::recipe::{Granularity, PlaceName, PlaceRule, Recipe};
use crate::stage;

/// Tokens of the step that is recorded to find names.
const TOKENS: usize = 128;
/// Name of a block's input.
const INPUT: &str = "block.in";

/// Activations by layer and name; -1 outside the blocks.
type Names = BTreeSet<(i32, &'static str)>;

#[derive(Default)]
pub(crate) struct ModelActivations {
    made: Names,
    /// Those that a rule can put elsewhere.
    movable: Names,
}

/// Refuses a rule that changes nothing in any stage, and a module that the model does not have; `specs` are the
/// specifications before each stage.
///
/// # Errors
/// The first such rule or module, and the valid ones.
pub fn check_places<'a>(
    recipe: &Recipe,
    specs: impl Iterator<Item = &'a Spec> + Clone,
    profile: &Profile,
) -> Result<()> {
    check_modules(recipe, specs.clone())?;
    let rules = &recipe.activations.places;
    if rules.is_empty() {
        return Ok(());
    }
    let mut all = ModelActivations::default();
    for (index, (table, spec)) in recipe.stage.iter().zip(specs).enumerate() {
        let spec = stage::extend(spec, table, index)?;
        let ModelActivations { made, movable } =
            ModelActivations::of(profile, &spec, stage::places(recipe, index)?.segment_layers);
        all.made.extend(made);
        all.movable.extend(movable);
    }
    rules.iter().enumerate().try_for_each(|(index, rule)| {
        let refuse =
            |(key, message)| Error::Recipe { key: format!("activations.places.{index}.{key}"), message };
        all.check(rule).map_err(refuse)
    })
}

/// Refuses a module that the model does not have. Names that no model has are refused when they are parsed.
fn check_modules<'a>(recipe: &Recipe, specs: impl Iterator<Item = &'a Spec>) -> Result<()> {
    let table = &recipe.activations;
    let has: BTreeSet<&str> = specs.flat_map(Spec::modules).collect();
    let lists = [
        ("recompute_modules", &table.recompute_modules, recomputes(recipe)),
        ("offload_modules", &table.offload_modules, true),
    ];
    for (key, modules, _) in lists.into_iter().filter(|(.., used)| *used) {
        let lacks = |module: &&String| {
            MODULES.iter().any(|(name, _)| name == module) && !has.contains(module.as_str())
        };
        if let Some(module) = modules.iter().find(lacks) {
            let names: Vec<&str> = has.into_iter().collect();
            let message = format!("the model has no `{module}`; it has {}", names.join(", "));
            return Err(Error::Recipe { key: format!("activations.{key}"), message });
        }
    }
    Ok(())
}

/// True if some stage recomputes modules.
fn recomputes(recipe: &Recipe) -> bool {
    let of_all = recipe.activations.recompute_granularity;
    recipe.stage.iter().any(|stage| stage.recompute_granularity.unwrap_or(of_all) == Granularity::Selective)
}

impl ModelActivations {
    /// The activations of a model in segments of `segment_layers` layers.
    pub fn of(profile: &Profile, spec: &Spec, segment_layers: usize) -> ModelActivations {
        let segments = |places: Places| {
            activations(profile, spec, DType::Bf16, &places.with_segment_layers(segment_layers), TOKENS)
        };
        // Activations held with everything kept are read by backward passes. Those held even with everything recomputed
        // cannot be moved, except inputs.
        let (kept, replayed) = (segments(Places::none()), segments(Places::full()));
        let always = names(&replayed, true);
        let moves = |one: &(i32, &str)| one.0 >= 0 && (one.1 == INPUT || !always.contains(one));
        ModelActivations {
            made: names(&kept, false),
            movable: names(&kept, true).into_iter().filter(moves).collect(),
        }
    }

    /// Layers with an activation that a rule for this name can move.
    pub fn layers<'a>(&'a self, rule: &'a str) -> impl Iterator<Item = i32> + 'a {
        self.movable.iter().filter(move |(_, name)| speaks_of(rule, name)).map(|(layer, _)| *layer)
    }

    /// The key that makes a rule ineffective, and why.
    fn check(&self, rule: &PlaceRule) -> std::result::Result<(), (&'static str, String)> {
        let PlaceRule { layers, name, place } = rule;
        if name == INPUT && *place == PlaceName::Recompute {
            let message = "nothing can compute a block's input again: give keep, host or disk";
            return Err(("place", message.into()));
        }
        let names: BTreeSet<&str> = self.movable.iter().map(|(_, name)| *name).collect();
        let names: Vec<&str> = names.into_iter().collect();
        if self.layers(name).next().is_none() {
            let message = if self.made.iter().any(|(_, made)| speaks_of(name, made)) {
                format!(
                    "no backward pass of a block reads `{name}`, so its place changes nothing; rules may speak of {}",
                    names.join(", ")
                )
            } else {
                format!("no activation is called `{name}`; {}", suggest_name(name, &names, "the model has"))
            };
            return Err(("name", message));
        }
        match layers[..] {
            [from, to] if !self.layers(name).any(|layer| (from..to).contains(&(layer as usize))) => {
                Err(("layers", format!("no layer from {from} to before {to} has a place for `{name}`")))
            }
            _ => Ok(()),
        }
    }
}

/// True if a rule for a name, or for a prefix ending in `*`, applies to this activation.
fn speaks_of(rule: &str, name: &str) -> bool {
    rule.strip_suffix('*').map_or(rule == name, |prefix| name.starts_with(prefix))
}

/// Names of all activations of some segments, or only of those held from forward to backward.
fn names(segments: &[Segment], held: bool) -> Names {
    let of = |segment: &Segment| -> Vec<(i32, &'static str)> {
        let names = segment.activations.iter().filter(|one| one.held || !held).map(|one| one.name);
        names.flat_map(|name| segment.layers.iter().map(move |layer| (*layer, name))).collect()
    };
    segments.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use fathom_model::{LlamaSizes, Moe};

    use super::*;

    fn spec() -> Spec {
        Spec::llama(LlamaSizes { layers: 4, vocab: 96, ..LlamaSizes::TINY })
    }

    #[test]
    fn rules_speak_of_what_they_can_move() {
        let (dense, profile) = (spec(), Profile::portable(1));
        let layers = |known: &ModelActivations, rule: &str| known.layers(rule).collect::<BTreeSet<_>>().len();
        let known = ModelActivations::of(&profile, &dense, 1);
        for (rule, expected) in [
            ("*", 4),
            ("block.in", 4),
            ("block.mid", 4),
            ("attn.lse", 4),
            ("mlp.norm.st*", 4),
            ("block.out", 0),
            ("embed", 0),
            ("final.*", 0),
            ("moe.up", 0),
        ] {
            assert_eq!(layers(&known, rule), expected, "{rule}");
        }
        // A segment of two blocks uses the places of its first layer.
        let twos = ModelActivations::of(&profile, &dense, 2);
        assert_eq!((layers(&twos, "attn.q"), layers(&twos, "block.out")), (2, 2));
        let experts = ModelActivations::of(&profile, &dense.into_mixtral(Moe::new(4, 2, 48)), 1);
        assert_eq!((layers(&experts, "moe.up"), layers(&experts, "mlp.up")), (4, 0));
    }

    #[test]
    fn modules_that_the_model_does_not_have_are_refused() {
        let check = |spec: Spec, recompute: &str, offload: &str| {
            let mut recipe = Recipe { stage: vec![crate::recipe::Stage::default()], ..Recipe::default() };
            recipe.activations.recompute_granularity = Granularity::Selective;
            recipe.activations.recompute_modules = vec![recompute.into()];
            recipe.activations.offload_modules = vec![offload.into()];
            check_places(&recipe, [spec].iter(), &Profile::portable(1)).map_err(|error| error.to_string())
        };
        let experts = || spec().into_mixtral(Moe::new(4, 2, 48));
        check(spec(), "mlp", "all").unwrap();
        check(experts(), "moe", "block").unwrap();
        for (spec, recompute, offload, refused) in [
            (spec(), "moe", "all", "recompute_modules"),
            (spec(), "mla_up_proj", "all", "recompute_modules"),
            (spec(), "layernorm", "shared_experts", "offload_modules"),
            (experts(), "mlp_act", "all", "recompute_modules"),
        ] {
            let message = check(spec, recompute, offload).unwrap_err();
            assert!(message.contains(refused) && message.contains("core_attn"), "{message}");
        }
    }
}
