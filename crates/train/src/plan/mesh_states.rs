//! Places and types of weights and optimizer state on a mesh's ranks, which the solver changes if no mesh fits with
//! those of the recipe.

use fathom_tensor::{DType, Hardware};

use super::{Budgets, Workload};
use crate::recipe::{Machine, MomentType, OffloadTo, Optimizer, QatName, Recipe, ShardingName};

/// Places of weights and optimizer state, and the types of that state.
#[derive(Clone, Debug, PartialEq)]
pub struct MeshState {
    /// Description; empty for the recipe's own settings.
    pub name: String,
    /// True if types differ from the recipe's, so that a run would compute different numbers.
    pub changes_numbers: bool,
    weights: bool,
    optimizer: bool,
    offload_to: OffloadTo,
    moments: MomentType,
    master_weights: bool,
}

impl MeshState {
    /// The recipe's own settings.
    fn of(recipe: &Recipe) -> MeshState {
        let Machine { offload_weights, offload_optimizer, offload_to, .. } = recipe.machine;
        let Optimizer { moments, master_weights, .. } = recipe.optimizer;
        MeshState {
            name: String::new(),
            changes_numbers: false,
            weights: offload_weights,
            optimizer: offload_optimizer,
            offload_to,
            moments,
            master_weights,
        }
    }

    /// The same with more of it offloaded to a place.
    fn offloaded(&self, weights: bool, to: OffloadTo) -> MeshState {
        let what = if weights { "weights and optimizer" } else { "optimizer" };
        let place = if to == OffloadTo::Host { "with the host" } else { "on disk" };
        let name = joined(&format!("{what} {place}"), &self.name);
        let weights = weights || self.weights;
        MeshState { name, weights, optimizer: true, offload_to: to, ..self.clone() }
    }

    /// The same in fewer bytes.
    fn narrowed(&self, moments: MomentType, master_weights: bool) -> MeshState {
        let masters = if master_weights == self.master_weights { "" } else { ", no masters" };
        let name = format!("moments in {moments}{masters} (changes numbers)");
        MeshState { name, changes_numbers: true, moments, master_weights, ..self.clone() }
    }

    /// Applies the state to the recipe.
    pub(super) fn apply(&self, recipe: &mut Recipe) {
        let (machine, optimizer) = (&mut recipe.machine, &mut recipe.optimizer);
        (machine.offload_weights, machine.offload_optimizer) = (self.weights, self.optimizer);
        machine.offload_to = self.offload_to;
        (optimizer.moments, optimizer.master_weights) = (self.moments, self.master_weights);
        if self.weights {
            // Weights on disk cannot be sharded over ranks.
            recipe.mesh.sharding = ShardingName::NoShard;
        }
    }
}

fn joined(first: &str, second: &str) -> String {
    [first, second].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// All states to try, in order: the recipe's own, then more and more offloaded, to the host before disk, and at the end
/// those that change numbers.
pub(super) fn states(recipe: &Recipe, work: &Workload<'_>, budgets: &Budgets) -> Vec<MeshState> {
    let own = MeshState::of(recipe);
    let has_host = budgets.host > 0 && work.profile.hardware == Hardware::Graphics;
    let places = [(OffloadTo::Host, has_host), (OffloadTo::Disk, budgets.disk > 0)];
    let offloaded = |base: &MeshState| -> Vec<MeshState> {
        let open = places.iter().filter(|(_, is_there)| *is_there);
        let more = open.flat_map(|(to, _)| [false, true].map(|weights| base.offloaded(weights, *to)));
        // Values that the recipe offloads stay offloaded.
        let has_more = |state: &MeshState| {
            (state.weights, state.optimizer, state.offload_to)
                != (base.weights, base.optimizer, base.offload_to)
        };
        std::iter::once(base.clone()).chain(more.filter(has_more)).collect()
    };
    let mut all = offloaded(&own);
    let narrower = match own.moments {
        MomentType::F32 => vec![MomentType::Bf16, MomentType::Fp8],
        MomentType::Bf16 => vec![MomentType::Fp8],
        MomentType::Fp8 => vec![],
    };
    all.extend(
        narrower.into_iter().flat_map(|moments| offloaded(&own.narrowed(moments, own.master_weights))),
    );
    // Without masters nothing could be rounded.
    if own.master_weights && work.dtype == DType::Bf16 && recipe.precision.qat == QatName::None {
        all.extend(offloaded(&own.narrowed(MomentType::Fp8, false)));
    }
    all
}
