//! Operation graphs: their tensors, the order of operations, and dimensions with per-batch lengths.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cudarc::cudnn::sys::cudnnBackendAttributeName_t::*;
use cudarc::cudnn::sys::cudnnStatus_t::*;

use super::operations::{Operation, Step, permutation};
use super::refusal::{Outcome, refuse, require};
use super::set::Set;
use super::tensor::{Element, Tensor};

/// An executable graph of operations.
pub struct Graph {
    /// The handle it was made for; zero for a described device.
    pub handle: u64,
    /// Operations in an order in which each finds its inputs computed.
    pub operations: Vec<Arc<Operation>>,
    /// All tensors by uid, including offsets and lengths.
    pub tensors: BTreeMap<i64, Arc<Tensor>>,
    /// Uids of tensors written by operations.
    pub outputs: BTreeSet<i64>,
    /// For each dimension of a tensor, the tensor of its lengths, one per batch.
    pub limits: BTreeMap<i64, Vec<Option<i64>>>,
    /// Multipliers of a ragged tensor's offsets, if not one.
    pub factors: BTreeMap<i64, i64>,
}

impl Graph {
    /// Creates a graph from its attributes.
    ///
    /// # Errors
    /// If it cannot be executed.
    pub fn new(set: &Set, handles: &BTreeMap<u64, u64>) -> Outcome<Graph> {
        let handle = set.addresses(CUDNN_ATTR_OPERATIONGRAPH_HANDLE).map_or(0, |all| all[0]);
        let why = || "the graph is made for what is no handle".to_string();
        let there = handle == 0 || handles.contains_key(&handle);
        require(there, CUDNN_STATUS_BAD_PARAM, why)?;
        let dynamic = set.int(CUDNN_ATTR_OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED) == Some(1);
        let why = || "the rehearsal has no dynamic shapes".to_string();
        require(!dynamic, CUDNN_STATUS_NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE, why)?;
        set.need::<Operation>(CUDNN_ATTR_OPERATIONGRAPH_OPS)?;
        let parts = set.parts(CUDNN_ATTR_OPERATIONGRAPH_OPS).unwrap_or_default();
        let listed = parts.iter().map(|part| part.get()).collect::<Outcome<Vec<Arc<Operation>>>>()?;
        let tensors = collect(&listed)?;
        let outputs = producers(&listed, &tensors)?;
        let operations = ordered(listed, &outputs)?;
        let limits = limits(&operations, &tensors)?;
        for (uid, tensor) in &tensors {
            let placed = tensor.ragged.is_none() || limits.get(uid).is_some_and(|all| any(all));
            require(placed, CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, || {
                format!("tensor {uid} is ragged, and no operation has the lengths of its sequences")
            })?;
        }
        let factors = factors(&operations, &limits)?;
        Ok(Graph { handle, operations, tensors, outputs, limits, factors })
    }

    /// Workspace in bytes: one word per head of an output, and all of a product that is summed over heads and has no
    /// memory of its own.
    pub fn workspace(&self) -> i64 {
        let outputs = self.outputs.iter().filter_map(|uid| self.tensors.get(uid));
        let heads = |tensor: &Tensor| tensor.dims[..2.min(tensor.dims.len())].iter().product::<i64>();
        let words: i64 = outputs.filter(|tensor| tensor.is_real()).map(|tensor| 4 * heads(tensor)).sum();
        let summed = self.operations.iter().filter(|operation| {
            let grouped = |input: &Tensor| heads(input) > heads(&operation.output);
            matches!(operation.step, Step::Reduction(_)) && grouped(&operation.inputs[0])
        });
        let summed = summed.map(|operation| &operation.inputs[0]).filter(|input| input.is_virtual);
        let bytes: i64 = summed.map(|input| input.element.bytes() * input.count()).sum();
        ((words + bytes) as u64).next_multiple_of(256) as i64
    }
}

