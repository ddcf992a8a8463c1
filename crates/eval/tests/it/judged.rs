//! Length-controlled win rates are those of scikit-learn's optimum (`oracle/judged.py`).

use std::fs;

use fathom_eval::judged::{Judgement, Rates, fit};
use serde_json::Value;

#[test]
fn length_controlled_rates_are_those_of_an_independent_regression() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden_eval/judged.json");
    let golden: Vec<Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    for case in &golden {
        let lengths: Vec<[usize; 2]> = serde_json::from_value(case["lengths"].clone()).unwrap();
        let judgement = |(at, lengths): (usize, &[usize; 2])| Judgement {
            preference: case["preference"][at].as_f64().unwrap(),
            agrees: true,
            lengths: *lengths,
            difficulty: case["difficulty"][at].as_f64(),
        };
        let all: Vec<Judgement> = lengths.iter().enumerate().map(judgement).collect();
        let fitted = fit(&all).unwrap();
        let expected = case["rate"].as_f64().unwrap();
        let strength = case["strength"].as_f64().unwrap();
        assert!((fitted.strength / strength - 1.0).abs() < 1e-9, "{fitted:?} instead of {strength}");
        assert!((fitted.rate(&all) - expected).abs() < 1e-6, "{} instead of {expected}", fitted.rate(&all));
        let rates = Rates::of(&all, 100).unwrap();
        let [low, high] = rates.length_controlled.unwrap().interval;
        assert!(low <= high && low >= 0.0 && high <= 1.0);
    }
}

#[test]
fn few_or_equally_long_answers_have_rates_too() {
    let of = |preference: f64| Judgement { preference, agrees: true, lengths: [5, 5], difficulty: None };
    assert_eq!(Rates::of(&[], 10), None);
    assert_eq!(Rates::of(&[of(1.0); 4], 10).unwrap().length_controlled, None);
    let won = Rates::of(&[of(1.0); 8], 10).unwrap();
    assert_eq!(won.wins.interval, [1.0, 1.0]);
    assert!(won.length_controlled.unwrap().value > 0.9, "{won:?}");
}
