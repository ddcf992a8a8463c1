//! Attributes of descriptors, and the objects of finalized ones. Only who made an object knows its type.

use std::any::{Any, type_name};
use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::cudnn::sys::cudnnBackendAttributeType_t as Type;
use cudarc::cudnn::sys::cudnnStatus_t::*;

use super::refusal::{Outcome, refuse};

/// The object of a finalized descriptor. Objects that refer to it keep it alive after the descriptor is destroyed.
#[derive(Clone)]
pub struct Object(Arc<dyn Any + Send + Sync>);

impl Object {
    /// Wraps an object.
    pub fn new(object: impl Any + Send + Sync) -> Object {
        Object(Arc::new(object))
    }

    /// True if it is of this type.
    pub fn is<T: Any>(&self) -> bool {
        self.0.is::<T>()
    }

    /// The object as one of this type.
    ///
    /// # Errors
    /// If it is of another.
    pub fn get<T: Any + Send + Sync>(&self) -> Outcome<Arc<T>> {
        let Ok(object) = self.0.clone().downcast() else {
            let name = type_name::<T>().rsplit("::").next().unwrap_or_default();
            return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, format!("the descriptor is no {name}"));
        };
        Ok(object)
    }
}

/// Elements of an attribute.
#[derive(Clone)]
pub enum Value {
    /// Integers, and all enumeration types.
    Ints(Vec<i64>),
    /// Floats.
    Floats(Vec<f64>),
    /// Pointers and handles.
    Addresses(Vec<u64>),
    /// Finalized descriptors.
    Parts(Vec<Object>),
}

impl Value {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Value::Ints(all) => all.len(),
            Value::Floats(all) => all.len(),
            Value::Addresses(all) => all.len(),
            Value::Parts(all) => all.len(),
        }
    }
}

/// Attributes set on a descriptor.
pub type Fields = BTreeMap<u32, (Type, Value)>;
