//! The page of a ladder: its prediction, its laws with their intervals, and charts.

use fathom_base::human;
use fathom_base::recipe::Loaded;
use fathom_report::html::{Heading, document, row, table};
use fathom_report::plots::{Axis, AxisKind, LineChart, Series};
use fathom_scaling::Interval;
use fathom_train::recipe::Recipe;

use super::fits::{Figure, Fits, JOINT, LawFit, OfLaw, POWER, RungResult, SURFACE};
use super::gpus::OnGpu;
use super::outcome::LadderResult;
use crate::error::{Context, Result};
use crate::output;

/// Classes of lines, taken in turns.
const CLASSES: [&str; 6] = ["s1", "s2", "s3", "s4", "s5", "s6"];
/// Points of a drawn law.
const DRAWN: usize = 60;

/// Writes the page.
///
/// # Errors
/// A page that cannot be written.
pub(super) fn write(scaled: &LadderResult, loaded: &Loaded<Recipe>) -> Result<()> {
    output::regular(&scaled.page)?;
    let text = page(scaled, &loaded.value.run.name, &loaded.value.scale.gpu);
    let part = scaled.page.with_extension("part");
    let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, &scaled.page));
    written.with_context(|| format!("cannot write {}", scaled.page.display()))
}

fn page(scaled: &LadderResult, name: &str, gpu: &str) -> String {
    let seconds: f64 = scaled.trained.iter().map(|rung| rung.seconds).sum();
    let flops: f64 = scaled.trained.iter().map(|rung| rung.flops).sum();
    let heading = Heading {
        brand: "scaling laws".into(),
        title: name.into(),
        facts: vec![
            human::counted(scaled.trained.len() as u64, "rung"),
            format!("{}FLOPs", human::si(flops)),
            human::seconds(seconds + scaled.ladder.prepared_s),
        ],
        source: "the logs of the rungs alone".into(),
    };
    let sections = [
        ("prediction", "Prediction", prediction(scaled)),
        (
            "profiles",
            "Budgets",
            row(&[profiles(scaled).draw(), compute(scaled).draw()]) + &allocations(&scaled.fits),
        ),
        ("curves", "Training curves", curves(scaled).draw().html()),
        ("laws", "Laws", laws(&scaled.fits)),
        ("gpu", "Hours of a GPU", gpus(scaled, gpu)),
        ("rungs", "Rungs", rungs(scaled)),
    ];
    document(&heading, &sections)
}

fn log(label: &str, unit: &str) -> Axis {
    let (tick, value) = (|x: f64, _: f64| human::si(x).replace(' ', ""), human::si);
    Axis { kind: AxisKind::Log10, tick, value, ..Axis::linear(label, unit) }
}

fn loss_axis() -> Axis {
    Axis::linear("held-out loss [nats per token]", " nats")
}

fn note(text: &str) -> String {
    format!("<p class=\"note\">{text}</p>\n")
}

fn prediction(scaled: &LadderResult) -> String {
    let Some(expected) = &scaled.expected else {
        return note("Too few rungs for a law of both parameters and tokens.");
    };
    let measured = scaled.trained.iter().find(|rung| rung.name == expected.rung).map(|rung| rung.loss);
    let line = |of: &OfLaw| {
        let within = of.interval.map_or("-".into(), |[low, high]| format!("{low:.4} to {high:.4}"));
        let miss = measured.map_or("-".into(), |loss| format!("{:+.2} %", (of.loss / loss - 1.0) * 100.0));
        let inside = match (of.interval, measured) {
            (Some([low, high]), Some(loss)) => {
                if (low..=high).contains(&loss) {
                    "yes"
                } else {
                    "no"
                }
            }
            _ => "-",
        };
        vec![of.law.clone(), format!("{:.4}", of.loss), within, miss, inside.into()]
    };
    let rows: Vec<Vec<String>> = std::iter::once(&expected.main).chain(&expected.others).map(line).collect();
    let said = measured.map_or("It is not trained yet.".into(), |loss| format!("Measured: {loss:.4}."));
    note(&format!(
        "Predictions of {}, made before it was trained, from smaller rungs alone. {said} Intervals hold 95 % of resamples, with the \
         error of a single run.",
        expected.rung
    )) + &table(&["law", "predicted loss", "interval", "miss", "inside"], &rows)
}

