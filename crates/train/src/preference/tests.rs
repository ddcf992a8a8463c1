//! Tests of losses against their formulas, and of gradients against finite differences.

use fathom_text::pack::Facts;

use super::losses::Pair;
use super::*;
use crate::micro_batch::StepTotals;
use crate::objective::{Objective, Weigh};

/// Documents of `tokens` tokens, whose answers begin at `starts`, with further facts.
fn stream(tokens: &[usize], starts: &[usize], known: &[&[f32]], prompts: bool) -> MicroBatch {
    let mut micro = MicroBatch::default();
    for (doc, (tokens, start)) in tokens.iter().zip(starts).enumerate() {
        let from = micro.ids.len();
        micro.ids.extend((0..*tokens).map(|at| (7 * at + doc) as i32 % 13));
        let label =
            |at: usize| if at + 1 < *tokens && (prompts || at + 1 >= *start) { at as i32 } else { -100 };
        micro.labels.extend((0..*tokens).map(label));
        micro.docs.push(from..from + tokens);
        micro.facts.width = 1 + known[doc].len();
        micro.facts.values.push(*start as f32);
        micro.facts.values.extend(known[doc]);
    }
    // Padding.
    let from = micro.ids.len();
    micro.docs.push(from..from + 3);
    micro.ids.extend([0; 3]);
    micro.labels.extend([-100; 3]);
    micro.reference = (0..micro.ids.len()).map(|at| -1.0 - (at * 5 % 11) as f32 / 7.0).collect();
    micro
}

fn three(prompts: bool) -> MicroBatch {
    let known: [&[f32]; 6] = [&[2.0, 0.5], &[1.0, 0.5], &[3.0, 1.0], &[-1.0, 1.0], &[0.5, 0.0], &[0.25, 0.0]];
    stream(&[9, 7, 5, 11, 6, 6], &[4, 4, 2, 2, 3, 3], &known, prompts)
}

fn losses(micro: &MicroBatch) -> Vec<f32> {
    let loss = |at: usize| if micro.labels[at] < 0 { 0.0 } else { 0.7 + (at * 3 % 7) as f32 / 9.0 };
    (0..micro.ids.len()).map(loss).collect()
}

fn every_pair_loss() -> Vec<Settings> {
    use PairLoss::*;
    #[rustfmt::skip]
    let all = [
        Sigmoid, SigmoidNorm, Hinge, Ipo, IpoSum, ExoPair, NcaPair, Robust, BcoPair, SppoHard, Aot, AotUnpaired, ApoZero,
        ApoDown, Discopop, Sft, Simpo, OddsRatio, BackwardKl, ForwardKl, Squared,
    ];
    let plain =
        |loss| Settings { losses: vec![(loss, 1.0)], beta: 0.3, label_smoothing: 0.1, ..Settings::default() };
    let mut cases: Vec<Settings> = all.into_iter().map(plain).collect();
    for divergence in [Divergence::ForwardKl, Divergence::JensenShannon, Divergence::Alpha] {
        cases.push(Settings { divergence, ..plain(Sigmoid) });
        cases.push(Settings { divergence, ..plain(Ipo) });
    }
    cases.push(Settings { ld_alpha: Some(0.4), sft_weight: 0.7, ..plain(Sigmoid) });
    cases.push(Settings { averages: true, ..plain(Simpo) });
    cases.push(Settings { averages: true, alpha: 0.2, ..plain(Simpo) });
    cases.push(Settings {
        losses: vec![(Sigmoid, 0.8), (Aot, 0.5), (BcoPair, 0.2)],
        sft_weight: 1.0,
        ..plain(Sigmoid)
    });
    cases.push(Settings { averages: true, sft_weight: 1.0, ..plain(OddsRatio) });
    cases
}

