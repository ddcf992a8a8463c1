//! cuDNN on a device: a handle, and the plans of cases seen so far.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::call::Call;
use super::case::Case;
use super::desc::{Draft, check};
use super::plan::{Plan, Target};
use crate::Result;
use crate::calls::dnn::{
    self as sys, cudnnBackendAttributeName_t as Name, cudnnBackendDescriptorType_t as Type, cudnnHandle_t,
};
use crate::driver::Stream;

/// A library that computes attention on a stream.
///
/// # Safety
/// Reads and writes only what the case and the addresses describe, and the workspace.
pub unsafe trait Attend: Send + Sync {
    /// True if there is a plan for a case within this much scratch. The first query of a case takes a second.
    fn takes(&self, case: &Case, backward: bool, workspace_bytes: u64) -> bool;
    /// Issues a case for which [`Attend::takes`] is true.
    /// # Safety
    /// The tensors fit the case, and live until the stream has executed the call.
    unsafe fn attend(&self, case: &Case, backward: bool, call: &Call<'_>, stream: Stream) -> Result<()>;
}

/// Result of planning a case in one direction.
struct PlanEntry {
    /// The plan, or the reason that there is none.
    plan: std::result::Result<Arc<Plan>, String>,
    /// True if a refusal has been reported.
    said: bool,
}

/// Plans by case and direction.
type Plans = BTreeMap<(Case, bool), PlanEntry>;

/// cuDNN.
pub struct Cudnn {
    handle: usize,
    /// cuDNN's version number: 91 900 for 9.19.0.
    version: usize,
    /// The chip's compute capability.
    chip: (u32, u32),
    plans: Mutex<Plans>,
}

/// The reason that a case is not even tried, for a version of the library and a chip. The rules are those of cuDNN's
/// own frontend (`scaled_dot_product_flash_attention.h`): the library accepts some of these cases and computes wrong
/// results.
fn known_to_fail(case: &Case, backward: bool, version: usize, chip: (u32, u32)) -> Option<&'static str> {
    let hopper_on = matches!(chip.0, 9..=11);
    if case.packed && !hopper_on && (backward || version < 91_801) {
        return Some(
            "packed sequences are for Hopper and later data centre chips, forward ones from cuDNN 9.18.1 on for others",
        );
    }
    if backward && case.packed && case.head_dim % 16 != 0 {
        return Some("gradients of packed sequences want head sizes that are multiples of 16");
    }
    if backward && !case.packed && case.k_tokens % 128 != 0 && version <= 91_500 {
        return Some(
            "gradients for keys that are no multiple of 128 are wrong until cuDNN 9.15.0, 9.16 is needed",
        );
    }
    if case.window && case.q_tokens > case.k_tokens {
        return Some("windows want at least as many keys as queries");
    }
    if case.window && !case.causal && case.k_tokens > 1024 && version == 91_400 {
        return Some(
            "cuDNN 9.14.0 is wrong about windows of more than 1024 keys that are not causal, 9.14.1 is not",
        );
    }
    let single = case.q_tokens == 1 && case.k_tokens == 1;
    (backward && single).then_some("one token is too few")
}

impl Cudnn {
    /// Creates a handle on the device that is current on this thread, of this compute capability.
    ///
    /// # Errors
    /// If the library does not start.
    pub fn new(chip: (u32, u32)) -> Result<Cudnn> {
        let mut handle: cudnnHandle_t = std::ptr::null_mut();
        // SAFETY: the library writes a handle.
        check(unsafe { sys::cudnnCreate(&mut handle) }, || "create a handle".into())?;
        // SAFETY: the function takes no arguments and returns a number.
        let version = unsafe { sys::cudnnGetVersion() };
        Ok(Cudnn { handle: handle.expose_provenance(), version, chip, plans: Mutex::default() })
    }

    /// The library's description of the device, as [`super::Target::described`] accepts it.
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

