//! Arguments of tools against their JSON schemas. Keywords that describe are ignored; keywords that restrict and are
//! not known here fail, so that no restriction is passed over.

use serde_json::Value;

/// Nesting of schemas at most.
const MAX_DEPTH: usize = 64;
/// Keywords that restrict nothing.
const DESCRIBE: [&str; 20] = [
    "title",
    "description",
    "default",
    "examples",
    "example",
    "format",
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentEncoding",
    "contentMediaType",
    "nullable",
    "strict",
    "x-order",
    "$anchor",
];

/// Checks a value; `root` is the schema in which references are looked up.
///
/// # Errors
/// The place and the keyword, never the value.
pub(crate) fn check(value: &Value, schema: &Value) -> Result<(), String> {
    Checker { root: schema, depth: std::cell::Cell::new(0) }.check(value, schema, "")
}

struct Checker<'a> {
    root: &'a Value,
    depth: std::cell::Cell<usize>,
}

impl Checker<'_> {
    fn check(&self, value: &Value, schema: &Value, place: &str) -> Result<(), String> {
        let members = match schema {
            Value::Bool(true) => return Ok(()),
            Value::Object(members) => members,
            _ => return Err(format!("{place}: nothing is allowed here")),
        };
        if self.depth.get() > MAX_DEPTH {
            return Err(format!("{place}: schemas are nested too deeply"));
        }
        self.depth.set(self.depth.get() + 1);
        let result = members.iter().try_for_each(|(key, rule)| {
            self.keyword(value, (key.as_str(), rule), schema, place)
                .map_err(|why| if why.contains(": ") { why } else { format!("{place}/{why}: does not hold") })
        });
        self.depth.set(self.depth.get() - 1);
        result
    }

    fn keyword(
        &self,
        value: &Value,
        (key, rule): (&str, &Value),
        schema: &Value,
        place: &str,
    ) -> Result<(), String> {
        let holds = |it: bool| if it { Ok(()) } else { Err(key.to_string()) };
        let least = rule.as_u64().unwrap_or(0) as usize;
        let count = |text: &str| text.chars().count();
        match key {
            "type" => holds(match rule {
                Value::Array(types) => types.iter().any(|it| is_type(value, it)),
                one => is_type(value, one) || value.is_null() && schema["nullable"] == true,
            }),
            "enum" => holds(rule.as_array().is_some_and(|all| all.contains(value))),
            "const" => holds(rule == value),
            "required" => {
                let names = rule.as_array().map(Vec::as_slice).unwrap_or_default();
                holds(
                    !value.is_object()
                        || names.iter().all(|name| value.get(name.as_str().unwrap_or("")).is_some()),
                )
            }
            "properties" => self.properties(value, rule, place),
            "additionalProperties" => self.additional(value, rule, schema, place),
            "items" => match value {
                Value::Array(items) => items
                    .iter()
                    .enumerate()
                    .try_for_each(|(at, it)| self.check(it, rule, &format!("{place}/{at}"))),
                _ => Ok(()),
            },
            "minItems" => holds(value.as_array().is_none_or(|items| items.len() >= least)),
            "maxItems" => holds(value.as_array().is_none_or(|items| items.len() <= least)),
            "uniqueItems" => holds(value.as_array().is_none_or(|items| {
                rule != true || items.iter().enumerate().all(|(at, item)| !items[..at].contains(item))
            })),
            "minProperties" => holds(value.as_object().is_none_or(|it| it.len() >= least)),
            "maxProperties" => holds(value.as_object().is_none_or(|it| it.len() <= least)),
            "minLength" => holds(value.as_str().is_none_or(|text| count(text) >= least)),
            "maxLength" => holds(value.as_str().is_none_or(|text| count(text) <= least)),
            "minimum" => holds(compare(value, rule, |a, b| a >= b)),
            "maximum" => holds(compare(value, rule, |a, b| a <= b)),
            "exclusiveMinimum" => holds(compare(value, rule, |a, b| a > b)),
            "exclusiveMaximum" => holds(compare(value, rule, |a, b| a < b)),
            "multipleOf" => {
                holds(compare(value, rule, |a, b| b > 0.0 && (a / b - (a / b).round()).abs() < 1e-9))
            }
            "pattern" => match (value, rule) {
                (Value::String(text), Value::String(pattern)) => {
                    let config = regex_automata::meta::Config::new().nfa_size_limit(Some(1 << 20));
                    let regex = regex_automata::meta::Builder::new().configure(config).build(pattern);
                    holds(regex.is_ok_and(|regex| regex.is_match(text)))
                }
                _ => Ok(()),
            },
            "anyOf" | "oneOf" | "allOf" => {
                let all = rule.as_array().map(Vec::as_slice).unwrap_or_default();
                let fit = all.iter().filter(|it| self.check(value, it, place).is_ok()).count();
                holds(match key {
                    "anyOf" => fit > 0,
                    "oneOf" => fit == 1,
                    _ => fit == all.len(),
                })
            }
            "not" => holds(self.check(value, rule, place).is_err()),
            "$ref" => {
                let target = rule.as_str().and_then(|to| to.strip_prefix('#'));
                let target = target.and_then(|to| self.root.pointer(to));
                target.map_or(Err(key.to_string()), |target| self.check(value, target, place))
            }
            key if DESCRIBE.contains(&key) => Ok(()),
            _ => Err(format!("{place}: the keyword `{key}` cannot be checked")),
        }
    }

    fn properties(&self, value: &Value, rule: &Value, place: &str) -> Result<(), String> {
        let (Some(members), Some(rules)) = (value.as_object(), rule.as_object()) else { return Ok(()) };
        rules.iter().try_for_each(|(name, rule)| match members.get(name) {
            Some(member) => self.check(member, rule, &format!("{place}/{name}")),
            None => Ok(()),
        })
    }

    fn additional(&self, value: &Value, rule: &Value, schema: &Value, place: &str) -> Result<(), String> {
        let Some(members) = value.as_object() else { return Ok(()) };
        let mut others = members.iter().filter(|(name, _)| schema["properties"].get(name.as_str()).is_none());
        if rule == false {
            return if others.next().is_none() { Ok(()) } else { Err("additionalProperties".into()) };
        }
        others.try_for_each(|(_, member)| self.check(member, rule, &format!("{place}/*")))
    }
}

