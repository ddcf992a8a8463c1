//! The refusal if no mesh of the given size fits: it names the nearest mesh and the smallest number of ranks that would
//! do.

use fathom_base::human;

use super::Draft;
use super::candidate::Candidate;
use super::mesh_grids::meshes;
use super::mesh_states::states;
use super::solve_mesh::Say;
use crate::error::Error;

/// Maximum number of ranks to try.
const MOST_RANKS: usize = 1 << 15;

impl Draft<'_> {
    /// The error for `gpus` ranks, after trying `meshes` meshes.
    pub(super) fn none_fits(
        &self,
        gpus: usize,
        meshes: usize,
        nearest: Option<Candidate>,
        say: Say<'_>,
    ) -> Error {
        let budget = human::bytes(self.budgets.memory);
        let mut message = match meshes {
            0 => format!("no mesh of {gpus} ranks divides the model and the step"),
            _ => format!(
                "of {meshes} meshes of {gpus} ranks that divide the model and the step none fits into {budget} a rank, wherever \
                 activations, weights and optimizer state are, and however narrow that state is"
            ),
        };
        if let Some(near) = nearest.and_then(|near| self.in_full(near.clone()).or(Some(near))) {
            message += &format!("; nearest is {} with {}", near.ranks.grid, near.words());
            message += &self.lack(&near);
        }
        match self.fewest(gpus, say) {
            Some(other) => {
                let (ranks, settings) = (other.ranks.grid.ranks(), other.settings.join(" "));
                message += &format!(". The smallest number of ranks that would do is {ranks}: {settings}");
            }
            None => message += ". No larger number of ranks would do either: take shorter sequences",
        }
        Error::Recipe { key: "mesh".into(), message }
    }

    /// Describes the resource that a candidate exceeds.
    fn lack(&self, near: &Candidate) -> String {
        let kinds = near.plan.iter().flat_map(|plan| &plan.kinds);
        let worst = kinds.max_by_key(|kind| self.budgets.excess(&kind.plan));
        let lack = worst.and_then(|kind| self.budgets.lack(&kind.plan));
        lack.map_or(String::new(), |(of, needed, there)| {
            format!(", which takes {} of {} of {of}", human::bytes(needed), human::bytes(there))
        })
    }

    /// The mesh with the fewest ranks above `gpus` that fits without changing numbers; beyond one node only whole nodes
    /// are tried.
    fn fewest(&self, gpus: usize, say: Say<'_>) -> Option<Candidate> {
        let node = self.profile.fabric.map_or(1, |fabric| fabric.node_ranks).max(1);
        let step = |ranks: usize| if ranks < node { ranks + 1 } else { (ranks / node + 1) * node };
        let doubled = std::iter::successors(Some(step(gpus)), |ranks| Some((2 * ranks).max(step(*ranks))));
        // There may be a smaller fit between the last doubling that failed and the first that fits.
        let mut below = gpus;
        for ranks in doubled.take_while(|ranks| *ranks <= MOST_RANKS) {
            say(&format!("{gpus} ranks are too few; now {ranks}"));
            if let Some(found) = self.any(ranks) {
                let between = std::iter::successors(Some(step(below)), |ranks| Some(step(*ranks)));
                let smaller =
                    between.take_while(|between| *between < ranks).find_map(|ranks| self.any(ranks));
                return smaller.or(Some(found));
            }
            below = ranks;
        }
        None
    }

    /// A mesh of `ranks` ranks that fits, whatever is offloaded.
    fn any(&self, ranks: usize) -> Option<Candidate> {
        let work = self.alone().ok()?;
        let meshes = meshes(&work, ranks);
        let states = states(&self.recipe, &work, &self.budgets);
        let states = states.iter().filter(|state| !state.changes_numbers);
        // States at the end of the list need least.
        let states: Vec<_> = states.collect();
        states.into_iter().rev().find_map(|state| self.try_state(&meshes, state, 1).best.pop())
    }
}
