//! Laws of a ladder, and what they predict for its held-out rung.

use fathom_base::human;
use fathom_report::RunLog;
use fathom_scaling::{
    Allocation, Curve, Frontier, Interval, Joint, Law, Point, PowerLaw, Profile, Surface, allocation,
    envelope, fit_joint, fit_power, fit_surface, profiles, resample,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ladder::Size;
use super::rungs::Ladder;
use super::rungs::Rung;

/// Level of intervals.
pub(super) const LEVEL: f64 = 0.95;
/// Values of compute at which the envelope of training curves is taken.
const ENVELOPE: usize = 200;
/// Fewest points of a law of one quantity with an irreducible term.
const LEAST_POINTS: usize = 4;
/// Part of a training curve that smooths a point of it.
const SMOOTHING: f64 = 0.05;

/// A trained rung.
#[derive(Clone, Debug, Serialize)]
pub struct RungResult {
    /// Name of the rung.
    pub name: String,
    /// Index of its compute budget; none for the held-out rung.
    pub budget: Option<usize>,
    /// Parameters.
    pub params: f64,
    /// Training tokens.
    pub tokens: f64,
    /// FLOPs of all steps.
    pub flops: f64,
    /// Held-out loss at the end, in nats per token.
    pub loss: f64,
    /// Seconds that the run took.
    pub seconds: f64,
    /// Passes over the training text.
    pub passes: f64,
    /// Peak of memory in a step, in bytes.
    pub peak_bytes: u64,
    /// Tokens and smoothed training loss.
    #[serde(skip)]
    pub curve: Vec<(f64, f64)>,
}

impl RungResult {
    fn point(&self) -> Point {
        Point { params: self.params, tokens: self.tokens, flops: self.flops, loss: self.loss }
    }
}

/// A law with intervals of its figures.
#[derive(Clone, Debug)]
pub struct LawFit<T> {
    /// The fit.
    pub fit: Law<T>,
    /// Laws fitted to resamples.
    pub again: fathom_scaling::Resamples<T>,
}

impl<T> LawFit<T> {
    fn of(fit: Option<Law<T>>, resamples: usize, seed: u64) -> Option<LawFit<T>> {
        fit.map(|fit| LawFit { again: resample(&fit, resamples, seed), fit })
    }

    /// Interval of a figure.
    pub fn interval(&self, figure: impl Fn(&T) -> f64) -> Option<Interval> {
        self.again.interval(LEVEL, figure)
    }
}

/// Laws of a ladder. Each needs a number of points, and is missing without.
#[derive(Clone, Debug, Default)]
pub struct Fits {
    /// Chinchilla's approach 3: `E + A / N^alpha + B / D^beta`.
    pub surface: Option<LawFit<Surface>>,
    /// Kaplan's law of parameters outside the embedding and tokens.
    pub joint: Option<LawFit<Joint>>,
    /// Loss over compute, along the lowest loss of each budget.
    pub over_compute: Option<LawFit<PowerLaw>>,
    /// The same without an irreducible term, which needs fewer budgets.
    pub over_compute_alone: Option<LawFit<PowerLaw>>,
    /// Loss over parameters, each size at its most tokens.
    pub over_params: Option<LawFit<PowerLaw>>,
    /// Training loss over tokens, along the lowest of all curves.
    pub over_tokens: Option<LawFit<PowerLaw>>,
    /// Chinchilla's approach 2: a parabola of each budget.
    pub profiles: Vec<Profile>,
    /// Best size over compute by the parabolas.
    pub by_profiles: Option<Allocation>,
    /// Chinchilla's approach 1: the lowest training curve at each compute.
    pub frontier: Vec<Frontier>,
    /// Best size over compute by the frontier.
    pub by_frontier: Option<Allocation>,
    /// FLOPs of a token per parameter, the mean over all rungs.
    pub flops_per_param: f64,
}

/// Reads the result of a rung from its log; `None` unless it has ended with a held-out loss.
pub(super) fn read(log: &RunLog, rung: &Rung, size: &Size) -> Option<RungResult> {
    let done = log.done.as_ref()?;
    let last = log.positions.last()?;
    let (mut sum, mut tokens) = (0.0, 0.0);
    for bucket in last.buckets.iter().filter(|bucket| bucket.loss.is_finite()) {
        sum += bucket.loss * bucket.tokens as f64;
        tokens += bucket.tokens as f64;
    }
    let text = log.data.as_ref().map_or(0, |data| data.tokens);
    (tokens > 0.0).then(|| RungResult {
        name: rung.name.clone(),
        budget: rung.budget,
        params: size.params as f64,
        tokens: rung.tokens as f64,
        flops: rung.flops,
        loss: sum / tokens,
        seconds: done.time_s,
        passes: rung.tokens as f64 / text.max(1) as f64,
        peak_bytes: log.steps.iter().map(|step| step.pool_peak_bytes).max().unwrap_or(0),
        curve: curve(log),
    })
}

/// Returns the training curve, each point the mean of the steps around it.
fn curve(log: &RunLog) -> Vec<(f64, f64)> {
    let half = ((log.steps.len() as f64 * SMOOTHING) as usize).max(2) / 2;
    let steps = &log.steps;
    let point = |at: usize| {
        let around = &steps[at.saturating_sub(half)..(at + half + 1).min(steps.len())];
        let losses = around.iter().map(|step| step.loss).filter(|loss| loss.is_finite());
        let (sum, count) = losses.fold((0.0, 0.0), |(sum, count), loss| (sum + loss, count + 1.0));
        (steps[at].tokens_total as f64, sum / count)
    };
    (half..steps.len()).map(point).filter(|point| point.1.is_finite()).collect()
}

/// Fits all laws to the rungs trained so far, the held-out one not among them.
pub(super) fn fit(trained: &[RungResult], ladder: &Ladder, resamples: usize, seed: u64) -> Fits {
    let points: Vec<Point> = trained.iter().map(RungResult::point).collect();
    if points.is_empty() {
        return Fits::default();
    }
    // Kaplan's law leaves out the tables, whose parameters hardly grow with the width.
    let of_blocks: Vec<Point> = (points.iter().zip(trained))
        .map(|(point, trained)| {
            let size =
                ladder.rungs.iter().find(|rung| rung.name == trained.name).map(|rung| ladder.size(rung));
            Point { params: size.map_or(point.params, |size| size.block_params.max(1) as f64), ..*point }
        })
        .collect();
    let count = trained.iter().filter_map(|rung| rung.budget).max().map_or(0, |last| last + 1);
    let of_budget = |budget: usize| -> Vec<Point> {
        trained.iter().filter(|rung| rung.budget == Some(budget)).map(RungResult::point).collect()
    };
    let budgets: Vec<Vec<Point>> = (0..count).map(of_budget).filter(|points| !points.is_empty()).collect();
    let lowest = |points: &Vec<Point>| {
        points.iter().min_by(|a, b| a.loss.total_cmp(&b.loss)).map(|point| (point.flops, point.loss))
    };
    let best: Vec<(f64, f64)> = budgets.iter().filter_map(lowest).collect();
    let profiles = profiles(&budgets);
    let of_profiles: Vec<(f64, f64)> =
        profiles.iter().filter_map(|profile| Some((profile.flops, profile.best?.0))).collect();
    let frontier = frontier(trained, ladder);
    let of_frontier: Vec<(f64, f64)> = frontier.iter().map(|at| (at.flops, at.params)).collect();
    let of_tokens: Vec<(f64, f64)> = frontier.iter().map(|at| (at.tokens, at.loss)).collect();
    let one = |points: &[(f64, f64)], irreducible: bool| {
        let enough = points.len() >= if irreducible { LEAST_POINTS } else { 2 };
        let fit = enough.then(|| fit_power(points, irreducible)).flatten();
        LawFit::of(fit, resamples, seed)
    };
    let ratio = |point: &Point| point.flops / (point.params * point.tokens);
    Fits {
        surface: LawFit::of(fit_surface(&points), resamples, seed),
        joint: LawFit::of(fit_joint(&of_blocks), resamples, seed),
        over_compute: one(&best, true),
        over_compute_alone: one(&best, false),
        over_params: one(&longest(&points), true),
        over_tokens: one(&of_tokens, true),
        by_profiles: allocation(&of_profiles),
        profiles,
        by_frontier: allocation(&of_frontier),
        frontier,
        flops_per_param: points.iter().map(ratio).sum::<f64>() / points.len() as f64,
    }
}

/// Parameters and loss of every size at its most tokens.
fn longest(points: &[Point]) -> Vec<(f64, f64)> {
    let mut found: Vec<Point> = Vec::new();
    for point in points {
        match found.iter_mut().find(|known| known.params == point.params) {
            Some(known) if known.tokens < point.tokens => *known = *point,
            Some(_) => {}
            None => found.push(*point),
        }
    }
    found.iter().map(|point| (point.params, point.loss)).collect()
}

fn frontier(trained: &[RungResult], ladder: &Ladder) -> Vec<Frontier> {
    let curve = |rung: &RungResult| {
        let named = ladder.rungs.iter().find(|known| known.name == rung.name)?;
        let flops_per_token = ladder.size(named).token_flops();
        Some(Curve { params: rung.params, flops_per_token, points: rung.curve.clone() })
    };
    envelope(&trained.iter().filter_map(curve).collect::<Vec<_>>(), ENVELOPE)
}

/// The loss that a law predicts for the held-out rung.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OfLaw {
    /// The law in words.
    pub law: String,
    /// Predicted loss in nats per token.
    pub loss: f64,
    /// Interval in which a run's loss is expected, if it was resampled.
    pub interval: Option<[f64; 2]>,
}

