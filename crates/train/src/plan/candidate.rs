//! Candidates of the search for a mesh.

use std::cmp::Ordering;
use std::sync::{Arc, Mutex};

use fathom_tensor::mesh::Grid;

use super::mesh::MeshPlan;
use super::mesh_places::MeshPlaces;
use super::mesh_states::MeshState;
use super::solve::FiguresByTable;
use crate::parallel::Ranks;
use crate::recipe::{MeshTable, Recipe};

/// Relative difference below which steps count as equally fast: predictions are not more accurate.
pub(super) const ALIKE: f64 = 0.02;

/// A mesh with the places of everything, and its needs.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The mesh and the stages on each rank.
    pub ranks: Ranks,
    /// Places of activations.
    pub places: MeshPlaces,
    /// Places of weights and optimizer state.
    pub state: MeshState,
    /// Predicted seconds of a step.
    pub step_s: f64,
    /// Lower bound of the seconds of a step with these places, for any number of stages on each rank.
    pub(super) floor_s: f64,
    /// Maximum reserved bytes of any rank.
    pub peak_bytes: u64,
    /// Bytes over budget, for the resource with the largest excess.
    pub excess: u64,
    /// True if not all ranks were planned, so that figures are lower bounds.
    pub(super) is_partial: bool,
    /// The settings over the recipe that select it.
    pub settings: Vec<String>,
    /// The full plan, for the candidates that are shown.
    pub plan: Option<MeshPlan>,
    pub(super) origin: Origin,
}

/// The search that found a candidate.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// A preset of [`presets`](super::mesh_places::presets), by index.
    Preset(usize),
    /// The memory solver: number of runs, its memory budget, and the known figures of the mesh.
    Solver(usize, u64, Arc<Mutex<FiguresByTable>>),
}

impl Candidate {
    /// The recipe that corresponds to this candidate.
    pub(super) fn recipe(&self, of: &Recipe, index: usize) -> Recipe {
        let Grid { tp, cp, dp, pp, ep, .. } = self.ranks.grid;
        let virtual_stages = self.ranks.virtual_stages;
        let mesh = MeshTable { tp, cp, dp, pp, ep, virtual_stages, ..plain(&of.mesh) };
        let mut recipe = Recipe { mesh, ..of.clone() };
        self.state.apply(&mut recipe);
        self.places.apply(&mut recipe, index);
        recipe
    }

    /// Description of the places of activations and of the rest.
    pub fn words(&self) -> String {
        let both = [&self.places.name, &self.state.name];
        both.into_iter().filter(|words| !words.is_empty()).cloned().collect::<Vec<_>>().join("; ")
    }

    /// Number of ranks that share one replica of the model.
    pub(crate) fn parts(&self) -> usize {
        let Grid { tp, cp, pp, .. } = self.ranks.grid;
        tp * cp * pp
    }
}

/// A mesh of one rank, with only those of the recipe's settings that do not concern the placement of ranks.
pub(super) fn plain(table: &MeshTable) -> MeshTable {
    let MeshTable { timeout_s, step_timeout_s, restarts, check_every_steps, .. } = *table;
    MeshTable { timeout_s, step_timeout_s, restarts, check_every_steps, ..MeshTable::default() }
}

pub(super) fn fastest(left: &Candidate, right: &Candidate) -> Ordering {
    let key = |candidate: &Candidate| (candidate.parts(), candidate.ranks.virtual_stages);
    left.step_s.total_cmp(&right.step_s).then_with(|| key(left).cmp(&key(right)))
}
