//! Tests of losses against their formulas, and of derivatives against finite differences.

use super::*;
use crate::micro_batch::RolloutColumns;

const STEP: f32 = 1.0 / 1024.0;
const GRPO: Policy = Policy {
    keeps: false,
    name: "grpo",
    surrogate: Surrogate::Clipped { low: 0.2, high: 0.28, delta: None, dual: None },
    level: Level::Token,
    reduction: Reduction::Answers,
    divergence: Divergence { beta: 0.04, estimator: Estimator::K3, corrected: false },
    values: None,
    entropies: Entropies::NONE,
    temperature: 1.0,
};

/// Numbers that f32 represents exactly, as are the steps of differences.
fn number(key: usize, most: f32) -> f32 {
    let scaled = (key * 7919 + 104_729) % 2003;
    ((scaled as f32 / 2003.0 * most) / STEP).round() * STEP
}

/// Three answers after prompts, the second of which does not count, and padding.
fn micro() -> (MicroBatch, Vec<f32>, Vec<f32>) {
    let lengths = [(2usize, 4usize), (1, 3), (3, 6)];
    let mut micro = MicroBatch::default();
    for (index, (prompt, answer)) in lengths.into_iter().enumerate() {
        let start = micro.ids.len();
        micro.labels.extend(vec![-100; prompt - 1]);
        micro.labels.extend(vec![if index == 1 { -100 } else { 5 }; answer]);
        micro.labels.push(-100);
        micro.ids.resize(start + prompt + answer, 1);
        micro.docs.push(start..start + prompt + answer);
    }
    let start = micro.ids.len();
    micro.ids.resize(start + 3, 0);
    micro.labels.resize(start + 3, -100);
    micro.docs.push(start..start + 3);
    let all = micro.ids.len();
    micro.positions = vec![0; all];
    let of = |key: usize, most: f32| (0..all).map(|at| number(at + 100 * key, most)).collect::<Vec<f32>>();
    let losses: Vec<f32> =
        (0..all).map(|at| if micro.labels[at] >= 0 { 0.5 + number(at, 1.5) } else { 0.0 }).collect();
    // Some ratios are beyond the clip range on either side, none at its edge.
    let then = of(1, 1.2).iter().zip(&losses).map(|(apart, loss)| -loss + apart - 0.6).collect();
    micro.reference = of(2, 1.0).iter().zip(&losses).map(|(apart, loss)| -loss + apart - 0.5).collect();
    let advantages = (0..all).map(|at| if at < 6 { 0.75 } else { -1.25 }).collect();
    let values = of(3, 2.0);
    let returns = of(4, 2.0);
    micro.rolled = RolloutColumns {
        answers: 3,
        logps: then,
        advantages,
        values: values.clone(),
        returns,
        fresh: true,
        ..RolloutColumns::default()
    };
    let scores = of(5, 1.5).iter().zip(&values).map(|(apart, value)| value + apart - 0.75).collect();
    (micro, losses, scores)
}

fn weigh(policy: &Policy, losses: &[f32], scores: &[f32], micro: &MicroBatch) -> ObjectiveSum {
    let scores = if policy.values.is_some() { scores } else { &[] };
    Weigh::weigh(policy, &Answers { micro, losses, others: &[], scores, padding: None, at_first: false })
}

/// The loss by its formula: `term` maps (ratio, log-probability, reference, advantage) of each token, `reduce` the
/// terms of all answers.
fn formula(
    policy: &Policy,
    term: &dyn Fn(f64, f64, f64, f64) -> f64,
    reduce: &dyn Fn(&[Vec<f64>]) -> f64,
) -> f64 {
    let (micro, losses, _) = micro();
    let mut all = Vec::new();
    for doc in &micro.docs[..3] {
        let at: Vec<usize> = doc.clone().filter(|at| micro.labels[*at] >= 0).collect();
        let logp = |at: usize| -f64::from(losses[at]);
        let log = |at: usize| logp(at) - f64::from(micro.rolled.logps[at]);
        let (sum, labels): (f64, f64) = (at.iter().map(|at| log(*at)).sum(), at.len() as f64);
        let ratio = |at: usize| match policy.level {
            Level::Token => log(at).exp(),
            Level::Sequence => (sum / labels).exp(),
            Level::SequenceSum => sum.exp(),
        };
        let of = |at: &usize| {
            let reference = f64::from(micro.reference[*at]);
            term(ratio(*at), logp(*at), reference, f64::from(micro.rolled.advantages[*at]))
        };
        all.push(at.iter().map(of).collect());
    }
    reduce(&all)
}