/// Rungs of each budget over their size, with the parabola.
fn profiles(scaled: &LadderResult) -> LineChart {
    let mut series = Vec::new();
    for (at, profile) in scaled.fits.profiles.iter().enumerate() {
        let class = CLASSES[at % CLASSES.len()];
        let points = profile.points.iter().map(|point| (point.params, point.loss)).collect();
        let name = format!("{}FLOPs", human::si(profile.flops));
        series.push(Series { name, class: format!("{class} dots bare"), points });
        let [c0, c1, c2] = profile.coefficients;
        let ends = (profile.points.first(), profile.points.last());
        if let (Some(first), Some(last)) = ends {
            let curve = |x: f64| (x, c0 + c1 * x.ln() + c2 * x.ln() * x.ln());
            let points = spaced(first.params, last.params).map(curve).collect();
            series.push(Series { name: String::new(), class: format!("{class} dashed"), points });
        }
    }
    LineChart {
        title: "Loss over size for each compute budget".into(),
        note: "Chinchilla's second approach: the lowest point of each parabola is its budget's best size."
            .into(),
        size: (520.0, 320.0),
        x: log("parameters", " parameters"),
        y: loss_axis(),
        series,
        marks: Vec::new(),
        level: None,
    }
}

fn spaced(low: f64, high: f64) -> impl Iterator<Item = f64> {
    (0..DRAWN).map(move |at| low * (high / low).powf(at as f64 / (DRAWN - 1) as f64))
}

/// All rungs over compute, with the law's lowest loss and the held-out rung.
fn compute(scaled: &LadderResult) -> LineChart {
    let (fitted, held_out): (Vec<&RungResult>, Vec<&RungResult>) =
        scaled.trained.iter().partition(|rung| rung.budget.is_some());
    let dots = |name: &str, class: &str, rungs: &[&RungResult]| Series {
        name: name.into(),
        class: format!("{class} dots bare"),
        points: rungs.iter().map(|rung| (rung.flops, rung.loss)).collect(),
    };
    let mut series = vec![dots("fitted rungs", "s1", &fitted)];
    let ends = scaled.trained.iter().map(|rung| rung.flops);
    let (low, high) = (ends.clone().fold(f64::INFINITY, f64::min), ends.fold(0.0, f64::max));
    if let (Some(surface), true) = (&scaled.fits.surface, low < high) {
        let law = surface.fit.law;
        let per_param = scaled.fits.flops_per_param;
        let lowest = |flops: f64| {
            let params = law.best_params(flops, per_param);
            (flops, law.loss(params, flops / (per_param * params)))
        };
        let points = spaced(low, high).map(lowest).filter(|point| point.1.is_finite()).collect();
        series.push(Series { name: "lowest loss by the law".into(), class: "s3".into(), points });
    }
    series.push(dots("held-out rung", "s2", &held_out));
    LineChart {
        title: "Loss over compute".into(),
        note: "The line is the law's loss at its best size for each compute.".into(),
        size: (520.0, 320.0),
        x: log("compute [FLOPs]", "FLOPs"),
        y: loss_axis(),
        series,
        marks: Vec::new(),
        level: None,
    }
}

/// Smoothed training losses over compute: the longest run of each size.
fn curves(scaled: &LadderResult) -> LineChart {
    let mut longest: Vec<&RungResult> = Vec::new();
    for rung in &scaled.trained {
        match longest.iter_mut().find(|known| known.params == rung.params) {
            Some(known) if known.tokens < rung.tokens => *known = rung,
            Some(_) => {}
            None => longest.push(rung),
        }
    }
    let line = |(at, rung): (usize, &&RungResult)| Series {
        name: format!("{} parameters", human::count(rung.params as u64)),
        class: CLASSES[at % CLASSES.len()].into(),
        points: rung.curve.iter().map(|(tokens, loss)| (tokens * rung.flops / rung.tokens, *loss)).collect(),
    };
    LineChart {
        title: "Training loss over compute".into(),
        note: "The longest run of each size; Chinchilla's first approach follows the lowest of all curves."
            .into(),
        size: (1060.0, 340.0),
        x: log("compute [FLOPs]", "FLOPs"),
        y: Axis::linear("training loss [nats per token]", " nats"),
        series: longest.iter().enumerate().map(line).collect(),
        marks: Vec::new(),
        level: None,
    }
}

