//! Which mesh, pipeline and places of activations for so many ranks: `fathom plan --solve mesh`.
//!
//! Every mesh that divides the model and the step is tried with every preset of places, in the order of what it costs to compute,
//! and the cheapest preset that fits is taken. A candidate is asked of the plan itself: its first and its last stage, with one
//! and with two layers in each stage of the pipeline, which says what more layers need and take. The best are then planned in full,
//! and those figures are the ones that are shown.
//!
//! Rules: tensor parallel ranks stay within a node, and are no more than hidden / 2048 (narrower products are slower than the plan
//! knows, and their communication is not hidden); data parallel is kept alive where there are candidates that do so; of
//! candidates that are as fast as the fastest, within [`ALIKE`], the one that parts the model least is taken.

use std::cmp::Ordering;

use fathom_grad::Places;
use fathom_tensor::mesh::Grid;

use super::mesh::{MeshPlan, OfRank, distinct};
use super::{Draft, Plan, Workload};
use crate::error::{Error, Result};
use crate::parallel::Ranks;

/// Steps that differ by less are as fast: predictions are not better.
const ALIKE: f64 = 0.02;
/// Candidates that are planned in full.
const FINALISTS: usize = 6;
/// Most stages of the pipeline on one rank.
const MOST_STAGES: usize = 8;
/// Columns of the residual stream for each tensor parallel rank, at least.
const COLUMNS: usize = 2048;

/// A mesh with the places of its activations, and what it would take.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The mesh and the stages on each rank.
    pub ranks: Ranks,
    /// Name of the preset.
    pub places: &'static str,
    /// Tokens of a tile.
    pub tile_rows: Option<usize>,
    /// Predicted seconds of a step.
    pub step_s: f64,
    /// Most bytes of any rank, reserved.
    pub peak_bytes: u64,
    /// In full, for those that are shown.
    pub plan: Option<MeshPlan>,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct MeshSolution {
    /// The best, the one that is taken first.
    pub best: Vec<Candidate>,
    /// Meshes that divide everything.
    pub meshes: usize,
    /// Of these, those of which no places fit.
    pub too_large: usize,
    /// Why the first is the first.
    pub rule: String,
}

impl Candidate {
    /// The settings that make it, over any recipe.
    pub fn settings(&self) -> Vec<String> {
        let Grid { tp, cp, dp, pp, ep, .. } = self.ranks.grid;
        let axes = [("tp", tp), ("cp", cp), ("dp", dp), ("pp", pp), ("ep", ep)];
        let mut all: Vec<String> = axes
            .iter()
            .filter(|(_, size)| *size > 1)
            .map(|(axis, size)| format!("mesh.{axis}={size}"))
            .collect();
        if self.ranks.virtual_stages > 1 {
            all.push(format!("mesh.virtual_stages={}", self.ranks.virtual_stages));
        }
        all.push(format!("activations.recompute_granularity={}", self.places));
        all.extend(self.tile_rows.map(|rows| format!("activations.tile_rows={rows}")));
        all
    }

    /// Ranks that have parts of one replica of the model.
    fn parts(&self) -> usize {
        let Grid { tp, cp, pp, .. } = self.ranks.grid;
        tp * cp * pp
    }
}

/// Presets in the order of what they cost to compute: name, places, and whether everything token-local runs in tiles.
fn presets(tokens: usize) -> Vec<(&'static str, Places, Option<usize>)> {
    let tile = Some(4096).filter(|rows| *rows < tokens);
    let mut all = vec![("none", Places::none(), None)];
    all.extend(tile.map(|rows| ("none", Places::none().with_tiles(Some(rows)), Some(rows))));
    all.push(("linear", Places::linear().with_tiles(tile), tile));
    all.push(("full", Places::full().with_tiles(tile), tile));
    all
}

/// What divides `whole`.
fn sizes(whole: usize) -> impl Iterator<Item = usize> {
    (1..=whole).filter(move |size| whole.is_multiple_of(*size))
}

