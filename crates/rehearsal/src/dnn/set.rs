//! Attributes of a descriptor while it is finalized.

use std::any::Any;
use std::sync::Arc;

use cudarc::cudnn::sys::cudnnBackendAttributeName_t as Name;
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t as Kind;
use cudarc::cudnn::sys::cudnnStatus_t::CUDNN_STATUS_BAD_PARAM;

use super::object::{Fields, Object, Value};
use super::refusal::{Outcome, refuse};

/// Attributes of a descriptor that is being finalized.
pub struct Set<'a> {
    /// Kind of the descriptor.
    pub kind: Kind,
    fields: &'a Fields,
}

impl<'a> Set<'a> {
    /// Wraps the attributes of a descriptor.
    pub fn new(kind: Kind, fields: &'a Fields) -> Set<'a> {
        Set { kind, fields }
    }

    fn value(&self, name: Name) -> Option<&Value> {
        self.fields.get(&(name as u32)).map(|(_, value)| value)
    }

    fn missing<T>(&self, name: Name) -> Outcome<T> {
        refuse(CUDNN_STATUS_BAD_PARAM, format!("{:?}: {name:?} was not set", self.kind))
    }

    /// Integers, if set.
    pub fn ints(&self, name: Name) -> Option<&[i64]> {
        match self.value(name) {
            Some(Value::Ints(all)) => Some(all),
            _ => None,
        }
    }

    /// One integer, if set.
    pub fn int(&self, name: Name) -> Option<i64> {
        self.ints(name).map(|all| all[0])
    }

    /// Integers of a required attribute.
    ///
    /// # Errors
    /// If it is not set.
    pub fn need_ints(&self, name: Name) -> Outcome<&[i64]> {
        self.ints(name).map_or_else(|| self.missing(name), Ok)
    }

    /// A float, if set.
    pub fn float(&self, name: Name) -> Option<f64> {
        match self.value(name) {
            Some(Value::Floats(all)) => Some(all[0]),
            _ => None,
        }
    }

    /// Pointers or handles, if set.
    pub fn addresses(&self, name: Name) -> Option<&[u64]> {
        match self.value(name) {
            Some(Value::Addresses(all)) => Some(all),
            _ => None,
        }
    }

    /// Descriptors, if set.
    pub fn parts(&self, name: Name) -> Option<&[Object]> {
        match self.value(name) {
            Some(Value::Parts(all)) => Some(all),
            _ => None,
        }
    }

    /// The object of a descriptor, if set.
    ///
    /// # Errors
    /// If it is of another type.
    pub fn object<T: Any + Send + Sync>(&self, name: Name) -> Outcome<Option<Arc<T>>> {
        self.parts(name).map(|all| all[0].get()).transpose()
    }

    /// The object of a required descriptor.
    ///
    /// # Errors
    /// If it is not set, or of another type.
    pub fn need<T: Any + Send + Sync>(&self, name: Name) -> Outcome<Arc<T>> {
        self.object(name)?.map_or_else(|| self.missing(name), Ok)
    }
}