/// Compares an objective's derivatives by each loss, or by each score, with finite differences.
fn differences(weigh: &dyn Weigh, micro: &MicroBatch, given: &[f32], of_scores: bool) {
    let said = |given: &[f32]| {
        let (losses, scores): (&[f32], &[f32]) = if of_scores { (&[], given) } else { (given, &[]) };
        weigh.weigh(&Answers { micro, losses, others: &[], scores, padding: None, at_first: false })
    };
    let found = said(given);
    let slopes = if of_scores { &found.scores } else { &found.weights };
    assert_eq!(slopes.len(), given.len());
    for at in 0..given.len() {
        let step = 1.0 / 64.0;
        let moved = |by: f32| {
            let mut moved = given.to_vec();
            moved[at] += by;
            said(&moved).loss
        };
        let two = |step: f32| (moved(step) - moved(-step)) / f64::from(2.0 * step);
        let expected = (4.0 * two(step) - two(2.0 * step)) / 3.0;
        if !of_scores && micro.labels[at] < 0 {
            assert_eq!(slopes[at], 0.0, "a place without a label");
        } else {
            assert!(
                (f64::from(slopes[at]) - expected).abs() < 2e-5 * expected.abs().max(1.0),
                "{at}: {} {expected}",
                slopes[at]
            );
        }
    }
    assert_eq!(found.metrics.len(), weigh.metrics().len());
}

#[test]
fn gradients_are_those_of_the_losses() {
    for settings in every_pair_loss() {
        let micro = three(settings.is_of_odds());
        differences(&Pairs(settings), &micro, &losses(&micro), false);
    }
}

#[test]
fn wanted_answers_have_their_formula() {
    let (yes, no): (&[f32], &[f32]) = (&[1.0], &[0.0]);
    let micro = stream(&[9, 7, 5, 11], &[4, 4, 2, 2], &[yes, &[f32::NAN], no, &[f32::NAN]], false);
    let given = losses(&micro);
    let answers =
        Answers { micro: &micro, losses: &given, others: &[], scores: &[], padding: None, at_first: false };
    let ratio = |doc: usize| answers.logp(&micro.docs[doc]) - answers.reference(&micro.docs[doc]);
    for zero in [false, true] {
        let wanted = KtoObjective { beta: 0.3, desirable: 1.5, undesirable: 0.5, zero, of_step: false };
        let z = if zero { 0.0 } else { ((ratio(1) + ratio(3)) / 2.0).max(0.0) };
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let expected =
            1.5 * (1.0 - sigmoid(0.3 * (ratio(0) - z))) + 0.5 * (1.0 - sigmoid(0.3 * (z - ratio(2))));
        let found = Weigh::weigh(&wanted, &answers);
        assert!((found.loss - expected).abs() < 1e-12, "{} {expected}", found.loss);
        assert_eq!(found.metrics[4], [z, 1.0]);
        // Mismatched answers have no gradient.
        for doc in [1, 3] {
            assert!(found.weights[micro.docs[doc].clone()].iter().all(|weight| *weight == 0.0));
        }
        if z == 0.0 {
            differences(&KtoObjective { zero: true, ..wanted }, &micro, &given, false);
        }
    }
}

#[test]
fn reward_models_have_their_gradients() {
    let scored = |micro: &MicroBatch, width: usize| -> Vec<f32> {
        (0..micro.ids.len() * width).map(|at| (at * 7 % 19) as f32 / 6.0 - 1.0).collect()
    };
    for loss in [RewardLoss::BradleyTerry, RewardLoss::Scaled] {
        let micro = three(false);
        differences(&Reward { loss, center: 0.05 }, &micro, &scored(&micro, 1), true);
    }
    // Transformers uses the score before the padding, even if that token is the end token.
    let mut micro = three(false);
    let ends: Vec<usize> = micro.docs[..2].iter().map(|doc| doc.end - 1).collect();
    micro.ids.iter_mut().for_each(|id| *id = 1 + *id % 5);
    micro.ids[ends[0]] = 9;
    let (reward, given) = (Reward::default(), scored(&micro, 1));
    let judged = |padding| -> Vec<usize> {
        let answers = Answers { scores: &given, padding, ..Answers::of(&micro, &[]) };
        let found = Weigh::weigh(&reward, &answers);
        (0..ends[1] + 1).filter(|at| found.scores[*at] != 0.0).collect()
    };
    assert_eq!((judged(None), judged(Some(9))), (ends.clone(), vec![ends[0] - 1, ends[1]]));
    let known: [&[f32]; 2] = [&[1.0, f32::NAN, 3.0], &[f32::NAN, 0.5, 2.0]];
    let micro = stream(&[4, 6], &[0, 0], &known, false);
    let regression = Reward { loss: RewardLoss::Regression, center: 0.0 };
    assert_eq!(regression.count(&micro), 4.0);
    differences(&regression, &micro, &scored(&micro, 3), true);
    let mut micro = stream(&[6, 5], &[2, 2], &[&[], &[]], false);
    // Steps end at tokens four and six of the first document and five of the second.
    micro.weights = vec![0.0; micro.ids.len()];
    [(2, 2.0), (4, 1.0), (9, 2.0)].into_iter().for_each(|(at, weight)| micro.weights[at] = weight);
    let process = Reward { loss: RewardLoss::Process, center: 0.0 };
    assert_eq!(process.count(&micro), 3.0);
    let given = scored(&micro, 1);
    differences(&process, &micro, &given, true);
    let found = Weigh::weigh(
        &process,
        &Answers { micro: &micro, losses: &[], others: &[], scores: &given, padding: None, at_first: false },
    );
    let judged: Vec<usize> = (0..given.len()).filter(|at| found.scores[*at] != 0.0).collect();
    assert_eq!(judged, [3, 5, 10]);
}