/// Multipliers of the offsets of ragged tensors that are summed over heads to one with the same offsets. As in NVIDIA's
/// own graphs, the offsets are those of the sum, scaled for the summed tensor by its longer rows.
fn factors(
    operations: &[Arc<Operation>],
    limits: &BTreeMap<i64, Vec<Option<i64>>>,
) -> Outcome<BTreeMap<i64, i64>> {
    let mut found = BTreeMap::new();
    for operation in operations.iter().filter(|operation| matches!(operation.step, Step::Reduction(_))) {
        let (x, y) = (&operation.inputs[0], &operation.output);
        let group = x.count() / y.count();
        if x.ragged.is_none() || x.ragged != y.ragged || group == 1 || x.is_virtual {
            continue;
        }
        let rows =
            limits.get(&x.uid).and_then(|all| all.iter().position(Option::is_some)).unwrap_or_default();
        require(x.strides[rows] == group * y.strides[rows], CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, || {
            format!("tensors {} and {} have offsets in common and not their rows", x.uid, y.uid)
        })?;
        found.insert(x.uid, group);
    }
    Ok(found)
}

fn any(limits: &[Option<i64>]) -> bool {
    limits.iter().any(Option::is_some)
}

/// All tensors; equal uids denote one tensor.
fn collect(operations: &[Arc<Operation>]) -> Outcome<BTreeMap<i64, Arc<Tensor>>> {
    let mut all: BTreeMap<i64, Arc<Tensor>> = BTreeMap::new();
    for operation in operations {
        let own =
            operation.inputs.iter().chain([&operation.output]).chain(operation.lengths.iter().flatten());
        let offsets = own.clone().filter_map(|tensor| tensor.ragged.as_ref());
        for tensor in own.chain(offsets) {
            let known = all.entry(tensor.uid).or_insert_with(|| tensor.clone());
            require(**known == **tensor, CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, || {
                format!("two tensors that are not the same have the uid {}", tensor.uid)
            })?;
        }
    }
    Ok(all)
}

/// Uids of tensors written by operations: each once; virtual tensors are written and read, lengths and offsets are
/// inputs.
fn producers(operations: &[Arc<Operation>], tensors: &BTreeMap<i64, Arc<Tensor>>) -> Outcome<BTreeSet<i64>> {
    let mut made = BTreeSet::new();
    let mut used = BTreeSet::new();
    let mut given = BTreeSet::new();
    for operation in operations {
        let uid = operation.output.uid;
        require(made.insert(uid), CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, || {
            format!("two operations make tensor {uid}")
        })?;
        used.extend(operation.inputs.iter().map(|input| input.uid));
        given.extend(operation.lengths.iter().flatten().map(|length| length.uid));
    }
    given.extend(tensors.values().filter_map(|tensor| tensor.ragged.as_ref()).map(|offsets| offsets.uid));
    for (uid, tensor) in tensors {
        let complete = !tensor.is_virtual || (made.contains(uid) && used.contains(uid));
        require(complete, CUDNN_STATUS_BAD_PARAM, || {
            format!("tensor {uid} is virtual, and nothing makes it or nothing uses it")
        })?;
    }
    match given.intersection(&made).next() {
        None => Ok(made),
        Some(uid) => {
            let why = format!("tensor {uid} is of lengths or offsets, and an operation makes it");
            refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, why)
        }
    }
}

/// Sorts operations so that each follows those that compute its inputs, whatever their order in the list.
fn ordered(mut left: Vec<Arc<Operation>>, outputs: &BTreeSet<i64>) -> Outcome<Vec<Arc<Operation>>> {
    let mut done = BTreeSet::new();
    let mut order = Vec::new();
    while !left.is_empty() {
        let ready = left.iter().position(|operation| {
            operation.inputs.iter().all(|input| done.contains(&input.uid) || !outputs.contains(&input.uid))
        });
        let Some(at) = ready else {
            return refuse(CUDNN_STATUS_BAD_PARAM, "operations wait for each other");
        };
        let operation = left.remove(at);
        done.insert(operation.output.uid);
        order.push(operation);
    }
    Ok(order)
}

/// Equivalence classes of tensor dimensions, with their lengths.
#[derive(Default)]
struct Dimensions {
    /// Parent of each dimension in its class, or itself.
    parents: BTreeMap<(i64, usize), (i64, usize)>,
    /// Lengths of the classes' representatives.
    lengths: BTreeMap<(i64, usize), i64>,
}

