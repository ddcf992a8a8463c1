//! Files of the Python package that follow from declarations: a typed class for each table of a recipe, and a function
//! for each shipped recipe. `cargo xtask python` writes them, and the tests hold them current.

use std::collections::BTreeMap;
use std::fmt::Write;

use fathom_base::recipe::{AllowedRange, Key, Kind, Leaf, Shape, TableSchema, header};
use fathom_train::recipe::Recipe;

use crate::error::Result;
use crate::library::{groups, is_curation};

/// Short names of keys that several tables have, as dials.
const SHORT: [(&str, &str); 7] = [
    ("out", "run.out"),
    ("name", "run.name"),
    ("seed", "run.seed"),
    ("lr", "optimizer.lr"),
    ("steps", "stage.*.steps"),
    ("epochs", "stage.*.epochs"),
    ("method", "objective.method"),
];

/// Words that Python keeps for itself; a key of this name has an underscore behind it.
const KEYWORDS: [&str; 13] =
    ["from", "in", "is", "as", "for", "if", "or", "and", "not", "with", "lambda", "class", "continue"];

const BEGINNING: &str = "\"\"\"Tables of recipes, and their keys as dials. `cargo xtask python` writes this file from the declaration of the keys.\"\"\"\n\n\
from __future__ import annotations\n\n\
from collections.abc import Sequence\n\
from typing import Any, Final, Literal, TypedDict\n\n\
from fathom._recipe import Recipe, Table, Tables\n";

/// Returns the text of `fathom/_keys.py`.
pub fn keys() -> String {
    let mut text = BEGINNING.to_string();
    let mut dials = BTreeMap::new();
    let schema = TableSchema::of::<Recipe>();
    let mut classes = Vec::new();
    table(&mut text, &mut classes, "", &schema);
    leaves(&schema, "", &mut dials);
    let of: Vec<String> = classes.iter().map(|(path, class)| format!("    {path:?}: {class},\n")).collect();
    let _ = write!(text, "\n\nTABLES: Final[dict[str, type[Table]]] = {{\n{}}}\n", of.concat());
    let dials = named(&dials);
    let typed: String = dials.iter().map(|(dial, (_, kind))| format!("    {dial}: {kind}\n")).collect();
    let _ = write!(
        text,
        "\n\nclass Dials(TypedDict, total=False):\n    \"\"\"Keys of a recipe as arguments: `_` for `.`, or the last name alone.\"\"\"\n\n{typed}"
    );
    let paths: String = dials.iter().map(|(dial, (path, _))| format!("    {dial:?}: {path:?},\n")).collect();
    let _ = write!(text, "\n\nDIALS: Final[dict[str, str]] = {{\n{paths}}}\n");
    text
}

/// Returns the text of `fathom/recipes.py`.
///
/// # Errors
/// A table of recipes that cannot be read.
pub fn recipes() -> Result<String> {
    let mut text = "\"\"\"The shipped recipes, a function each: `recipes.sft(model_from=\"..\", data_paths=[\"..\"])`. `cargo xtask python` writes this \
         file.\"\"\"\n\nfrom __future__ import annotations\n\nfrom typing import TYPE_CHECKING\n\nfrom fathom._recipe import curation, shipped\n\n\
         if TYPE_CHECKING:\n    from typing import Any, Unpack\n\n    from fathom._keys import Dials, TrainRecipe\n    from fathom._recipe import CurationRecipe\n"
        .to_string();
    let mut all = Vec::new();
    for (library, group) in groups()? {
        for name in &group.names {
            let function = attribute(&name.replace(['-', '.'], "_"));
            let about = header(name, &library.text(name)?.unwrap_or_default(), "about")?.unwrap_or_default();
            let about = sentence(&about);
            let _ = if is_curation(name) {
                write!(
                    text,
                    "\n\ndef {function}(**dials: Any) -> CurationRecipe:\n    {about}\n    return curation({name:?}, dials)\n"
                )
            } else {
                write!(
                    text,
                    "\n\ndef {function}(**dials: Unpack[Dials]) -> TrainRecipe:\n    {about}\n    return shipped({name:?}, dials)\n"
                )
            };
            all.push(function);
        }
    }
    let list: String = all.iter().map(|name| format!("    {name:?},\n")).collect();
    let _ = write!(text, "\n\n__all__ = [\n{list}]\n");
    Ok(text)
}

/// Writes the class of a table after those of the tables in it.
fn table(text: &mut String, classes: &mut Vec<(String, String)>, path: &str, schema: &TableSchema) {
    let mut body = String::new();
    for key in &schema.keys {
        let below = if path.is_empty() { key.name.to_string() } else { format!("{path}.{}", key.name) };
        let kind = match &key.shape {
            Shape::Leaf(of) => leaf(&below, of),
            Shape::Map(of) => format!("dict[str, {}]", leaf(&below, of)),
            Shape::Table { schema, .. } => {
                table(text, classes, &below, schema);
                class(&below)
            }
            Shape::Tables(schema) => {
                let each = format!("{below}.*");
                table(text, classes, &each, schema);
                format!("Tables[{}]", class(&each))
            }
        };
        let _ = write!(body, "\n    {}: {kind}\n    {}\n", attribute(key.name), described(key));
    }
    let (name, base) =
        if path.is_empty() { ("TrainRecipe".into(), "Recipe") } else { (class(path), "Table") };
    let what = if path.is_empty() {
        "\"\"\"A recipe of a run.\"\"\"".to_string()
    } else {
        format!("\"\"\"Keys of `{path}`.\"\"\"")
    };
    let _ = write!(text, "\n\nclass {name}({base}):\n    {what}\n{body}");
    if !path.is_empty() {
        classes.push((path.to_string(), name));
    }
}

