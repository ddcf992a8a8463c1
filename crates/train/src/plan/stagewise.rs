//! What stages of a pipeline with any number of layers take and need, from stages with one layer and with two.
//!
//! A mesh is asked for its first and its last stage, each planned as that rank would run, with one layer and with two in every
//! stage: a pass takes so much a layer, and so much for what comes before the first and after the last. Passes of such lengths
//! are then simulated in the order of any number of stages on each rank, and what waits for its backward pass in that
//! order is counted in layers. So one pair of short plans stands for a mesh with any number of virtual stages.

use fathom_model::StageLayers;
use fathom_tensor::Category;

use super::gantt::{Gantt, simulate};
use super::lane::Lane;
use super::mesh::{fullest, handed, handovers};
use super::{Budgets, Plan, Workload};
use crate::parallel::Ranks;
use crate::parallel::stages::Act;

/// Something that grows with a stage's layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Growth {
    fixed: f64,
    each: f64,
}

impl Growth {
    fn of(one: f64, two: f64) -> Growth {
        Growth { fixed: 2.0 * one - two, each: two - one }
    }

    fn at(&self, layers: f64) -> f64 {
        (self.fixed + self.each * layers).max(0.0)
    }
}

/// A stage at one end of the pipeline.
#[derive(Clone, Debug, Default)]
struct End {
    before: Growth,
    forward: Growth,
    backward: Growth,
    weights: Growth,
    /// What the last micro batch's backward pass takes more: gradients are summed behind it.
    late: Growth,
    after: Growth,
    peak: Growth,
    /// Activations with the host and on disk.
    away: [Growth; 2],
    /// Weights and optimizer state there.
    state: [Growth; 2],
    /// Bytes that a layer of one micro batch keeps, and how many micro batches the plan's peak holds.
    kept: f64,
    holds: usize,
}

impl End {
    /// From the plans of a rank with one layer and with two, which hold `holds` micro batches.
    fn of(plans: &[Plan; 2], holds: usize) -> Option<End> {
        let [one, two] = [plans[0].lane.as_deref()?, plans[1].lane.as_deref()?];
        let grow =
            |figure: &dyn Fn(&Plan, &Lane) -> f64| Growth::of(figure(&plans[0], one), figure(&plans[1], two));
        let activations = |plan: &Plan| plan.usage.peak_by_category[Category::Activations] as f64;
        let kept = (activations(&plans[1]) - activations(&plans[0])).max(0.0) / holds.max(1) as f64;
        Some(End {
            before: grow(&|_, lane| lane.before_s),
            forward: grow(&|_, lane| first(lane, Kind::Forward)),
            backward: grow(&|_, lane| first(lane, Kind::Backward)),
            weights: grow(&|_, lane| first(lane, Kind::Weights)),
            late: grow(&|_, lane| last(lane, Kind::Backward) - first(lane, Kind::Backward)),
            after: grow(&|_, lane| lane.after_s),
            peak: grow(&|plan, _| plan.usage.peak_live as f64),
            away: [
                grow(&|plan, _| (plan.host_peak_bytes - plan.host_state_bytes) as f64),
                grow(&|plan, _| plan.spill_peak_bytes as f64),
            ],
            state: [
                grow(&|plan, _| plan.host_state_bytes as f64),
                grow(&|plan, _| (plan.disk_peak_bytes - plan.spill_peak_bytes) as f64),
            ],
            kept,
            holds,
        })
    }

    /// Bytes at the peak of a rank with so many layers, of which `held` of all micro batches are held at once.
    fn peak(&self, layers: f64, held: f64) -> f64 {
        self.peak.at(layers) + self.kept * (held - self.holds as f64 * layers)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Forward,
    Backward,
    Weights,
}

fn kind(act: Act) -> Kind {
    match act {
        Act::Forward { .. } => Kind::Forward,
        Act::Backward { .. } => Kind::Backward,
        Act::Weights { .. } => Kind::Weights,
    }
}

/// Seconds of the first pass of a kind; none has 0.
fn first(lane: &Lane, wanted: Kind) -> f64 {
    lane.acts.iter().find(|(act, _)| kind(*act) == wanted).map_or(0.0, |(_, seconds)| *seconds)
}

fn last(lane: &Lane, wanted: Kind) -> f64 {
    lane.acts.iter().rfind(|(act, _)| kind(*act) == wanted).map_or(0.0, |(_, seconds)| *seconds)
}

/// What a mesh would take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    /// Seconds of a step.
    pub step_s: f64,
    /// Most bytes of a rank, reserved.
    pub peak_bytes: u64,
    /// Most bytes with its host.
    pub host_bytes: u64,
    /// Most bytes on its disk.
    pub disk_bytes: u64,
}

