//! Converts a written value to the type of its key: whole numbers with suffix, real numbers, choices, lists.

use toml::Value;

use super::raw::{Raw, RawValue};
use super::schema::{Kind, Leaf};
use super::suggest;
use crate::{human, tokens};

/// Hint for the error message of a value that does not fit; empty if the message is enough.
pub(crate) struct Misfit(pub String);

/// Reads the value of a key from TOML; `None` unsets an optional key.
pub(crate) fn from_toml(raw: &Raw, leaf: &Leaf) -> Result<Option<Value>, Misfit> {
    if leaf.optional && matches!(&raw.value, RawValue::Scalar(Value::String(text)) if text == "none") {
        return Ok(None);
    }
    checked(fit(raw, &leaf.kind)?, leaf).map(Some)
}

/// Reads the value of a key from the command line, where text needs no quotes and lists need no brackets.
pub(crate) fn from_text(text: &str, leaf: &Leaf) -> Result<Option<Value>, Misfit> {
    if leaf.optional && text == "none" {
        return Ok(None);
    }
    checked(read(text, &leaf.kind)?, leaf).map(Some)
}

fn checked(value: Value, leaf: &Leaf) -> Result<Value, Misfit> {
    (leaf.check)(&value).map_err(|message| Misfit(format!(": {message}")))?;
    Ok(value)
}

fn fit(raw: &Raw, kind: &Kind) -> Result<Value, Misfit> {
    let no = || Err(Misfit(String::new()));
    let scalar = match (&raw.value, kind) {
        (_, Kind::Any) => return Ok(raw.to_value()),
        (RawValue::List(items), Kind::List(of)) => {
            return Ok(Value::Array(items.iter().map(|item| fit(item, of)).collect::<Result<_, _>>()?));
        }
        (RawValue::Scalar(value), _) => value,
        _ => return no(),
    };
    match (scalar, kind) {
        (Value::Boolean(_), Kind::Bool)
        | (Value::Integer(_), Kind::Integer)
        | (Value::Float(_), Kind::Float)
        | (Value::String(_), Kind::Text) => Ok(scalar.clone()),
        (Value::Integer(n), Kind::Float) => Ok(Value::Float(*n as f64)),
        (Value::String(text), Kind::Integer) => read(text, kind),
        (Value::String(text), Kind::Choice(_)) => read(text, kind),
        (Value::String(text), Kind::Float) if text.parse::<f64>().is_ok() => {
            Err(Misfit(format!("; write {text} without quotes")))
        }
        _ => no(),
    }
}

fn read(text: &str, kind: &Kind) -> Result<Value, Misfit> {
    match kind {
        Kind::Bool => match text {
            "true" => Ok(Value::Boolean(true)),
            "false" => Ok(Value::Boolean(false)),
            _ => Err(Misfit(String::new())),
        },
        Kind::Integer => match tokens::parse(text).or_else(|message| bytes(text).ok_or(message)) {
            Ok(n) => Ok(Value::Integer(n)),
            Err(message) => Err(Misfit(format!(": {message}"))),
        },
        Kind::Float => {
            let plain = text.replace('_', "");
            plain.parse().map(Value::Float).map_err(|_| Misfit(String::new()))
        }
        Kind::Text => Ok(Value::String(unquoted(text))),
        Kind::Choice(names) => {
            let text = unquoted(text);
            if names.contains(&text.as_str()) {
                return Ok(Value::String(text));
            }
            let hint = suggest::name(&text, names, "");
            Err(Misfit(if hint.starts_with("did") { format!("; {hint}") } else { String::new() }))
        }
        Kind::List(of) => {
            if let Some(raw) = Raw::parse_value(text).filter(|raw| matches!(raw.value, RawValue::List(_))) {
                return fit(&raw, kind);
            }
            let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
            let parts = inner.split(',').map(str::trim).filter(|part| !part.is_empty());
            Ok(Value::Array(parts.map(|part| read(part, of)).collect::<Result<_, _>>()?))
        }
        Kind::Any => Ok(Raw::parse_value(text).map_or(Value::String(text.to_string()), |raw| raw.to_value())),
    }
}

/// A size with an explicit unit, such as `4MiB`: without one, `1.5` would be a whole number.
fn bytes(text: &str) -> Option<i64> {
    let size = text.trim().to_ascii_lowercase().ends_with('b').then(|| human::parse_bytes(text).ok())??;
    i64::try_from(size).ok()
}

/// Text as typed, without the quotes of a TOML string.
fn unquoted(text: &str) -> String {
    let quoted = text.starts_with(['"', '\'']);
    let value = if quoted { Raw::parse_value(text).and_then(Raw::into_text) } else { None };
    value.unwrap_or_else(|| text.to_string())
}