fn allocations(fits: &Fits) -> String {
    let mut rows = Vec::new();
    let mut add = |name: &str, exponent: Option<f64>, within: Option<Interval>| {
        if let Some(exponent) = exponent {
            rows.push(vec![name.into(), figure(exponent), interval(within), figure(1.0 - exponent)]);
        }
    };
    add("1: the lowest training curve at each compute", fits.by_frontier.map(|line| line.exponent), None);
    add("2: parabolas of each budget", fits.by_profiles.map(|line| line.exponent), None);
    let surface = fits.surface.as_ref();
    let within = surface.and_then(|fitted| fitted.interval(|law| law.params_exponent()));
    add(
        "3: the law of parameters and tokens",
        surface.map(|fitted| fitted.fit.law.params_exponent()),
        within,
    );
    if rows.is_empty() {
        return String::new();
    }
    note("How the best size and its tokens grow with compute: parameters with C^a, tokens with C^(1 - a).")
        + &table(&["Chinchilla's approach", "a", "95 % interval", "1 - a"], &rows)
}

fn figure(x: f64) -> String {
    human::number(x)
}

fn interval(within: Option<Interval>) -> String {
    within.map_or("-".into(), |within| format!("{} to {}", figure(within.low), figure(within.high)))
}

fn laws(fits: &Fits) -> String {
    let mut rows = Vec::new();
    add(&mut rows, "L(N, D) = E + A/N^alpha + B/D^beta (Chinchilla)", &fits.surface, &SURFACE);
    add(&mut rows, "L(N, D) = ((Nc/N)^(aN/aD) + Dc/D)^aD (Kaplan; N without tables)", &fits.joint, &JOINT);
    add(&mut rows, "L(C) = E + A/C^alpha (Henighan)", &fits.over_compute, &POWER);
    add(&mut rows, "L(C) = A/C^alpha (Kaplan)", &fits.over_compute_alone, &POWER[1..]);
    add(
        &mut rows,
        "L(N) = E + A/N^alpha, each size at its most tokens (Henighan)",
        &fits.over_params,
        &POWER,
    );
    add(
        &mut rows,
        "L(D) = E + A/D^alpha along the lowest training curves (Hestness)",
        &fits.over_tokens,
        &POWER,
    );
    if rows.is_empty() {
        return note("Too few rungs for any law.");
    }
    note("Huber loss of log residuals; intervals of 95 % by a bootstrap of residuals.")
        + &table(&["law", "figure", "value", "95 % interval", "error of the fit"], &rows)
}

fn add<T>(rows: &mut Vec<Vec<String>>, law: &str, fitted: &Option<LawFit<T>>, figures: &[Figure<T>]) {
    let Some(fitted) = fitted else { return };
    for (at, (name, read)) in figures.iter().enumerate() {
        let first = |text: String| if at == 0 { text } else { String::new() };
        rows.push(vec![
            first(law.into()),
            name.replace('_', " "),
            figure(read(&fitted.fit.law)),
            interval(fitted.interval(read)),
            first(human::percent(fitted.fit.rms())),
        ]);
    }
}

fn gpus(scaled: &LadderResult, gpu: &str) -> String {
    if scaled.gpus.is_empty() {
        return String::new();
    }
    let line = |of: &OnGpu| {
        vec![
            figure(of.hours),
            human::grouped(of.hidden as u64),
            human::count(of.params as u64),
            human::count(of.tokens as u64),
            human::si(of.flops),
            human::bytes(of.peak_bytes),
            format!("{:.3}", of.loss),
            format!("{} x", figure(of.beyond)),
        ]
    };
    let rows: Vec<Vec<String>> = scaled.gpus.iter().map(line).collect();
    note(&format!(
        "The size of lowest predicted loss for hours of one {gpu}, at the speed that `fathom plan` predicts for its steps. The last \
         column says how far beyond the ladder's largest rung the law is stretched: the further, the less it is worth."
    )) + &table(
        &["hours", "width", "parameters", "tokens", "FLOPs", "memory", "predicted loss", "compute"],
        &rows,
    )
}

fn rungs(scaled: &LadderResult) -> String {
    let line = |rung: &RungResult| {
        vec![
            rung.name.clone(),
            human::count(rung.params as u64),
            human::count(rung.tokens as u64),
            human::si(rung.flops),
            format!("{:.2}", rung.passes),
            human::bytes(rung.peak_bytes),
            human::seconds(rung.seconds),
            format!("{:.4}", rung.loss),
        ]
    };
    let rows: Vec<Vec<String>> = scaled.trained.iter().map(line).collect();
    table(&["rung", "parameters", "tokens", "FLOPs", "passes over the text", "memory", "time", "loss"], &rows)
}
