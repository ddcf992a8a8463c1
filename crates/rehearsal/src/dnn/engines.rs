//! Engines, their configurations and plans; and attributes of finalized descriptors that were not set by the caller.

use std::sync::Arc;

use cudarc::cudnn::sys::cudnnBackendAttributeName_t::{self as Name, *};
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t::*;
use cudarc::cudnn::sys::cudnnBackendHeurMode_t as Heuristic;
use cudarc::cudnn::sys::cudnnStatus_t::*;

use super::descriptors::{Made, Registry, Value};
use super::plan::Plan;
use super::refusal::{Outcome, refuse, require};
use super::set::{Set, graph_of};
use crate::device::settings;

/// Number of engines for a graph; all do the same.
const ENGINES: i64 = 3;

/// Finalizes descriptors, from heuristics to plans.
///
/// # Errors
/// If something is missing or does not fit.
pub fn finalize(set: &Set, registry: &Registry) -> Outcome<Made> {
    match set.kind {
        CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR => {
            let graph = graph_of(set.need_part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)?)?;
            let mode = set.need_ints(CUDNN_ATTR_ENGINEHEUR_MODE)?[0];
            no_target(set, CUDNN_ATTR_ENGINEHEUR_SM_COUNT_TARGET)?;
            let described = set.parts(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
            is_device(described)?;
            require(graph.handle != 0 || described.is_some(), CUDNN_STATUS_BAD_PARAM, || {
                "neither the graph has a handle nor the heuristics a device".to_string()
            })?;
            let count = match mode {
                m if m == Heuristic::CUDNN_HEUR_MODE_FALLBACK as i64 => 1,
                m if (0..Heuristic::CUDNN_HEUR_MODES_COUNT as i64).contains(&m) => 2,
                m => return refuse(CUDNN_STATUS_BAD_PARAM, format!("{m} is no mode of heuristics")),
            };
            Ok(Made::Heuristics(graph, count))
        }
        CUDNN_BACKEND_ENGINE_DESCRIPTOR => {
            let graph = graph_of(set.need_part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH)?)?;
            let index = set.need_ints(CUDNN_ATTR_ENGINE_GLOBAL_INDEX)?[0];
            no_target(set, CUDNN_ATTR_ENGINE_SM_COUNT_TARGET)?;
            require((0..ENGINES).contains(&index), CUDNN_STATUS_BAD_PARAM, || {
                format!("engine {index} of {ENGINES}")
            })?;
            Ok(Made::Engine(graph, index))
        }
        CUDNN_BACKEND_ENGINECFG_DESCRIPTOR => match set.need_part(CUDNN_ATTR_ENGINECFG_ENGINE)? {
            Made::Engine(graph, index) => Ok(Made::Config(graph.clone(), *index)),
            _ => refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "ENGINECFG_ENGINE is no engine"),
        },
        CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR => device(set, registry),
        _ => {
            is_device(set.parts(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP))?;
            let Made::Config(graph, _) = set.need_part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)? else {
                let why = "EXECUTION_PLAN_ENGINE_CONFIG is something else";
                return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, why);
            };
            if let Some(handle) = set.addresses(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) {
                let why = || "the plan's handle is none, or not its graph's".to_string();
                let same = handle[0] == graph.handle && registry.handles.contains_key(&handle[0]);
                require(same, CUDNN_STATUS_BAD_PARAM, why)?;
            }
            super::support::check(graph)?;
            Ok(Made::Plan(Arc::new(Plan { graph: graph.clone() })))
        }
    }
}

/// Description of the device, in the rehearsal's own format.
const DEVICE: &[u8] = br#"{"rehearsal":"NVIDIA H200","major":9,"minor":0,"multiprocessors":132}"#;

fn is_device(parts: Option<&[Made]>) -> Outcome {
    let fits = parts.is_none_or(|parts| matches!(parts[0], Made::Device));
    require(fits, CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, || "DEVICEPROP is no device".to_string())
}

fn device(set: &Set, registry: &Registry) -> Outcome<Made> {
    let why = || "the device's handle is none".to_string();
    let handle = set.addresses(CUDNN_ATTR_DEVICEPROP_HANDLE);
    let there = handle.is_none_or(|all| registry.handles.contains_key(&all[0]));
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
    Ok(Made::Device)
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
pub fn answer(made: &Made, name: Name) -> Outcome<Option<Value>> {
    let value = match (made, name) {
        (Made::Device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION) => {
            Value::Ints(DEVICE.iter().copied().map(i64::from).collect())
        }
        (Made::Graph(_), CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT) => Value::Ints(vec![ENGINES]),
        (Made::Heuristics(graph, count), CUDNN_ATTR_ENGINEHEUR_RESULTS) => {
            Value::Parts((0..*count).map(|index| Made::Config(graph.clone(), index)).collect())
        }
        (Made::Engine(..), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE | CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE) => {
            Value::Ints(Vec::new())
        }
        (Made::Engine(_, index), CUDNN_ATTR_ENGINE_GLOBAL_INDEX) => Value::Ints(vec![*index]),
        (Made::Config(graph, index), CUDNN_ATTR_ENGINECFG_ENGINE) => {
            Value::Parts(vec![Made::Engine(graph.clone(), *index)])
        }
        (Made::Config(graph, _), CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE) => Value::Ints(vec![graph.workspace()]),
        (Made::Plan(plan), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) => {
            Value::Ints(vec![plan.graph.workspace()])
        }
        _ => return Ok(None),
    };
    Ok(Some(value))
}
