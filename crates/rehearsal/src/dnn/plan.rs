//! Plans, and the data that they are executed with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cudarc::cudnn::sys::cudnnBackendAttributeName_t::*;
use cudarc::cudnn::sys::cudnnStatus_t::*;
use cudarc::driver::sys::CUresult;

use super::compute::{self, Value};
use super::graph::Graph;
use super::memory::{View, integers, round, scalar};
use super::operations::{Operation, Step};
use super::refusal::{Outcome, refuse, require};
use super::set::Set;
use super::tensor::Tensor;
use crate::device::{Work, check_memory, state, submit};

/// A graph with a chosen engine.
pub struct Plan {
    /// The graph.
    pub graph: Arc<Graph>,
}

/// Addresses of the tensors.
pub struct Pack {
    /// Addresses by uid.
    pub pointers: BTreeMap<i64, u64>,
    /// Address of the workspace; null if none was given.
    pub workspace: u64,
}

impl Pack {
    /// Creates a pack from its attributes.
    ///
    /// # Errors
    /// If the numbers of pointers and uids differ, or a uid occurs twice.
    pub fn new(set: &Set) -> Outcome<Pack> {
        let uids = set.need_ints(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)?;
        let pointers = set.addresses(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).unwrap_or_default();
        require(uids.len() == pointers.len(), CUDNN_STATUS_BAD_PARAM, || {
            format!("{} uids and {} pointers", uids.len(), pointers.len())
        })?;
        let all: BTreeMap<i64, u64> = uids.iter().copied().zip(pointers.iter().copied()).collect();
        let why = || "a uid twice".to_string();
        require(all.len() == uids.len(), CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, why)?;
        let workspace = set.addresses(CUDNN_ATTR_VARIANT_PACK_WORKSPACE).map_or(0, |all| all[0]);
        Ok(Pack { pointers: all, workspace })
    }
}

#[derive(Clone, Copy)]
enum TensorData {
    Device(u64),
    Scalar(f32),
}

impl Plan {
    /// Submits the graph's work to a stream.
    ///
    /// # Errors
    /// If a pointer is missing, misaligned, or refers to inaccessible memory.
    pub fn execute(&self, pack: &Pack, stream: u64) -> Outcome {
        let work = self.work(pack)?;
        let Err(error) = submit(stream, "cudnnBackendExecute", work) else { return Ok(()) };
        let status = match error {
            CUresult::CUDA_ERROR_INVALID_HANDLE => CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH,
            _ => CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER,
        };
        refuse(status, format!("the stream answers {error:?}"))
    }

    /// The graph's work, with all data that it needs from the pack.
    ///
    /// # Errors
    /// See [`Plan::execute`].
    pub fn work(&self, pack: &Pack) -> Outcome<Work> {
        let bound = self.bind(pack)?;
        self.check_workspace(pack)?;
        let graph = self.graph.clone();
        Ok(Arc::new(move || run(&graph, &bound)))
    }

    fn bind(&self, pack: &Pack) -> Outcome<BTreeMap<i64, TensorData>> {
        let tensors = &self.graph.tensors;
        if let Some(uid) = pack.pointers.keys().find(|uid| tensors.get(uid).is_none_or(|t| t.is_virtual)) {
            return refuse(CUDNN_STATUS_BAD_PARAM, format!("the graph has no tensor {uid} with memory"));
        }
        let mut bound = BTreeMap::new();
        for (uid, tensor) in tensors.iter().filter(|(_, tensor)| !tensor.is_virtual) {
            let Some(address) = pack.pointers.get(uid).copied() else {
                return refuse(CUDNN_STATUS_BAD_PARAM, format!("tensor {uid} has no pointer"));
            };
            require(address != 0, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, || {
                format!("tensor {uid} is at null")
            })?;
            let bytes = tensor.element.bytes() as u64;
            if tensor.by_value {
                let now = state();
                let pinned = now.pinned.range(..=address).next_back();
                let pinned = pinned.is_some_and(|(at, has)| address < at + has);
                let device = !pinned && now.check(address, bytes).is_ok();
                require(!device, CUDNN_STATUS_BAD_PARAM, || {
                    format!("tensor {uid} is by value, and its pointer one of a device")
                })?;
                // SAFETY: the caller's promise: an element in host memory.
                bound.insert(*uid, TensorData::Scalar(unsafe { scalar(tensor.element, address) }));
                continue;
            }
            require(
                address % tensor.alignment as u64 == 0,
                CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
                || format!("tensor {uid} at {address:#x} is not aligned to {}", tensor.alignment),
            )?;
            // The locations of a ragged tensor's sequences are unknown before the work runs.
            let reach = if tensor.ragged.is_some() { 1 } else { tensor.reach(&tensor.dims) };
            if let Err(why) = check_memory(address, reach as u64 * bytes) {
                return refuse(CUDNN_STATUS_BAD_PARAM, format!("tensor {uid}: {why}"));
            }
            bound.insert(*uid, TensorData::Device(address));
        }
        self.check_outputs(&bound)?;
        Ok(bound)
    }