/// Predictions of the held-out rung, made before it is trained.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Prediction {
    /// Name of the rung.
    pub rung: String,
    /// Prediction by Chinchilla's law, or Kaplan's where there are too few rungs.
    pub main: OfLaw,
    /// Predictions by the other laws.
    pub others: Vec<OfLaw>,
}

/// Predicts the held-out rung; `None` without any law of both parameters and tokens.
pub(super) fn expect(fits: &Fits, rung: &Rung, size: &Size) -> Option<Prediction> {
    let (params, blocks) = (size.params as f64, size.block_params.max(1) as f64);
    let (tokens, flops) = (rung.tokens as f64, rung.flops);
    fn of<T>(law: &str, fitted: &Option<LawFit<T>>, loss: impl Fn(&T) -> f64) -> Option<OfLaw> {
        let fitted = fitted.as_ref()?;
        let interval = fitted.again.prediction(LEVEL, &loss).map(|within| [within.low, within.high]);
        Some(OfLaw { law: law.into(), loss: loss(&fitted.fit.law), interval })
    }
    let all = [
        of("E + A/N^alpha + B/D^beta", &fits.surface, |law| law.loss(params, tokens)),
        of("((Nc/N)^(aN/aD) + Dc/D)^aD", &fits.joint, |law| law.loss(blocks, tokens)),
        of("E + A/C^alpha along the best of each budget", &fits.over_compute, |law| law.loss(flops)),
        of("A/C^alpha along the best of each budget", &fits.over_compute_alone, |law| law.loss(flops)),
    ];
    let mut laws = all.into_iter().flatten().filter(|of| of.loss.is_finite());
    let main = laws.next().filter(|_| fits.surface.is_some() || fits.joint.is_some())?;
    Some(Prediction { rung: rung.name.clone(), main, others: laws.collect() })
}