fn clip(r: f64, a: f64) -> f64 {
    -(r * a).min(r.clamp(0.8, 1.28) * a)
}

fn k3(p: f64, q: f64) -> f64 {
    (q - p).exp() - (q - p) - 1.0
}

fn of_answers(terms: &[Vec<f64>]) -> f64 {
    terms.iter().filter(|of| !of.is_empty()).map(|of| of.iter().sum::<f64>() / of.len() as f64).sum()
}

fn of_tokens(terms: &[Vec<f64>]) -> f64 {
    terms.iter().flatten().sum()
}

type Term<'a> = &'a dyn Fn(f64, f64, f64, f64) -> f64;
type Reduce<'a> = &'a dyn Fn(&[Vec<f64>]) -> f64;

/// Names the type of a closure.
fn term(f: fn(f64, f64, f64, f64) -> f64) -> fn(f64, f64, f64, f64) -> f64 {
    f
}

/// The policy with another surrogate and no divergence.
fn with(surrogate: Surrogate) -> Policy {
    Policy { surrogate, divergence: Divergence { beta: 0.0, ..GRPO.divergence }, ..GRPO }
}

fn clipped(delta: Option<f64>, dual: Option<f64>) -> Surrogate {
    Surrogate::Clipped { low: 0.2, high: 0.28, delta, dual }
}

/// Compares losses and counts with formulas.
fn hold(cases: &[(Policy, Term<'_>, Reduce<'_>, f64)]) {
    let (micro, losses, scores) = micro();
    for (policy, term, reduce, count) in cases {
        let found = weigh(policy, &losses, &scores, &micro);
        let want = formula(policy, term, reduce);
        assert!((found.loss - want).abs() < 1e-9 * want.abs().max(1.0), "{policy:?}: {} {want}", found.loss);
        assert_eq!(policy.count(&micro), *count, "{policy:?}");
    }
}

#[test]
fn losses_of_clipped_ratios_are_their_formulas() {
    hold(&[
        (GRPO, &term(|r, p, q, a| clip(r, a) + 0.04 * k3(p, q)), &of_answers, 3.0),
        (
            Policy { reduction: Reduction::LocalTokens, ..GRPO },
            &term(|r, p, q, a| clip(r, a) + 0.04 * k3(p, q)),
            &|terms| of_tokens(terms) / 10.0,
            1.0,
        ),
        (
            Policy { reduction: Reduction::Tokens, ..GRPO },
            &term(|r, p, q, a| clip(r, a) + 0.04 * k3(p, q)),
            &of_tokens,
            10.0,
        ),
        (
            Policy { reduction: Reduction::Constant(64.0), ..GRPO },
            &term(|r, p, q, a| clip(r, a) + 0.04 * k3(p, q)),
            &|terms| of_tokens(terms) / 64.0,
            3.0,
        ),
        (
            Policy { level: Level::Sequence, ..GRPO },
            &term(|r, p, q, a| clip(r, a) + 0.04 * k3(p, q)),
            &of_answers,
            3.0,
        ),
        (
            Policy { level: Level::SequenceSum, ..with(clipped(None, None)) },
            &term(|r, _, _, a| clip(r, a)),
            &of_answers,
            3.0,
        ),
        (
            Policy { divergence: Divergence { corrected: true, ..GRPO.divergence }, ..GRPO },
            &term(|r, p, q, a| clip(r, a) + 0.04 * k3(p, q) * r),
            &of_answers,
            3.0,
        ),
        (
            Policy { divergence: Divergence { estimator: Estimator::K2, ..GRPO.divergence }, ..GRPO },
            &term(|r, p, q, a| clip(r, a) + 0.02 * (p - q).powi(2)),
            &of_answers,
            3.0,
        ),
        (
            Policy { divergence: Divergence { estimator: Estimator::K1, ..GRPO.divergence }, ..GRPO },
            &term(|r, p, q, a| clip(r, a) + 0.04 * (p - q)),
            &of_answers,
            3.0,
        ),
    ]);
}

