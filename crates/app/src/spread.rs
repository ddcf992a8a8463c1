//! Splitting of a model over ranks for inference: the flags, and the resulting layout of its experts.
//!
//! Tensor-parallel ranks hold whole experts each if their number divides evenly: an equal share of the bytes, in packed
//! form, and results for a token bit-equal to those of one rank. Otherwise they hold some columns of each expert, or a
//! combination, whichever takes the least memory: columns that are not whole blocks are unpacked, so that whole experts
//! may take less.

use std::cmp::Reverse;
use std::sync::Arc;

use fathom_model::{HfFolder, Moe, Spec};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh};
use fathom_tensor::{DType, Device, Meta, Profile};
use fathom_train::parallel::Ranks;

use crate::adapters::{self, BaseQuantization};
use crate::crew::Crew;
use crate::error::{Error, Result, caught};
use crate::machine::Machine;

/// Requested mesh of a model for inference; each rank is a thread with a part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedMesh {
    /// Number of tensor-parallel ranks.
    pub tp: usize,
    /// Number of pipeline stages.
    pub pp: usize,
    /// Number of expert-parallel ranks, and of tensor-parallel ranks per expert; `None` for the split that takes the
    /// least memory.
    pub experts: Option<[usize; 2]>,
}

/// Resolved mesh of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedMesh {
    /// Sizes of the mesh.
    pub grid: Grid,
    /// Description of a tensor-parallel rank's share of a layer's experts; `None` without experts or without such
    /// ranks.
    pub experts: Option<String>,
}

impl AskedMesh {
    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.tp * self.pp
    }

    /// Returns whether more than one rank is requested.
    pub fn is_spread(&self) -> bool {
        self.ranks() > 1 || self.experts.is_some_and(|experts| experts != [1, 1])
    }

    /// Resolves how the ranks share a model, whose weights are quantized as in its adapters' runs if `held` is given.
    ///
    /// # Errors
    /// Sizes that do not divide evenly, with ones that would; a model that cannot be quantized so.
    pub(crate) fn spread(
        &self,
        machine: &Machine,
        (opened, dtype): (&HfFolder, DType),
        held: Option<&BaseQuantization>,
    ) -> Result<ResolvedMesh> {
        let (AskedMesh { tp, pp, experts }, spec) = (*self, &opened.spec);
        let over = |[ep, etp]: [usize; 2]| Grid { tp, pp, ep, etp, ..Grid::default() };
        let check = |grid: Grid| Ranks { grid, ..Ranks::default() }.check(spec);
        if let Some(experts) = experts {
            let grid = over(experts);
            grid.check().map_err(|why| Error::Refused(format!("--ep and --etp: {why}")))?;
            check(grid)?;
            return Ok(ResolvedMesh::of(grid, spec, ""));
        }
        check(over([1, 1]))?;
        let Some(Moe { ffn, .. }) = spec.moe.as_ref().filter(|_| tp > 1) else {
            return Ok(ResolvedMesh::of(over([1, 1]), spec, ""));
        };
        let fitting: Vec<[usize; 2]> = factors(tp).filter(|experts| check(over(*experts)).is_ok()).collect();
        if fitting.contains(&[tp, 1]) {
            return Ok(ResolvedMesh::of(over([tp, 1]), spec, ""));
        }
        if fitting.len() == 1 {
            let why =
                format!(": neither they nor the {ffn} columns of each can be cut into {tp} or its divisors");
            return Ok(ResolvedMesh::of(over([1, 1]), spec, &why));
        }
        let place = Crew::Threads.place(machine, self.ranks());
        let profile = machine.rank(alone(over([1, 1]), 0), place)?.machine.profile().clone();
        let bytes = |experts: [usize; 2]| -> Result<(u64, Reverse<usize>, [usize; 2])> {
            let bytes = weights_bytes(&profile, over(experts), (opened, dtype), held)?;
            Ok((bytes, Reverse(experts[0]), experts))
        };
        // The quantization of the adapters' runs can exclude some splits.
        let (held, refused): (Vec<_>, Vec<_>) = fitting.into_iter().map(bytes).partition(Result::is_ok);
        let least = held.into_iter().filter_map(Result::ok).min();
        let (.., chosen) = match (least, refused.into_iter().find_map(Result::err)) {
            (Some(least), _) => least,
            (None, Some(error)) => return Err(error),
            (None, None) => (0, Reverse(1), [1, 1]),
        };
        Ok(ResolvedMesh::of(
            over(chosen),
            spec,
            ": packed as they are, they take less memory than their parts",
        ))
    }
}

impl ResolvedMesh {
    /// Describes the ranks' shares of the experts; `why` explains a layout in which every rank has all of them.
    fn of(grid: Grid, spec: &Spec, why: &str) -> ResolvedMesh {
        let Grid { tp, ep, etp, .. } = grid;
        let experts = spec.moe.as_ref().filter(|_| tp > 1).map(|Moe { experts, ffn, .. }| {
            let (own, columns) = (experts / ep, ffn / etp);
            match (ep, etp) {
                (1, 1) => format!("all {experts} on each rank{why}"),
                (_, 1) => format!("{own} of {experts} on each rank"),
                (1, _) => format!("{columns} of {ffn} columns of all {experts} on each rank"),
                _ => format!("{columns} of {ffn} columns of {own} of {experts} on each rank"),
            }
        });
        ResolvedMesh { grid, experts }
    }
}

/// Returns all pairs whose product divides a number.
fn factors(of: usize) -> impl Iterator<Item = [usize; 2]> {
    let divisors = move |of: usize| (1..=of).filter(move |size| of.is_multiple_of(*size));
    divisors(of).flat_map(move |first| divisors(of / first).map(move |second| [first, second]))
}

/// Returns one rank of a grid whose other ranks do not exist.
fn alone(grid: Grid, rank: usize) -> Mesh {
    match grid.ranks() {
        1 => Mesh::alone(),
        ranks => Mesh::new(grid, Box::new(CountingLink::new(rank, ranks))),
    }
}

/// Returns the bytes of the weights of the rank that has most, among the first ranks of each stage.
fn weights_bytes(
    profile: &Profile,
    grid: Grid,
    (opened, dtype): (&HfFolder, DType),
    held: Option<&BaseQuantization>,
) -> Result<u64> {
    let of = |stage: usize| {
        let machine = Arc::new(Meta::new(profile.clone()));
        let device = Device::on_mesh(machine, u64::MAX, alone(grid, stage * grid.tp));
        let model = (&opened.spec, &opened.source as _, dtype);
        let _held = adapters::held_model(&device, model, held, |_, _| Ok(()))?;
        Ok(device.pool.usage().live)
    };
    caught(|| (0..grid.pp).map(of).try_fold(0, |most: u64, bytes: Result<u64>| Ok(most.max(bytes?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_factors_are_all_there_are() {
        let all: Vec<[usize; 2]> = factors(6).collect();
        assert_eq!(all, [[1, 1], [1, 2], [1, 3], [1, 6], [2, 1], [2, 3], [3, 1], [3, 2], [6, 1]],);
        assert_eq!(factors(1).collect::<Vec<_>>(), [[1, 1]]);
    }
}
