//! The recipes inside the binary.

use std::path::Path;

use anyhow::Result;
use fathom_base::Error;
use fathom_base::recipe::{Layers, Library, Recipe as Loaded, header};
use fathom_model::{SafeTensors, Source};
use fathom_tensor::DType;
use fathom_train::recipe::Recipe;

use crate::device;

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
pub fn load(layers: Layers<'static>) -> Result<Loaded<Recipe>> {
    let mut loaded = resolve(layers.clone())?;
    if !loaded.is_set("model.precision") && loaded.value.model.from.as_deref().is_some_and(in_f32) {
        loaded = resolve(layers.flag("the weights of model.from", "model.precision", "f32"))?;
    }
    fathom_train::check(&loaded)?;
    Ok(loaded)
}

/// Whether most weights of a model are f32. A folder that cannot be read is told of where it is read.
fn in_f32(model: &Path) -> bool {
    let weights = device::model_folder(model).ok().and_then(|folder| SafeTensors::open_folder(&folder).ok());
    let Some(weights) = weights else { return false };
    let elements =
        |name: &&str| weights.shape(name).map_or(0.0, |shape| shape.iter().map(|n| *n as f64).product());
    let (names, mut all, mut wide) = (weights.names(), 0.0, 0.0);
    for name in &names {
        all += elements(name);
        wide += if weights.dtype(name) == Some(DType::F32) { elements(name) } else { 0.0 };
    }
    2.0 * wide > all
}

/// An error about a recipe's value, with the place where that was written.
pub fn placed(loaded: &Loaded<Recipe>, error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref() {
        Some(fathom_train::Error::Recipe { key, message }) => loaded.refuse(key, message).into(),
        _ => error,
    }
}

/// Loads layers into a recipe with at least one stage, to be looked at.
pub fn resolve(layers: Layers<'static>) -> Result<Loaded<Recipe>> {
    let mut loaded: Loaded<Recipe> = Loaded::load(layers).map_err(|error| match error {
        Error::UnknownRecipe { name, place, .. } if CURATE.text(&name).is_some() => {
            Error::UnknownRecipe { hint: format!("it is a recipe of `fathom curate {name}`"), name, place }
        }
        // All names are too many for a message.
        Error::UnknownRecipe { name, place, hint } if !hint.starts_with("did you mean") => {
            let hint = "`fathom recipes ls` lists them (a file's name ends in .toml)".to_string();
            Error::UnknownRecipe { name, place, hint }
        }
        error => error,
    })?;
    loaded.value.expand_stages()?;
    Ok(loaded)
}