impl Draft<'_> {
    /// The best meshes of `gpus` ranks for the stage.
    ///
    /// # Errors
    /// A stage that cannot be planned, or that fits on no such mesh.
    pub fn solve_mesh(&self, gpus: usize) -> Result<MeshSolution> {
        let refuse = |message: String| Error::Recipe { key: "mesh".into(), message };
        if self.profile.rates.is_none() {
            return Err(refuse(format!(
                "the profile {} has no rates to tell meshes apart by",
                self.profile.name
            )));
        }
        let mut own = self.clone();
        own.recipe.mesh = Default::default();
        let work = own.workload()?;
        let meshes = self.meshes(&work, gpus);
        let mut found: Vec<Candidate> =
            meshes.iter().filter_map(|ranks| self.candidate(&work, *ranks)).collect();
        let too_large = meshes.len() - found.len();
        if found.iter().any(|candidate| candidate.ranks.grid.dp > 1) {
            found.retain(|candidate| candidate.ranks.grid.dp > 1);
        }
        found.sort_by(fastest);
        let mut best = Vec::new();
        for candidate in found {
            if best.len() == FINALISTS {
                break;
            }
            best.extend(self.in_full(&work, candidate));
        }
        best.sort_by(fastest);
        let rule = decide(&mut best).ok_or_else(|| {
            refuse(format!(
                "of {} meshes of {gpus} ranks that divide the model and the step none fits into {} a rank; take more ranks, or \
                 shorter sequences",
                meshes.len(),
                fathom_base::human::bytes(self.budgets.memory)
            ))
        })?;
        Ok(MeshSolution { best, meshes: meshes.len(), too_large, rule })
    }

    /// All meshes that divide the model and the step.
    fn meshes(&self, work: &Workload<'_>, gpus: usize) -> Vec<Ranks> {
        let node = self.profile.fabric.map_or(gpus, |fabric| fabric.node_ranks);
        let most_tp = (work.spec.hidden / COLUMNS).clamp(1, node);
        let layers = work.spec.layers.len();
        let mut all = Vec::new();
        for tp in sizes(gpus).filter(|tp| *tp <= most_tp) {
            for cp in sizes(gpus / tp) {
                for pp in sizes(gpus / tp / cp).filter(|pp| *pp <= layers) {
                    let dp = gpus / tp / cp / pp;
                    let grid = Grid { tp, cp, dp, pp, sequence_parallel: true, ..Grid::default() };
                    let expert = experts(work, tp * cp * dp);
                    for (ep, virtual_stages) in expert
                        .into_iter()
                        .flat_map(|ep| stages(layers, pp).into_iter().map(move |stages| (ep, stages)))
                    {
                        let grid = Grid { ep, ..grid };
                        let ranks = Ranks { grid, virtual_stages, ..work.how.ranks };
                        if self.divides(work, &ranks) {
                            all.push(ranks);
                        }
                    }
                }
            }
        }
        all
    }

    fn divides(&self, work: &Workload<'_>, ranks: &Ranks) -> bool {
        let Grid { tp, cp, dp, pp, .. } = ranks.grid;
        let micro_batches = work.micro_batches;
        let whole = micro_batches.is_multiple_of(dp) && work.tokens.is_multiple_of(cp * tp);
        // A rank with less than a chunk of addition would wait more than compute.
        let enough = work.tokens / cp / tp >= 128;
        // A pipeline with fewer micro batches than stages stands still more than half of the time.
        let filled = pp == 1 || micro_batches / dp >= pp;
        let groups = ranks.virtual_stages == 1 || (micro_batches / dp).is_multiple_of(pp);
        whole && enough && filled && groups && ranks.grid.check().is_ok() && ranks.check(&work.spec).is_ok()
    }

    /// The cheapest preset with which a mesh fits, by few layers.
    fn candidate(&self, work: &Workload<'_>, ranks: Ranks) -> Option<Candidate> {
        if state_bytes(work, &ranks) > self.budgets.memory {
            return None;
        }
        // Whatever comes later in the list computes more.
        presets(work.tokens / ranks.grid.cp).into_iter().find_map(|(name, places, tile_rows)| {
            let with = Workload { how: crate::InStep { places, ranks, ..work.how.clone() }, ..work.clone() };
            let (step_s, peak_bytes) = self.by_few_layers(&with)?;
            let fits = peak_bytes <= self.budgets.memory;
            fits.then_some(Candidate { ranks, places: name, tile_rows, step_s, peak_bytes, plan: None })
        })
    }

    /// Step time and peak of a candidate, from one and two layers in each stage of the pipeline.
    fn by_few_layers(&self, work: &Workload<'_>) -> Option<(f64, u64)> {
        let ranks = work.how.ranks;
        let stages = ranks.grid.pp * ranks.virtual_stages;
        let layers = work.spec.layers.len();
        let each = layers.div_ceil(stages);
        let few = [1, 2].map(|each| (each * stages).min(layers));
        let [one, two] = few.map(|layers| self.few(&work.with_layers(layers)));
        let line = |one: f64, two: f64| one + (two - one) * (each as f64 - 1.0);
        let step_s = match few[0] == few[1] {
            true => one.0?,
            false => line(one.0?, two.0?),
        };
        Some((step_s, line(one.1 as f64, two.1 as f64) as u64))
    }

    /// Step time and peak of a mesh, of which the first and the last stage are planned; those between are like the first.
    fn few(&self, work: &Workload<'_>) -> (Option<f64>, u64) {
        let ranks = work.how.ranks;
        let plan = |rank: usize| {
            let mut work = work.clone();
            work.how.ranks.rank = rank;
            work.run(false).0
        };
        let kinds = distinct(&ranks, &work.spec);
        let block = ranks.grid.tp * ranks.grid.cp * ranks.grid.dp;
        let mut known: Vec<(usize, Plan)> = Vec::new();
        let mut all = Vec::new();
        for (rank, stands_for) in kinds {
            let stage = rank / block;
            let asked = if stage == 0 || stage + 1 == ranks.grid.pp { stage } else { 0 };
            if !known.iter().any(|(known, _)| *known == asked) {
                known.push((asked, plan(rank % block + asked * block)));
            }
            let found = known.iter().find(|(known, _)| *known == asked);
            all.extend(found.map(|(_, plan)| OfRank { rank, stands_for, plan: plan.clone() }));
        }
        let mesh = self.together(ranks, all, work);
        (mesh.step_s(), mesh.most().map_or(0, |kind| kind.plan.usage.peak_reserved))
    }

    /// A candidate planned in full; `None` if it does not fit after all.
    fn in_full(&self, work: &Workload<'_>, candidate: Candidate) -> Option<Candidate> {
        let (_, places, _) = presets(work.tokens / candidate.ranks.grid.cp)
            .into_iter()
            .find(|(name, _, tile)| *name == candidate.places && *tile == candidate.tile_rows)?;
        let how = crate::InStep { places, ranks: candidate.ranks, ..work.how.clone() };
        let mut kinds = Vec::new();
        for (rank, stands_for) in distinct(&candidate.ranks, &work.spec) {
            let mut with = Workload { how: how.clone(), ..work.clone() };
            with.how.ranks.rank = rank;
            kinds.push(OfRank { rank, stands_for, plan: with.run(false).0 });
        }
        let plan = self.together(candidate.ranks, kinds, &Workload { how, ..work.clone() });
        let peak_bytes = plan.most()?.plan.usage.peak_reserved;
        let step_s = plan.step_s().unwrap_or(candidate.step_s);
        (peak_bytes <= self.budgets.memory).then_some(Candidate {
            peak_bytes,
            step_s,
            plan: Some(plan),
            ..candidate
        })
    }
}