fn compare(value: &Value, rule: &Value, holds: impl Fn(f64, f64) -> bool) -> bool {
    match (value.as_f64(), rule.as_f64()) {
        (Some(value), Some(rule)) => holds(value, rule),
        (None, Some(_)) => true,
        _ => false,
    }
}

fn is_type(value: &Value, name: &Value) -> bool {
    match name.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("number") => value.is_number(),
        Some("integer") => value.as_f64().is_some_and(|it| it.fract() == 0.0),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arguments_are_held_to_their_schema() {
        let schema = json!({
            "type": "object", "required": ["to"], "additionalProperties": false,
            "properties": {
                "to": {"type": "string", "maxLength": 5, "pattern": "^[a-z]+$"},
                "amount": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 10}, {"type": "null"}]},
                "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2},
            },
            "$defs": {"tag": {"enum": ["a", "b"]}},
        });
        for good in [
            json!({"to": "me"}),
            json!({"to": "me", "amount": 10, "tags": ["a"]}),
            json!({"to": "x", "amount": null}),
        ] {
            assert_eq!(check(&good, &schema), Ok(()), "{good}");
        }
        for bad in [
            json!({}),
            json!([]),
            json!({"to": "too long"}),
            json!({"to": "A"}),
            json!({"to": "me", "amount": 11}),
            json!({"to": "me", "amount": 1.5}),
            json!({"to": "me", "tags": ["c"]}),
            json!({"to": "me", "other": 1}),
        ] {
            assert!(check(&bad, &schema).is_err(), "{bad}");
        }
        let unknown = check(&json!({}), &json!({"unevaluatedItems": false})).unwrap_err();
        assert!(unknown.contains("unevaluatedItems"), "{unknown}");
    }
}
