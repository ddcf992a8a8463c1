//! Files of the sinks, as their tools read them.

use std::fs;

use fathom_base::recipe::Row;
use serde_json::Value;

use super::*;

fn step(at: u64) -> Step {
    let metrics = [("reward".to_string(), 0.5)].into();
    Step { step: at, loss: 2.5, tokens_total: at * 10, metrics, grad_norm: f64::NAN, ..Step::default() }
}

#[test]
fn steps_go_to_every_sink_under_the_same_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trackio.jsonl");
    let mut sinks = Sinks::default();
    sinks.add(Lines::open(&path).unwrap());
    let board = EventFile::resume(&folder.path().join("tensorboard"), 1_700_000_000, 0).unwrap();
    let events = board.path().to_path_buf();
    sinks.add(board);
    sinks.step(1_700_000_001.5, &step(7)).unwrap();
    sinks.end().unwrap();
    let line: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!((&line["step"], &line["train/loss"]), (&7.into(), &2.5.into()));
    assert_eq!((&line["objective/reward"], &line["train/grad_norm"]), (&0.5.into(), &Value::Null));
    let bytes = fs::read(&events).unwrap();
    assert!(bytes.windows(10).any(|part| part == b"train/loss"));
    // A resumed run appends.
    Sinks(vec![Box::new(Lines::open(&path).unwrap())]).step(1.0, &step(8)).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
}

/// Reads a `.wandb` file back: payloads of its records, with every checksum's place and the fragments joined.
fn records(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut at, mut records, mut open) = (7, Vec::new(), Vec::new());
    assert_eq!(&bytes[..4], b":W&B");
    while at < bytes.len() {
        if 32768 - at % 32768 < 7 {
            at += 32768 - at % 32768;
            continue;
        }
        let length = usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
        let kind = bytes[at + 6];
        open.extend_from_slice(&bytes[at + 7..at + 7 + length]);
        if kind == 1 || kind == 4 {
            records.push(std::mem::take(&mut open));
        }
        at += 7 + length;
    }
    assert!(open.is_empty());
    records
}

#[test]
fn an_offline_run_of_wandb_holds_its_recipe_and_every_step_across_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let of = wandb::Identity { name: "mine", project: "fathom", start_unix_s: 1_700_000_000, step: 0 };
    let recipe = [Row { path: "optimizer.lr".into(), value: "0.001".into(), source: String::new() }];
    let mut run = wandb::OfflineRun::create(folder.path(), &of, &recipe).unwrap();
    for at in 1..=400 {
        run.scalars(at, 1_700_000_000.0, &[("train/loss", 1.0 / at as f64), ("train/grad_norm", f64::NAN)])
            .unwrap();
    }
    run.end().unwrap();
    let own = run.path().parent().unwrap().file_name().unwrap().to_str().unwrap().to_string();
    assert!(own.starts_with("offline-run-20231114_221320-"), "{own}");
    let bytes = fs::read(run.path()).unwrap();
    assert!(bytes.len() > 32768);
    let records = records(&bytes);
    assert_eq!(records.len(), 2 + 400 + 1);
    let has = |record: &[u8], text: &str| record.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(has(&records[1], "optimizer.lr") && has(&records[1], "mine"));
    assert!(has(&records[2], "train/loss") && has(&records[2], "\"NaN\""));
    let again = wandb::OfflineRun::create(folder.path(), &wandb::Identity { step: 9, ..of }, &[]).unwrap();
    assert_ne!(again.path(), run.path());
}