#[test]
fn losses_of_other_surrogates_are_their_formulas() {
    let sapo = |r: f64, a: f64| {
        let t = if a > 0.0 { 1.0 } else { 1.05 };
        -4.0 / t / (1.0 + (-t * (r - 1.0)).exp()) * a
    };
    hold(&[
        (
            with(clipped(Some(1.4), Some(1.3))),
            &term(|r, _, _, a| {
                let loss = (-r.min(1.4) * a).max(-r.clamp(0.8, 1.28) * a);
                if a < 0.0 { loss.min(-1.3 * a) } else { loss }
            }),
            &of_answers,
            3.0,
        ),
        (
            with(Surrogate::Cispo { low: None, high: 1.1 }),
            &term(|r, p, _, a| -r.min(1.1) * a * p),
            &of_answers,
            3.0,
        ),
        (with(Surrogate::Sapo { positive: 1.0, negative: 1.05 }), &|r, _, _, a| sapo(r, a), &of_answers, 3.0),
        (with(Surrogate::Score), &term(|_, p, _, a| -a * p), &of_answers, 3.0),
    ]);
}

/// Derivatives of the whole loss by every token's loss and every value; quantities that are constant by definition are
/// held fixed.
#[test]
fn derivatives_are_differences() {
    let (micro, losses, scores) = micro();
    let dual = Surrogate::Clipped { low: 0.2, high: 0.28, delta: Some(1.4), dual: Some(1.3) };
    let values = Some(Values { coefficient: 0.1, clip: Some(0.2) });
    let corrected = Divergence { corrected: true, ..GRPO.divergence };
    for policy in [
        GRPO,
        Policy { reduction: Reduction::LocalTokens, ..GRPO },
        Policy { reduction: Reduction::Tokens, values, ..GRPO },
        Policy { reduction: Reduction::Constant(64.0), surrogate: dual, ..GRPO },
        Policy { level: Level::Sequence, ..GRPO },
        Policy { level: Level::Sequence, reduction: Reduction::Tokens, divergence: corrected, ..GRPO },
        Policy { level: Level::SequenceSum, divergence: corrected, ..GRPO },
        Policy { divergence: corrected, ..GRPO },
        Policy { divergence: Divergence { estimator: Estimator::K2, ..GRPO.divergence }, ..GRPO },
        Policy { divergence: Divergence { estimator: Estimator::K1, ..GRPO.divergence }, ..GRPO },
        Policy { surrogate: Surrogate::Sapo { positive: 1.0, negative: 1.05 }, ..GRPO },
        Policy { surrogate: Surrogate::Score, ..GRPO },
    ] {
        let found = weigh(&policy, &losses, &scores, &micro);
        let close = |what: &str, at: usize, found: f32, moved: &dyn Fn(f32) -> f64| {
            let want = (moved(STEP) - moved(-STEP)) / (2.0 * f64::from(STEP));
            let apart = (f64::from(found) - want).abs();
            assert!(apart < 5e-6 * want.abs().max(1.0), "{policy:?}: {what} {at}: {found} {want}");
        };
        for at in 0..losses.len() {
            if micro.labels[at] < 0 {
                assert_eq!(found.weights[at], 0.0);
                continue;
            }
            close("loss", at, found.weights[at], &|step| {
                let mut losses = losses.clone();
                losses[at] += step;
                weigh(&policy, &losses, &scores, &micro).loss
            });
            if policy.values.is_some() {
                close("value", at, found.scores[at], &|step| {
                    let mut scores = scores.clone();
                    scores[at] += step;
                    weigh(&policy, &losses, &scores, &micro).loss
                });
            }
        }
    }
    // The clipped ratio of CISPO is constant: its derivative is the weight.
    let cispo = Policy {
        surrogate: Surrogate::Cispo { low: None, high: 1.1 },
        reduction: Reduction::Tokens,
        divergence: Divergence { beta: 0.0, ..GRPO.divergence },
        ..GRPO
    };
    let found = weigh(&cispo, &losses, &scores, &micro);
    for at in (0..losses.len()).filter(|at| micro.labels[*at] >= 0) {
        let ratio = (-f64::from(losses[at]) - f64::from(micro.rolled.logps[at])).exp();
        let want = ratio.min(1.1) * f64::from(micro.rolled.advantages[at]);
        assert!((f64::from(found.weights[at]) - want).abs() < 1e-6);
    }
}

