//! Descriptors: attributes are set, then an object is made of them.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use cudarc::cudnn::sys::cudnnBackendAttributeName_t as Name;
use cudarc::cudnn::sys::cudnnBackendAttributeType_t::{self as Type, *};
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t::{self as Kind, *};
use cudarc::cudnn::sys::cudnnStatus_t::*;

use super::engines::{self, Config, Engine};
use super::graph::Graph;
use super::object::{Fields, Object, Value};
use super::operations::{Matmul, Operation, Pointwise, Reduction};
use super::plan::Pack;
use super::refusal::{Outcome, refuse, require};
use super::set::Set;
use super::table::{Rule, is_known, rule};
use super::tensor::Tensor;

struct Entry {
    kind: Kind,
    fields: Fields,
    object: Option<Object>,
}

/// All objects of this library.
#[derive(Default)]
pub struct Registry {
    entries: BTreeMap<u64, Entry>,
    /// Stream of each handle.
    pub handles: BTreeMap<u64, u64>,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

/// The registry, locked for as long as the guard lives.
pub fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes per element.
fn width(of: Type) -> usize {
    match of {
        CUDNN_TYPE_BOOLEAN | CUDNN_TYPE_CHAR => 1,
        CUDNN_TYPE_INT64
        | CUDNN_TYPE_DOUBLE
        | CUDNN_TYPE_HANDLE
        | CUDNN_TYPE_VOID_PTR
        | CUDNN_TYPE_BACKEND_DESCRIPTOR => 8,
        _ => 4,
    }
}

fn rule_of(kind: Kind, name: Name, of: Type) -> Outcome<Rule> {
    let Some(found) = rule(name) else {
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, format!("the rehearsal does not have {name:?}"));
    };
    require(found.kind == kind, CUDNN_STATUS_BAD_PARAM, || format!("{name:?} is none of {kind:?}"))?;
    require(found.types.contains(&of), CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, || {
        format!("{name:?} is of {:?}, not {of:?}", found.types)
    })?;
    Ok(found)
}

impl Registry {
    fn entry(&mut self, descriptor: u64) -> Outcome<&mut Entry> {
        if descriptor == 0 {
            return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the descriptor is null");
        }
        match self.entries.get_mut(&descriptor) {
            Some(entry) => Ok(entry),
            None => refuse(CUDNN_STATUS_BAD_PARAM, format!("{descriptor:#x} is no descriptor, or destroyed")),
        }
    }

    /// Creates a descriptor with a given number.
    ///
    /// # Errors
    /// If the rehearsal does not support this kind.
    pub fn create(&mut self, number: u64, kind: Kind) -> Outcome {
        require(is_known(kind), CUDNN_STATUS_NOT_SUPPORTED, || format!("the rehearsal has no {kind:?}"))?;
        self.entries.insert(number, Entry { kind, fields: Fields::new(), object: None });
        Ok(())
    }

    /// Destroys a descriptor. Objects made from it stay alive.
    ///
    /// # Errors
    /// If there is no such descriptor.
    pub fn destroy(&mut self, descriptor: u64) -> Outcome {
        self.entry(descriptor)?;
        self.entries.remove(&descriptor);
        Ok(())
    }

