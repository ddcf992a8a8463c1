//! The meshes to try: all that divide the model and the step, except those that are clearly too large or too slow.

use fathom_tensor::DType;
use fathom_tensor::mesh::Grid;

use super::Workload;
use crate::parallel::Ranks;

/// Maximum number of pipeline stages on one rank.
const MOST_STAGES: usize = 8;
/// Minimum number of columns of the residual stream per tensor parallel rank.
const COLUMNS: usize = 2048;

/// Divisors of `whole`.
fn sizes(whole: usize) -> impl Iterator<Item = usize> {
    (1..=whole).filter(move |size| whole.is_multiple_of(*size))
}

/// All meshes of `gpus` ranks that divide the model and the step, with one stage on each rank.
pub(super) fn meshes(work: &Workload<'_>, gpus: usize) -> Vec<Ranks> {
    let node = work.profile.fabric.map_or(gpus, |fabric| fabric.node_ranks);
    let most_tp = (work.spec.hidden / COLUMNS).clamp(1, node);
    let layers = work.spec.layers.len();
    let mut all = Vec::new();
    for tp in sizes(gpus).filter(|tp| *tp <= most_tp) {
        for cp in sizes(gpus / tp) {
            for pp in sizes(gpus / tp / cp).filter(|pp| *pp <= layers) {
                let dp = gpus / tp / cp / pp;
                let grid = Grid { tp, cp, dp, pp, sequence_parallel: true, ..Grid::default() };
                for ep in experts(work, tp * cp * dp) {
                    let ranks = Ranks { grid: Grid { ep, ..grid }, virtual_stages: 1, ..work.how.ranks };
                    if divides(work, &ranks) {
                        all.push(ranks);
                    }
                }
            }
        }
    }
    all
}

fn divides(work: &Workload<'_>, ranks: &Ranks) -> bool {
    let Grid { tp, cp, dp, pp, .. } = ranks.grid;
    let micro_batches = work.micro_batches;
    let whole = micro_batches.is_multiple_of(dp) && work.tokens.is_multiple_of(cp * tp);
    // A rank with less than a chunk of addition would wait more than compute.
    let enough = work.tokens / cp / tp >= 128;
    // A pipeline with fewer micro-batches than stages is idle more than half of the time.
    let filled = pp == 1 || micro_batches / dp >= pp;
    whole && enough && filled && ranks.grid.check().is_ok() && ranks.check(&work.spec).is_ok()
}

/// Sizes of expert parallel groups among the `ranks` ranks of a stage.
fn experts(work: &Workload<'_>, ranks: usize) -> Vec<usize> {
    match &work.spec.moe {
        None => vec![1],
        Some(moe) => sizes(ranks).filter(|ep| moe.experts.is_multiple_of(*ep)).collect(),
    }
}

/// Numbers of stages per rank that divide the layers evenly; only 1 if none does, or if the micro-batches do not divide
/// into whole groups.
pub(super) fn stages(work: &Workload<'_>, grid: &Grid) -> Vec<usize> {
    let (layers, Grid { pp, dp, .. }) = (work.spec.layers.len(), *grid);
    let goes = pp > 1 && (work.micro_batches / dp).is_multiple_of(pp);
    let even = |stages: &usize| goes && layers.is_multiple_of(pp * stages);
    std::iter::once(1).chain((2..=MOST_STAGES).filter(even)).collect()
}

/// A lower bound for the bytes of weights, gradients and optimizer state in a rank's memory: for each parameter of its
/// blocks 2, 4, and those of moments and masters, which are divided among ranks with the same weights. Offloaded values
/// count as 0.
pub(super) fn state_bytes(work: &Workload<'_>, grid: &Grid) -> u64 {
    let Grid { tp, cp, dp, pp, ep, .. } = *grid;
    let (spec, how) = (&work.spec, &work.how);
    let gate = if spec.mlp.gated { 3 } else { 2 };
    // Keys and values from latents have fewer weights.
    let attention =
        if spec.latent.is_some() { 0 } else { 2 * spec.hidden * (spec.q_cols() + spec.kv_cols()) / tp };
    let attention = |layer: usize| if spec.layers[layer].reach().is_some() { attention } else { 0 };
    let mlp = |layer: usize| match spec.experts_of(layer) {
        None if !spec.layers[layer].has_mlp() => 0,
        None => gate * spec.hidden * spec.ffn / tp,
        Some(moe) => gate * moe.latent.unwrap_or(spec.hidden) * moe.ffn * moe.experts / ep,
    };
    let layers = spec.layers.len();
    let params = ((0..layers).map(|layer| attention(layer) + mlp(layer)).sum::<usize>() / pp) as u64;
    let (on_disk, moments) = (how.on_disk, how.adamw.moments);
    let weights = if on_disk.weights { 0 } else { work.dtype.bytes() as u64 };
    let moment = (1 + u64::from(moments.second)) * moments.dtype.bytes() as u64;
    let masters = if moments.masters && work.dtype != DType::F32 { 4 } else { 0 };
    // The part of an offloaded optimizer that stays in memory is given in percent.
    let stays = if on_disk.optimizer { u64::from(on_disk.stays_percent) } else { 100 };
    let sharers = (cp * dp).max(tp * cp * dp / ep) as u64;
    (weights + 4) * params + (moment + masters) * params * stays / 100 / sharers
}
