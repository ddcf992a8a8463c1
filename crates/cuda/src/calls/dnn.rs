//! cuDNN's calls.

use std::ffi::{c_char, c_void};

pub use cudarc::cudnn::sys::*;

super::calls! { Cudnn:
    fn cudnnBackendCreateDescriptor(
        descriptor_type: cudnnBackendDescriptorType_t, descriptor: *mut cudnnBackendDescriptor_t
    ) -> cudnnStatus_t;
    fn cudnnBackendDestroyDescriptor(descriptor: cudnnBackendDescriptor_t) -> cudnnStatus_t;
    fn cudnnBackendExecute(
        handle: cudnnHandle_t, execution_plan: cudnnBackendDescriptor_t, variant_pack: cudnnBackendDescriptor_t
    ) -> cudnnStatus_t;
    fn cudnnBackendFinalize(descriptor: cudnnBackendDescriptor_t) -> cudnnStatus_t;
    fn cudnnBackendGetAttribute(
        descriptor: cudnnBackendDescriptor_t, attribute_name: cudnnBackendAttributeName_t,
        attribute_type: cudnnBackendAttributeType_t, requested_element_count: i64, element_count: *mut i64,
        array_of_elements: *mut c_void
    ) -> cudnnStatus_t;
    fn cudnnBackendSetAttribute(
        descriptor: cudnnBackendDescriptor_t, attribute_name: cudnnBackendAttributeName_t,
        attribute_type: cudnnBackendAttributeType_t, element_count: i64, array_of_elements: *const c_void
    ) -> cudnnStatus_t;
    fn cudnnCreate(handle: *mut cudnnHandle_t) -> cudnnStatus_t;
    fn cudnnDestroy(handle: cudnnHandle_t) -> cudnnStatus_t;
    fn cudnnGetLastErrorString(message: *mut c_char, max_size: usize) -> ();
    fn cudnnGetVersion() -> usize;
    fn cudnnSetStream(handle: cudnnHandle_t, stream_id: cudaStream_t) -> cudnnStatus_t;
}