fn fastest(left: &Candidate, right: &Candidate) -> Ordering {
    let key = |candidate: &Candidate| (candidate.parts(), candidate.ranks.virtual_stages);
    left.step_s.total_cmp(&right.step_s).then_with(|| key(left).cmp(&key(right)))
}

/// Sizes of expert parallel groups among so many ranks of a stage.
fn experts(work: &Workload<'_>, ranks: usize) -> Vec<usize> {
    match &work.spec.moe {
        None => vec![1],
        Some(moe) => sizes(ranks).filter(|ep| moe.experts.is_multiple_of(*ep)).collect(),
    }
}

/// Stages on each rank that divide the layers evenly; one where nothing does.
fn stages(layers: usize, pp: usize) -> Vec<usize> {
    let even = |stages: &usize| layers.is_multiple_of(pp * stages);
    let mut all = vec![1];
    all.extend((2..=MOST_STAGES).filter(|_| pp > 1).filter(even));
    all
}

/// Bytes of weights and gradients that a rank has at least: 6 for each parameter, and 12 of the optimizer's among those with the
/// same weights.
fn state_bytes(work: &Workload<'_>, ranks: &Ranks) -> u64 {
    let Grid { tp, cp, dp, pp, ep, .. } = ranks.grid;
    let spec = &work.spec;
    let gate = if spec.mlp.gated { 3 } else { 2 };
    let attention = 2 * spec.hidden * (spec.q_cols() + spec.kv_cols()) / tp;
    let mlp = match &spec.moe {
        None => gate * spec.hidden * spec.ffn / tp,
        Some(moe) => gate * spec.hidden * moe.ffn * moe.experts / ep,
    };
    let params = (spec.layers.len() / pp * (attention + mlp)) as u64;
    6 * params + 12 * params / (cp * dp) as u64
}

/// Moves the one that is taken to the front and says why; `None` without candidates.
fn decide(best: &mut [Candidate]) -> Option<String> {
    let fastest_s = best.first()?.step_s;
    let alike = best.iter().take_while(|candidate| candidate.step_s <= fastest_s * (1.0 + ALIKE)).count();
    let taken =
        (0..alike).min_by_key(|index| (best[*index].parts(), best[*index].ranks.virtual_stages, *index))?;
    best[..=taken].rotate_right(1);
    let gap = |other: &Candidate| (other.step_s / best[0].step_s - 1.0) * 100.0;
    Some(match (taken, best.get(1)) {
        (0, None) => "nothing else fits".into(),
        (0, Some(next)) if alike == 1 => format!("fastest of what fits, by {:.0} %", gap(next)),
        (0, Some(_)) => {
            "fastest of what fits, and of those as fast the one that parts the model least".into()
        }
        (_, _) => format!(
            "as fast as the fastest within {:.0} %, and parts the model among {} ranks, not {}",
            ALIKE * 100.0,
            best[0].parts(),
            best[1].parts()
        ),
    })
}