    /// Checks that outputs do not coincide with other tensors. Adjacent tensors may interleave, so only first elements
    /// are compared.
    fn check_outputs(&self, bound: &BTreeMap<i64, TensorData>) -> Outcome {
        let mut places: BTreeMap<u64, i64> = BTreeMap::new();
        for (uid, place) in bound {
            let TensorData::Device(address) = place else { continue };
            let Some(other) = places.insert(*address, *uid) else { continue };
            let made = [uid, &other].iter().any(|uid| self.graph.outputs.contains(uid));
            require(!made, CUDNN_STATUS_NOT_SUPPORTED, || {
                format!("tensors {uid} and {other} are at one place, and one of them is an output")
            })?;
        }
        Ok(())
    }

    fn check_workspace(&self, pack: &Pack) -> Outcome {
        let bytes = self.graph.workspace() as u64;
        if bytes == 0 {
            return Ok(());
        }
        let at = pack.workspace;
        require(at != 0, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, || {
            format!("no workspace, and {bytes} bytes are needed")
        })?;
        if let Err(why) = check_memory(at, bytes) {
            return refuse(CUDNN_STATUS_BAD_PARAM, format!("the workspace: {why}"));
        }
        for (uid, tensor) in self.graph.tensors.iter().filter(|(_, tensor)| tensor.is_real()) {
            let reach = if tensor.ragged.is_some() { 1 } else { tensor.reach(&tensor.dims) };
            let start = pack.pointers.get(uid).copied().unwrap_or_default();
            let apart = start >= at + bytes || start + (reach * tensor.element.bytes()) as u64 <= at;
            require(apart, CUDNN_STATUS_BAD_PARAM, || format!("tensor {uid} lies in the workspace"))?;
        }
        Ok(())
    }
}

/// State of a running graph.
struct Run<'a> {
    graph: &'a Graph,
    bound: &'a BTreeMap<i64, TensorData>,
    /// Lengths by uid.
    integers: BTreeMap<i64, Vec<i64>>,
    /// Offsets of ragged tensors by uid.
    offsets: BTreeMap<i64, Vec<i64>>,
    /// Virtual tensors that are still needed.
    values: BTreeMap<i64, Vec<f32>>,
}

fn run(graph: &Graph, bound: &BTreeMap<i64, TensorData>) -> Result<(), String> {
    let mut run =
        Run { graph, bound, integers: BTreeMap::new(), offsets: BTreeMap::new(), values: BTreeMap::new() };
    run.read_integers()?;
    for (index, operation) in graph.operations.iter().enumerate() {
        let mut made = run.compute(operation)?;
        let output = &operation.output;
        round(output.element, &mut made);
        if output.is_virtual {
            run.values.insert(output.uid, made);
        } else {
            run.view(output)?.write(&made)?;
        }
        let rest = &graph.operations[index + 1..];
        let needed: BTreeSet<i64> =
            rest.iter().flat_map(|later| &later.inputs).map(|input| input.uid).collect();
        run.values.retain(|uid, _| needed.contains(uid));
    }
    Ok(())
}