impl Dimensions {
    fn root(&self, of: (i64, usize)) -> (i64, usize) {
        let mut at = of;
        while let Some(next) = self.parents.get(&at).filter(|next| **next != at) {
            at = *next;
        }
        at
    }

    fn join(&mut self, one: (i64, usize), other: (i64, usize)) -> Outcome {
        let (from, to) = (self.root(one), self.root(other));
        if from != to {
            self.parents.insert(from, to);
            if let Some(length) = self.lengths.remove(&from) {
                return self.limit(to, length);
            }
        }
        Ok(())
    }

    fn limit(&mut self, of: (i64, usize), length: i64) -> Outcome {
        let known = *self.lengths.entry(self.root(of)).or_insert(length);
        require(known == length, CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, || {
            format!("dimension {} of tensor {} has lengths of tensors {known} and {length}", of.1, of.0)
        })
    }
}

/// Dimensions with lengths: those of products, and dimensions that other operations equate with them.
fn limits(
    operations: &[Arc<Operation>],
    tensors: &BTreeMap<i64, Arc<Tensor>>,
) -> Outcome<BTreeMap<i64, Vec<Option<i64>>>> {
    let mut all = Dimensions::default();
    for operation in operations {
        join(&mut all, operation)?;
    }
    for operation in operations {
        for (part, length) in operation.lengths.iter().enumerate() {
            if let Some(length) = length {
                all.limit(extent(operation, part), length.uid)?;
            }
        }
    }
    let mut found = BTreeMap::new();
    for operation in operations {
        if matches!(operation.step, Step::Matmul(_)) {
            for (part, length) in operation.lengths.iter().enumerate() {
                let has = all.lengths.contains_key(&all.root(extent(operation, part)));
                require(has == length.is_some(), CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, || {
                    let name = ["M", "N", "K"][part];
                    format!(
                        "{name} of the product to tensor {} has lengths, but not there",
                        operation.output.uid
                    )
                })?;
            }
        }
        for tensor in operation.inputs.iter().chain([&operation.output]) {
            let of = |dim| {
                let length = all.lengths.get(&all.root((tensor.uid, dim))).copied();
                length.filter(|length| tensors[length].dims[0] == tensor.dims[0])
            };
            found.entry(tensor.uid).or_insert_with(|| (0..tensor.dims.len()).map(of).collect());
        }
    }
    Ok(found)
}

/// The dimension of rows, columns or terms of a product.
fn extent(operation: &Operation, part: usize) -> (i64, usize) {
    let (m, n) = (operation.output.dims.len() - 2, operation.output.dims.len() - 1);
    match part {
        0 => (operation.output.uid, m),
        1 => (operation.output.uid, n),
        _ => (operation.inputs[0].uid, n),
    }
}

/// Records the dimensions that an operation equates.
fn join(all: &mut Dimensions, operation: &Operation) -> Outcome {
    let output = &operation.output;
    match &operation.step {
        Step::Matmul(_) => {
            let (a, b, rank) = (operation.inputs[0].uid, operation.inputs[1].uid, output.dims.len());
            let (m, n) = (rank - 2, rank - 1);
            all.join((a, m), (output.uid, m))?;
            all.join((b, n), (output.uid, n))?;
            all.join((a, n), (b, m))
        }
        Step::Reshape => {
            let Some(order) = permutation(&operation.inputs[0], output) else { return Ok(()) };
            let x = operation.inputs[0].uid;
            order.into_iter().enumerate().try_for_each(|(dim, from)| all.join((x, from), (output.uid, dim)))
        }
        Step::Pointwise(..) | Step::Reduction(_) => {
            for input in operation.inputs.iter().filter(|input| !input.by_value) {
                // Lengths that are compared with indices have no sequence dimension.
                if input.is_real() && input.element == Element::I32 {
                    continue;
                }
                for dim in (1..output.dims.len()).filter(|dim| input.dims[*dim] == output.dims[*dim]) {
                    all.join((input.uid, dim), (output.uid, dim))?;
                }
            }
            Ok(())
        }
    }
}
