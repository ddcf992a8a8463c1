//! cuDNN on a device: a handle, and the plans of the cases that came so far.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendDescriptorType_t as Type, cudnnHandle_t,
};

use super::case::Case;
use super::desc::{Draft, check};
use super::plan::{Plan, Target};
use crate::Result;
use crate::driver::Stream;

/// What a call of attention is given beside its case.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Every tensor in memory, by number.
    pub tensors: &'a [(i64, u64)],
    /// Scratch for the engine.
    pub workspace: u64,
    /// Its bytes.
    pub workspace_bytes: u64,
    /// Multiplies the scores.
    pub scale: f32,
}

/// Something that attends on a stream.
///
/// # Safety
/// It reads and writes what the case and the addresses say, and the workspace.
pub unsafe trait Attend: Send + Sync {
    /// Whether there is a plan for a case that needs no more scratch than this. The first question of a case takes a second.
    fn takes(&self, case: &Case, backward: bool, workspace_bytes: u64) -> bool;
    /// Issues a case that [`Attend::takes`].
    ///
    /// # Errors
    /// If the library fails.
    ///
    /// # Safety
    /// The tensors are those of the case, and live until the stream has passed.
    unsafe fn attend(&self, case: &Case, backward: bool, call: &Call<'_>, stream: Stream) -> Result<()>;
}

/// By case and direction; none where no engine takes it.
type Plans = BTreeMap<(Case, bool), Option<Arc<Plan>>>;

/// cuDNN.
pub struct Cudnn {
    handle: usize,
    plans: Mutex<Plans>,
}

impl Cudnn {
    /// A handle on the device that is current on this thread.
    ///
    /// # Errors
    /// If the library does not start.
    pub fn new() -> Result<Cudnn> {
        let mut handle: cudnnHandle_t = std::ptr::null_mut();
        // SAFETY: the library writes a handle.
        check(unsafe { sys::cudnnCreate(&mut handle) }, || "create a handle".into())?;
        Ok(Cudnn { handle: handle.expose_provenance(), plans: Mutex::default() })
    }

    /// The device in the library's words, as [`super::Target::described`] takes them.
    ///
    /// # Errors
    /// If the library has none.
    pub fn description(&self) -> Result<String> {
        Draft::new(Type::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_DEVICEPROP_HANDLE, &[self.handle()])?
            .finish("the device")?
            .text(Name::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION)
    }

    fn handle(&self) -> cudnnHandle_t {
        std::ptr::with_exposed_provenance_mut(self.handle)
    }

    fn plan(&self, case: &Case, backward: bool) -> Option<Arc<Plan>> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let graph = if backward { case.backward() } else { case.forward() };
            let plan = graph.and_then(|graph| Plan::new(graph, &Target::Handle(self.handle())));
            plan.ok().map(Arc::new)
        };
        plans.entry((*case, backward)).or_insert_with(make).clone()
    }
}

// SAFETY: the tensors of a plan are those of its case; the engine has no more scratch than was asked about.
unsafe impl Attend for Cudnn {
    fn takes(&self, case: &Case, backward: bool, workspace_bytes: u64) -> bool {
        self.plan(case, backward).is_some_and(|plan| plan.workspace_bytes <= workspace_bytes)
    }

    unsafe fn attend(&self, case: &Case, backward: bool, call: &Call<'_>, stream: Stream) -> Result<()> {
        let Some(plan) = self.plan(case, backward) else {
            return Err(crate::Error::Dnn {
                call: "attend".into(),
                status: "none".into(),
                message: format!("no plan for {case:?}"),
            });
        };
        let queue: *mut std::ffi::c_void = std::ptr::with_exposed_provenance_mut(stream.0 as usize);
        // One plan at a time: the stream is the handle's.
        let _one = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: a handle and a stream that live; the tensors are the caller's promise.
        unsafe {
            check(sys::cudnnSetStream(self.handle(), queue.cast()), || "set the stream".into())?;
            plan.run(self.handle(), call.tensors, call.workspace, call.scale)
        }
    }
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        // Plans go before their handle.
        self.plans.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        // SAFETY: the handle is of `new`, and is not used again.
        unsafe { sys::cudnnDestroy(self.handle()) };
    }
}
