//! What replicas of the model share out among each other: prompts that are answered, and answers that are judged. Each of them does a
//! run of the list, and afterwards all ranks have all of it, in its order, so that they go on with the same numbers.

use std::ops::Range;

use fathom_grad::{CpComm, ParamId, Sharding, Weights};
use fathom_tensor::Device;
use fathom_tensor::mesh::{Axis, Mesh};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::agree::{gather_texts, outcome};
use crate::error::{Error, Result};
use crate::parallel::Ranks;
use crate::step::Trainer;

/// Whether ranks fetch weights from each other while they compute (ZeRO-3): then replicas have to take the same steps.
pub(super) fn fetches(mesh: &Mesh, ranks: &Ranks) -> bool {
    ranks.sharding == Sharding::OptimGradsParams && mesh.group(&[Axis::Cp, Axis::Dp]).size() > 1
}

/// Whether context parallel ranks add attention up in the order in which keys come around a ring: then a token's numbers depend on where in
/// a stream its document is, and are not those of a sampler, which has all keys in their order.
pub(super) fn rings(ranks: &Ranks) -> bool {
    ranks.grid.cp > 1 && matches!(ranks.cp_comm, CpComm::P2p | CpComm::A2aP2p { .. })
}

/// All weights of a rank's part of the model, in memory until this is dropped, where they are sharded: each replica writes answers at its
/// own pace, so none could wait for the others in each segment. Empty where they are in memory or on disk anyway. Collective.
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

/// Whether a rank scores the answers that its replica of the model writes.
pub fn scores(mesh: &Mesh) -> bool {
    Replica::of_writers(mesh).speaks
}

/// A rank's streams of a step that has these in all, as many on each rank; what fills them up is empty.
pub(super) fn dealt<T: Default>(mut streams: Vec<T>, mesh: &Mesh, ranks: &Ranks) -> Vec<T> {
    let (dp, at) = (mesh.size(Axis::Dp), mesh.index(Axis::Dp));
    // Interleaved stages take micro batches in groups of as many as there are stages.
    let together = if ranks.virtual_stages > 1 { dp * mesh.size(Axis::Pp) } else { dp };
    streams.resize_with(streams.len().max(1).next_multiple_of(together), T::default);
    let each = streams.len() / dp;
    streams.into_iter().skip(at * each).take(each).collect()
}

/// A rank's replica of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replica {
    /// Which.
    index: usize,
    /// Of how many.
    replicas: usize,
    /// The rank says what the replica has: one of those that have it.
    pub speaks: bool,
}

impl Replica {
    /// Of those that write: context parallel ranks have whole models, and a token that is written is of one of them.
    pub fn of_writers(mesh: &Mesh) -> Replica {
        let group = mesh.group(&[Axis::Cp, Axis::Dp]);
        let speaks = mesh.index(Axis::Tp) == 0 && mesh.index(Axis::Pp) == 0;
        Replica { index: group.index(), replicas: group.size(), speaks }
    }

    /// Of those that read whole streams: the last stage knows what the model says.
    pub fn of_readers(mesh: &Mesh) -> Replica {
        let first = [Axis::Tp, Axis::Cp].iter().all(|axis| mesh.index(*axis) == 0);
        let speaks = first && mesh.index(Axis::Pp) + 1 == mesh.size(Axis::Pp);
        Replica { index: mesh.index(Axis::Dp), replicas: mesh.size(Axis::Dp), speaks }
    }

    /// Which it is.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its run of a list of this length.
    pub fn share(&self, len: usize) -> Range<usize> {
        self.of(self.index, len)
    }

    /// The runs of all replicas.
    pub fn shares(&self, len: usize) -> impl Iterator<Item = Range<usize>> {
        (0..self.replicas).map(move |index| self.of(index, len))
    }

    fn of(&self, index: usize, len: usize) -> Range<usize> {
        len * index / self.replicas..len * (index + 1) / self.replicas
    }

    /// The whole list, of which this replica has made its run. All ranks call this together; none goes on where one has failed.
    ///
    /// # Errors
    /// That of the run, on this rank or another one.
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
