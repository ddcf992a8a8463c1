//! The rank that needs the most memory among equals.

use std::ops::Range;
use std::sync::Arc;

use fathom_model::{Model, Spec};
use fathom_tensor::mesh::Axis;
use fathom_tensor::{DType, Device, Meta, Profile};

use crate::parallel::{Ranks, Sharding, shares};

/// Index, among the ranks with the same weights as `rank`, of the one that keeps most optimizer state.
pub(super) fn fullest(ranks: &Ranks, spec: &Spec, rank: usize) -> usize {
    if ranks.sharding == Sharding::NoShard || ranks.grid.cp * ranks.grid.dp == 1 {
        return 0;
    }
    let ranks = Ranks { rank, ..*ranks };
    let device = Device::on_mesh(Arc::new(Meta::new(Profile::portable(1))), u64::MAX, ranks.imagined());
    let portion = ranks.portion(spec, &device.mesh);
    let (model, params) = Model::declare_part(&device, spec, DType::F32, None, portion);
    let shares = shares(&device, &model, &params, ranks.sharding);
    let replicas = device.mesh.group(&[Axis::Cp, Axis::Dp]).size();
    // Experts have fewer holders than other weights; their shares differ by at most a row.
    let of = |ranges: &[Range<usize>], member: usize| ranges[member % ranges.len()].len();
    let kept = |member: usize| shares.params.iter().map(|share| of(&share.ranges, member)).sum::<usize>();
    (0..replicas).max_by_key(|member| (kept(*member), std::cmp::Reverse(*member))).unwrap_or(0)
}
