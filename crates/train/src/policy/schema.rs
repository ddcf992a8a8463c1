//! Validation of JSON values: the keywords of JSON Schema 2020-12 that describe an answer's form. A schema with other
//! keywords is refused, so that nothing is silently ignored.

use regex::Regex;
use serde_json::{Map, Value};

/// Keywords without effect on validation.
const NOTES: [&str; 6] = ["$schema", "$id", "$comment", "title", "description", "examples"];

/// A parsed schema.
#[derive(Debug)]
pub enum Schema {
    /// Accepts everything, or nothing.
    Constant(bool),
    /// All of these keywords must hold.
    All(Vec<Keyword>),
}

/// A keyword.
#[derive(Debug)]
pub enum Keyword {
    /// `type`.
    Type(Vec<String>),
    /// `enum`, or `const` as a list of one.
    Among(Vec<Value>),
    /// `required`.
    Required(Vec<String>),
    /// `properties` and `additionalProperties`.
    Properties(Vec<(String, Schema)>, Box<Schema>),
    /// `items`.
    Items(Box<Schema>),
    /// `minItems`, `maxItems`, `minLength`, `maxLength`, `minimum`, `maximum`: the measured size, whether it is a
    /// minimum, and the limit.
    Bound(Size, bool, f64),
    /// `pattern`.
    Pattern(Regex),
    /// `anyOf`; the flag is true if exactly one must match (`oneOf`).
    Any(Vec<Schema>, bool),
    /// `allOf`.
    Every(Vec<Schema>),
}

/// The measured size of a bound.
#[derive(Clone, Copy, Debug)]
pub enum Size {
    /// Elements of an array.
    Items,
    /// Characters of a string.
    Characters,
    /// The number itself.
    Number,
}

impl Schema {
    /// Parses a schema.
    ///
    /// # Errors
    /// A message: an unknown keyword, or one with an invalid value.
    pub fn new(schema: &Value) -> Result<Schema, String> {
        match schema {
            Value::Bool(is) => Ok(Schema::Constant(*is)),
            Value::Object(map) => {
                let keywords = map.iter().filter(|(name, _)| !NOTES.contains(&name.as_str()));
                let keywords = keywords.map(|(name, value)| Keyword::new(name, value, map));
                Ok(Schema::All(keywords.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect()))
            }
            _ => Err(format!("is no schema: {schema}")),
        }
    }

    /// True if a value matches the schema.
    pub fn holds(&self, value: &Value) -> bool {
        match self {
            Schema::Constant(is) => *is,
            Schema::All(keywords) => keywords.iter().all(|keyword| keyword.holds(value)),
        }
    }
}

impl Keyword {
    fn new(name: &str, value: &Value, all: &Map<String, Value>) -> Result<Option<Keyword>, String> {
        let wrong = || format!("`{name}` has no such value: {value}");
        let list = || value.as_array().ok_or_else(wrong);
        let texts = |list: &[Value]| {
            list.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        };
        let schemas = || list()?.iter().map(Schema::new).collect::<Result<Vec<_>, String>>();
        let number = || value.as_f64().ok_or_else(wrong);
        Ok(Some(match name {
            "type" => Keyword::Type(match value {
                Value::String(one) => vec![one.clone()],
                _ => texts(list()?).ok_or_else(wrong)?,
            }),
            "enum" => Keyword::Among(list()?.clone()),
            "const" => Keyword::Among(vec![value.clone()]),
            "required" => Keyword::Required(texts(list()?).ok_or_else(wrong)?),
            "properties" => {
                let named = value.as_object().ok_or_else(wrong)?;
                let named = named.iter().map(|(name, schema)| Ok((name.clone(), Schema::new(schema)?)));
                let others =
                    all.get("additionalProperties").map_or(Ok(Schema::Constant(true)), Schema::new)?;
                Keyword::Properties(named.collect::<Result<_, String>>()?, Box::new(others))
            }
            "additionalProperties" if all.contains_key("properties") => return Ok(None),
            "additionalProperties" => Keyword::Properties(Vec::new(), Box::new(Schema::new(value)?)),
            "items" => Keyword::Items(Box::new(Schema::new(value)?)),
            "minItems" => Keyword::Bound(Size::Items, true, number()?),
            "maxItems" => Keyword::Bound(Size::Items, false, number()?),
            "minLength" => Keyword::Bound(Size::Characters, true, number()?),
            "maxLength" => Keyword::Bound(Size::Characters, false, number()?),
            "minimum" => Keyword::Bound(Size::Number, true, number()?),
            "maximum" => Keyword::Bound(Size::Number, false, number()?),
            "pattern" => {
                let pattern = Regex::new(value.as_str().ok_or_else(wrong)?);
                Keyword::Pattern(pattern.map_err(|error| error.to_string())?)
            }
            "anyOf" => Keyword::Any(schemas()?, false),
            "oneOf" => Keyword::Any(schemas()?, true),
            "allOf" => Keyword::Every(schemas()?),
            _ => return Err(format!("has the keyword `{name}`, which is not looked at; leave it out")),
        }))
    }

