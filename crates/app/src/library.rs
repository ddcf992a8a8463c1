//! Recipes shipped in the binary.

use std::path::Path;

use fathom_base::recipe::{Form, Group, Layers, Library, Loaded, Source, header};
use fathom_base::{Error as Unloadable, tokens};
use fathom_model::{SafeTensors, Source as _};
use fathom_tensor::DType;
use fathom_train::recipe::{MethodName, Recipe, Stage};

use crate::error::{Error, Result};
use crate::events::Events;
use crate::models::{self, model_folder};

/// Defines groups of recipes: their texts, from the folder `recipes`, and the names of each group under its heading.
macro_rules! shipped {
    ($entries:ident, $groups:ident, $folder:literal: $($heading:literal: $($name:literal)*;)*) => {
        const $entries: &[(&str, &str)] =
            &[$($(($name, include_str!(concat!("../../../recipes/", $folder, $name, ".toml")))),*),*];
        const $groups: &[(&str, &[&str])] = &[$(($heading, &[$($name),*])),*];
    };
}

shipped!(TRAIN_ENTRIES, TRAIN_GROUPS, "":
    "Start here":
        "quickstart"
        "quickstart-128k"
        "extend"
        "long-1m-cpu"
        "ladder";
    "State-space layers and hybrids":
        "mamba2-56m"
        "hybrid-16k"
        "hybrid-64k"
        "hybrid-256k";
    "Teaching (give model.from)":
        "sft"
        "lora"
        "qlora"
        "dora"
        "distill"
        "steerlm"
        "continue";
    "Preferences and rewards (give model.from)":
        "dpo"
        "kto"
        "orpo"
        "simpo"
        "rpo"
        "steerlm2"
        "spin"
        "rlaif"
        "reward";
    "Encoders (give model.from)":
        "mlm"
        "embed"
        "rerank"
        "classify";
    "Encoder-decoders":
        "t5"
        "t5-small";
    "Decoders with neighbours of their text":
        "retro";
    "Learning from rewards (give model.from and rl.reward)":
        "grpo"
        "dapo"
        "rloo"
        "reinforce"
        "ppo"
        "rejection";
    "Published settings (give model.from, the last also rl.reward)":
        "llama3-8b-sft-nemo"
        "llama3-8b-lora-nemo"
        "llama3-70b-lora-nemo"
        "llama3-8b-lora-torchtune"
        "llama3-8b-qlora-torchtune"
        "llama3-70b-lora-torchtune"
        "llama3-8b-qlora-unsloth"
        "llama3-1b-dpo-nemo"
        "llama3-8b-grpo-nemo"
        "llama3-8b-grpo-20k";
    "Self-test":
        "mesh-parity";
);

shipped!(CURATE_ENTRIES, CURATE_GROUPS, "curate/":
    "Curation (fathom curate)":
        "common-crawl"
        "code"
        "books"
        "wikipedia"
        "arxiv";
);

/// Recipes made from one form, which differ by model, length or mesh.
const MODELS: Form<'static> = Form {
    text: include_str!("../../../recipes/models/form.txt"),
    sizes: include_str!("../../../recipes/models/sizes.toml"),
    runs: include_str!("../../../recipes/models/runs.toml"),
};

/// Recipes of `fathom train` and `fathom plan`.
pub const LIBRARY: Library<'static> = Library::new(TRAIN_ENTRIES).with_form(MODELS);

/// Recipes of `fathom curate`.
pub const CURATE: Library<'static> = Library::new(CURATE_ENTRIES);

/// Returns all recipes by group, in listing order.
///
/// # Errors
/// A table of recipes that cannot be read.
pub fn groups() -> Result<Vec<(Library<'static>, Group)>> {
    let named = |library, groups: &[(&str, &[&str])]| {
        let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        let group =
            |(heading, names): &(&str, &[&str])| Group { heading: heading.to_string(), names: owned(names) };
        groups.iter().map(|of| (library, group(of))).collect::<Vec<_>>()
    };
    let mut all = named(LIBRARY, TRAIN_GROUPS);
    let self_test = all.pop();
    all.extend(MODELS.groups()?.into_iter().map(|group| (LIBRARY, group)));
    all.extend(self_test);
    all.extend(named(CURATE, CURATE_GROUPS));
    Ok(all)
}

