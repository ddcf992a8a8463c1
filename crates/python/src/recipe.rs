//! Recipes: layers of texts and settings, resolved.

use fathom_app::foreign::translate_as;
use fathom_app::library::{self, CURATE, LIBRARY, is_curation};
use fathom_app::{Error, Result};
use fathom_base::recipe::{Layers, Loaded, diff, header};
use fathom_train::check_numbers;
use fathom_train::recipe::Recipe;
use pyo3::prelude::*;
use serde_json::json;

use crate::edge::detached;

/// A setting: its source, the key's path, and the value as text.
pub type Setting = (String, String, String);

/// The beginning of a recipe: its kind (`name`, `file`, `text`, or `none`), its name or path, and its text.
pub type Base = (String, String, String);

/// Adds settings to the text that a recipe begins with.
pub fn layers(base: &Base, settings: &[Setting]) -> Layers<'static> {
    let (kind, name, text) = base;
    let library = if is_curation(name) { CURATE } else { LIBRARY };
    let layers = Layers::with_library(library);
    let layers = match kind.as_str() {
        "name" => layers.recipe(name),
        "file" => layers.file(name),
        "text" => layers.text(name, text),
        _ => layers,
    };
    settings.iter().fold(layers, |layers, (source, path, value)| layers.flag(source, path, value))
}

/// A recipe that can be planned and run.
///
/// # Errors
/// The first mistake, with its place.
pub fn load(base: &Base, settings: &[Setting]) -> Result<Loaded<Recipe>> {
    library::load(layers(base, settings))
}

/// Values of a recipe as JSON, its text, and its rows (path, value, source). Checks each value by itself, or, with
/// `whole`, all that a run would.
#[pyfunction]
pub fn recipe_load(
    py: Python<'_>,
    base: Base,
    settings: Vec<Setting>,
    whole: bool,
) -> PyResult<(String, String, Vec<Setting>)> {
    detached(py, || {
        let loaded =
            if whole { load(&base, &settings)? } else { library::resolve(layers(&base, &settings))? };
        check_numbers(&loaded)?;
        let values = serde_json::to_string(&loaded.value)?;
        let row = |row: &fathom_base::recipe::Row| (row.path.clone(), row.value.clone(), row.source.clone());
        Ok((values, loaded.text().to_string(), loaded.rows().iter().map(row).collect()))
    })
}

/// The keys in which two recipes differ, each as a line.
#[pyfunction]
pub fn recipe_diff(
    py: Python<'_>,
    left: (Base, Vec<Setting>),
    right: (Base, Vec<Setting>),
) -> PyResult<Vec<String>> {
    detached(py, || {
        let of = |(base, settings): &(Base, Vec<Setting>)| library::resolve(layers(base, settings));
        let (left, right) = (of(&left)?, of(&right)?);
        Ok(diff(left.rows(), right.rows()).iter().map(ToString::to_string).collect())
    })
}

/// The shipped recipes, as JSON: a list of name, heading, purpose, and whether it is a curation.
#[pyfunction]
pub fn recipe_names(py: Python<'_>) -> PyResult<String> {
    detached(py, || {
        let mut all = Vec::new();
        for (library, group) in library::groups()? {
            for name in &group.names {
                let text = library.text(name)?.ok_or_else(|| Error::Refused(format!("no recipe {name}")))?;
                let about = header(name, &text, "about")?.unwrap_or_default();
                all.push(json!({
                    "name": name, "heading": group.heading, "about": about, "curation": is_curation(name),
                }));
            }
        }
        Ok(serde_json::to_string(&all)?)
    })
}

/// Translates settings of another tool, as YAML or JSON, to a recipe: its text, and what could not be translated, each
/// with the reason.
#[pyfunction]
pub fn translate(py: Python<'_>, text: &str, method: &str) -> PyResult<(String, Vec<(String, String)>)> {
    detached(py, || {
        let found = translate_as(text, method)?;
        Ok((found.recipe, found.unsaid))
    })
}