    /// True if a value satisfies the keyword; values of other types do.
    fn holds(&self, value: &Value) -> bool {
        match (self, value) {
            (Keyword::Type(names), _) => names.iter().any(|name| is_of(value, name)),
            (Keyword::Among(values), _) => values.contains(value),
            (Keyword::Required(names), Value::Object(map)) => names.iter().all(|name| map.contains_key(name)),
            (Keyword::Properties(named, others), Value::Object(map)) => map.iter().all(|(name, value)| {
                let own = named.iter().find(|(other, _)| other == name);
                own.map_or(others.as_ref(), |(_, schema)| schema).holds(value)
            }),
            (Keyword::Items(schema), Value::Array(list)) => list.iter().all(|value| schema.holds(value)),
            (Keyword::Bound(of, least, bound), _) => {
                let size = match (of, value) {
                    (Size::Items, Value::Array(list)) => Some(list.len() as f64),
                    (Size::Characters, Value::String(text)) => Some(text.chars().count() as f64),
                    (Size::Number, Value::Number(number)) => number.as_f64(),
                    _ => None,
                };
                size.is_none_or(|size| if *least { size >= *bound } else { size <= *bound })
            }
            (Keyword::Pattern(pattern), Value::String(text)) => pattern.is_match(text),
            (Keyword::Any(schemas, alone), _) => {
                let held = schemas.iter().filter(|schema| schema.holds(value)).count();
                if *alone { held == 1 } else { held > 0 }
            }
            (Keyword::Every(schemas), _) => schemas.iter().all(|schema| schema.holds(value)),
            _ => true,
        }
    }
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_meet_schemas() {
        for (schema, good, bad) in [
            (json!({"type": "integer"}), json!(3), json!(3.5)),
            (json!({"type": ["string", "null"]}), json!(null), json!(1)),
            (json!({"enum": [1, "a"]}), json!("a"), json!("b")),
            (json!({"const": {"a": 1}}), json!({"a": 1}), json!({"a": 2})),
            (json!({"required": ["a"]}), json!({"a": 1}), json!({"b": 1})),
            (json!({"properties": {"a": {"minimum": 2}}}), json!({"a": 2, "b": 0}), json!({"a": 1})),
            (
                json!({"properties": {"a": true}, "additionalProperties": false}),
                json!({"a": 1}),
                json!({"b": 1}),
            ),
            (json!({"items": {"type": "string", "maxLength": 2}}), json!(["ab"]), json!(["abc"])),
            (json!({"minItems": 1, "maxItems": 2}), json!([1]), json!([])),
            (json!({"pattern": "^a+$"}), json!("aa"), json!("ab")),
            (json!({"anyOf": [{"type": "null"}, {"minimum": 5, "type": "number"}]}), json!(5), json!(4)),
            (json!({"oneOf": [{"type": "number"}, {"minimum": 5}]}), json!(4), json!(6)),
            (json!({"allOf": [{"maximum": 9}, {"minimum": 5}], "title": "t"}), json!(6), json!(10)),
        ] {
            let read = Schema::new(&schema).unwrap();
            assert!(read.holds(&good) && !read.holds(&bad), "{schema}");
        }
        let error = Schema::new(&json!({"properties": {"a": {"format": "date"}}})).unwrap_err();
        assert!(error.contains("`format`"), "{error}");
        assert!(Schema::new(&json!({"required": "a"})).unwrap_err().contains("`required`"));
    }
}
