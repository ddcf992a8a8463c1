//! The recipes inside the binary.

use anyhow::Result;
use fathom_base::Error;
use fathom_base::recipe::{Layers, Library, Recipe as Loaded};
use fathom_train::recipe::Recipe;

/// The recipes of these names in the folder `recipes`.
macro_rules! shipped {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../recipes/", $name, ".toml")))),*]
    };
}

/// (name, text) of every shipped recipe; `-nvidia` are those on the mesh that NVIDIA published.
const ENTRIES: &[(&str, &str)] = shipped!(
    "quickstart"
    "quickstart-128k"
    "long-1m-cpu"
    "extend"
    "mesh-parity"
    "llama3-1b"
    "llama3-1b-16k"
    "llama3-1b-64k"
    "llama3-1b-128k"
    "llama3-1b-1m"
    "llama3-8b"
    "llama3-8b-16k"
    "llama3-8b-64k"
    "llama3-8b-128k"
    "llama3-8b-1m"
    "llama3-70b"
    "llama3-70b-16k"
    "llama3-70b-64k"
    "llama3-70b-128k"
    "llama3-70b-1m"
    "llama3-405b"
    "mixtral-8x7b"
    "mixtral-8x22b"
    "nemotron3-22b"
    "nemotron3-22b-16k"
    "nemotron3-22b-64k"
    "nemotron3-22b-128k"
    "nemotron3-22b-1m"
    "nemotron4-15b"
    "nemotron4-340b"
    "llama4-class-10m"
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
);

/// The library.
pub const LIBRARY: Library<'static> = Library::new(ENTRIES);

/// (name, text) of every shipped recipe of a curation.
const CURATE_ENTRIES: &[(&str, &str)] = &[
    ("common-crawl", include_str!("../../../recipes/curate/common-crawl.toml")),
    ("code", include_str!("../../../recipes/curate/code.toml")),
    ("books", include_str!("../../../recipes/curate/books.toml")),
    ("wikipedia", include_str!("../../../recipes/curate/wikipedia.toml")),
    ("arxiv", include_str!("../../../recipes/curate/arxiv.toml")),
];

/// The recipes of `fathom curate`.
pub const CURATE: Library<'static> = Library::new(CURATE_ENTRIES);

/// A named recipe or file with settings over it.
pub fn layers(name: &str, settings: &[String]) -> Layers<'static> {
    Layers::with_library(LIBRARY).recipe(name).sets(settings)
}

/// Loads layers into a recipe whose numbers can be planned and run.
pub fn load(layers: Layers<'static>) -> Result<Loaded<Recipe>> {
    let loaded = resolve(layers)?;
    fathom_train::check(&loaded)?;
    Ok(loaded)
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
