//! Values of other tools' keys.

use serde_json::Value;

pub(super) fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("{value} is no text"))
}

/// Reads an integer. YAML 1.1, which Python reads, allows `500_000`.
pub(super) fn int(value: &Value) -> Result<u64, String> {
    value
        .as_u64()
        .or_else(|| value.as_str()?.replace('_', "").parse().ok())
        .ok_or_else(|| format!("{value} is no whole number"))
}

/// Reads a number. Python's YAML reads `2e-5` as text, so text is accepted.
pub(super) fn float(value: &Value) -> Result<f64, String> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok()).ok_or_else(|| format!("{value} is no number"))
}

pub(super) fn flag(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("{value} is neither true nor false"))
}

/// Reads a list of texts, or a text with commas between names.
pub(super) fn names(value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::Array(list) => list.iter().map(|name| text(name).map(str::to_string)).collect(),
        other => Ok(text(other)?.split(',').map(|name| name.trim().to_string()).collect()),
    }
}
