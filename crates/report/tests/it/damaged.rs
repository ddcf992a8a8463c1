//! Damaged logs: a page is drawn from any log that parses.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fathom_base::metrics::Event;
use fathom_report::{RunLog, diff, html, objective, verdict};
use serde_json::{Value, json};

use crate::{assert_balanced, fixture, values};

/// Numbers and values that no run writes.
fn extremes() -> Vec<Value> {
    let reals = [5e-324, -5e-324, 1e-300, f64::MAX, f64::MIN, 1e300, -1.0, 0.5];
    let whole = [0, 1, i64::MAX as u64, u64::MAX - 1, u64::MAX];
    let other = [Value::Null, json!(-1), json!(i64::MIN), json!(""), json!([]), json!({})];
    reals.iter().map(|x| json!(x)).chain(whole.iter().map(|x| json!(x))).chain(other).collect()
}

/// Paths of all leaf values, limited to a few elements of each list.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    let mut inner = |key: &str, value: &Value| leaves(value, &format!("{path}/{key}"), found);
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| inner(key, value)),
        Value::Array(list) if !list.is_empty() => {
            for (at, value) in list.iter().enumerate().filter(|(at, _)| *at < 2 || at + 1 == list.len()) {
                inner(&at.to_string(), value);
            }
        }
        _ => found.push(path.to_string()),
    }
}

/// Draws everything from a log and checks that the page is well formed and has no coordinate that is not a number.
fn draw(events: &[Value]) {
    let log = RunLog::from_events(events);
    let page = html::page(&log);
    assert_balanced(&page);
    for wrong in ["=\"NaN", "=\"inf", "=\"-inf", "MNaN", "Minf", "LNaN", "Linf", "M-inf", "L-inf"] {
        assert!(!page.contains(wrong), "{wrong}");
    }
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
    objective::verdicts(&log).iter().for_each(|verdict| drop(verdict.to_string()));
    drop(verdict::planned(&log));
    drop(diff::compare(&log, &RunLog::default()).to_string());
}

#[track_caller]
fn survives(events: &[Value], what: &str) {
    assert!(catch_unwind(AssertUnwindSafe(|| draw(events))).is_ok(), "{what}");
}

/// A short log with every kind of event, as JSON.
fn log() -> Vec<Value> {
    let mut seen = Vec::new();
    let mut few = values(&fixture::run(1));
    few.retain(|event| {
        let kind = event["event"].as_str().unwrap_or_default().to_string();
        let count = seen.iter().filter(|other| **other == kind).count();
        seen.push(kind);
        count < 2
    });
    let whole = json!({"event": "pipeline", "stage": "long", "mesh": "pp=2", "step_s": 1.0, "bubble_share": 0.1, "lanes": [
        {"name": "pp 0", "passes": [{"kind": "forward", "micro": 0, "start_s": 0.0, "end_s": 0.5, "wait_s": 0.1}]},
        {"name": "pp 1", "passes": [{"kind": "update", "micro": 1, "chunk": 1, "start_s": 0.5, "end_s": 1.0}]}]});
    let ranks = json!({"event": "ranks", "step": 3, "busy_s": [1.0, 2.0], "relative": [1.0, 0.5], "individual": [1.0]});
    let recovery = json!({"event": "recovery", "step": 2, "seconds": 1.0, "lost": [1], "why": "died"});
    few.extend([whole, ranks, recovery]);
    few
}

#[test]
fn any_number_anywhere_makes_a_page() {
    let events = log();
    survives(&events, "as written");
    // How often a key has been met in a kind of event, over all elements of lists. The first occurrence is replaced
    // by every extreme value, later ones by every third.
    let mut met = BTreeMap::<String, usize>::new();
    for (number, event) in events.iter().enumerate() {
        let mut paths = Vec::new();
        leaves(event, "", &mut paths);
        for path in paths {
            let key = path.split('/').filter(|part| part.parse::<usize>().is_err());
            let times =
                met.entry(format!("{} {}", event["event"], key.collect::<Vec<_>>().join("/"))).or_default();
            let (some, all) = (*times % 3, *times == 0);
            *times += 1;
            for (_, extreme) in extremes().into_iter().enumerate().filter(|(at, _)| all || at % 3 == some) {
                let mut changed = events.clone();
                let Some(place) = changed[number].pointer_mut(&path) else { continue };
                *place = extreme.clone();
                survives(&changed, &format!("{} {path} = {extreme}", event["event"]));
            }
        }
    }
}

#[test]
fn extremes_in_every_event_make_a_page() {
    let events = log();
    for extreme in extremes() {
        for name in
            ["step", "loss", "bytes", "tokens", "time_s", "start_step", "peak_bytes", "from", "start_s", "y"]
        {
            let changed: Vec<Value> = events.iter().map(|event| replaced(event, name, &extreme)).collect();
            survives(&changed, &format!("every {name} = {extreme}"));
        }
        let all: Vec<Value> = events.iter().map(|event| numbers(event, &extreme)).collect();
        survives(&all, &format!("every number = {extreme}"));
    }
}

/// Replaces the value of every key of a given name.
fn replaced(value: &Value, name: &str, by: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| {
                (key.clone(), if key == name { by.clone() } else { replaced(value, name, by) })
            };
            Value::Object(map.iter().map(entry).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(|value| replaced(value, name, by)).collect()),
        other => other.clone(),
    }
}

/// Replaces every number.
fn numbers(value: &Value, by: &Value) -> Value {
    match value {
        Value::Object(map) => {
            Value::Object(map.iter().map(|(key, value)| (key.clone(), numbers(value, by))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(|value| numbers(value, by)).collect()),
        Value::Number(_) => by.clone(),
        other => other.clone(),
    }
}

#[test]
fn a_log_without_order_is_drawn_soon() {
    let started = std::time::Instant::now();
    let mut events: Vec<Value> = (0..60_000)
        .map(|i| json!({"event": "step", "step": i + 1, "stage": i % 7_000, "loss": 1.0}))
        .collect();
    events.extend((0..20_000).map(|i| json!({"event": "resume", "step": i})));
    let log = RunLog::from_events(&events);
    assert!(html::page(&log).len() > 1000);
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

#[test]
fn sentences_of_a_page_show_code_and_no_backticks() {
    let events: Vec<Event> = fixture::run(1);
    let page = html::page(&RunLog::from_events(&values(&events)));
    assert!(page.contains("<code>start</code> is what comes before the first block"), "no code");
    let text = page.split("<script>").next().unwrap_or_default();
    assert!(!text.contains('`'), "{:?}", text.split('`').nth(1).map(|rest| &rest[..rest.len().min(80)]));
}
