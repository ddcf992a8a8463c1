//! Items of a value, for loops and joins, and the limits on them.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Bytes of what `join` makes, at most.
pub(super) const MOST_JOINED: usize = 64 << 20;

/// Refuses what Python's `str.join` refuses: items that are no texts.
///
/// # Errors
/// The first such item.
pub fn check_joined(items: &Value) -> Result<(), Error> {
    for (at, item) in items.try_iter()?.enumerate() {
        if item.kind() != ValueKind::String {
            let message = format!("sequence item {at}: expected str instance, {} found", item.kind());
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    }
    Ok(())
}

/// Maximum string length for iteration with a known length; each character becomes a value of its own.
const MOST_CHARS: usize = 1 << 20;

/// Value to iterate over in place of the operand.
///
/// # Errors
/// `None` is not iterable.
pub fn looped(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::None => Err(Error::new(ErrorKind::InvalidOperation, "'NoneType' object is not iterable")),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            if text.len() > MOST_CHARS {
                return Ok(value.clone());
            }
            Ok(text.chars().map(Value::from).collect::<Vec<Value>>().into())
        }
        _ => Ok(value.clone()),
    }
}