    /// The object of a finalized descriptor.
    ///
    /// # Errors
    /// If there is no such descriptor or it is not finalized.
    pub fn object(&mut self, descriptor: u64) -> Outcome<Object> {
        let entry = self.entry(descriptor)?;
        match &entry.object {
            Some(object) => Ok(object.clone()),
            None => {
                refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, format!("the {:?} is not finalized", entry.kind))
            }
        }
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// If the descriptor has no such attribute, the type or count is wrong, or the descriptor is finalized.
    ///
    /// # Safety
    /// The address is null or that of as many elements of the type.
    pub unsafe fn set(
        &mut self,
        descriptor: u64,
        name: Name,
        of: Type,
        count: i64,
        from: *const c_void,
    ) -> Outcome {
        let entry = self.entry(descriptor)?;
        let kind = entry.kind;
        require(entry.object.is_none(), CUDNN_STATUS_BAD_PARAM, || {
            format!("{name:?} is set after the descriptor was finalized")
        })?;
        let rule = rule_of(kind, name, of)?;
        require(rule.settable, CUDNN_STATUS_BAD_PARAM, || format!("{name:?} can only be read"))?;
        require((1..=rule.most).contains(&count), CUDNN_STATUS_BAD_PARAM, || {
            format!("{count} elements of {name:?}; it has 1 to {}", rule.most)
        })?;
        require(!from.is_null(), CUDNN_STATUS_BAD_PARAM_NULL_POINTER, || format!("{name:?} from null"))?;
        // SAFETY: the caller's promise.
        let value = unsafe { self.read(name, of, count as usize, from) }?;
        self.entry(descriptor)?.fields.insert(name as u32, (of, value));
        Ok(())
    }

    /// Reads elements of an attribute.
    ///
    /// # Safety
    /// The address has as many elements as given.
    unsafe fn read(&mut self, name: Name, of: Type, count: usize, from: *const c_void) -> Outcome<Value> {
        /// # Safety
        /// The address has as many elements as given, of any alignment.
        unsafe fn each<T: Copy, U>(from: *const c_void, count: usize, to: impl Fn(T) -> U) -> Vec<U> {
            // SAFETY: the caller's promise.
            (0..count).map(|index| to(unsafe { from.cast::<T>().add(index).read_unaligned() })).collect()
        }
        // SAFETY: elements of the type, as many as given.
        unsafe {
            Ok(match of {
                CUDNN_TYPE_INT64 => Value::Ints(each(from, count, |value: i64| value)),
                CUDNN_TYPE_FLOAT => Value::Floats(each(from, count, |value: f32| f64::from(value))),
                CUDNN_TYPE_DOUBLE => Value::Floats(each(from, count, |value: f64| value)),
                CUDNN_TYPE_CHAR => Value::Ints(each(from, count, |value: u8| i64::from(value))),
                CUDNN_TYPE_BOOLEAN => {
                    let flags = each(from, count, |value: u8| i64::from(value));
                    require(flags.iter().all(|flag| *flag < 2), CUDNN_STATUS_BAD_PARAM, || {
                        format!("{name:?} is neither true nor false")
                    })?;
                    Value::Ints(flags)
                }
                CUDNN_TYPE_VOID_PTR | CUDNN_TYPE_HANDLE => {
                    Value::Addresses(each(from, count, |value: u64| value))
                }
                CUDNN_TYPE_BACKEND_DESCRIPTOR => {
                    let numbers = each(from, count, |value: u64| value);
                    Value::Parts(numbers.into_iter().map(|part| self.object(part)).collect::<Outcome<_>>()?)
                }
                _ => Value::Ints(each(from, count, |value: i32| i64::from(value))),
            })
        }
    }

    /// Finalizes a descriptor.
    ///
    /// # Errors
    /// If something is missing or inconsistent, or it is already finalized.
    pub fn finalize(&mut self, descriptor: u64) -> Outcome {
        let entry = self.entry(descriptor)?;
        require(entry.object.is_none(), CUDNN_STATUS_BAD_PARAM, || "finalized before".to_string())?;
        let (kind, fields) = (entry.kind, entry.fields.clone());
        let set = Set::new(kind, &fields);
        let object = match kind {
            CUDNN_BACKEND_TENSOR_DESCRIPTOR => Object::new(Tensor::new(&set)?),
            CUDNN_BACKEND_POINTWISE_DESCRIPTOR => Object::new(Pointwise::new(&set)?),
            CUDNN_BACKEND_MATMUL_DESCRIPTOR => Object::new(Matmul::new(&set)?),
            CUDNN_BACKEND_REDUCTION_DESCRIPTOR => Object::new(Reduction::new(&set)?),
            CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR
            | CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR
            | CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR
            | CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR => Object::new(Operation::new(kind, &set)?),
            CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR => Object::new(Graph::new(&set, &self.handles)?),
            CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR => Object::new(Pack::new(&set)?),
            _ => engines::finalize(&set, &self.handles)?,
        };
        self.entry(descriptor)?.object = Some(object);
        Ok(())
    }