impl Estimate {
    /// Bytes over the budgets, of what is taken most too much of.
    pub fn excess(&self, budgets: &Budgets) -> u64 {
        let uses = [
            (self.peak_bytes, budgets.memory),
            (self.host_bytes, budgets.host),
            (self.disk_bytes, budgets.disk),
        ];
        uses.map(|(used, budget)| used.saturating_sub(budget)).into_iter().max().unwrap_or(0)
    }
}

/// The ends of a mesh's pipeline, for any number of stages on each rank.
pub(super) struct Stagewise {
    ends: [End; 2],
    handover_s: Vec<f64>,
    /// Bytes that go from one stage to the next for a micro batch, and stay until the gradient comes back.
    sent: f64,
    micro_batches: usize,
}

/// Layers that wait for their backward passes at once, of all micro batches.
fn held(acts: &[Act], layers: &dyn Fn(usize) -> usize) -> usize {
    let (mut now, mut most) = (0, 0);
    for act in acts {
        match *act {
            Act::Forward { chunk, .. } => now += layers(chunk),
            Act::Backward { chunk, .. } => now -= layers(chunk).min(now),
            Act::Weights { .. } => {}
        }
        most = most.max(now);
    }
    most
}

impl Workload<'_> {
    /// Plans the ends of the pipeline; `None` without rates, or if the micro batches do not go through its stages. The stages on each
    /// rank do not count.
    pub(super) fn stagewise(&self) -> Option<Stagewise> {
        let mut work = self.clone();
        work.how.ranks.virtual_stages = 1;
        let ranks = work.how.ranks;
        let micro_batches = (self.micro_batches / ranks.grid.dp).max(1);
        // Two ranks have both ends, whatever is between them.
        let pp = ranks.grid.pp.min(2);
        work.how.ranks.grid.pp = pp;
        let few = [1, 2].map(|each| {
            let mut few = work.clone();
            let layers = work.spec.layers.iter().cycle().take(each * pp).cloned().collect();
            few.spec.to_mut().layers = layers;
            few.how.ranks.layout = StageLayers::new(&vec![each; pp]).unwrap_or_default();
            few
        });
        let end = |stage: usize| {
            let plans = [few[0].of_stage(stage), few[1].of_stage(stage)];
            let acts = ranks.order.acts(stage, pp, 1, micro_batches).ok()?;
            End::of(&plans, held(&acts, &|_| 1))
        };
        let first = end(0)?;
        let last = if pp == 1 { first.clone() } else { end(pp - 1)? };
        let handover_s = handovers(self.profile, &self.how.ranks, self);
        let sent = handed(&self.how.ranks, self) as f64;
        Some(Stagewise { ends: [first, last], handover_s, sent, micro_batches })
    }

    /// The plan of a rank of a stage: of one that keeps most of the optimizer's state.
    fn of_stage(&self, stage: usize) -> Plan {
        let mut work = self.clone();
        let grid = work.how.ranks.grid;
        let first = stage * grid.tp * grid.cp * grid.dp;
        work.how.ranks.rank = first + grid.tp * fullest(&work.how.ranks, &work.spec, first);
        work.run(false).0
    }
}

impl Stagewise {
    /// A step with these stages on each rank; `None` if micro batches do not go through them.
    pub(super) fn estimate(&self, work: &Workload<'_>, ranks: &Ranks) -> Option<Estimate> {
        let (pp, chunks) = (ranks.grid.pp, ranks.virtual_stages);
        let cut = ranks.layout.cut(&work.spec, pp * chunks);
        let layers = |rank: usize, chunk: usize| cut[chunk * pp + rank].len();
        let mut lanes = Vec::new();
        let mut most = [0.0f64; 3];
        for rank in 0..pp {
            let acts = ranks.order.acts(rank, pp, chunks, self.micro_batches).ok()?;
            let own = |chunk: usize| layers(rank, chunk);
            let all = (0..chunks).map(own).sum::<usize>() as f64;
            // Stages between the ends have what the first has, without what comes before its layers.
            let end = &self.ends[usize::from(rank + 1 == pp && pp > 1)];
            if rank == 0 || rank + 1 == pp {
                let kept = held(&acts, &own) as f64;
                let passes = if rank == 0 { held(&acts, &|_| 1) } else { end.holds };
                let sent = self.sent * (passes as f64 - end.holds as f64);
                // Activations come for every layer that waits, the rest for every layer.
                let waiting = kept / end.holds.max(1) as f64;
                let [host, disk] = [0, 1].map(|at| end.away[at].at(waiting) + end.state[at].at(all));
                let now = [end.peak(all, kept) + sent, host, disk];
                most = std::array::from_fn(|at| most[at].max(now[at]));
            }
            let timed = |act: &Act| (*act, self.seconds(*act, (rank, pp, chunks), &own, all));
            let acts = acts.iter().map(timed).collect();
            let (before_s, after_s) = (end.before.at(all), end.after.at(all));
            lanes.push(Lane { before_s, acts, after_s, ..Lane::default() });
        }
        let lanes: Vec<&Lane> = lanes.iter().collect();
        let Gantt { step_s, .. } = simulate(&lanes, chunks, &self.handover_s);
        let [peak_bytes, host_bytes, disk_bytes] = most.map(|bytes| bytes.max(0.0) as u64);
        Some(Estimate { step_s, peak_bytes, host_bytes, disk_bytes })
    }

