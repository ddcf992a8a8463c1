//! The settings that turn one recipe into another, which are the result of a search.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::recipe::Recipe;

/// Keys that a search decides. They are listed whenever they differ from the defaults, so that they override any
/// earlier recipes and settings.
const DECIDED: [&str; 18] = [
    "activations.head_groups",
    "activations.offload_modules",
    "activations.offload_place",
    "activations.places",
    "activations.recompute_granularity",
    "activations.tile_rows",
    "machine.offload_optimizer",
    "machine.offload_to",
    "machine.offload_weights",
    "mesh.cp",
    "mesh.dp",
    "mesh.ep",
    "mesh.pp",
    "mesh.sharding",
    "mesh.tp",
    "mesh.virtual_stages",
    "optimizer.master_weights",
    "optimizer.moments",
];

/// The settings over `from` that give `to`, mesh keys first.
pub(super) fn settings(from: &Recipe, to: &Recipe) -> Vec<String> {
    let (from, to, default) = (keys(from), keys(to), keys(&Recipe::default()));
    let is_given = |(key, value): &(&String, &Value)| {
        let is_decided = DECIDED.contains(&key.as_str()) && default.get(*key) != Some(*value);
        is_decided || from.get(*key) != Some(*value)
    };
    let (mesh, other): (Vec<_>, Vec<_>) =
        to.iter().filter(is_given).partition(|(key, _)| key.starts_with("mesh."));
    mesh.into_iter().chain(other).map(|(key, value)| format!("{key}={}", setting(value))).collect()
}

/// All keys of a recipe; lists of stages count as tables.
fn keys(recipe: &Recipe) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    if let Ok(value) = serde_json::to_value(recipe) {
        collect(String::new(), value, &mut all);
    }
    all
}

fn collect(path: String, value: Value, all: &mut BTreeMap<String, Value>) {
    let below = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
    match value {
        Value::Object(map) => map.into_iter().for_each(|(key, value)| collect(below(&key), value, all)),
        Value::Array(list) if path == "stage" => {
            list.into_iter().enumerate().for_each(|(at, value)| collect(below(&at.to_string()), value, all));
        }
        value => {
            all.insert(path, value);
        }
    }
}

/// A value as written after `key=`.
fn setting(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "none".into(),
        other => toml(other),
    }
}

fn toml(value: &Value) -> String {
    let listed = |parts: Vec<String>| parts.join(",");
    match value {
        Value::Array(list) => format!("[{}]", listed(list.iter().map(toml).collect())),
        Value::Object(map) => {
            // Empty lists are defaults.
            let said = map.iter().filter(|(_, value)| value.as_array().is_none_or(|list| !list.is_empty()));
            format!("{{{}}}", listed(said.map(|(key, value)| format!("{key}={}", toml(value))).collect()))
        }
        other => other.to_string(),
    }
}