/// Returns the shipped recipes of `fathom curate` with their purposes, as its help shows them.
pub fn curations() -> String {
    let about = |name: &str, text: &str| header(name, text, "about").ok().flatten().unwrap_or_default();
    let line = |(name, text): &(&str, &str)| format!("\n  {name:<14}  {}", about(name, text));
    let lines: String = CURATE_ENTRIES.iter().map(line).collect();
    format!("Shipped recipes (`fathom recipes show NAME` prints one):{lines}")
}

/// Returns whether a name is a shipped recipe of `fathom curate`.
pub fn is_curation(name: &str) -> bool {
    CURATE_ENTRIES.iter().any(|(known, _)| *known == name)
}

/// Returns the layers of a named recipe or file with settings over it.
pub fn layers(name: &str, settings: &[String]) -> Layers<'static> {
    Layers::with_library(LIBRARY).recipe(name).sets(settings)
}

/// Loads layers into a recipe that can be planned and run. Values set by the user displace values of a shipped recipe
/// that make no sense with them ([`fathom_train::outdated`]).
///
/// # Errors
/// An invalid recipe, with the place where it is wrong.
pub fn load(mut layers: Layers<'static>) -> Result<Loaded<Recipe>> {
    let mut loaded = resolve(layers.clone())?;
    // A displaced value becomes a default, and defaults are not displaced, so this terminates.
    while let Some((path, by)) = fathom_train::outdated(&loaded) {
        layers = layers.displaced(&path, &by);
        loaded = resolve(layers.clone())?;
    }
    if !loaded.is_set("model.precision") && loaded.value.model.from.as_deref().is_some_and(is_in_f32) {
        layers = layers.flag("the weights of model.from", "model.precision", "f32");
        loaded = resolve(layers.clone())?;
    }
    let fitted = too_long(&loaded);
    if !fitted.is_empty() {
        let fit = |layers: Layers<'static>, (path, room): &(String, usize)| {
            layers.flag(POSITIONS, path, &room.to_string())
        };
        loaded = resolve(fitted.iter().fold(layers, fit))?;
    }
    fathom_train::check(&loaded)?;
    Ok(loaded)
}

/// Source of lengths that an encoder's positions bound.
const POSITIONS: &str = "the positions of model.from";

/// Lengths of a shipped recipe that are more than an encoder has positions for, with the number that it has. Those that the
/// user set are refused later.
fn too_long(loaded: &Loaded<Recipe>) -> Vec<(String, usize)> {
    let Recipe { model, objective, data, stage, .. } = &loaded.value;
    let method = objective.method;
    let Some(room) = model.from.as_deref().filter(|_| method.encodes()).and_then(models::encoder_room) else {
        return Vec::new();
    };
    let lengths: Vec<(String, usize)> = match method {
        MethodName::Mlm => {
            let length =
                |(index, stage): (usize, &Stage)| (format!("stage.{index}.seq_tokens"), stage.seq_tokens);
            stage.iter().enumerate().map(length).collect()
        }
        _ => vec![("data.max_text_tokens".into(), data.max_text_tokens)],
    };
    let shipped = |path: &str| {
        let source = loaded.source(path);
        source.is_some_and(|source| source.is_default() || matches!(source, Source::Recipe { .. }))
    };
    let fitted = lengths.into_iter().filter(|(path, tokens)| *tokens > room && shipped(path));
    fitted.map(|(path, _)| (path, room)).collect()
}

/// Reports the values that [`load`] fitted to the model.
pub(crate) fn report_fitted(loaded: &Loaded<Recipe>, events: &dyn Events) {
    for row in loaded.rows().iter().filter(|row| row.source == POSITIONS) {
        events.note(&format!("{} is {}: {POSITIONS}", row.path, row.value));
    }
}

/// Returns whether most weights of a model are f32. A folder that cannot be read is reported later, when it is opened.
fn is_in_f32(model: &Path) -> bool {
    let weights = model_folder(model).ok().and_then(|folder| SafeTensors::open_folder(&folder).ok());
    let Some(weights) = weights else { return false };
    let elements =
        |name: &&str| weights.shape(name).map_or(0.0, |shape| shape.iter().map(|n| *n as f64).product());
    let (names, mut all, mut wide) = (weights.names(), 0.0, 0.0);
    for name in &names {
        all += elements(name);
        let few = weights.kind(name).is_some_and(|kind| kind.block() > 1);
        wide += if weights.dtype(name) == Some(DType::F32) && !few { elements(name) } else { 0.0 };
    }
    2.0 * wide > all
}