    /// Seconds of a pass of a rank with `all` layers.
    fn seconds(
        &self,
        act: Act,
        (rank, pp, chunks): (usize, usize, usize),
        layers: &dyn Fn(usize) -> usize,
        all: f64,
    ) -> f64 {
        let [first, last] = &self.ends;
        let pass = |pick: &dyn Fn(&End) -> Growth, chunk: usize| {
            let (is_first, is_last) = (rank == 0 && chunk == 0, rank + 1 == pp && chunk + 1 == chunks);
            let fixed = match (is_first, is_last) {
                (true, _) => pick(first).fixed,
                (_, true) => pick(last).fixed,
                _ => 0.0,
            };
            Growth { fixed, each: pick(first).each }.at(layers(chunk) as f64)
        };
        match act {
            Act::Forward { chunk, .. } => pass(&|end| end.forward, chunk),
            Act::Weights { chunk, .. } => pass(&|end| end.weights, chunk),
            Act::Backward { chunk, micro } => {
                let late =
                    if micro + 1 == self.micro_batches { first.late.at(all) / chunks as f64 } else { 0.0 };
                pass(&|end| end.backward, chunk) + late
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{LlamaSizes, Spec};
    use fathom_tensor::gpu;

    use super::*;
    use crate::parallel::stages::Order;
    use crate::plan::Draft;
    use crate::recipe::{Granularity, MeshTable, Recipe, Stage};

    /// What few layers say of a mesh is what its plan in full says.
    #[test]
    fn few_layers_stand_for_all() {
        let profile = gpu::named("dgx-h100").unwrap();
        let tokens = 4096;
        let spec = Spec::llama(LlamaSizes {
            hidden: 1024,
            layers: 24,
            heads: 8,
            kv_heads: 4,
            head_dim: 128,
            ffn: 4096,
            vocab: 32_000,
            rope_theta: 1e4,
            max_positions: tokens,
            tied: false,
        });
        for (pp, virtual_stages, granularity) in [
            (1, 1, Granularity::None),
            (2, 1, Granularity::None),
            (4, 1, Granularity::Linear),
            (8, 1, Granularity::None),
            (2, 3, Granularity::None),
            (4, 2, Granularity::Full),
        ] {
            let mesh = MeshTable { tp: 2, dp: 2, pp, virtual_stages, ..MeshTable::default() };
            let mut recipe = Recipe { mesh, ..Recipe::default() };
            recipe.stage = vec![Stage { seq_tokens: tokens, micro_batches: 32, ..Stage::default() }];
            recipe.activations.recompute_granularity = granularity;
            let budgets = Budgets { memory: 80 << 30, host: 0, disk: 0 };
            let draft = Draft { profile: &profile, spec: &spec, recipe, index: 0, budgets, rank: 0 };
            let full = draft.mesh().unwrap();
            let work = draft.workload().unwrap();
            let few = work.stagewise().unwrap().estimate(&work, &work.how.ranks).unwrap();
            let step = few.step_s / full.step_s().unwrap();
            let peak = few.peak_bytes as f64 / full.most().unwrap().plan.usage.peak_reserved as f64;
            println!(
                "pp={pp} vp={virtual_stages} {granularity}: step {step:.4}, peak {peak:.4} of the plan in full"
            );
            assert!((step - 1.0).abs() < 0.05 && (peak - 1.0).abs() < 0.05, "pp={pp} {step} {peak}");
        }
    }

    #[test]
    fn layers_that_wait_are_counted_along_the_order() {
        let acts = |rank, pp, chunks| Order::OneByOne.acts(rank, pp, chunks, 8).unwrap();
        assert_eq!([0, 3].map(|rank| held(&acts(rank, 4, 1), &|_| 5)), [20, 5]);
        // 2 (pp - 1) + (chunks - 1) pp + 1 passes of two layers each.
        assert_eq!(held(&acts(0, 4, 2), &|_| 2), 22);
    }
}
