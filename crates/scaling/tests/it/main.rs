//! Fits against SciPy's of the same synthetic ladders (`oracle/scaling.py`), and intervals against the truth.
#![allow(clippy::unwrap_used)]

use fathom_scaling::*;
use serde_json::Value;

fn ladders() -> Vec<Value> {
    serde_json::from_str(include_str!("../golden.json")).unwrap()
}

fn budgets(case: &Value) -> Vec<Vec<Point>> {
    let number = |row: &Value, at: usize| row[at].as_f64().unwrap();
    let point = |row: &Value| Point {
        params: number(row, 0),
        tokens: number(row, 1),
        flops: number(row, 2),
        loss: number(row, 3),
    };
    let budgets = case["budgets"].as_array().unwrap().iter();
    budgets.map(|rows| rows.as_array().unwrap().iter().map(point).collect()).collect()
}

fn numbers(values: &Value) -> Vec<f64> {
    values.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[track_caller]
fn close(name: &str, ours: f64, golden: &Value) {
    let theirs = golden.as_f64().unwrap();
    assert!((ours - theirs).abs() <= 1e-6 * theirs.abs(), "{name}: {ours}, SciPy has {theirs}");
}

#[test]
fn laws_of_two_quantities_agree_with_scipy() {
    for case in ladders() {
        let points = budgets(&case).concat();
        let fit = fit_surface(&points).unwrap();
        let (law, golden) = (fit.law, &case["surface"]);
        close("a", law.a, &golden["a"]);
        close("alpha", law.alpha, &golden["alpha"]);
        close("b", law.b, &golden["b"]);
        close("beta", law.beta, &golden["beta"]);
        close("irreducible", law.irreducible, &golden["irreducible"]);
        let losses = numbers(&case["joint_losses"]);
        let points: Vec<Point> =
            points.iter().zip(losses).map(|(point, loss)| Point { loss, ..*point }).collect();
        let fit = fit_joint(&points).unwrap();
        let (law, golden) = (fit.law, &case["joint"]);
        close("params scale", law.params_scale, &golden["params_scale"]);
        close("params exponent", law.params_exponent, &golden["params_exponent"]);
        close("tokens scale", law.tokens_scale, &golden["tokens_scale"]);
        close("tokens exponent", law.tokens_exponent, &golden["tokens_exponent"]);
    }
}

#[test]
fn power_laws_agree_with_scipy() {
    for case in ladders() {
        for (name, irreducible) in [("power", true), ("power_without", false)] {
            let losses = numbers(&case[format!("{name}_losses")]);
            let points: Vec<(f64, f64)> = numbers(&case["x"]).into_iter().zip(losses).collect();
            let law = fit_power(&points, irreducible).unwrap().law;
            close("scale", law.scale, &case[name]["scale"]);
            close("exponent", law.exponent, &case[name]["exponent"]);
            close("irreducible", law.irreducible, &case[name]["irreducible"]);
        }
    }
}

#[test]
fn parabolas_and_their_line_agree_with_numpy() {
    for case in ladders() {
        let found = profiles(&budgets(&case));
        let mut best = Vec::new();
        for (profile, golden) in found.iter().zip(case["profiles"].as_array().unwrap()) {
            for (at, ours) in profile.coefficients.iter().enumerate() {
                close("coefficient", *ours, &golden["coefficients"][at]);
            }
            let params = (-profile.coefficients[1] / (2.0 * profile.coefficients[2])).exp();
            close("best size", params, &golden["params"]);
            best.push((profile.flops, params));
        }
        let line = allocation(&best).unwrap();
        close("exponent", line.exponent, &case["allocation"]["exponent"]);
        close("scale", line.scale, &case["allocation"]["scale"]);
    }
}

#[test]
fn a_law_without_noise_is_recovered_and_gives_chinchillas_optimum() {
    let law = fit_surface(&budgets(&ladders()[0]).concat()).unwrap().law;
    for (found, truth) in [(law.alpha, 0.34), (law.beta, 0.29), (law.irreducible, 1.7), (law.a, 60.0)] {
        assert!((found / truth - 1.0).abs() < 1e-6, "{law:?}");
    }
    let best = law.best_params(1e16, 6.0);
    let loss = |params: f64| law.loss(params, 1e16 / (6.0 * params));
    assert!(loss(best) < loss(best * 1.01) && loss(best) < loss(best / 1.01));
}

#[test]
fn intervals_hold_the_truth_and_a_larger_run() {
    let ladder = &ladders()[2];
    let points = budgets(ladder).concat();
    let fit = fit_surface(&points).unwrap();
    let again = resample(&fit, 200, 7);
    assert_eq!(again.laws, resample(&fit, 200, 7).laws, "the same seed gives the same intervals");
    assert!(again.interval(0.95, |law| law.alpha).unwrap().holds(0.34));
    assert!(again.interval(0.95, |law| law.irreducible).unwrap().holds(1.7));
    let (params, tokens) = (2e7f64, 4e8f64);
    let truth = 1.7 + 60.0 / params.powf(0.34) + 170.0 / tokens.powf(0.29);
    let expected = again.prediction(0.95, |law| law.loss(params, tokens)).unwrap();
    assert!(expected.holds(truth) && expected.high / expected.low < 1.1, "{expected:?} {truth}");
}

#[test]
fn the_envelope_follows_the_lowest_curve() {
    let curve = |params: f64, floor: f64, rate: f64| Curve {
        params,
        flops_per_token: 6.0 * params,
        points: (1..=400).map(|i| (i as f64 * 1e4, floor + rate / (i as f64))).collect(),
    };
    // The small model is ahead until the large one has had its tokens.
    let frontier = envelope(&[curve(1e5, 3.0, 4.0), curve(4e5, 2.5, 6.0)], 60);
    assert_eq!(frontier.len(), 60);
    assert!(frontier.windows(2).all(|pair| pair[1].loss <= pair[0].loss && pair[1].flops > pair[0].flops));
    assert_eq!((frontier[0].params, frontier[59].params), (1e5, 4e5));
    assert!(envelope(&[curve(1e5, 3.0, 4.0)], 60).is_empty(), "one size has no envelope");
}

#[test]
fn too_few_points_have_no_law() {
    let points = budgets(&ladders()[1]).concat();
    assert!(fit_surface(&points[..4]).is_none() && fit_joint(&points[..3]).is_none());
    let exact = fit_surface(&points[..5]).unwrap();
    assert!(resample(&exact, 10, 0).laws.is_empty(), "as many unknowns as points leave no error to resample");
    let broken = Point { loss: f64::NAN, ..points[0] };
    assert!(fit_surface(&[&points[..6], &[broken]].concat()).is_none());
}
