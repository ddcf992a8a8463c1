//! Objectives other than the cross-entropy: the same sums, gradients and metrics on every mesh, and as planned.

use std::sync::Arc;

use fathom_grad::{EntropyLoss, Places};
use fathom_model::{Caps, Spec};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh};
use fathom_tensor::{DType, Device, Machine, Meta};
use fathom_train::parallel::Sharding;
use fathom_train::{
    Answers, CrossEntropy, Goal, InStep, LabelMetrics, MicroBatch, Objective, ObjectiveSum, Weigh,
    WeightedLoss,
};

use crate::mesh::{Case, ONE, batches, every_rank, in_step, trainer};

const BETA: f64 = 0.3;

/// Adjacent documents as pairs: `-log sigmoid(beta (logp of the first - logp of the second - the reference's))`, as in
/// direct preference optimization (Rafailov et al., 2023, equation 7).
#[derive(Debug)]
struct Pairs;

impl Objective for Pairs {
    fn name(&self) -> &'static str {
        "pairs"
    }

    fn count(&self, micro: &MicroBatch) -> f64 {
        (micro.docs.len() / 2) as f64
    }

    fn weigh(&self) -> Option<&dyn Weigh> {
        Some(self)
    }
}

impl Weigh for Pairs {
    fn metrics(&self) -> &[&'static str] {
        &["margin", "tokens"]
    }

    fn weigh(&self, answers: &Answers<'_>) -> ObjectiveSum {
        let mut weighed =
            ObjectiveSum { weights: vec![0.0; answers.losses.len()], ..ObjectiveSum::default() };
        let (mut margins, mut tokens) = ([0.0; 2], [0.0; 2]);
        for pair in answers.micro.docs.chunks_exact(2) {
            let ratio = |doc| answers.logp(doc) - answers.reference(doc);
            let margin = BETA * (ratio(&pair[0]) - ratio(&pair[1]));
            weighed.loss += (-margin).exp().ln_1p();
            // Derivative by a token's loss, its negative log-probability.
            let slope = (BETA / (1.0 + margin.exp())) as f32;
            for (doc, slope) in [(&pair[0], slope), (&pair[1], -slope)] {
                weighed.weights[doc.clone()].fill(slope);
                tokens = [tokens[0] + answers.labels(doc) as f64, tokens[1] + 1.0];
            }
            margins = [margins[0] + margin, margins[1] + 1.0];
        }
        weighed.metrics = vec![margins, tokens];
        weighed
    }
}

/// Negative probability of each label, detached, times its log-probability (dynamic fine-tuning, Wu et al., 2025), and
/// a fifth of the entropy there.
#[derive(Debug)]
struct Sure;

impl Objective for Sure {
    fn name(&self) -> &'static str {
        "sure"
    }

    fn count(&self, micro: &MicroBatch) -> f64 {
        micro.valid() as f64
    }

    fn terms(&self) -> Vec<WeightedLoss> {
        let entropy = WeightedLoss::new(1.0, EntropyLoss { temperature: 1.0 });
        vec![WeightedLoss::cross_entropy(), entropy]
    }

    fn weigh(&self) -> Option<&dyn Weigh> {
        Some(self)
    }

    fn measured(&self) -> LabelMetrics {
        LabelMetrics::Both
    }
}

impl Weigh for Sure {
    fn metrics(&self) -> &[&'static str] {
        &[]
    }

    fn weigh(&self, answers: &Answers<'_>) -> ObjectiveSum {
        let weights: Vec<f32> = answers.losses.iter().map(|loss| (-loss).exp()).collect();
        let each = answers.losses.iter().zip(&weights).map(|(loss, weight)| f64::from(loss * weight));
        let entropies = &answers.others[0];
        let entropy: f64 = entropies.iter().map(|entropy| f64::from(*entropy)).sum();
        let others = vec![vec![0.2; entropies.len()]];
        ObjectiveSum { loss: each.sum::<f64>() + 0.2 * entropy, weights, others, ..ObjectiveSum::default() }
    }
}

/// The cross-entropy as a general `Weigh`.
#[derive(Debug)]
struct Slow;

