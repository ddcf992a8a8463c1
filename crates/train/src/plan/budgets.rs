//! Budgets of a stage, and how far a plan stays within them.

use std::path::Path;

use fathom_tensor::{Profile, spill};

use super::figures::Plan;
use super::resource::Resource;
use crate::recipe::Recipe;

/// Budgets of a stage, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// The machine's memory.
    pub memory: u64,
    /// The host's memory, for machines with a separate one.
    pub host: u64,
    /// Files of activations, weights and optimizer state.
    pub disk: u64,
}

impl Budgets {
    /// `memory` as given, the profile's host memory, and for each of `sharers` ranks an equal share of the recipe's
    /// disk limit or, without one, of 95 % of the free space behind `folder`.
    pub fn new(memory: u64, profile: &Profile, recipe: &Recipe, folder: &Path, sharers: usize) -> Budgets {
        let folder = recipe.machine.spill.as_deref().unwrap_or(folder);
        let free = || spill::free_bytes(folder).map_or(u64::MAX, |free| free / 20 * 19);
        let host = profile.host_bytes.unwrap_or(u64::MAX);
        let disk = recipe.machine.disk_bytes.unwrap_or_else(free) / sharers.max(1) as u64;
        Budgets { memory, host, disk }
    }

    /// True if a step stays within the budgets.
    pub fn hold(&self, plan: &Plan) -> bool {
        self.excess(plan) == 0
    }

    /// Bytes by which a step exceeds its budgets, for the resource with the largest excess.
    pub fn excess(&self, plan: &Plan) -> u64 {
        let over = self.uses(plan).map(|(_, used, budget)| used.saturating_sub(budget));
        over.into_iter().max().unwrap_or(0)
    }

    /// The first resource that a step exceeds, with the bytes needed and the budget.
    pub fn lack(&self, plan: &Plan) -> Option<(Resource, u64, u64)> {
        self.uses(plan).into_iter().find(|(_, used, budget)| used > budget)
    }

    /// Budgets reduced by a step's excess of each resource.
    pub(super) fn without_excess(&self, plan: &Plan) -> Budgets {
        let [memory, host, disk] =
            self.uses(plan).map(|(_, used, budget)| budget.saturating_sub(used.saturating_sub(budget)));
        Budgets { memory, host, disk }
    }

    fn uses(&self, plan: &Plan) -> [(Resource, u64, u64); 3] {
        [
            (Resource::Memory, plan.usage.peak_reserved, self.memory),
            (Resource::Host, plan.host_peak_bytes, self.host),
            (Resource::Disk, plan.disk_peak_bytes, self.disk),
        ]
    }
}
