//! The recipes inside the binary.

use anyhow::Result;
use fathom_base::recipe::{Layers, Library, Recipe as Loaded};
use fathom_train::recipe::Recipe;

/// (name, text) of every shipped recipe.
const ENTRIES: &[(&str, &str)] = &[
    ("quickstart", include_str!("../../../recipes/quickstart.toml")),
    ("quickstart-128k", include_str!("../../../recipes/quickstart-128k.toml")),
    ("long-1m-cpu", include_str!("../../../recipes/long-1m-cpu.toml")),
    ("extend", include_str!("../../../recipes/extend.toml")),
    ("mesh-parity", include_str!("../../../recipes/mesh-parity.toml")),
    ("llama3-1b", include_str!("../../../recipes/llama3-1b.toml")),
    ("llama3-1b-16k", include_str!("../../../recipes/llama3-1b-16k.toml")),
    ("llama3-1b-64k", include_str!("../../../recipes/llama3-1b-64k.toml")),
    ("llama3-1b-128k", include_str!("../../../recipes/llama3-1b-128k.toml")),
    ("llama3-1b-1m", include_str!("../../../recipes/llama3-1b-1m.toml")),
    ("llama3-8b", include_str!("../../../recipes/llama3-8b.toml")),
    ("llama3-8b-16k", include_str!("../../../recipes/llama3-8b-16k.toml")),
    ("llama3-8b-64k", include_str!("../../../recipes/llama3-8b-64k.toml")),
    ("llama3-8b-128k", include_str!("../../../recipes/llama3-8b-128k.toml")),
    ("llama3-8b-1m", include_str!("../../../recipes/llama3-8b-1m.toml")),
    ("llama3-70b", include_str!("../../../recipes/llama3-70b.toml")),
    ("llama3-70b-16k", include_str!("../../../recipes/llama3-70b-16k.toml")),
    ("llama3-70b-64k", include_str!("../../../recipes/llama3-70b-64k.toml")),
    ("llama3-70b-128k", include_str!("../../../recipes/llama3-70b-128k.toml")),
    ("llama3-70b-1m", include_str!("../../../recipes/llama3-70b-1m.toml")),
];

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

/// Loads layers into a recipe with at least one stage.
pub fn load(layers: Layers<'static>) -> Result<Loaded<Recipe>> {
    let mut loaded: Loaded<Recipe> = Loaded::load(layers)?;
    loaded.value.expand_stages()?;
    Ok(loaded)
}