impl Objective for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn count(&self, micro: &MicroBatch) -> f64 {
        micro.valid() as f64
    }

    fn weigh(&self) -> Option<&dyn Weigh> {
        Some(self)
    }
}

impl Weigh for Slow {
    fn metrics(&self) -> &[&'static str] {
        &[]
    }

    fn weigh(&self, answers: &Answers<'_>) -> ObjectiveSum {
        let loss = answers.losses.iter().map(|loss| f64::from(*loss)).sum();
        ObjectiveSum { loss, weights: vec![1.0; answers.losses.len()], ..ObjectiveSum::default() }
    }
}

/// The squared error of a second head of two scores, with the terms of the vocabulary's.
#[derive(Debug)]
struct Values(Vec<WeightedLoss>);

impl Objective for Values {
    fn name(&self) -> &'static str {
        "values"
    }

    fn count(&self, micro: &MicroBatch) -> f64 {
        micro.valid() as f64
    }

    fn terms(&self) -> Vec<WeightedLoss> {
        self.0.clone()
    }

    fn weigh(&self) -> Option<&dyn Weigh> {
        Some(self)
    }
}

impl Weigh for Values {
    fn metrics(&self) -> &[&'static str] {
        &["error"]
    }

    fn scores(&self) -> bool {
        true
    }

    fn weigh(&self, answers: &Answers<'_>) -> ObjectiveSum {
        let target = |at: usize| (answers.micro.ids[at / 2] % 5 + at as i32 % 2) as f32 / 4.0;
        let errors: Vec<f32> = answers.scores.iter().enumerate().map(|(at, x)| x - target(at)).collect();
        let squares: f64 = errors.iter().map(|error| f64::from(error * error)).sum();
        let losses: f64 = answers.losses.iter().map(|loss| f64::from(*loss)).sum();
        ObjectiveSum {
            loss: squares + losses,
            weights: vec![1.0; answers.losses.len()],
            scores: errors.iter().map(|error| 2.0 * error).collect(),
            metrics: vec![[squares, errors.len() as f64]],
            ..ObjectiveSum::default()
        }
    }
}

fn with_scores(tied: bool) -> Spec {
    Spec { scores: 2, ..crate::mesh::spec(tied) }
}

fn how(case: &Case, objective: Arc<dyn Objective>, weighted: bool) -> InStep {
    InStep {
        goal: Goal { objective, weighted, measured: true, ..Goal::default() },
        z_loss: 0.0,
        ..in_step(case)
    }
}

/// Adds reference log-probabilities.
fn with_reference(mut batches: Vec<MicroBatch>) -> Vec<MicroBatch> {
    for micro in &mut batches {
        micro.reference = (0..micro.ids.len()).map(|at| -4.6 - ((at * 7 % 13) as f32) / 24.0).collect();
    }
    batches
}

/// Number of steps of a run, and of its plan: no step reserves more than the third.
const STEPS: usize = 6;
const PLANNED: usize = 3;

