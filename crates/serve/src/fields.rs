//! The fields of a request: taken one by one, each with its type; remaining ones are harmless, refused, or unknown.

use serde_json::{Map, Value};

use crate::fault::Fault;

/// Fields that are accepted without effect: they identify the client, or request what is done anyway.
pub const HARMLESS: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
    "request_id",
    "guided_decoding_backend",
    "spaces_between_special_tokens",
    "chat_template_content_format",
];

/// Fields that would change the answer but are not supported. A neutral value (`null`, `false`, an empty list, or the
/// one given with the name) is accepted.
pub const REFUSED: &[(&str, Option<&str>)] = &[
    ("audio", None),
    ("modalities", Some(r#"["text"]"#)),
    ("functions", None),
    ("function_call", None),
    ("web_search_options", None),
    ("suffix", Some(r#""""#)),
    ("best_of", Some("1")),
    ("prompt_embeds", None),
    ("bad_words", None),
    ("allowed_token_ids", None),
    ("logits_processors", None),
    ("truncate_prompt_tokens", None),
    ("mm_processor_kwargs", None),
    ("chat_template", None),
    ("structural_tag", None),
    ("thinking_token_budget", None),
    ("repetition_detection", None),
    ("vllm_xargs", None),
    ("kv_transfer_params", None),
    ("include_stop_str_in_output", None),
    ("skip_special_tokens", Some("true")),
];

/// A JSON object from which fields are taken.
#[derive(Debug, Default)]
pub struct Fields {
    map: Map<String, Value>,
    /// Names of taken fields without effect.
    unread: Vec<String>,
}

/// Conversion of a field's value.
pub trait Take: Sized {
    /// Description of the expected value.
    const EXPECTED: &'static str;
    /// The value, if it has this type.
    fn take(value: Value) -> Option<Self>;
}

macro_rules! take {
    ($($type:ty, $expected:literal, $value:ident => $take:expr;)*) => {$(
        impl Take for $type {
            const EXPECTED: &'static str = $expected;
            fn take($value: Value) -> Option<Self> { $take }
        }
    )*};
}

take! {
    bool, "true or false", value => value.as_bool();
    f64, "a number", value => value.as_f64();
    i64, "a whole number", value => whole(&value);
    u64, "a whole number from 0 on", value => whole(&value).and_then(|n| u64::try_from(n).ok());
    usize, "a whole number from 0 on", value => whole(&value).and_then(|n| usize::try_from(n).ok());
    u32, "a token id", value => whole(&value).and_then(|n| u32::try_from(n).ok());
    String, "a string", value => match value { Value::String(text) => Some(text), _ => None };
    Map<String, Value>, "an object", value => match value { Value::Object(map) => Some(map), _ => None };
    Value, "a value", value => Some(value);
}

impl<T: Take> Take for Vec<T> {
    const EXPECTED: &'static str = "a list";
    fn take(value: Value) -> Option<Self> {
        match value {
            Value::Array(values) => values.into_iter().map(T::take).collect(),
            _ => None,
        }
    }
}

/// A whole number, including those written as `1.0`.
fn whole(value: &Value) -> Option<i64> {
    let real = |x: &f64| x.fract() == 0.0 && x.abs() < 9e15;
    value.as_i64().or_else(|| value.as_f64().filter(real).map(|x| x as i64))
}

impl Fields {
    /// Parses the fields of a body.
    ///
    /// # Errors
    /// The body is not a JSON object.
    pub fn parse(body: &[u8]) -> Result<Fields, Fault> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Fields::of(map)),
            Ok(_) => Err(Fault::bad("the body has to be a JSON object")),
            Err(error) => Err(Fault::bad(format!("the body is not JSON: {error}"))),
        }
    }

    /// The fields of an object.
    pub fn of(map: Map<String, Value>) -> Fields {
        Fields { map, unread: Vec::new() }
    }

    /// The raw value of a field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name)
    }

    /// Records that a field, or a part of one, has no effect.
    pub fn ignore(&mut self, name: &str) {
        self.unread.push(name.to_string());
    }

    /// Takes a field that is an object.
    ///
    /// # Errors
    /// A value that is not an object.
    pub fn part(&mut self, name: &str) -> Result<Fields, Fault> {
        Ok(Fields::of(self.or(name, Map::new())?))
    }

    /// Handles the remaining fields of a part: unknown, or refused.
    ///
    /// # Errors
    /// Those of [`Fields::rest`].
    pub fn rest_of(&mut self, name: &str, part: Fields) -> Result<(), Fault> {
        self.unread.extend(part.rest()?.into_iter().map(|of| format!("{name}.{of}")));
        Ok(())
    }

    /// Sets a field.
    pub fn set(&mut self, name: &str, value: Value) {
        self.map.insert(name.to_string(), value);
    }

    /// Other fields, completed by these where they have none.
    pub fn under(self, mut map: Map<String, Value>) -> Fields {
        self.map.into_iter().for_each(|(name, value)| _ = map.entry(name).or_insert(value));
        Fields { map, unread: self.unread }
    }

    /// Takes a field; `null` counts as missing.
    ///
    /// # Errors
    /// A value of another type.
    pub fn take<T: Take>(&mut self, name: &str) -> Result<Option<T>, Fault> {
        match self.map.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match T::take(value) {
                Some(value) => Ok(Some(value)),
                None => Err(Fault::field(name, format_args!("has to be {}", T::EXPECTED))),
            },
        }
    }

    /// Takes a field, or the default.
    ///
    /// # Errors
    /// A value of another type.
    pub fn or<T: Take>(&mut self, name: &str, default: T) -> Result<T, Fault> {
        Ok(self.take(name)?.unwrap_or(default))
    }

    /// Takes a required field.
    ///
    /// # Errors
    /// A missing field, or a value of another type.
    pub fn need<T: Take>(&mut self, name: &str) -> Result<T, Fault> {
        self.take(name)?
            .ok_or_else(|| Fault::field(name, format_args!("is missing; it has to be {}", T::EXPECTED)))
    }

    /// Takes a field that is one value or a list of them.
    ///
    /// # Errors
    /// A value of another type.
    pub fn list<T: Take>(&mut self, name: &str) -> Result<Vec<T>, Fault> {
        match self.map.remove(name) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(value) => {
                let value = if value.is_array() { value } else { Value::Array(vec![value]) };
                let wrong =
                    || Fault::field(name, format_args!("has to be {}, or a list of them", T::EXPECTED));
                Vec::take(value).ok_or_else(wrong)
            }
        }
    }

    /// The fields without effect: those that were not taken, and parts of others.
    ///
    /// # Errors
    /// A field that would change the answer but is not supported.
    pub fn rest(self) -> Result<Vec<String>, Fault> {
        let mut unknown = self.unread;
        for (name, value) in self.map {
            if value.is_null() || HARMLESS.contains(&name.as_str()) {
                continue;
            }
            match REFUSED.iter().find(|(refused, _)| *refused == name) {
                Some((_, neutral)) if asks(&value, *neutral) => {
                    return Err(Fault::field(&name, "is not supported by this server; leave it out"));
                }
                Some(_) => {}
                None => unknown.push(name),
            }
        }
        Ok(unknown)
    }
}