impl Prediction {
    /// The prediction in a line.
    pub fn words(&self, rung: &Rung) -> String {
        let within =
            self.main.interval.map_or(String::new(), |[low, high]| format!(", from {low:.4} to {high:.4}"));
        format!(
            "predicted for {}, {} tokens: a held-out loss of {:.4}{within}",
            rung.name,
            human::count(rung.tokens),
            self.main.loss
        )
    }

    /// The miss in a line.
    pub fn judged(&self, loss: f64) -> String {
        let inside = match self.main.interval {
            Some([low, high]) if (low..=high).contains(&loss) => ", inside its interval",
            Some(_) => ", outside its interval",
            None => "",
        };
        format!(
            "measured for {}: {loss:.4}; the prediction of {:.4} misses by {:+.2} %{inside}",
            self.rung,
            self.main.loss,
            (self.main.loss / loss - 1.0) * 100.0
        )
    }
}

impl Serialize for Fits {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        self.json().serialize(to)
    }
}

/// A figure of a law: its name, and how to read it.
pub(super) type Figure<T> = (&'static str, fn(&T) -> f64);

/// Figures of Chinchilla's law.
pub(super) const SURFACE: [Figure<Surface>; 5] = [
    ("irreducible", |law| law.irreducible),
    ("a", |law| law.a),
    ("alpha", |law| law.alpha),
    ("b", |law| law.b),
    ("beta", |law| law.beta),
];
/// Figures of Kaplan's law.
pub(super) const JOINT: [Figure<Joint>; 4] = [
    ("params_scale", |law| law.params_scale),
    ("params_exponent", |law| law.params_exponent),
    ("tokens_scale", |law| law.tokens_scale),
    ("tokens_exponent", |law| law.tokens_exponent),
];
/// Figures of a power law.
pub(super) const POWER: [Figure<PowerLaw>; 3] =
    [("irreducible", |law| law.irreducible), ("scale", |law| law.scale), ("exponent", |law| law.exponent)];

impl Fits {
    /// The laws as JSON: each figure with the ends of its interval.
    fn json(&self) -> Value {
        fn of<T>(fitted: &Option<LawFit<T>>, figures: &[Figure<T>]) -> Value {
            let Some(fitted) = fitted else { return Value::Null };
            let figure = |(name, read): &Figure<T>| {
                let within = fitted.interval(read).map(|within| [within.low, within.high]);
                (name.to_string(), json!({ "value": read(&fitted.fit.law), "interval": within }))
            };
            let mut all: serde_json::Map<String, Value> = figures.iter().map(figure).collect();
            all.insert("rms".into(), json!(fitted.fit.rms()));
            all.into()
        }
        let line = |line: &Option<Allocation>| {
            line.map_or(Value::Null, |line| json!({ "scale": line.scale, "exponent": line.exponent }))
        };
        let profile = |profile: &Profile| {
            let best = profile.best.map(|(params, loss)| json!({ "params": params, "loss": loss }));
            json!({ "flops": profile.flops, "best": best })
        };
        json!({
            "surface": of(&self.surface, &SURFACE),
            "joint": of(&self.joint, &JOINT),
            "over_compute": of(&self.over_compute, &POWER),
            "over_compute_alone": of(&self.over_compute_alone, &POWER),
            "over_params": of(&self.over_params, &POWER),
            "over_tokens": of(&self.over_tokens, &POWER),
            "profiles": self.profiles.iter().map(profile).collect::<Vec<_>>(),
            "best_params": {
                "by_frontier": line(&self.by_frontier),
                "by_profiles": line(&self.by_profiles),
                "by_surface": self.surface.as_ref().map(|fitted| fitted.fit.law.params_exponent()),
            },
            "flops_per_param": self.flops_per_param,
        })
    }
}
