//! Figures are those of sacreBLEU, rouge-score and scikit-learn (`oracle/harness.py`).

use std::fs;

use fathom_eval::metrics::aggregate::{Aggregation, ItemValue};
use fathom_eval::metrics::rouge::rouge;
use serde_json::Value;

fn close(found: f64, expected: &Value, at: &str) {
    let expected = expected.as_f64().unwrap();
    assert!((found - expected).abs() <= 1e-9 * (1.0 + expected.abs()), "{at}: {found} instead of {expected}");
}

#[test]
fn figures_are_those_of_the_usual_packages() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden_harness/metrics.json");
    let golden: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    for (at, corpus) in golden["corpora"].as_array().unwrap().iter().enumerate() {
        let pairs: Vec<(String, Vec<String>)> = serde_json::from_value(corpus["pairs"].clone()).unwrap();
        let items: Vec<ItemValue> =
            pairs.iter().map(|(answer, all)| ItemValue::Texts(all.clone(), answer.clone())).collect();
        for name in ["bleu", "chrf", "chrf++", "ter"] {
            let (found, _) = Aggregation::named(name).unwrap().figure(&items, 0);
            close(found, &corpus[name], &format!("{name} of corpus {at}"));
        }
        for ((answer, references), scores) in pairs.iter().zip(corpus["rouge"].as_array().unwrap()) {
            for (found, expected) in rouge(&references[0], answer).into_iter().zip(scores.as_array().unwrap())
            {
                close(found, expected, &format!("rouge of `{answer}`"));
            }
        }
    }
    for classes in golden["classes"].as_array().unwrap() {
        let pairs: Vec<(i64, i64)> = serde_json::from_value(classes["pairs"].clone()).unwrap();
        let items: Vec<ItemValue> =
            pairs.iter().map(|(gold, found)| ItemValue::Classes(*gold, *found)).collect();
        close(Aggregation::Mcc.figure(&items, 0).0, &classes["mcc"], "mcc");
        if !classes["f1"].is_null() {
            close(Aggregation::F1.figure(&items, 0).0, &classes["f1"], "f1");
        }
    }
}