/// Known values: for a model equal to the reference, and by DPO's formula.
#[test]
fn values_are_those_of_the_papers() {
    let pair = |w: f64, l: f64| Pair {
        chosen: Slope::first(w),
        rejected: Slope::second(l),
        reference: [-3.0, -2.5],
        lengths: [4.0, 5.0],
        rewards: [1.0, 0.25],
    };
    let of = |loss, pair: &Pair| pair.loss(loss, &Settings::default()).value;
    let same = pair(-3.0, -2.5);
    assert!((of(PairLoss::Sigmoid, &same) - std::f64::consts::LN_2).abs() < 1e-15);
    assert_eq!(of(PairLoss::Ipo, &same), 25.0);
    assert_eq!(of(PairLoss::Hinge, &same), 1.0);
    assert_eq!(of(PairLoss::ApoZero, &same), 1.0);
    let moved = pair(-2.0, -4.0);
    assert!((of(PairLoss::Sigmoid, &moved) - (-0.25f64).exp().ln_1p()).abs() < 1e-15);
    assert_eq!(of(PairLoss::IpoSum, &moved), (2.5f64 - 5.0).powi(2));
    assert_eq!(of(PairLoss::Ipo, &moved), (0.25f64 + 0.3 - 5.0).powi(2));
    let squared = of(PairLoss::Squared, &moved);
    assert!((squared - (0.25f64 - 0.75).powi(2)).abs() < 1e-15, "{squared}");
    // The two margins agree, so nothing is left to learn.
    let agreed = Pair { rewards: [0.25, 0.0], ..moved };
    for loss in [PairLoss::BackwardKl, PairLoss::ForwardKl, PairLoss::Squared] {
        let found = agreed.loss(loss, &Settings::default());
        assert!(found.value.abs() < 1e-15 && found.by.iter().all(|by| by.abs() < 1e-15), "{found:?}");
    }
}

/// The cross-entropy of chosen answers is a mean over the labels of the whole step.
#[test]
fn imitation_is_a_mean_over_the_step() {
    let settings = Settings { losses: Vec::new(), sft_weight: 1.0, ..Settings::default() };
    let (one, objective) = (three(false), Pairs(settings));
    let given = losses(&one);
    let whole = Weigh::weigh(
        &objective,
        &Answers { micro: &one, losses: &given, others: &[], scores: &[], padding: None, at_first: false },
    );
    let chosen = [0, 2, 4].map(|doc| one.docs[doc].clone());
    let sum: f64 = chosen.clone().into_iter().flatten().map(|at| f64::from(given[at])).sum();
    let labels: usize = chosen.into_iter().flatten().filter(|at| one.labels[*at] >= 0).count();
    assert!((whole.loss / objective.count(&one) - sum / labels as f64).abs() < 1e-12);
    // Half of a step whose other half has as many pairs and labels.
    let twice = StepTotals { documents: 12.0, labels: 2.0 * labels as f64, ahead: None };
    let half = MicroBatch { step: Some(twice), ..one.clone() };
    let part = Weigh::weigh(
        &objective,
        &Answers { micro: &half, losses: &given, others: &[], scores: &[], padding: None, at_first: false },
    );
    assert!((part.loss - whole.loss).abs() < 1e-12);
}

#[test]
fn facts_are_of_the_first_documents() {
    let micro = three(false);
    assert_eq!((micro.facts.documents(), micro.docs.len()), (6, 7));
    assert_eq!(Pairs(Settings::default()).count(&micro), 3.0);
    assert_eq!(Facts::default().documents(), 0);
}