/// The name of a table's class: `StageLora` for `stage.*.lora`.
fn class(path: &str) -> String {
    let words = path.split(['.', '_', '*']).filter(|word| !word.is_empty());
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    words.map(capital).collect::<String>() + "Table"
}

/// The name of a key as an attribute.
fn attribute(name: &str) -> String {
    if KEYWORDS.contains(&name) { format!("{name}_") } else { name.to_string() }
}

/// A docstring of one line.
fn sentence(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('\\', "\\\\").replace('"', "'");
    format!("\"\"\"{text}{}\"\"\"", if text.ends_with(['.', '!', '?']) { "" } else { "." })
}

/// The documentation of a key with its range.
fn described(key: &Key) -> String {
    let range = match key.allowed {
        None | Some(AllowedRange::Any) => String::new(),
        Some(allowed) => format!(" Allowed: {allowed}."),
    };
    sentence(&format!("{}{range}", key.doc))
}

/// Key of stores, which also takes a list of weights and stores for a blend.
const BLEND: &str = "data.paths";

fn leaf(path: &str, of: &Leaf) -> String {
    if path == BLEND {
        return "Sequence[str | float]".into();
    }
    let optional = if of.optional { " | None" } else { "" };
    kind(&of.kind) + optional
}

/// The Python type of a value. Whole numbers may be texts such as `16k`.
fn kind(of: &Kind) -> String {
    match of {
        Kind::Bool => "bool".into(),
        Kind::Integer => "int | str".into(),
        Kind::Float => "float".into(),
        Kind::Text => "str".into(),
        Kind::Choice(names) => {
            let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
            format!("Literal[{}]", names.join(", "))
        }
        Kind::List(of) => format!("list[{}]", kind(of)),
        Kind::Any => "Any".into(),
    }
}

/// Collects the keys with their types.
fn leaves(schema: &TableSchema, prefix: &str, found: &mut BTreeMap<String, String>) {
    for key in &schema.keys {
        let path = format!("{prefix}{}", key.name);
        match &key.shape {
            Shape::Leaf(of) => {
                let kind = leaf(&path, of);
                found.insert(path, kind);
            }
            Shape::Map(of) => {
                let kind = format!("dict[str, {}]", leaf(&path, of));
                found.insert(path, kind);
            }
            Shape::Table { schema, .. } => leaves(schema, &format!("{path}."), found),
            Shape::Tables(schema) => leaves(schema, &format!("{path}.*."), found),
        }
    }
}

/// Dials: each key by its path, and by its last name if no other key or table has it. A dial of `stage.*` sets it in all
/// stages.
fn named(leaves: &BTreeMap<String, String>) -> BTreeMap<String, (String, String)> {
    let mut dials = BTreeMap::new();
    let last = |path: &str| path.rsplit('.').next().unwrap_or(path).to_string();
    for (path, kind) in leaves {
        let of = (path.clone(), kind.clone());
        dials.insert(path.replace(".*.", ".").replace('.', "_"), of.clone());
        let name = last(path);
        let only = leaves.keys().filter(|other| last(other) == name).count() == 1;
        let is_table =
            leaves.keys().any(|other| other.split('.').any(|part| part == name) && last(other) != name);
        if only && !is_table && !KEYWORDS.contains(&name.as_str()) {
            dials.entry(name).or_insert(of);
        }
    }
    for (short, path) in SHORT {
        if let Some(kind) = leaves.get(path) {
            dials.insert(short.into(), (path.into(), kind.clone()));
        }
    }
    dials
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The file in the package has this text; with `FATHOM_BLESS` it is written.
    fn hold(name: &str, text: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/fathom").join(name);
        if std::env::var_os("FATHOM_BLESS").is_some() {
            std::fs::write(&path, text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "{} is behind its declaration; `cargo xtask python` writes it",
            path.display()
        );
    }

    #[test]
    fn python_files_are_those_of_the_declaration() {
        hold("_keys.py", &keys());
        hold("recipes.py", &recipes().unwrap());
    }

    #[test]
    fn dials_are_keys_of_one_path() {
        let mut found = BTreeMap::new();
        leaves(&TableSchema::of::<Recipe>(), "", &mut found);
        let dials = named(&found);
        let path = |dial: &str| dials.get(dial).map(|(path, _)| path.as_str());
        assert_eq!(path("model_from"), Some("model.from"));
        assert_eq!(path("data_paths"), Some("data.paths"));
        assert_eq!(path("tp"), Some("mesh.tp"));
        assert_eq!(path("steps"), Some("stage.*.steps"));
        assert_eq!(path("out"), Some("run.out"));
        let paths: std::collections::BTreeSet<&String> = dials.values().map(|(path, _)| path).collect();
        assert_eq!(paths.len(), found.len(), "two keys are one dial");
    }
}
