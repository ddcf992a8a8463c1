//! Documentation of stage options, derived from their struct declarations: names, types, ranges and doc comments.
//!
//! The structs derive a JSON Schema, which is converted to text for messages, `fathom curate stages` and the
//! handbook.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value as Json;
use toml::{Table, Value};

/// One option of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OptionDoc {
    /// Name of the option; `table.name` for one in a table of options.
    pub name: String,
    /// Default as TOML; `"none"` if unset.
    pub default: String,
    /// Accepted values, in words.
    pub takes: String,
    /// One-line description: the first paragraph of its documentation.
    pub about: String,
    /// Accepted names with their meanings; empty for other types.
    pub choices: Vec<ChoiceDoc>,
}

/// A named value of an option.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChoiceDoc {
    /// Name as written in a recipe.
    pub name: String,
    /// One-line description.
    pub about: String,
}

/// Options of a struct in declaration order. A table of options is expanded into its options; one that can be unset
/// is also listed itself, before them.
pub fn option_docs<T: JsonSchema + Default + Serialize>() -> Vec<OptionDoc> {
    // Serialization writes every field, so `required` lists all of them, in order.
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.inline_subschemas = true;
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let defaults = Table::try_from(T::default()).unwrap_or_default();
    let mut docs = Vec::new();
    list(schema.as_value(), &defaults, "", &mut docs);
    docs
}

fn list(schema: &Json, defaults: &Table, prefix: &str, docs: &mut Vec<OptionDoc>) {
    for (name, option) in fields(schema) {
        let (inner, optional) = some(option);
        let default = defaults.get(name);
        let path = format!("{prefix}{name}");
        let table = fields(inner).next().is_some();
        if !table || optional {
            let takes = if table { "a table, or none".to_owned() } else { takes(option) };
            let (about, choices) = (about(option), choices(inner));
            let default = default.map_or_else(|| "\"none\"".to_owned(), shown);
            docs.push(OptionDoc { name: path.clone(), default, takes, about, choices });
        }
        if table {
            let below = default.and_then(Value::as_table).cloned().unwrap_or_else(|| own_defaults(inner));
            list(inner, &below, &format!("{path}."), docs);
        }
    }
}

/// Fields of a table, in declaration order.
fn fields(schema: &Json) -> impl Iterator<Item = (&str, &Json)> {
    let names = schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str);
    names.map(|name| (name, &schema["properties"][name]))
}

/// Schema of an optional value when set, and true if it is optional.
fn some(schema: &Json) -> (&Json, bool) {
    let null = |schema: &Json| schema["type"] == "null";
    match schema["anyOf"].as_array().map(Vec::as_slice) {
        Some([inner, other]) if null(other) => (inner, true),
        _ => (schema, schema["type"].as_array().is_some_and(|types| types.iter().any(|kind| kind == "null"))),
    }
}

/// Defaults of an unset table, taken from its type.
fn own_defaults(schema: &Json) -> Table {
    let default =
        |(name, field): (&str, &Json)| Some((name.to_owned(), Value::try_from(&field["default"]).ok()?));
    fields(schema).filter_map(default).collect()
}

/// Formats a default; 32-bit floats are not printed with the digits of 64-bit ones.
fn shown(value: &Value) -> String {
    match value {
        Value::Float(number) if f64::from(*number as f32) == *number => format!("{:?}", *number as f32),
        other => other.to_string(),
    }
}

fn about(schema: &Json) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    let first = text.split("\n\n").next().unwrap_or_default();
    first.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn takes(schema: &Json) -> String {
    let (inner, optional) = some(schema);
    let words = words(inner);
    if optional { format!("{words}, or none") } else { words }
}

fn words(schema: &Json) -> String {
    if let Some(items) = schema["oneOf"].as_array().or(schema["anyOf"].as_array()) {
        let names: Option<Vec<&str>> = items.iter().map(|item| item["const"].as_str()).collect();
        return match names {
            Some(names) => format!("one of {}", names.join(", ")),
            None => items.iter().map(takes).collect::<Vec<_>>().join(" or "),
        };
    }
    // For an optional type the second entry is `null`.
    let kind = schema["type"].as_str().or(schema["type"][0].as_str());
    match kind {
        Some("boolean") => "true or false".to_owned(),
        Some("integer") => number("a whole number", schema),
        Some("number") => number("a number", schema),
        Some("string") => "text".to_owned(),
        Some("array") => match schema["prefixItems"].as_array() {
            Some(items) => format!("[{}]", items.iter().map(takes).collect::<Vec<_>>().join(", ")),
            None => list_of(&takes(&schema["items"])),
        },
        Some("object") if schema["properties"].is_object() => {
            let field =
                |(name, field): (&str, &Json)| format!("{name} = {}", takes(field).replace(", or", " or"));
            format!("{{ {} }}", fields(schema).map(field).collect::<Vec<_>>().join(", "))
        }
        Some("object") => format!("a table, each NAME = {}", takes(&schema["additionalProperties"])),
        _ => "any value".to_owned(),
    }
}

