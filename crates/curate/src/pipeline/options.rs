//! Parses the options of a recipe's stage into a typed struct, with messages that name the place.
//!
//! Every option struct is plain serde (`default`, `deny_unknown_fields`) with a JSON Schema, which supplies option
//! names and types; nothing is declared twice.

use std::collections::BTreeMap;

use fathom_base::recipe::suggest_name;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use toml::{Table, Value};

use super::option_docs::option_docs;

/// An error in the options.
#[derive(Debug, PartialEq)]
pub struct Mistake {
    /// Dotted path of the option; empty if the error concerns all options.
    pub key: String,
    /// Problem and remedy.
    pub message: String,
}

/// Parses options of type `T`; unset ones take their defaults. The second value is the complete set of options as
/// TOML.
///
/// # Errors
/// A key is unknown, or a value is invalid.
pub fn read<T>(written: &BTreeMap<String, Value>) -> Result<(T, Table), Mistake>
where
    T: Default + Serialize + DeserializeOwned + JsonSchema,
{
    let defaults = Table::try_from(T::default()).map_err(|e| whole(e.to_string()))?;
    let options = option_docs::<T>();
    let mut names: Vec<&str> = options.iter().filter_map(|option| option.name.split('.').next()).collect();
    names.dedup();
    let is_of = |path: &str, name: &str| {
        path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let takes = |path: &str| Some(&*options.iter().rfind(|option| is_of(path, &option.name))?.takes);
    let mut table = Table::new();
    for (path, value) in written {
        let first = path.split('.').next().unwrap_or(path);
        if !names.contains(&first) {
            let hint = suggest_name(first, &names, "this stage has");
            return Err(Mistake { key: path.clone(), message: format!("unknown option; {hint}") });
        }
        insert(&mut table, &defaults, path, value.clone())
            .map_err(|message| Mistake { key: path.clone(), message })?;
        // Checked one key at a time, so that an invalid value is reported with its own key.
        T::deserialize(Lenient(Value::Table(table.clone())))
            .map_err(|e| Mistake { key: path.clone(), message: plain(e.message(), takes(path)) })?;
    }
    let options =
        T::deserialize(Lenient(Value::Table(table))).map_err(|e| whole(plain(e.message(), None)))?;
    let mut resolved = Table::try_from(&options).map_err(|e| whole(e.to_string()))?;
    for unset in defaults.keys().filter(|key| !resolved.contains_key(*key)).collect::<Vec<_>>() {
        resolved.insert(unset.clone(), Value::String("none".to_owned()));
    }
    Ok((options, resolved))
}

fn whole(message: String) -> Mistake {
    Mistake { key: String::new(), message }
}

/// Rewrites serde's message, whose expected types are Rust names, for users of a recipe. `takes` describes the
/// option's values, if known.
fn plain(message: &str, takes: Option<&str>) -> String {
    let Some((found, expected)) = message.rsplit_once("expected ") else { return message.to_owned() };
    let expected = match takes {
        Some(takes) if found.starts_with("invalid") => takes,
        _ if expected.starts_with("struct ") => "a table of options, as in { key = value }",
        _ => expected,
    };
    format!("{found}expected {expected}")
}

/// Sets a dotted path in `table`; `defaults` give the expected form of the value.
fn insert(table: &mut Table, defaults: &Table, path: &str, value: Value) -> Result<(), String> {
    let Some((first, rest)) = path.split_once('.') else {
        let value = fit(value, defaults.get(path))?;
        merge(table, path, value);
        return Ok(());
    };
    let empty = Table::new();
    let below = defaults.get(first).and_then(Value::as_table).unwrap_or(&empty);
    let inner = table.entry(first).or_insert_with(|| Value::Table(Table::new()));
    match inner {
        Value::Table(inner) => insert(inner, below, rest, value),
        _ => Err(format!("`{first}` holds a value, not a table")),
    }
}

/// Merges a table into an existing one; any other value replaces.
fn merge(table: &mut Table, key: &str, value: Value) {
    match (table.get_mut(key), value) {
        (Some(Value::Table(old)), Value::Table(new)) => {
            new.into_iter().for_each(|(key, value)| merge(old, &key, value));
        }
        (_, value) => {
            table.insert(key.to_owned(), value);
        }
    }
}

/// Converts a value to the form of the default: lists may be written `a,b` and whole numbers `16k` or `8MiB`, as in
/// all recipes.
fn fit(value: Value, default: Option<&Value>) -> Result<Value, String> {
    let text = match (&value, default) {
        (Value::Table(inner), Some(Value::Table(below))) => {
            let fitted = inner.iter().map(|(k, v)| Ok((k.clone(), fit(v.clone(), below.get(k))?)));
            return Ok(Value::Table(fitted.collect::<Result<Table, String>>()?));
        }
        (Value::Array(_), Some(Value::Array(_))) => return Ok(value),
        (Value::String(text), Some(_)) => text.clone(),
        (_, Some(Value::Array(_))) => return Ok(Value::Array(vec![value])),
        _ => return Ok(value),
    };
    match default {
        Some(Value::Array(_)) => {
            let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(&text);
            let parts = inner.split(',').map(str::trim).filter(|part| !part.is_empty());
            Ok(Value::Array(parts.map(|part| Value::String(part.to_owned())).collect()))
        }
        Some(Value::Integer(_)) => {
            let bytes = || fathom_base::human::parse_bytes(&text).ok().and_then(|n| i64::try_from(n).ok());
            let number = fathom_base::tokens::parse(&text).ok().or_else(bytes);
            number.map(Value::Integer).ok_or_else(|| format!("should be a whole number, found `{text}`"))
        }
        _ => Ok(value),
    }
}

/// Deserializer for TOML in which the text `none` unsets an optional value, as in all recipes.
struct Lenient(Value);

impl<'de> IntoDeserializer<'de, toml::de::Error> for Lenient {
    type Deserializer = Lenient;

    fn into_deserializer(self) -> Lenient {
        self
    }
}

impl<'de> Deserializer<'de> for Lenient {
    type Error = toml::de::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            Value::Table(table) => {
                visitor.visit_map(MapDeserializer::new(table.into_iter().map(|(key, v)| (key, Lenient(v)))))
            }
            Value::Array(items) => visitor.visit_seq(SeqDeserializer::new(items.into_iter().map(Lenient))),
            scalar => scalar.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match &self.0 {
            Value::String(text) if text == "none" => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    struct Inner {
        #[schemars(range(min = 0, max = 1))]
        low: f64,
    }
    impl Default for Inner {
        fn default() -> Self {
            Inner { low: 0.5 }
        }
    }
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    struct Options {
        words: u64,
        share: f32,
        keep: Vec<String>,
        model: Option<String>,
        inner: Inner,
    }

    #[test]
    fn none_unsets_and_is_reported() {
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        struct Rule {
            inner: Option<Inner>,
        }
        impl Default for Rule {
            fn default() -> Self {
                Rule { inner: Some(Inner::default()) }
            }
        }
        let none = [("inner".to_string(), Value::String("none".into()))];
        let (rule, resolved) = read::<Rule>(&none.iter().cloned().collect()).unwrap();
        assert_eq!(rule, Rule { inner: None });
        assert_eq!(resolved["inner"].as_str(), Some("none"));
        assert!(read::<Rule>(&BTreeMap::new()).unwrap().0.inner.is_some());
    }

    fn given(pairs: &[(&str, &str)]) -> Result<Options, Mistake> {
        let value = |text: &str| {
            let table: Result<Table, _> = toml::from_str(&format!("x = {text}"));
            table.map_or(Value::String(text.into()), |t| t["x"].clone())
        };
        let written = pairs.iter().map(|(k, v)| (k.to_string(), value(v))).collect();
        read(&written).map(|(options, _)| options)
    }

    #[test]
    fn values_fit_their_types() {
        let options = given(&[
            ("words", "16k"),
            ("share", "1"),
            ("keep", "en, de"),
            ("inner.low", "0.25"),
            ("model", "a.bin"),
        ])
        .unwrap();
        let keep = vec!["en".to_string(), "de".to_string()];
        let (model, inner) = (Some("a.bin".to_string()), Inner { low: 0.25 });
        assert_eq!(options, Options { words: 16_384, share: 1.0, keep, model, inner });
    }

    #[test]
    fn mistakes_name_their_key() {
        let mistake = given(&[("wrods", "1")]).unwrap_err();
        assert_eq!(mistake.key, "wrods");
        assert!(mistake.message.contains("did you mean `words`?"), "{}", mistake.message);
        let mistake = given(&[("share", "true")]).unwrap_err();
        assert_eq!(mistake.key, "share");
        assert!(mistake.message.ends_with("expected a number"), "{}", mistake.message);
        let mistake = given(&[("inner.low", "true")]).unwrap_err();
        assert!(mistake.message.ends_with("expected a number from 0 to 1"), "{}", mistake.message);
        let mistake = given(&[("inner", "true")]).unwrap_err();
        assert!(mistake.message.contains("expected a table of options"), "{}", mistake.message);
        assert!(given(&[("inner.lwo", "1")]).unwrap_err().message.contains("low"));
    }
}
