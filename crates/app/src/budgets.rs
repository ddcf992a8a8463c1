//! Limits on a machine's memory and disk that a step may use.

use fathom_tensor::{Hardware, Profile};
use fathom_train::Budgets;
use fathom_train::recipe::Recipe;

use crate::place::RankPlace;

/// Returns how many of a plan's `ranks` share each resource. On the processor, ranks are threads of one process; each
/// graphics rank has a device of its own.
pub fn sharing(recipe: &Recipe, profile: &Profile, ranks: usize) -> RankPlace {
    let own = profile.hardware == Hardware::Graphics;
    let disk = match profile.fabric.filter(|_| own && recipe.machine.spill.is_some()) {
        Some(fabric) => fabric.node_ranks.min(ranks),
        None => ranks,
    };
    let host = if own { 1 } else { ranks };
    RankPlace { ranks, local: 0, cores: host, host, memory: host, disk }
}

/// Returns a rank's share of the recipe's memory limit, else of the usable part of the profile's memory, else of
/// `memory`.
pub fn budgets(recipe: &Recipe, profile: &Profile, memory: u64, sharing: RankPlace) -> Budgets {
    let together = sharing.memory as u64;
    let memory = match (recipe.machine.memory_bytes, profile.memory_bytes) {
        (None, Some(all)) => profile.pool_bytes(all, together),
        (given, _) => given.unwrap_or(memory) / together,
    };
    let budgets = Budgets::new(memory, profile, recipe, &recipe.run.out, sharing.disk);
    // This machine's free disk space is unrelated to another machine's.
    match (profile.hardware, recipe.machine.disk_bytes) {
        (Hardware::Processor, _) | (_, Some(_)) => budgets,
        (Hardware::Graphics, None) => Budgets { disk: u64::MAX, ..budgets },
    }
}