/// With the weights that sampled, every ratio is one and the error is exactly one.
#[test]
fn on_policy_the_ratio_is_one() {
    let (mut micro, losses, scores) = micro();
    micro.rolled.logps = losses.iter().map(|loss| -loss).collect();
    for level in [Level::Token, Level::Sequence, Level::SequenceSum] {
        let weighed = weigh(&Policy { level, ..GRPO }, &losses, &scores, &micro);
        let of = |name: &str| {
            let [sum, count] = weighed.metrics[METRICS.iter().position(|other| *other == name).unwrap()];
            sum / count
        };
        assert_eq!(
            [of("token_mult_prob_error"), of("probs_ratio"), of("clip_ratio/region_mean")],
            [1.0, 1.0, 0.0]
        );
        assert_eq!(of("sampling_logp_difference/mean"), 0.0);
    }
    micro.rolled.fresh = false;
    let weighed = weigh(&GRPO, &losses, &scores, &micro);
    let error = METRICS.iter().position(|name| *name == "token_mult_prob_error").unwrap();
    assert_eq!(weighed.metrics[error], [0.0, 0.0]);
}

#[test]
fn values_are_clipped_around_what_they_were() {
    let values = |clip| Policy {
        surrogate: Surrogate::Score,
        reduction: Reduction::Tokens,
        values: Some(Values { coefficient: 0.5, clip }),
        divergence: Divergence { beta: 0.0, ..GRPO.divergence },
        ..GRPO
    };
    let rolled = RolloutColumns {
        answers: 1,
        logps: vec![0.0],
        advantages: vec![0.0],
        values: vec![1.0],
        returns: vec![3.0],
        ..RolloutColumns::default()
    };
    let one = 0..1;
    let micro =
        MicroBatch { ids: vec![1], labels: vec![1], docs: vec![one], rolled, ..MicroBatch::default() };
    // 1.5 is nearer to 3 than the limit 1.2: the clipped loss is larger, and constant.
    let weighed = weigh(&values(Some(0.2)), &[0.5], &[1.5], &micro);
    assert!((weighed.loss - 0.5 * 0.5 * 1.8f64.powi(2)).abs() < 1e-12 && weighed.scores[0] == 0.0);
    // 0.5 is farther.
    let weighed = weigh(&values(Some(0.2)), &[0.5], &[0.5], &micro);
    assert!((weighed.loss - 0.5 * 0.5 * 2.5f64.powi(2)).abs() < 1e-12 && weighed.scores[0] == -1.25);
    let weighed = weigh(&values(None), &[0.5], &[1.5], &micro);
    assert!((weighed.loss - 0.5 * 0.5 * 1.5f64.powi(2)).abs() < 1e-12 && weighed.scores[0] == -0.75);
}