fn list_of(item: &str) -> String {
    match item {
        "a whole number" | "a number" => format!("a list of {}s", &item[2..]),
        "text" => "a list of texts".to_owned(),
        other => format!("a list, each {other}"),
    }
}

/// Describes a number with its range.
fn number(kind: &str, schema: &Json) -> String {
    let bound = |key: &str| schema[key].as_f64();
    let low = bound("minimum").map(|n| ("from", n)).or(bound("exclusiveMinimum").map(|n| ("above", n)));
    let high = bound("maximum").map(|n| ("to", n)).or(bound("exclusiveMaximum").map(|n| ("below", n)));
    match (low, high) {
        (None, None) => kind.to_owned(),
        (Some(("from", n)), None) => format!("{kind} of {n} or more"),
        (None, Some(("to", n))) => format!("{kind} of {n} or less"),
        (Some((word, n)), None) | (None, Some((word, n))) => format!("{kind} {word} {n}"),
        (Some(("from", low)), Some(("to", high))) => format!("{kind} from {low} to {high}"),
        (Some(("from", low)), Some((_, high))) => format!("{kind} from {low} to below {high}"),
        (Some((from, low)), Some((to, high))) => format!("{kind} {from} {low} and {to} {high}"),
    }
}

/// Names accepted by the option or by the items of its list.
fn choices(schema: &Json) -> Vec<ChoiceDoc> {
    let schema = if schema["items"].is_object() { &schema["items"] } else { schema };
    let name = |item: &Json| {
        item["const"].as_str().map(str::to_owned).or_else(|| Some(fields(item).next()?.0.to_owned()))
    };
    let choice = |item: &Json| Some(ChoiceDoc { name: name(item)?, about: about(item) });
    let items = schema["oneOf"].as_array().into_iter().flatten();
    items.filter_map(choice).collect()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    /// How.
    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Way {
        /// Slowly.
        Slow,
        /// So many at a time.
        Steps(u32),
    }

    /// A rule.
    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    struct Rule {
        /// How much.
        share: f32,
    }
    impl Default for Rule {
        fn default() -> Self {
            Rule { share: 0.3 }
        }
    }

    #[derive(Default, Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    struct Options {
        /// The first of them
        /// all.
        ///
        /// Not documented.
        zeta: u64,
        /// Ways.
        ways: Vec<Way>,
        /// From where.
        #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
        low: Option<f64>,
        /// Least and most.
        pair: (f64, f64),
        rule: Rule,
        /// Another one.
        other: Option<Rule>,
    }

    #[test]
    fn declarations_become_words() {
        let docs = option_docs::<Options>();
        let documented: Vec<[&str; 4]> =
            docs.iter().map(|doc| [&*doc.name, &*doc.default, &*doc.takes, &*doc.about]).collect();
        let way = "a list, each text or { steps = a whole number of 0 or more }";
        assert_eq!(
            documented,
            [
                ["zeta", "0", "a whole number of 0 or more", "The first of them all."],
                ["ways", "[]", way, "Ways."],
                ["low", "\"none\"", "a number from 0 to below 1, or none", "From where."],
                ["pair", "[0.0, 0.0]", "[a number, a number]", "Least and most."],
                ["rule.share", "0.3", "a number", "How much."],
                ["other", "\"none\"", "a table, or none", "Another one."],
                ["other.share", "0.3", "a number", "How much."],
            ]
        );
        let named = |choice: &ChoiceDoc| (choice.name.clone(), choice.about.clone());
        let choices: Vec<_> = docs[1].choices.iter().map(named).collect();
        assert_eq!(
            choices,
            [("slow", "Slowly."), ("steps", "So many at a time.")].map(|(a, b)| (a.into(), b.into()))
        );
    }
}