impl Run<'_> {
    fn address(&self, tensor: &Tensor) -> Result<u64, String> {
        match self.bound.get(&tensor.uid) {
            Some(TensorData::Device(address)) => Ok(*address),
            _ => Err(format!("tensor {} has no memory", tensor.uid)),
        }
    }

    /// Reads lengths, which must not exceed their dimensions, and offsets.
    fn read_integers(&mut self) -> Result<(), String> {
        for tensor in self.graph.tensors.values() {
            if let Some(offsets) = &tensor.ragged {
                let factor = self.graph.factors.get(&tensor.uid).copied().unwrap_or(1);
                let mut all = integers(offsets, self.address(offsets)?)?;
                all.iter_mut().for_each(|offset| *offset *= factor);
                self.offsets.insert(tensor.uid, all);
            }
        }
        for operation in &self.graph.operations {
            let rank = operation.output.dims.len();
            for (part, length) in operation.lengths.iter().enumerate() {
                let Some(length) = length else { continue };
                let whole = match part {
                    0 => operation.output.dims[rank - 2],
                    1 => operation.output.dims[rank - 1],
                    _ => operation.inputs[0].dims[rank - 1],
                };
                let all = integers(length, self.address(length)?)?;
                if let Some(wrong) = all.iter().find(|length| !(0..=whole).contains(*length)) {
                    return Err(format!("tensor {}: a length of {wrong}, of {whole}", length.uid));
                }
                self.integers.insert(length.uid, all);
            }
            self.check_terms(operation)?;
        }
        Ok(())
    }

    /// Refuses products with rows but without terms: sequences without queries or without keys, but not without both,
    /// require cuDNN 9.25. Earlier versions return NaN.
    fn check_terms(&self, operation: &Operation) -> Result<(), String> {
        let of =
            |part: usize| operation.lengths[part].as_ref().and_then(|length| self.integers.get(&length.uid));
        let Some(terms) = of(2) else { return Ok(()) };
        let empty = |batch: usize| terms[batch] == 0 && of(0).is_none_or(|rows| rows[batch] > 0);
        match (0..terms.len()).find(|batch| empty(*batch)) {
            None => Ok(()),
            Some(batch) => {
                let uid = operation.output.uid;
                Err(format!(
                    "tensor {uid}: batch {batch} has rows of no terms, which cuDNN before 9.25 cannot"
                ))
            }
        }
    }

    fn view<'a>(&'a self, tensor: &'a Tensor) -> Result<View<'a>, String> {
        let of = |uid: &i64| self.integers.get(uid).map(Vec::as_slice);
        let limits = match self.graph.limits.get(&tensor.uid) {
            Some(limits) => limits.iter().map(|uid| uid.as_ref().and_then(of)).collect(),
            None => vec![None; tensor.dims.len()],
        };
        let offsets = self.offsets.get(&tensor.uid).map(Vec::as_slice);
        Ok(View { tensor, address: self.address(tensor)?, offsets, limits })
    }

    fn compute(&self, operation: &Operation) -> Result<Vec<f32>, String> {
        let mut read = Vec::new();
        for input in &operation.inputs {
            read.push(match (self.bound.get(&input.uid), self.values.get(&input.uid)) {
                (Some(TensorData::Scalar(value)), _) => Some(vec![*value]),
                (None, Some(_)) => None,
                _ => Some(self.view(input)?.read()?),
            });
        }
        let values: Vec<Value> = operation
            .inputs
            .iter()
            .zip(&read)
            .map(|(tensor, read)| Value {
                tensor,
                data: read.as_ref().unwrap_or_else(|| &self.values[&tensor.uid]),
            })
            .collect();
        let lengths = operation.lengths.each_ref().map(|length| {
            length.as_ref().and_then(|length| self.integers.get(&length.uid)).map(Vec::as_slice)
        });
        Ok(match &operation.step {
            Step::Pointwise(what, scales) => compute::pointwise(what, *scales, &values, &operation.output),
            Step::Reduction(what) => compute::reduction(what, values[0], &operation.output),
            Step::Matmul(what) => compute::matmul(operation, values[0], values[1], lengths, what.padding),
            Step::Reshape => compute::reshape(values[0], &operation.output),
        })
    }
}
