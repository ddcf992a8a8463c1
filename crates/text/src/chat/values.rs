//! Template input: JSON as values of the template engine.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use minijinja::value::{DynObject, Object, ObjectRepr, Serde, Value, ValueKind};
use serde::{Serialize, Serializer};
use serde_json::Value as Json;

/// A number that Python writes with an exponent. The engine would format its own numbers differently when joined with
/// texts, in lists, and as texts. Templates cannot compute with it, and none does with numbers of a conversation.
pub struct Exponent(pub f64);

impl fmt::Debug for Exponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&super::numbers::float(self.0))
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

/// Numeric value of an [`Exponent`].
pub fn exponent(value: &Value) -> Option<f64> {
    value.downcast_object_ref::<Exponent>().map(|number| number.0)
}

/// Returns true if a template treats the value as a number, which includes booleans.
pub fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool) || exponent(value).is_some()
}

/// Returns true for floating-point numbers.
pub fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer() || exponent(value).is_some()
}

/// Serializes JSON for a template.
struct TemplateJson<'a>(&'a Json);

impl Serialize for TemplateJson<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Json::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
                Some(float) if super::numbers::float(float).contains('e') => {
                    Value::from_object(Exponent(float)).serialize(to)
                }
                _ => number.serialize(to),
            },
            Json::Array(items) => to.collect_seq(items.iter().map(TemplateJson)),
            Json::Object(members) => {
                to.collect_map(members.iter().map(|(name, member)| (name, TemplateJson(member))))
            }
            other => other.serialize(to),
        }
    }
}

/// Converts JSON to a value, preserving the order of object members.
pub fn value(json: &Json) -> Value {
    Value::from(Serde(&TemplateJson(json)))
}

/// Serializes the members of an object for a template.
struct TemplateMembers<'a>(&'a serde_json::Map<String, Json>);

impl Serialize for TemplateMembers<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, member)| (name, TemplateJson(member))))
    }
}

/// Converts an object's members to a value.
pub fn members(members: &serde_json::Map<String, Json>) -> Value {
    Value::from(Serde(&TemplateMembers(members)))
}