/// True if a value is not neutral.
fn asks(value: &Value, neutral: Option<&str>) -> bool {
    let nothing = match value {
        Value::Null => true,
        Value::Bool(on) => !on && neutral.is_none(),
        Value::Array(values) => values.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    let same = |text: &str| match (serde_json::from_str::<Value>(text), value) {
        (Ok(Value::Number(a)), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Ok(other), value) => other == *value,
        _ => false,
    };
    !nothing && !neutral.is_some_and(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_types_and_what_cannot_be_followed_is_refused() {
        let mut fields =
            Fields::parse(br#"{"n": 2.0, "stop": "a", "user": "u", "best_of": 1, "odd": 1, "seed": "x"}"#)
                .unwrap();
        assert_eq!(fields.take::<usize>("n").unwrap(), Some(2));
        assert_eq!(fields.list::<String>("stop").unwrap(), ["a"]);
        let wrong = fields.take::<u64>("seed").unwrap_err();
        assert_eq!(wrong.message, "`seed` has to be a whole number from 0 on");
        let mut part =
            Fields::parse(br#"{"part": {"a": 1, "b": 2, "c": null}}"#).unwrap().part("part").unwrap();
        assert_eq!(part.take::<usize>("a").unwrap(), Some(1));
        fields.rest_of("part", part).unwrap();
        assert_eq!(fields.rest().unwrap(), ["part.b", "odd"]);
        for body in [r#"{"suffix": "x"}"#, r#"{"structural_tag": "a"}"#, r#"{"modalities": ["audio"]}"#] {
            assert!(Fields::parse(body.as_bytes()).unwrap().rest().is_err(), "{body}");
        }
        for body in [r#"{"suffix": null}"#, r#"{"bad_words": []}"#, r#"{"modalities": ["text"]}"#] {
            assert!(Fields::parse(body.as_bytes()).unwrap().rest().is_ok(), "{body}");
        }
        for body in ["[1]", "{", "\"x\""] {
            assert!(Fields::parse(body.as_bytes()).is_err());
        }
    }
}
