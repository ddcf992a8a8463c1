//! When offloaded values are read back, and when writes must be finished: fixed points among a segment's steps.
//!
//! A value is fetched one step before the first that reads it, and the segment below's first values before this
//! segment's last step. Across an operation that is not token-local (attention), where memory peaks, nothing is fetched
//! ahead, and a value that is read on both sides of it is released and read again.

use std::collections::BTreeMap;

use super::lifetimes::touches;
use super::step::{Slot, Step};
use crate::graph::{Graph, Val};

/// Backward steps with reads of `offloaded`, and the values to fetch before the first of them.
pub(super) fn with_reads(graph: &Graph, steps: Vec<Step>, offloaded: &[Val]) -> (Vec<Step>, Vec<Val>) {
    let work: Vec<usize> = (0..steps.len()).filter(|step| works(&steps[*step])).collect();
    let reads = |val: Val, at: usize| touches(graph, &steps[at..=at], Slot::Value(val));
    // Steps to insert before and after the step at an index.
    let mut before: BTreeMap<usize, Vec<Step>> = BTreeMap::new();
    let mut after: BTreeMap<usize, Vec<Step>> = BTreeMap::new();
    let mut first = Vec::new();
    for val in offloaded.iter().copied() {
        let uses: Vec<usize> = (0..work.len()).filter(|at| reads(val, work[*at])).collect();
        for run in runs(&uses, |at| !local(graph, &steps[work[at]])) {
            let (start, end) = (work[run.0], work[run.1]);
            match run.0.checked_sub(1) {
                None => first.push(val),
                Some(ahead) if local(graph, &steps[work[ahead]]) => {
                    before.entry(work[ahead]).or_default().push(Step::Fetch(val));
                }
                Some(_) => before.entry(start).or_default().push(Step::Fetch(val)),
            }
            before.entry(start).or_default().push(Step::Await(val));
            if Some(&run.1) != uses.last() {
                after.entry(end).or_default().push(Step::Free(Slot::Value(val)));
            }
        }
    }
    let last = work.last().copied().filter(|last| local(graph, &steps[*last]));
    let mut out = Vec::with_capacity(steps.len() + 4 * offloaded.len());
    for (index, step) in steps.into_iter().enumerate() {
        let mut reads = before.remove(&index).unwrap_or_default();
        // Fetches come before waits.
        reads.sort_by_key(|step| matches!(step, Step::Await(_)));
        let waits = reads.iter().position(|step| matches!(step, Step::Await(_))).unwrap_or(reads.len());
        let waits = reads.split_off(waits);
        out.extend(reads);
        if Some(index) == last {
            out.push(Step::Below);
        }
        out.extend(waits);
        out.push(step);
        out.extend(after.remove(&index).unwrap_or_default());
    }
    if last.is_none() {
        out.push(Step::Below);
    }
    (out, first)
}

/// Forward steps with the point at which the values of the previous segment must be offloaded.
pub(super) fn with_settle(graph: &Graph, steps: Vec<Step>) -> Vec<Step> {
    let at = steps.iter().position(|step| works(step) && !local(graph, step)).unwrap_or(steps.len());
    let mut steps = steps;
    steps.insert(at, Step::Settle);
    steps
}

fn works(step: &Step) -> bool {
    matches!(step, Step::Forward(_) | Step::Backward(..) | Step::Loop(_) | Step::Add(..))
}

/// True if a step works token by token.
fn local(graph: &Graph, step: &Step) -> bool {
    match step {
        Step::Forward(node) | Step::Backward(node, _) => graph.nodes[*node].region.is_some(),
        _ => true,
    }
}

/// Groups uses into runs of (first, last), split where a step that `parts` lies strictly between two uses.
fn runs(uses: &[usize], parts: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &at in uses {
        match runs.last_mut() {
            Some(run) if !(run.1 + 1..at).any(&parts) => run.1 = at,
            _ => runs.push((at, at)),
        }
    }
    runs
}
