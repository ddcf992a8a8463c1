//! Turns a graph into an executable plan: queries engines, takes the first that accepts the graph, and finds its
//! scratch.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use super::call::Call;
use super::desc::{Desc, Draft, check};
use super::graph::{Graph, Scalar};
use crate::calls::dnn::{
    self as sys, cudnnBackendAttributeName_t as Name, cudnnBackendDescriptorType_t as Type,
    cudnnBackendHeurMode_t as Heuristics, cudnnHandle_t,
};
use crate::{Error, Result};

/// Device that plans are made for.
#[derive(Clone)]
pub enum Target {
    /// The device of a handle.
    Handle(cudnnHandle_t),
    /// A described device: nothing can run, but no device is needed.
    Described(Arc<Desc>),
}

impl Target {
    /// A device described in cuDNN's JSON.
    ///
    /// # Errors
    /// If cuDNN does not understand it.
    pub fn described(json: &str) -> Result<Target> {
        let desc = Draft::new(Type::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json.as_bytes())?
            .finish("the device's description")?;
        Ok(Target::Described(desc))
    }
}

/// A graph with the engine that runs it.
pub struct Plan {
    desc: Arc<Desc>,
    scalars: Vec<(i64, Scalar)>,
    /// Bytes of the engine's own scratch.
    pub workspace_bytes: u64,
    /// Number of engines tried.
    pub tried: usize,
}

impl Plan {
    /// Makes a plan with the first engine that accepts the graph.
    ///
    /// # Errors
    /// If none does, with the last refusal.
    pub fn new(graph: Graph, target: &Target) -> Result<Plan> {
        let ops: Vec<&Arc<Desc>> = graph.ops.iter().collect();
        let draft = Draft::new(Type::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
            .refer(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &ops)?;
        let desc = match target {
            Target::Handle(handle) => draft.set(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, &[*handle])?,
            Target::Described(_) => draft,
        }
        .finish("the graph")?;
        let (mut tried, mut last) = (0, None);
        for mode in [Heuristics::CUDNN_HEUR_MODE_A, Heuristics::CUDNN_HEUR_MODE_FALLBACK] {
            let engines = match Plan::engines(&desc, mode, target) {
                Ok(engines) => engines,
                Err(error) => {
                    last = Some(error);
                    continue;
                }
            };
            for engine in engines {
                tried += 1;
                match Plan::of(&engine, target) {
                    Ok(desc) => {
                        let bytes = desc.number(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
                        return Ok(Plan {
                            desc,
                            scalars: graph.scalars,
                            workspace_bytes: bytes as u64,
                            tried,
                        });
                    }
                    Err(error) => last = Some(error),
                }
            }
        }
        Err(last.unwrap_or_else(|| Error::Dnn {
            call: "engines of a graph".into(),
            status: "none".into(),
            message: "no engine was offered".into(),
        }))
    }

    fn engines(graph: &Arc<Desc>, mode: Heuristics, target: &Target) -> Result<Vec<Arc<Desc>>> {
        let draft = Draft::new(Type::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
            .refer(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[graph])?
            .set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, &[mode])?;
        let asked = match target {
            Target::Handle(_) => draft,
            Target::Described(device) => draft.refer(Name::CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, &[device])?,
        }
        .finish("the heuristics")?;
        asked.children(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, Type::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
    }

    fn of(engine: &Arc<Desc>, target: &Target) -> Result<Arc<Desc>> {
        let draft = Draft::new(Type::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?
            .refer(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[engine])?;
        match target {
            Target::Handle(handle) => draft.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, &[*handle])?,
            Target::Described(_) => draft,
        }
        .finish("a plan")
    }

    /// Issues the plan on the handle's stream.
    ///
    /// # Errors
    /// If cuDNN refuses the pointers.
    ///
    /// # Safety
    /// The call names every tensor in memory of the graph, at an address with as many bytes as it describes; the
    /// workspace is as large as the plan requires; all memory lives until the stream has executed the plan.
    pub unsafe fn run(&self, handle: cudnnHandle_t, call: &Call<'_>) -> Result<()> {
        let values: Vec<f32> = self
            .scalars
            .iter()
            .map(|(_, scalar)| match scalar {
                Scalar::Scale => call.scale,
                Scalar::Window => call.window as f32,
                Scalar::Fixed(value) => *value,
            })
            .collect();
        let pointer =
            |address: u64| -> *mut c_void { std::ptr::with_exposed_provenance_mut(address as usize) };
        let own = self.scalars.iter().zip(&values).map(|((number, _), value)| {
            let start: *const f32 = value;
            (*number, start.cast_mut().cast::<c_void>())
        });
        let all = call.tensors.iter().map(|(number, address)| (*number, pointer(*address))).chain(own);
        let (numbers, pointers): (Vec<i64>, Vec<*mut c_void>) = all.unzip();
        let pack = Draft::new(Type::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &numbers)?
            .set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &pointers)?
            .set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[pointer(call.workspace)])?
            .finish("the operands")?;
        // SAFETY: the caller's promise; scalars are read before the call returns.
        check(unsafe { sys::cudnnBackendExecute(handle, self.desc.raw(), pack.raw()) }, || "execute".into())
    }
}
