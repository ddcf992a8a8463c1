//! cuDNN's descriptors: created, set, finalized, destroyed; a descriptor keeps those that it refers to alive.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use crate::calls::dnn::{
    self as sys, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Kind,
    cudnnBackendDescriptorType_t as Type, cudnnStatus_t as Status,
};

use crate::{Error, Result};

/// Converts a status into an error with cuDNN's message.
pub fn check(status: Status, call: impl FnOnce() -> String) -> Result<()> {
    if status == Status::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    let mut text: [c_char; 512] = [0; 512];
    // SAFETY: the library writes at most this many characters, zero-terminated.
    let message = unsafe {
        sys::cudnnGetLastErrorString(text.as_mut_ptr(), text.len());
        CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
    };
    Err(Error::Dnn { call: call(), status: format!("{status:?}"), message })
}

/// A descriptor under construction.
pub struct Draft(Desc);

/// A finalized descriptor.
pub struct Desc {
    raw: sys::cudnnBackendDescriptor_t,
    /// Descriptors that it refers to.
    held: Vec<Arc<Desc>>,
}

// SAFETY: cuDNN does not tie descriptors to threads. A finalized one is only read, and plans run one at a time
// (`super::Cudnn`).
unsafe impl Send for Desc {}
// SAFETY: as above.
unsafe impl Sync for Desc {}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: made by `Draft::new`, and not used again.
        unsafe { sys::cudnnBackendDestroyDescriptor(self.raw) };
    }
}

/// Types of attribute values: cuDNN reads as many bytes of each as its kind has.
pub trait Value: Copy {
    /// cuDNN's code of the type.
    const KIND: Kind;
}

impl Value for i64 {
    const KIND: Kind = Kind::CUDNN_TYPE_INT64;
}
impl Value for bool {
    const KIND: Kind = Kind::CUDNN_TYPE_BOOLEAN;
}
impl Value for *mut c_void {
    const KIND: Kind = Kind::CUDNN_TYPE_VOID_PTR;
}
impl Value for sys::cudnnHandle_t {
    const KIND: Kind = Kind::CUDNN_TYPE_HANDLE;
}
impl Value for sys::cudnnDataType_t {
    const KIND: Kind = Kind::CUDNN_TYPE_DATA_TYPE;
}
impl Value for sys::cudnnPointwiseMode_t {
    const KIND: Kind = Kind::CUDNN_TYPE_POINTWISE_MODE;
}
impl Value for sys::cudnnReduceTensorOp_t {
    const KIND: Kind = Kind::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
}
impl Value for sys::cudnnBackendHeurMode_t {
    const KIND: Kind = Kind::CUDNN_TYPE_HEUR_MODE;
}
impl Value for u8 {
    const KIND: Kind = Kind::CUDNN_TYPE_CHAR;
}

impl Draft {
    /// Creates a descriptor without attributes.
    ///
    /// # Errors
    /// If cuDNN has no such descriptors.
    pub fn new(kind: Type) -> Result<Draft> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the library writes a handle.
        check(unsafe { sys::cudnnBackendCreateDescriptor(kind, &mut raw) }, || format!("create {kind:?}"))?;
        Ok(Draft(Desc { raw, held: Vec::new() }))
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// If cuDNN refuses the value.
    pub fn set<V: Value>(self, name: Name, values: &[V]) -> Result<Draft> {
        self.raw(name, V::KIND, values)
    }

    fn raw<V: Copy>(self, name: Name, kind: Kind, values: &[V]) -> Result<Draft> {
        let (count, start) = (values.len() as i64, values.as_ptr().cast());
        // SAFETY: the library copies `count` values of the kind of their type.
        let status = unsafe { sys::cudnnBackendSetAttribute(self.0.raw, name, kind, count, start) };
        check(status, || format!("set {name:?}"))?;
        Ok(self)
    }

    /// Sets an attribute to descriptors, which are kept alive.
    ///
    /// # Errors
    /// If cuDNN refuses them.
    pub fn refer(mut self, name: Name, to: &[&Arc<Desc>]) -> Result<Draft> {
        self.0.held.extend(to.iter().map(|desc| (*desc).clone()));
        let raw: Vec<_> = to.iter().map(|desc| desc.raw).collect();
        self.raw(name, Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw)
    }

    /// Like [`Draft::refer`], if there is something to refer to.
    ///
    /// # Errors
    /// If cuDNN refuses it.
    pub fn refer_if(self, name: Name, to: Option<&Arc<Desc>>) -> Result<Draft> {
        match to {
            Some(desc) => self.refer(name, &[desc]),
            None => Ok(self),
        }
    }

    /// Finalizes the descriptor.
    ///
    /// # Errors
    /// If cuDNN refuses it as a whole.
    pub fn finish(self, what: &str) -> Result<Arc<Desc>> {
        // SAFETY: a descriptor of this draft.
        check(unsafe { sys::cudnnBackendFinalize(self.0.raw) }, || format!("finish {what}"))?;
        Ok(Arc::new(self.0))
    }
}

impl Desc {
    /// cuDNN's handle.
    pub fn raw(&self) -> sys::cudnnBackendDescriptor_t {
        self.raw
    }

    /// A numeric attribute.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn number(&self, name: Name) -> Result<i64> {
        let (mut value, mut count) = (0i64, 0i64);
        // SAFETY: the library writes one number.
        let status = unsafe {
            sys::cudnnBackendGetAttribute(
                self.raw,
                name,
                Kind::CUDNN_TYPE_INT64,
                1,
                &mut count,
                (&raw mut value).cast(),
            )
        };
        check(status, || format!("get {name:?}"))?;
        Ok(value)
    }

    /// A text attribute.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn text(&self, name: Name) -> Result<String> {
        let get = |capacity: usize, into: *mut c_void| -> Result<usize> {
            let mut count = 0i64;
            // SAFETY: the library writes at most `capacity` characters, for which there is room.
            let status = unsafe {
                let kind = Kind::CUDNN_TYPE_CHAR;
                sys::cudnnBackendGetAttribute(self.raw, name, kind, capacity as i64, &mut count, into)
            };
            check(status, || format!("get {name:?}"))?;
            Ok(count as usize)
        };
        let mut text = vec![0u8; get(0, std::ptr::null_mut())?];
        let count = get(text.len(), text.as_mut_ptr().cast())?;
        text.truncate(count);
        Ok(String::from_utf8_lossy(&text).trim_end_matches('\0').to_string())
    }

    /// Descriptors that it has created, such as the heuristics' choices.
    ///
    /// # Errors
    /// If there are none of this name.
    pub fn children(&self, name: Name, kind: Type) -> Result<Vec<Arc<Desc>>> {
        let get = |capacity: i64, into: *mut c_void| -> Result<i64> {
            let mut count = 0i64;
            // SAFETY: the library fills at most `capacity` descriptors created for it.
            let status = unsafe {
                let descriptors = Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR;
                sys::cudnnBackendGetAttribute(self.raw, name, descriptors, capacity, &mut count, into)
            };
            check(status, || format!("get {name:?}"))?;
            Ok(count)
        };
        let count = get(0, std::ptr::null_mut())?;
        let drafts = (0..count).map(|_| Draft::new(kind)).collect::<Result<Vec<_>>>()?;
        let mut raw: Vec<_> = drafts.iter().map(|draft| draft.0.raw).collect();
        let found = get(count, raw.as_mut_ptr().cast())?;
        Ok(drafts.into_iter().take(found as usize).map(|draft| Arc::new(draft.0)).collect())
    }
}
