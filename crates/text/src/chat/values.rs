//! What a template gets of a conversation: JSON as values of the template engine.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use minijinja::value::{DynObject, Object, ObjectRepr, Value, ValueKind};
use serde_json::{Map, Value as Json};

use super::python;

/// A number that Python writes with an exponent. The engine prints its own numbers in another way: joined with texts, in lists, and as
/// texts. It is no number to compute with, which no template does with those of a conversation.
pub struct Exponent(pub f64);

impl fmt::Debug for Exponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&python::float(self.0))
    }
}

impl Object for Exponent {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        Some(self.0.total_cmp(&other.downcast_ref::<Exponent>()?.0))
    }
}

/// The number that a value is, if it is one with an exponent.
pub fn exponent(value: &Value) -> Option<f64> {
    value.downcast_object_ref::<Exponent>().map(|number| number.0)
}

/// Whether a value is a number for a template, which a truth value is, too.
pub fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool) || exponent(value).is_some()
}

/// Whether it is one that is not whole by its kind.
pub fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer() || exponent(value).is_some()
}

/// JSON as a value.
pub fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(is) => Value::from(*is),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(whole), _, _) => Value::from(whole),
            (_, Some(whole), _) => Value::from(whole),
            (_, _, Some(number)) if python::float(number).contains('e') => {
                Value::from_object(Exponent(number))
            }
            (_, _, number) => Value::from(number.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value).collect::<Vec<Value>>().into(),
        Json::Object(members) => object(members),
    }
}

/// An object as a value, its members in their order.
pub fn object(members: &Map<String, Json>) -> Value {
    members.iter().map(|(name, member)| (name.as_str(), value(member))).collect()
}
