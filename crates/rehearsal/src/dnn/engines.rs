//! Engines, their configurations and plans; and attributes of finalized descriptors that were not set by the caller.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::cudnn::sys::cudnnBackendAttributeName_t::{self as Name, *};
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t::*;
use cudarc::cudnn::sys::cudnnBackendHeurMode_t as Heuristic;
use cudarc::cudnn::sys::cudnnStatus_t::*;

use super::graph::Graph;
use super::object::{Object, Value};
use super::plan::Plan;
use super::refusal::{Outcome, refuse, require};
use super::set::Set;
use super::support;
use crate::device::settings;

/// Number of engines for a graph; all do the same.
const ENGINES: i64 = 3;

/// A graph for which engines are queried, and their number.
pub struct Heuristics(Arc<Graph>, i64);

/// A graph and an engine's number.
pub struct Engine(Arc<Graph>, i64);

/// An engine's configuration, without choices: engines have no knobs here.
pub struct Config(Arc<Graph>, i64);

/// A device, of which there is one kind.
struct DeviceProperties;

/// Finalizes descriptors, from heuristics to plans.
///
/// # Errors
/// If something is missing or does not fit.
pub fn finalize(set: &Set, handles: &BTreeMap<u64, u64>) -> Outcome<Object> {
    match set.kind {
        CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR => {
            let graph = set.need::<Graph>(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)?;
            let mode = set.need_ints(CUDNN_ATTR_ENGINEHEUR_MODE)?[0];
            no_target(set, CUDNN_ATTR_ENGINEHEUR_SM_COUNT_TARGET)?;
            let device = set.object::<DeviceProperties>(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP)?;
            require(graph.handle != 0 || device.is_some(), CUDNN_STATUS_BAD_PARAM, || {
                "neither the graph has a handle nor the heuristics a device".to_string()
            })?;
            let count = match mode {
                m if m == Heuristic::CUDNN_HEUR_MODE_FALLBACK as i64 => 1,
                m if (0..Heuristic::CUDNN_HEUR_MODES_COUNT as i64).contains(&m) => 2,
                m => return refuse(CUDNN_STATUS_BAD_PARAM, format!("{m} is no mode of heuristics")),
            };
            Ok(Object::new(Heuristics(graph, count)))
        }
        CUDNN_BACKEND_ENGINE_DESCRIPTOR => {
            let graph = set.need::<Graph>(CUDNN_ATTR_ENGINE_OPERATION_GRAPH)?;
            let index = set.need_ints(CUDNN_ATTR_ENGINE_GLOBAL_INDEX)?[0];
            no_target(set, CUDNN_ATTR_ENGINE_SM_COUNT_TARGET)?;
            require((0..ENGINES).contains(&index), CUDNN_STATUS_BAD_PARAM, || {
                format!("engine {index} of {ENGINES}")
            })?;
            Ok(Object::new(Engine(graph, index)))
        }
        CUDNN_BACKEND_ENGINECFG_DESCRIPTOR => {
            let engine = set.need::<Engine>(CUDNN_ATTR_ENGINECFG_ENGINE)?;
            Ok(Object::new(Config(engine.0.clone(), engine.1)))
        }
        CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR => device(set, handles),
        _ => {
            set.object::<DeviceProperties>(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP)?;
            let config = set.need::<Config>(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)?;
            let graph = config.0.clone();
            if let Some(handle) = set.addresses(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) {
                let why = || "the plan's handle is none, or not its graph's".to_string();
                let same = handle[0] == graph.handle && handles.contains_key(&handle[0]);
                require(same, CUDNN_STATUS_BAD_PARAM, why)?;
            }
            support::check(&graph)?;
            Ok(Object::new(Plan { graph }))
        }
    }
}

/// Description of the device, in the rehearsal's own format.
const DEVICE: &[u8] = br#"{"rehearsal":"NVIDIA H200","major":9,"minor":0,"multiprocessors":132}"#;

fn device(set: &Set, handles: &BTreeMap<u64, u64>) -> Outcome<Object> {
    let why = || "the device's handle is none".to_string();
    let handle = set.addresses(CUDNN_ATTR_DEVICEPROP_HANDLE);
    let there = handle.is_none_or(|all| handles.contains_key(&all[0]));
    require(there, CUDNN_STATUS_BAD_PARAM, why)?;
    let why = || "the rehearsal has no such device".to_string();
    let index = set.int(CUDNN_ATTR_DEVICEPROP_DEVICE_ID);
    let there = index.is_none_or(|index| (0..settings().devices as i64).contains(&index));
    require(there, CUDNN_STATUS_BAD_PARAM, why)?;
    let words = set.ints(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
    let own = words.is_none_or(|words| words.iter().copied().eq(DEVICE.iter().copied().map(i64::from)));
    require(own, CUDNN_STATUS_BAD_PARAM, why)?;
    require(handle.is_some() || index.is_some() || words.is_some(), CUDNN_STATUS_BAD_PARAM, || {
        "a device is of a handle, a number or words".to_string()
    })?;
    Ok(Object::new(DeviceProperties))
}

fn no_target(set: &Set, name: Name) -> Outcome {
    require(set.ints(name).is_none(), CUDNN_STATUS_NOT_SUPPORTED, || {
        format!("the rehearsal does not have {name:?}")
    })
}

/// The value of an attribute that the library provides; `None` for those that the caller sets.
///
/// # Errors
/// If the library provides the descriptor's attributes and this one cannot be queried.
pub fn answer(object: &Object, name: Name) -> Outcome<Option<Value>> {
    let value = match name {
        CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION => {
            Value::Ints(DEVICE.iter().copied().map(i64::from).collect())
        }
        CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT => Value::Ints(vec![ENGINES]),
        CUDNN_ATTR_ENGINEHEUR_RESULTS => {
            let heuristics = object.get::<Heuristics>()?;
            let config = |index| Object::new(Config(heuristics.0.clone(), index));
            Value::Parts((0..heuristics.1).map(config).collect())
        }
        CUDNN_ATTR_ENGINE_NUMERICAL_NOTE | CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE => Value::Ints(Vec::new()),
        CUDNN_ATTR_ENGINE_GLOBAL_INDEX => Value::Ints(vec![object.get::<Engine>()?.1]),
        CUDNN_ATTR_ENGINECFG_ENGINE => {
            let config = object.get::<Config>()?;
            Value::Parts(vec![Object::new(Engine(config.0.clone(), config.1))])
        }
        CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE => Value::Ints(vec![object.get::<Config>()?.0.workspace()]),
        CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE => {
            Value::Ints(vec![object.get::<Plan>()?.graph.workspace()])
        }
        _ => return Ok(None),
    };
    Ok(Some(value))
}