    fn make(&self, case: &Case, backward: bool) -> PlanEntry {
        let make = || {
            let graph = if backward { case.backward() } else { case.forward() };
            graph.and_then(|graph| Plan::new(graph, &Target::Handle(self.handle())))
        };
        let plan = match known_to_fail(case, backward, self.version, self.chip) {
            Some(why) => Err(why.to_string()),
            None => make().map(Arc::new).map_err(|error| error.to_string()),
        };
        PlanEntry { plan, said: false }
    }

    fn plans(&self) -> MutexGuard<'_, Plans> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: the tensors of a plan are those of its case; the engine uses no more scratch than was promised.
unsafe impl Attend for Cudnn {
    fn takes(&self, case: &Case, backward: bool, workspace_bytes: u64) -> bool {
        let mut plans = self.plans();
        let entry = plans.entry((*case, backward)).or_insert_with(|| self.make(case, backward));
        let why = match &entry.plan {
            Ok(plan) if plan.workspace_bytes <= workspace_bytes => return true,
            Ok(plan) => {
                format!("{} bytes of scratch wanted, {workspace_bytes} offered", plan.workspace_bytes)
            }
            Err(why) => why.clone(),
        };
        if !entry.said {
            entry.said = true;
            log::warn!("cuDNN does not take the {}; kernels of our own do: {why}", case.said(backward));
        }
        false
    }

    unsafe fn attend(&self, case: &Case, backward: bool, call: &Call<'_>, stream: Stream) -> Result<()> {
        // One plan at a time, as the stream is set on the handle.
        let plans = self.plans();
        let Some(Ok(plan)) = plans.get(&(*case, backward)).map(|entry| &entry.plan) else {
            return Err(crate::Error::Dnn {
                call: "attend".into(),
                status: "none".into(),
                message: format!("no plan for the {}", case.said(backward)),
            });
        };
        let queue: *mut std::ffi::c_void = std::ptr::with_exposed_provenance_mut(stream.0 as usize);
        // SAFETY: a handle and a stream that live; the tensors are the caller's promise.
        unsafe {
            check(sys::cudnnSetStream(self.handle(), queue.cast()), || "set the stream".into())?;
            plan.run(self.handle(), call)
        }
    }
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        // Plans are dropped before their handle.
        self.plans.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        // SAFETY: the handle is from `new`, and is not used again.
        unsafe { sys::cudnnDestroy(self.handle()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_old_versions_get_wrong_is_for_kernels() {
        let of_head = |tokens, packed, head_dim| Case { packed, ..Case::causal([8, 2], tokens, head_dim) };
        let case = |tokens, packed| of_head(tokens, packed, 64);
        let left = |q_tokens, k_tokens, packed| Case {
            q_tokens,
            k_tokens,
            causal: false,
            window: true,
            ..case(1024, packed)
        };
        for (case, backward, version, chip, taken) in [
            (case(1000, false), true, 91_500, 90, false),
            (case(1000, false), true, 91_501, 90, true),
            (case(1000, false), false, 91_100, 90, true),
            (case(1024, false), true, 91_100, 90, true),
            (case(1000, true), true, 91_100, 90, true),
            (case(1, false), true, 92_600, 90, false),
            (of_head(1000, true, 72), true, 92_600, 90, false),
            (of_head(1000, true, 72), false, 92_600, 90, true),
            (of_head(1024, false, 72), true, 92_600, 90, true),
            (case(1000, true), true, 92_600, 80, false),
            (case(1000, true), false, 91_801, 89, true),
            (case(1000, true), false, 91_800, 80, false),
            (case(1024, false), true, 91_800, 80, true),
            (case(1000, true), true, 92_600, 120, false),
            (case(1000, true), true, 92_600, 100, true),
            (left(1024, 2048, false), false, 91_400, 90, false),
            (left(1024, 2048, true), true, 91_400, 90, false),
            (left(1024, 2048, false), false, 91_401, 90, true),
            (left(1024, 1024, true), true, 91_400, 90, true),
            (Case { causal: true, ..left(2048, 2048, true) }, true, 91_400, 90, true),
            (left(2048, 1024, true), false, 92_600, 90, false),
        ] {
            let found = known_to_fail(&case, backward, version, (chip / 10, chip % 10));
            assert_eq!(found.is_none(), taken, "{} with {version} on {chip}", case.said(backward));
        }
    }
}