/// Adds the place of a value in the recipe to an error about it.
pub fn placed(loaded: &Loaded<Recipe>, error: Error) -> Error {
    match error {
        Error::Train(fathom_train::Error::Recipe { key, message }) => loaded.refuse(&key, message).into(),
        error => error,
    }
}

/// Loads layers into a recipe with at least one stage, without checking that it can run.
///
/// # Errors
/// Those of [`load`].
pub fn resolve(layers: Layers<'static>) -> Result<Loaded<Recipe>> {
    let mut loaded: Loaded<Recipe> = Loaded::load(layers).map_err(|error| match error {
        Unloadable::UnknownRecipe { name, place, .. } if is_curation(&name) => Unloadable::UnknownRecipe {
            hint: format!("it is a recipe of `fathom curate {name}`"),
            name,
            place,
        },
        // There are too many names to list in a message.
        Unloadable::UnknownRecipe { name, place, hint } if !hint.starts_with("did you mean") => {
            let hint = "`fathom recipes ls` lists them (a file's name ends in .toml)".to_string();
            Unloadable::UnknownRecipe { name, place, hint }
        }
        error => error,
    })?;
    expand_stages(&mut loaded.value)?;
    Ok(loaded)
}

/// Replaces the short form `stages` by stages, and numbers those with the name of an earlier one.
///
/// # Errors
/// If there is no stage at all.
fn expand_stages(recipe: &mut Recipe) -> Result<()> {
    if !recipe.stages.is_empty() {
        let model = recipe.stage.last().cloned().unwrap_or_default();
        let name = |tokens: usize| tokens::format(tokens as u64);
        recipe.stage = std::mem::take(&mut recipe.stages)
            .into_iter()
            .map(|seq_tokens| Stage { name: name(seq_tokens), seq_tokens, ..model.clone() })
            .collect();
    }
    for index in 1..recipe.stage.len() {
        let name = &recipe.stage[index].name;
        let taken = |name: &str| recipe.stage.iter().any(|stage| stage.name == name);
        let again = recipe.stage[..index].iter().any(|stage| stage.name == *name);
        let numbered = (2..).map(|number| format!("{name}-{number}")).find(|name| !taken(name));
        if let (true, Some(name)) = (again, numbered) {
            recipe.stage[index].name = name;
        }
    }
    if recipe.stage.is_empty() {
        let (key, message) = ("stage".into(), "a run needs at least one [[stage]]".into());
        return Err(fathom_train::Error::Recipe { key, message }.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_of_one_name_are_numbered() {
        let names = |recipe: &mut Recipe| {
            expand_stages(recipe).unwrap();
            recipe.stage.iter().map(|stage| stage.name.clone()).collect::<Vec<_>>()
        };
        let named = |name: &str| Stage { name: name.into(), ..Stage::default() };
        let mut recipe = Recipe { stage: vec![Stage::default()], ..Recipe::default() };
        assert_eq!(names(&mut recipe), ["pretrain"]);
        recipe.stages = vec![1024, 2048, 1024, 1024];
        assert_eq!(names(&mut recipe), ["1k", "2k", "1k-2", "1k-3"]);
        recipe.stage = ["a", "a-2", "a"].map(named).to_vec();
        assert_eq!(names(&mut recipe), ["a", "a-2", "a-3"]);
    }

    /// A row that does not fit the form is refused on lookup; placeholders that no row fills, and unused tables, are
    /// detected here.
    #[test]
    fn shipped_recipes_resolve_and_their_tables_have_nothing_else() {
        let listed: Vec<String> = groups()
            .unwrap()
            .into_iter()
            .flat_map(|(_, group)| group.names)
            .filter(|name| !is_curation(name))
            .collect();
        let mut names = LIBRARY.names().unwrap();
        assert_eq!(names.len(), listed.len());
        for name in &listed {
            assert!(LIBRARY.text(name).unwrap().is_some(), "{name}");
            resolve(layers(name, &[])).unwrap();
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), listed.len(), "a name is given twice");
        let columns = MODELS.text.split('{').skip(1).filter_map(|rest| rest.split_once("?}"));
        for (column, _) in columns {
            let filled = |table: &str| table.contains(&format!("{column} = "));
            assert!(filled(MODELS.sizes) || filled(MODELS.runs), "no row fills {column}");
        }
        for model in MODELS.sizes.parse::<toml::Table>().unwrap().keys() {
            assert!(MODELS.runs.contains(&format!("model = \"{model}\"")), "no run is of {model}");
        }
    }
}