    /// Reads an attribute: the number of its elements, and as many of them as requested.
    ///
    /// # Errors
    /// If the descriptor has no such attribute, the type is wrong, or the descriptor is not finalized.
    ///
    /// # Safety
    /// The addresses are null or have room for as many elements as requested.
    pub unsafe fn get(
        &mut self,
        descriptor: u64,
        name: Name,
        of: Type,
        requested: i64,
        count: *mut i64,
        to: *mut c_void,
    ) -> Outcome {
        let kind = self.entry(descriptor)?.kind;
        rule_of(kind, name, of)?;
        let object = self.object(descriptor)?;
        require(requested >= 0, CUDNN_STATUS_BAD_PARAM, || format!("{requested} elements of {name:?}"))?;
        let value = match engines::answer(&object, name)? {
            Some(value) => value,
            None => match self.entry(descriptor)?.fields.get(&(name as u32)) {
                Some((_, value)) => value.clone(),
                None => return refuse(CUDNN_STATUS_BAD_PARAM, format!("{name:?} was not set")),
            },
        };
        let has = value.len();
        if !count.is_null() {
            // SAFETY: the header's contract.
            unsafe { count.write(has as i64) };
        }
        if to.is_null() {
            return Ok(());
        }
        // SAFETY: at most as many as requested.
        unsafe { self.write(value, of, has.min(requested as usize), to) }
    }

    /// Writes elements to the caller's memory; descriptors are written into existing ones.
    ///
    /// # Safety
    /// The address has room for as many elements.
    unsafe fn write(&mut self, value: Value, of: Type, count: usize, to: *mut c_void) -> Outcome {
        for index in 0..count {
            // SAFETY: within what the caller promises.
            let at = unsafe { to.cast::<u8>().add(index * width(of)) };
            // SAFETY: an element of this type.
            unsafe {
                match (&value, width(of)) {
                    (Value::Ints(ints), 1) => at.write(ints[index] as u8),
                    (Value::Ints(ints), 4) => at.cast::<i32>().write_unaligned(ints[index] as i32),
                    (Value::Ints(ints), _) => at.cast::<i64>().write_unaligned(ints[index]),
                    (Value::Floats(floats), 4) => at.cast::<f32>().write_unaligned(floats[index] as f32),
                    (Value::Floats(floats), _) => at.cast::<f64>().write_unaligned(floats[index]),
                    (Value::Addresses(numbers), _) => at.cast::<u64>().write_unaligned(numbers[index]),
                    (Value::Parts(parts), _) => {
                        self.fill(at.cast::<u64>().read_unaligned(), parts[index].clone())?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Stores an object in a descriptor created by the caller.
    fn fill(&mut self, descriptor: u64, object: Object) -> Outcome {
        let entry = self.entry(descriptor)?;
        let fits = match entry.kind {
            CUDNN_BACKEND_ENGINECFG_DESCRIPTOR => object.is::<Config>(),
            CUDNN_BACKEND_ENGINE_DESCRIPTOR => object.is::<Engine>(),
            _ => false,
        };
        require(fits, CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, || {
            format!("{:?} is not what is written there", entry.kind)
        })?;
        require(entry.object.is_none() && entry.fields.is_empty(), CUDNN_STATUS_BAD_PARAM, || {
            "a descriptor that is in use already".to_string()
        })?;
        entry.object = Some(object);
        Ok(())
    }
}