/// Losses, norms and metrics of several steps, and the reserved bytes.
fn train(
    device: &Device,
    case: &Case,
    objective: Arc<dyn Objective>,
    steps: usize,
) -> (Vec<[f32; 2]>, Vec<u8>, u64) {
    let mut trainer = trainer(device, case);
    let batches = with_reference(batches(device, case, 4));
    let how = how(case, objective, false);
    let mut seen = Vec::new();
    let mut metrics = Vec::new();
    for _ in 0..steps {
        let result = trainer.step(&batches, &how).unwrap();
        seen.push([result.loss.wait_f32() / result.count.wait_f32(), result.norm.wait_f32()]);
        metrics.extend(result.metrics.map(fathom_tensor::InFlight::wait).unwrap_or_default());
    }
    (seen, metrics, device.pool.usage().peak_reserved)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

/// An objective, and its model with a tied or separate head.
type ObjectiveCase = (Arc<dyn Objective>, fn(bool) -> Spec);

#[test]
fn sums_over_documents_are_the_same_on_every_mesh() {
    let grid = Grid::default();
    let objectives: [ObjectiveCase; 5] = [
        (Arc::new(CrossEntropy), crate::mesh::spec),
        (Arc::new(Pairs), crate::mesh::spec),
        (Arc::new(Sure), crate::mesh::spec),
        (Arc::new(Values(Vec::new())), with_scores),
        (Arc::new(Values(vec![WeightedLoss::cross_entropy()])), with_scores),
    ];
    for (objective, spec) in objectives {
        let alone = Case { spec, ..ONE };
        let one = &every_rank(alone, &|device| train(device, &alone, objective.clone(), STEPS))[0];
        assert!((one.0[0][0] - one.0[5][0]).abs() > 0.02, "it learns: {:?}", one.0);
        let more = (Grid { pp: 2, dp: 2, ..grid }, None);
        for (grid, tile_rows) in crate::noise::axes().into_iter().chain([more]) {
            for sharding in [Sharding::Optim, Sharding::OptimGradsParams] {
                let case = Case { grid, tile_rows, sharding, ..alone };
                let ranks = every_rank(case, &|device| train(device, &case, objective.clone(), STEPS));
                for (rank, found) in ranks.iter().enumerate() {
                    assert_eq!(found.0, ranks[0].0, "{grid}: ranks differ");
                    for (a, b) in found.0.iter().flatten().zip(one.0.iter().flatten()) {
                        assert!(
                            (a - b).abs() <= 2e-5 * b.abs().max(0.1),
                            "{grid}: {:?} {:?}",
                            found.0,
                            one.0
                        );
                    }
                    for (a, b) in floats(&found.1).iter().zip(floats(&one.1)) {
                        assert!((a - b).abs() <= 2e-5 * b.abs().max(1.0), "{grid}: metrics {a} {b}");
                    }
                    assert_eq!(found.1.len(), one.1.len());
                    let machine = Meta::new(fathom_cpu::Cpu::new(1, None).profile().clone());
                    let mesh = match grid.ranks() {
                        1 => Mesh::alone(),
                        all => Mesh::new(grid, Box::new(CountingLink::new(rank, all))),
                    };
                    let device = Device::on_mesh(Arc::new(machine), 1 << 28, mesh);
                    let planned = train(&device, &case, objective.clone(), PLANNED);
                    assert_eq!(planned.2, found.2, "{grid}: the plan of rank {rank}");
                }
            }
        }
    }
}

/// A `Weigh` with constant weights has the bits of the fused head, and weights of one those of none.
#[test]
fn constant_weights_have_the_bits_of_the_fused_way() {
    for dtype in [DType::F32, DType::Bf16] {
        let case = Case { dtype, ..ONE };
        let run = |objective: Arc<dyn Objective>, weighted: bool| {
            every_rank(case, &|device| {
                let mut trainer = trainer(device, &case);
                let batches = batches(device, &case, 4);
                let how = InStep { places: Places::none(), ..how(&case, objective.clone(), weighted) };
                let step = |_| {
                    let result = trainer.step(&batches, &how).unwrap();
                    [result.loss.wait_f32().to_bits(), result.norm.wait_f32().to_bits()]
                };
                (0..3).map(step).collect::<Vec<_>>()
            })
            .remove(0)
        };
        // Label metrics, which all of these report, change nothing.
        let fused = run(Goal::default().objective, false);
        assert_eq!(run(Goal::default().objective, true), fused, "{dtype:?}");
        let slow = run(Arc::new(Slow), false);
        assert_eq!(
            slow.iter().map(|bits| bits[1]).collect::<Vec<_>>(),
            fused.iter().map(|bits| bits[1]).collect::<Vec<_>>()
        );
    }
}

/// The cross-entropy as a general `Weigh`, with the micro-batch's weights.
#[derive(Debug)]
struct SlowWeighted;

impl Objective for SlowWeighted {
    fn name(&self) -> &'static str {
        "slow weighted"
    }

    fn count(&self, micro: &MicroBatch) -> f64 {
        CrossEntropy.count(micro)
    }

    fn weigh(&self) -> Option<&dyn Weigh> {
        Some(self)
    }
}

impl Weigh for SlowWeighted {
    fn metrics(&self) -> &[&'static str] {
        &[]
    }

