//! Division of work among replicas of the model: prompts to answer, and answers to evaluate. Each replica processes a
//! range of the list, and afterwards all ranks receive the whole list in order, so that they continue with the same
//! numbers.

use std::ops::Range;

use fathom_grad::{CpComm, ParamId, Sharding, Weights};
use fathom_tensor::Device;
use fathom_tensor::mesh::{Axis, Mesh};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::agree::{gather_texts, outcome};
use crate::error::{Error, Result};
use crate::parallel::{CpScan, Ranks};
use crate::step::Trainer;

/// True if ranks fetch weights from each other while they compute (ZeRO-3), so that replicas have to run in step.
pub(super) fn fetches(mesh: &Mesh, ranks: &Ranks) -> bool {
    ranks.sharding == Sharding::OptimGradsParams && mesh.group(&[Axis::Cp, Axis::Dp]).size() > 1
}

/// True if context parallel ranks add up attention in the order in which keys arrive around a ring, or pass states from piece
/// to piece. A token's result then depends on its document's position in the stream, and differs from that of a sampler,
/// which has all keys and rows in order.
pub(super) fn rings(ranks: &Ranks) -> bool {
    let rings = matches!(ranks.cp_comm, CpComm::P2p | CpComm::A2aP2p { .. });
    ranks.grid.cp > 1 && (rings || ranks.cp_scan == CpScan::States)
}

/// Gathers all sharded weights of a rank's part of the model into memory, until the result is dropped: replicas write
/// answers at their own pace, so they cannot wait for each other in every segment. Empty if weights are in memory or on
/// disk anyway. Collective.
pub(super) fn gathered<'a>(trainer: &'a Trainer, ranks: &Ranks) -> Vec<Weights<'a>> {
    let Trainer { device, params, .. } = trainer;
    if !fetches(&device.mesh, ranks) {
        return Vec::new();
    }
    let gather = |bucket: Vec<ParamId>| {
        let weights = params.fetch(device, bucket);
        weights.wait();
        weights
    };
    params.buckets().into_iter().map(gather).collect()
}

/// True if a rank scores the answers written by its replica of the model.
pub fn scores(mesh: &Mesh) -> bool {
    Replica::of_writers(mesh).speaks
}

/// A rank's part of a step's streams, the same number on each rank, padded with empty ones.
pub(super) fn dealt<T: Default>(mut streams: Vec<T>, mesh: &Mesh, ranks: &Ranks) -> Vec<T> {
    let (dp, at) = (mesh.size(Axis::Dp), mesh.index(Axis::Dp));
    // Interleaved stages take micro-batches in groups of the size of the pipeline.
    let together = if ranks.virtual_stages > 1 { dp * mesh.size(Axis::Pp) } else { dp };
    streams.resize_with(streams.len().max(1).next_multiple_of(together), T::default);
    let each = streams.len() / dp;
    streams.into_iter().skip(at * each).take(each).collect()
}

/// A rank's replica of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replica {
    /// Index of the replica.
    index: usize,
    replicas: usize,
    /// True if this rank reports the replica's results: one of the ranks that have them.
    pub speaks: bool,
}

impl Replica {
    /// Replicas that write: context parallel ranks have whole models, and each writes its own tokens.
    pub fn of_writers(mesh: &Mesh) -> Replica {
        let group = mesh.group(&[Axis::Cp, Axis::Dp]);
        let speaks = mesh.index(Axis::Tp) == 0 && mesh.index(Axis::Pp) == 0;
        Replica { index: group.index(), replicas: group.size(), speaks }
    }

    /// Replicas that read whole streams: the last stage has the model's outputs.
    pub fn of_readers(mesh: &Mesh) -> Replica {
        let first = [Axis::Tp, Axis::Cp].iter().all(|axis| mesh.index(*axis) == 0);
        let speaks = first && mesh.index(Axis::Pp) + 1 == mesh.size(Axis::Pp);
        Replica { index: mesh.index(Axis::Dp), replicas: mesh.size(Axis::Dp), speaks }
    }

    /// Index of the replica.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its range of a list of length `len`.
    pub fn share(&self, len: usize) -> Range<usize> {
        self.of(self.index, len)
    }

    /// The ranges of all replicas.
    pub fn shares(&self, len: usize) -> impl Iterator<Item = Range<usize>> {
        (0..self.replicas).map(move |index| self.of(index, len))
    }

    fn of(&self, index: usize, len: usize) -> Range<usize> {
        len * index / self.replicas..len * (index + 1) / self.replicas
    }

    /// Exchanges all replicas' ranges for the whole list. All ranks call this together; none continues if one has
    /// failed.
    ///
    /// # Errors
    /// The error of the range, on this rank or another one.
    pub fn all<T: Serialize + DeserializeOwned>(
        &self,
        device: &Device,
        own: Result<Vec<T>>,
    ) -> Result<Vec<T>> {
        if device.mesh.grid().ranks() == 1 {
            return own;
        }
        let own = outcome(device, own)?;
        let damaged = |error: serde_json::Error| Error::Hook(error.into());
        let text =
            if self.speaks { serde_json::to_vec(&(self.index, own)).map_err(damaged)? } else { Vec::new() };
        let said = gather_texts(device, &text)?;
        let said = said.iter().filter(|text| !text.is_empty()).map(|text| serde_json::from_slice(text));
        let mut said: Vec<(usize, Vec<T>)> = said.collect::<std::result::Result<_, _>>().map_err(damaged)?;
        said.sort_by_key(|(index, _)| *index);
        Ok(said.into_iter().flat_map(|(_, run)| run).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_list() {
        for (replicas, len) in [(1, 3), (2, 3), (3, 8), (4, 2)] {
            let of = |index| Replica { index, replicas, speaks: true }.share(len);
            let all: Vec<usize> = (0..replicas).flat_map(of).collect();
            assert_eq!(all, (0..len).collect::<Vec<_>>());
            assert!(Replica { index: 0, replicas, speaks: true }.shares(len).flatten().eq(0..len));
        }
    }
}
