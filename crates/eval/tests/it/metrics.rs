//! Figures are those of sacreBLEU, rouge-score and scikit-learn (`oracle/harness.py`).

use std::fs;

use fathom_eval::metrics::aggregate::{Aggregation, ItemValue};
use fathom_eval::metrics::rouge::rouge;
use fathom_eval::metrics::score::Score;
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

#[test]
fn scores_are_those_of_the_code_of_longbench_helmet_and_math() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden_eval/scores.json");
    let golden: Vec<Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut rules = std::collections::BTreeMap::new();
    let mut wrong = Vec::new();
    for item in &golden {
        let mut options = item["options"].as_object().unwrap().clone();
        options.insert("rule".into(), item["rule"].clone());
        // One dictionary of Chinese words serves all items of a rule.
        let rule = rules
            .entry(Value::Object(options.clone()).to_string())
            .or_insert_with(|| Score::new(&options).unwrap());
        let text = |key: &str| item[key].as_str().unwrap();
        let found = rule
            .value(text("answer"), &[text("gold").to_string()], item["row"].as_object().unwrap())
            .unwrap();
        if (found - item["score"].as_f64().unwrap()).abs() > 1e-9 {
            wrong.push(format!("{found} for {item}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), golden.len(), wrong.join("\n"));
}

#[test]
fn a_score_without_a_known_rule_is_refused() {
    let refused = |options: Value| Score::new(options.as_object().unwrap()).unwrap_err();
    assert!(refused(serde_json::json!({})).contains("needs a `rule`"));
    assert!(refused(serde_json::json!({"rule": "guess"})).contains("`guess` is no rule"));
    assert!(refused(serde_json::json!({"rule": "count", "first": true})).contains("no option `first`"));
    let count = Score::new(serde_json::json!({"rule": "retrieval"}).as_object().unwrap()).unwrap();
    assert!(
        count.value("3", &["three".into()], &Default::default()).unwrap_err().contains("not of the form")
    );
    let classes = Score::new(serde_json::json!({"rule": "classification"}).as_object().unwrap()).unwrap();
    assert!(classes.value("3", &["three".into()], &Default::default()).unwrap_err().contains("all_classes"));
}
