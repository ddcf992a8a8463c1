//! The recipes inside the binary.

use fathom_base::Error as Unloadable;
use fathom_base::recipe::{Layers, Library, Recipe as Loaded, header};
use fathom_train::recipe::Recipe;

use crate::error::{Error, Result};
use crate::models;

/// Groups of recipes by heading: their texts, from the folder `recipes`, and the names of each group.
macro_rules! shipped {
    ($entries:ident, $groups:ident, $folder:literal: $($heading:literal: $($name:literal)*;)*) => {
        const $entries: &[(&str, &str)] =
            &[$($(($name, include_str!(concat!("../../../recipes/", $folder, $name, ".toml")))),*),*];
        const $groups: &[Group] = &[$(($heading, &[$($name),*])),*];
    };
}

/// A heading, and the names of the recipes below it.
pub type Group = (&'static str, &'static [&'static str]);

shipped!(TRAIN_ENTRIES, TRAIN_GROUPS, "":
    "Start here":
        "quickstart"
        "quickstart-128k"
        "extend"
        "long-1m-cpu";
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
    "Pretraining":
        "llama3-1b"
        "llama3-8b"
        "llama3-70b"
        "llama3-405b"
        "mixtral-8x7b"
        "mixtral-8x22b"
        "nemotron3-22b"
        "nemotron4-15b"
        "nemotron4-340b";
    "Context extension (give model.from)":
        "llama3-1b-16k"
        "llama3-1b-64k"
        "llama3-1b-128k"
        "llama3-1b-1m"
        "llama3-8b-16k"
        "llama3-8b-64k"
        "llama3-8b-128k"
        "llama3-8b-1m"
        "llama3-70b-16k"
        "llama3-70b-64k"
        "llama3-70b-128k"
        "llama3-70b-1m"
        "nemotron3-22b-16k"
        "nemotron3-22b-64k"
        "nemotron3-22b-128k"
        "nemotron3-22b-1m";
    "Clusters (-nvidia: on the mesh that NVIDIA published)":
        "llama3-8b-nvidia"
        "llama3-8b-16k-nvidia"
        "llama3-8b-64k-nvidia"
        "llama3-8b-128k-nvidia"
        "llama3-70b-nvidia"
        "llama3-70b-16k-nvidia"
        "llama3-70b-64k-nvidia"
        "llama3-405b-128k-nvidia"
        "mixtral-8x7b-nvidia"
        "mixtral-8x7b-16k-nvidia"
        "mixtral-8x7b-64k-nvidia"
        "mixtral-8x22b-64k-nvidia"
        "nemotron3-22b-16k-nvidia"
        "nemotron3-22b-64k-nvidia"
        "nemotron4-15b-16k-nvidia"
        "nemotron4-15b-64k-nvidia"
        "nemotron4-340b-nvidia"
        "dense-48l-10m";
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

/// The recipes of `fathom train` and `fathom plan`.
pub const LIBRARY: Library<'static> = Library::new(TRAIN_ENTRIES);

/// The recipes of `fathom curate`.
pub const CURATE: Library<'static> = Library::new(CURATE_ENTRIES);

/// All recipes by group, in the order in which they are listed.
pub fn groups() -> impl Iterator<Item = (Library<'static>, &'static Group)> {
    let of = |library: Library<'static>, groups: &'static [Group]| {
        groups.iter().map(move |group| (library, group))
    };
    of(LIBRARY, TRAIN_GROUPS).chain(of(CURATE, CURATE_GROUPS))
}

/// The shipped recipes of `fathom curate` with what they are for, as its help shows them.
pub fn curations() -> String {
    let about = |name: &str| header(name, CURATE.text(name).unwrap_or_default(), "about").ok().flatten();
    let line = |name: &&str| format!("\n  {name:<14}  {}", about(name).unwrap_or_default());
    let lines: String = CURATE.names().iter().map(line).collect();
    format!("Shipped recipes (`fathom recipes show NAME` prints one):{lines}")
}

/// A named recipe or file with settings over it.
pub fn layers(name: &str, settings: &[String]) -> Layers<'static> {
    Layers::with_library(LIBRARY).recipe(name).sets(settings)
}

/// Loads layers into a recipe whose numbers can be planned and run.
///
/// # Errors
/// What is wrong with it, and where that was written.
pub fn load(layers: Layers<'static>) -> Result<Loaded<Recipe>> {
    let mut loaded = resolve(layers.clone())?;
    if !loaded.is_set("model.precision") && loaded.value.model.from.as_deref().is_some_and(models::is_in_f32)
    {
        loaded = resolve(layers.flag("the weights of model.from", "model.precision", "f32"))?;
    }
    fathom_train::check(&loaded)?;
    Ok(loaded)
}

/// An error about a recipe's value, with the place where that was written.
pub fn placed(loaded: &Loaded<Recipe>, error: Error) -> Error {
    match error {
        Error::Train(fathom_train::Error::Recipe { key, message }) => loaded.refuse(&key, message).into(),
        error => error,
    }
}

/// Loads layers into a recipe with at least one stage, to be looked at.
///
/// # Errors
/// As [`load`].
pub fn resolve(layers: Layers<'static>) -> Result<Loaded<Recipe>> {
    let mut loaded: Loaded<Recipe> = Loaded::load(layers).map_err(|error| match error {
        Unloadable::UnknownRecipe { name, place, .. } if CURATE.text(&name).is_some() => {
            Unloadable::UnknownRecipe {
                hint: format!("it is a recipe of `fathom curate {name}`"),
                name,
                place,
            }
        }
        // All names are too many for a message.
        Unloadable::UnknownRecipe { name, place, hint } if !hint.starts_with("did you mean") => {
            let hint = "`fathom recipes ls` lists them (a file's name ends in .toml)".to_string();
            Unloadable::UnknownRecipe { name, place, hint }
        }
        error => error,
    })?;
    loaded.value.expand_stages()?;
    Ok(loaded)
}
