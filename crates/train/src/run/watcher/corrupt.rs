//! Detection of ranks whose replicated weights differ: a hash of each rank's weights is compared before an update,
//! while the state from which the update starts is intact.

use std::hash::Hasher;

use fathom_grad::{ParamId, Params, Sharding};
use fathom_tensor::Device;
use fathom_tensor::mesh::{Axis, Grid};
use twox_hash::XxHash3_64;

use crate::agree::gather;
use crate::error::{Error, Result};
use crate::step::Trainer;

/// The weights to compare: none if they are sharded, and no experts, which have other replicas.
pub(super) fn compared(trainer: &Trainer) -> Vec<ParamId> {
    let shares = trainer.optimizer().shares();
    let parted = shares.sharding == Sharding::OptimGradsParams;
    let ids = trainer.params.iter().map(|(id, _)| id);
    ids.filter(|id| !parted && !shares.params[id.index()].expert).collect()
}

/// Compares the weights `ids` of ranks with the same part of the model. All ranks call this together.
///
/// # Errors
/// [`Error::Corrupt`], the same on all ranks: the ranks that differ, or the candidates if that is unclear.
pub(super) fn check(device: &Device, params: &Params, ids: &[ParamId], step: u64) -> Result<()> {
    params.settle(device);
    let mut hasher = XxHash3_64::new();
    for id in ids {
        params.get(*id).value.own_part().read(|_, tensor| hasher.write(&device.machine.read(tensor).wait()));
    }
    let hash = hasher.finish();
    let hashes = gather(device, [hash as i32, (hash >> 32) as i32])?;
    match odd_ones(device.mesh.grid(), &hashes) {
        None => Ok(()),
        Some((ranks, known)) => Err(Error::Corrupt { step, ranks, known }),
    }
}

/// Ranks whose hash differs from the majority of ranks with the same weights, and true; or, without a majority, all
/// that disagree, and false.
fn odd_ones(grid: &Grid, hashes: &[[i32; 2]]) -> Option<(Vec<usize>, bool)> {
    let mut odd = Vec::new();
    for first in 0..hashes.len() {
        let group = grid.members(first, &[Axis::Cp, Axis::Dp]);
        if group[0] != first {
            continue;
        }
        let votes = |hash: [i32; 2]| group.iter().filter(|rank| hashes[**rank] == hash).count();
        let most = group.iter().map(|rank| hashes[*rank]).max_by_key(|hash| votes(*hash))?;
        if votes(most) == group.len() {
            continue;
        }
        if 2 * votes(most) <= group.len() {
            return Some((group, false));
        }
        odd.extend(group.into_iter().filter(|rank| hashes[*rank] != most));
    }
    (!odd.is_empty()).then_some((odd, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_odd_one_is_named_if_there_is_a_majority() {
        let grid = Grid { tp: 2, dp: 3, ..Grid::default() };
        let mut hashes = vec![[1, 1], [2, 2], [1, 1], [2, 2], [1, 1], [2, 2]];
        assert_eq!(odd_ones(&grid, &hashes), None);
        hashes[3] = [2, 3];
        assert_eq!(odd_ones(&grid, &hashes), Some((vec![3], true)));
        hashes[0] = [7, 7];
        assert_eq!(odd_ones(&grid, &hashes), Some((vec![0, 3], true)));
        hashes[5] = [9, 9];
        assert_eq!(odd_ones(&grid, &hashes), Some((vec![1, 3, 5], false)));
        let two = Grid { dp: 2, ..Grid::default() };
        assert_eq!(odd_ones(&two, &[[0, 1], [1, 0]]), Some((vec![0, 1], false)));
        assert_eq!(odd_ones(&Grid::default(), &[[0, 1]]), None);
    }
}