    fn weigh(&self, answers: &Answers<'_>) -> ObjectiveSum {
        let weights = answers.micro.weights.clone();
        let each = answers.losses.iter().zip(&weights).map(|(loss, weight)| f64::from(*loss * *weight));
        ObjectiveSum { loss: each.sum(), weights, ..ObjectiveSum::default() }
    }
}

/// Gives the tokens weights that depend on their position in the stream.
fn with_weights(mut batches: Vec<MicroBatch>, weight: &dyn Fn(usize) -> f32) -> Vec<MicroBatch> {
    for micro in &mut batches {
        micro.weights = (0..micro.ids.len()).map(weight).collect();
    }
    batches
}

/// Concatenates micro-batches.
pub fn joined(batches: &[MicroBatch]) -> MicroBatch {
    let mut all = MicroBatch::default();
    for micro in batches {
        let start = all.ids.len();
        all.ids.extend(&micro.ids);
        all.labels.extend(&micro.labels);
        all.positions.extend(&micro.positions);
        all.weights.extend(&micro.weights);
        all.docs.extend(micro.docs.iter().map(|doc| start + doc.start..start + doc.end));
    }
    all
}

/// A weighted mean is divided by its weights, and a label of weight two counts as two: in the count, in metrics and in
/// the gradient, on every mesh and for every split into micro-batches.
#[test]
fn weights_are_those_of_a_mean() {
    let uneven = |at: usize| if at < 101 { 2.0 } else { 0.5 + (at % 3) as f32 / 4.0 };
    let run = |case: Case, objective: Arc<dyn Objective>, weight: &(dyn Fn(usize) -> f32 + Sync)| {
        every_rank(case, &|device| {
            let how = how(&case, objective.clone(), true);
            let batches = with_weights(batches(device, &case, 4), weight);
            let result = trainer(device, &case).step(&batches, &how).unwrap();
            [result.loss.wait_f32() / result.count.wait_f32(), result.norm.wait_f32()]
        })
    };
    let ones = run(ONE, Arc::new(CrossEntropy), &|_| 1.0)[0];
    let one = run(ONE, Arc::new(CrossEntropy), &uneven)[0];
    let slow = run(ONE, Arc::new(SlowWeighted), &uneven)[0];
    assert!((one[0] - ones[0]).abs() > 1e-3 && (one[1] - ones[1]).abs() > 1e-3, "{one:?} {ones:?}");
    assert!((one[0] - slow[0]).abs() < 1e-5 && one[1] == slow[1], "{one:?} {slow:?}");
    let grid = Grid::default();
    for grid in [
        Grid { cp: 2, ..grid },
        Grid { dp: 2, ..grid },
        Grid { pp: 2, ..grid },
        Grid { tp: 2, ..grid },
        Grid { tp: 2, cp: 2, sequence_parallel: true, ..grid },
    ] {
        for found in run(Case { grid, ..ONE }, Arc::new(CrossEntropy), &uneven) {
            for (a, b) in found.iter().zip(one) {
                assert!((a - b).abs() <= 2e-5 * b.abs().max(0.1), "{grid}: {found:?} {one:?}");
            }
        }
    }
    every_rank(ONE, &|device| {
        let how =
            InStep { caps: Caps { docs: 16, seq_tokens: 512 }, ..how(&ONE, Arc::new(CrossEntropy), true) };
        let step = |batches: &[MicroBatch]| {
            let result = trainer(device, &ONE).step(batches, &how).unwrap();
            [result.loss, result.count, result.norm].map(|scalar| scalar.wait_f32().to_bits())
        };
        let plain = batches(device, &ONE, 2);
        let two = with_weights(plain.clone(), &uneven);
        assert_eq!(step(&two), step(&[joined(&two)]), "accumulation");
        assert_eq!(f32::from_bits(step(&with_weights(plain.clone(), &|_| 2.0))[1]), 2.0 * 2.0 * 251.0);
        // Labels of weight 0 do not count, and those of weight 1 have the bits of unweighted ones.
        let mut masked = plain.clone();
        for micro in &mut masked {
            micro.weights = micro.labels.iter().map(|label| f32::from(u8::from(*label >= 0))).collect();
        }
        assert_eq!(step(&masked), step(&plain));
    });
}
