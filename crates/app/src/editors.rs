//! JSON schema of recipe keys, for completion, documentation and validation of TOML files in editors (draft 7, as taplo
//! reads it).

use fathom_base::recipe::{AllowedRange, Key, Kind, Leaf, Shape, Table, TableSchema};
use serde_json::{Map, Value, json};

/// Keys that every recipe file may have in addition to those of its type, with their descriptions.
const OF_FILES: [(&str, &str); 2] = [
    ("about", "What the recipe is for, in a line that `fathom recipes ls` prints."),
    ("extends", "The recipe that this one changes: a shipped recipe's name."),
];

/// Returns the schema of a recipe type's files.
pub fn json_schema<T: Table>(title: &str) -> Value {
    let mut schema = table(&TableSchema::of::<T>());
    let own = OF_FILES.map(|(name, doc)| (name.to_string(), json!({"type": "string", "description": doc})));
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        own.into_iter().for_each(|(name, of)| {
            properties.entry(name).or_insert(of);
        });
    }
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema["title"] = title.into();
    schema
}

fn table(schema: &TableSchema) -> Value {
    let of = |key: &Key| {
        let mut of = shape(&key.shape, key.allowed);
        of["description"] = key.doc.into();
        if let (Shape::Leaf(_), Some(default)) = (&key.shape, schema.defaults.get(key.name)) {
            of["default"] = serde_json::to_value(default).unwrap_or(Value::Null);
        }
        (key.name.to_string(), of)
    };
    let rest = schema.rest.and_then(|name| schema.keys.iter().find(|key| key.name == name));
    let keys = schema.keys.iter().filter(|key| Some(key.name) != schema.rest);
    let properties: Map<String, Value> = keys.map(of).collect();
    let more = match rest.map(|key| &key.shape) {
        Some(Shape::Map(leaf)) => self::leaf(leaf, None),
        _ => false.into(),
    };
    json!({"type": "object", "properties": properties, "additionalProperties": more})
}

fn shape(shape: &Shape, allowed: Option<AllowedRange>) -> Value {
    match shape {
        Shape::Leaf(of) => leaf(of, allowed),
        Shape::Table { schema, .. } => table(schema),
        Shape::Tables(schema) => json!({"type": "array", "items": table(schema)}),
        Shape::Map(of) => json!({"type": "object", "additionalProperties": leaf(of, allowed)}),
    }
}

fn leaf(leaf: &Leaf, allowed: Option<AllowedRange>) -> Value {
    let of = kind(&leaf.kind, allowed);
    let takes_text = matches!(leaf.kind, Kind::Text | Kind::Any);
    if leaf.optional && !takes_text { json!({"anyOf": [of, {"const": "none"}]}) } else { of }
}

fn kind(of: &Kind, allowed: Option<AllowedRange>) -> Value {
    match of {
        Kind::Bool => json!({"type": "boolean"}),
        Kind::Integer => {
            let text = json!({"type": "string", "pattern": "^[0-9][0-9_]*[kKmMgG]?$"});
            json!({"anyOf": [number("integer", allowed), text]})
        }
        Kind::Float => number("number", allowed),
        Kind::Text => json!({"type": "string"}),
        Kind::Choice(names) => json!({"enum": names}),
        Kind::List(of) => json!({"type": "array", "items": kind(of, allowed)}),
        Kind::Any => json!({}),
    }
}

/// Returns the schema of a number with its bounds; a bound equal to its type's limit is left out.
fn number(name: &str, allowed: Option<AllowedRange>) -> Value {
    let mut of = json!({"type": name});
    let mut end = |key: &str, end: Value| of[key] = end;
    match allowed.unwrap_or(AllowedRange::Any) {
        AllowedRange::Any => {}
        AllowedRange::Whole(from, to) => {
            end("minimum", from.into());
            if to < u64::MAX {
                end("maximum", to.into());
            }
        }
        AllowedRange::Real(from, to) => {
            if from > -AllowedRange::NO_END {
                end("minimum", from.into());
            }
            if to < AllowedRange::NO_END {
                end("maximum", to.into());
            }
        }
        AllowedRange::Above0(to) => {
            end("exclusiveMinimum", 0.into());
            if to < AllowedRange::NO_END {
                end("maximum", to.into());
            }
        }
        AllowedRange::Below1 => {
            end("minimum", 0.into());
            end("exclusiveMaximum", 1.into());
        }
    }
    of
}

#[cfg(test)]
mod tests {
    use fathom_train::recipe::Recipe;

    use super::*;
    use crate::library::LIBRARY;

    /// Collects the keys of a file that the schema lacks.
    fn strangers(value: &Value, schema: &Value, path: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                let path = format!("{path}.{key}");
                match (schema["properties"].get(key), &schema["additionalProperties"]) {
                    (Some(of), _) => strangers(value, of, &path, found),
                    (None, of @ Value::Object(_)) => strangers(value, of, &path, found),
                    _ => found.push(path),
                }
            }),
            Value::Array(list) if schema["items"].is_object() => {
                list.iter().for_each(|value| strangers(value, &schema["items"], path, found));
            }
            _ => {}
        }
    }

    #[test]
    fn shipped_recipes_have_no_other_keys() {
        let schema = json_schema::<Recipe>("recipe");
        let mut found = Vec::new();
        for name in LIBRARY.names().unwrap() {
            let file: toml::Table = LIBRARY.text(&name).unwrap().unwrap().parse().unwrap();
            strangers(&serde_json::to_value(file).unwrap(), &schema, &name, &mut found);
        }
        assert_eq!(found, Vec::<String>::new());
        strangers(&json!({"run": {"nmae": 1}}), &schema, "x", &mut found);
        assert_eq!(found, ["x.run.nmae"]);
    }

    #[test]
    fn keys_say_what_they_take() {
        let schema = json_schema::<Recipe>("recipe");
        let of = |table: &str, key: &str| schema["properties"][table]["properties"][key].clone();
        assert!(
            of("optimizer", "kind")["enum"].as_array().is_some_and(|names| names.contains(&"adamw".into()))
        );
        let lr = of("optimizer", "lr");
        assert_eq!((&lr["type"], &lr["minimum"], lr.get("maximum")), (&json!("number"), &json!(0.0), None));
        let ends = |of: &Value| {
            json!([of["minimum"], of["exclusiveMinimum"], of["maximum"], of["exclusiveMaximum"]])
        };
        assert_eq!(ends(&of("optimizer", "beta1")), json!([0, null, null, 1]));
        assert_eq!(ends(&of("mesh", "tp")["anyOf"][0]), json!([1, null, 65536, null]));
        assert_eq!(ends(&of("activations", "offload_fraction")), json!([null, 0, 1.0, null]));
        assert_eq!(ends(&of("optimizer", "clip")["anyOf"][0]), json!([null, 0, null, null]));
        assert_eq!(
            ends(&schema["properties"]["stages"]["items"]["anyOf"][0]),
            json!([2, null, 1 << 24, null])
        );
        assert!(of("optimizer", "lr")["description"].as_str().is_some_and(|doc| !doc.is_empty()));
        assert_eq!(schema["properties"]["stage"]["items"]["additionalProperties"], false);
        assert_eq!(schema["properties"]["about"]["type"], "string");
    }
}
