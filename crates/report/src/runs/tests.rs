//! Logs of runs that are written line by line.

use std::fs::{self, OpenOptions};
use std::io::Write;

use super::*;

fn step(step: u64, loss: f64) -> String {
    format!(
        "{{\"event\":\"step\",\"step\":{step},\"tokens_total\":{},\"loss\":{loss},\"time_s\":{step}.5,\"lr\":0.001}}\n",
        step * 10
    )
}

fn steps(range: std::ops::RangeInclusive<u64>) -> String {
    range.map(|at| step(at, 5.0 + 1.0 / at as f64)).collect()
}

fn run(folder: &Path, text: &str) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join(LOG), text).unwrap();
}

const HEAD: &str = "{\"event\":\"run\",\"name\":\"a\",\"start_unix_s\":7,\"recipe\":[{\"path\":\"optimizer.lr\",\"value\":\"0.001\",\"source\":\"x\"}]}\n{\"event\":\"model\",\"family\":\"llama\",\"params\":1000}\n";

#[test]
fn runs_are_found_in_subfolders_and_named_by_their_path() {
    let root = tempfile::tempdir().unwrap();
    for name in ["one", "set/two", "set/checkpoints/none", ".hidden/none"] {
        run(&root.path().join(name), HEAD);
    }
    let found = find(root.path());
    let names: Vec<String> = found.iter().map(|run| name_below(root.path(), run)).collect();
    assert_eq!(names, ["one", "set/two"]);
    let own = name_below(&found[0], &found[0]);
    assert_eq!(own, "one");
}

#[test]
fn a_long_series_stays_small_and_keeps_its_spikes() {
    let mut series = Series::default();
    for at in 1..=100_000u64 {
        let loss = if at == 54_321 { 99.0 } else { 2.0 };
        series.push(&StepFacts { step: at, tokens_total: at * 8, loss: Some(loss), ..StepFacts::default() });
    }
    assert!(series.len() <= 4096 && series.len() > 2000);
    let curve = series.curve("loss", Along::Tokens, 300);
    assert!(curve.x.len() <= 300 && curve.x.last() == Some(&800_000.0));
    assert_eq!(curve.high.iter().copied().fold(0.0, f32::max), 99.0);
    assert_eq!((curve.mean[0], curve.low[0]), (2.0, 2.0));
    // A resumed run repeats steps.
    series.push(&StepFacts { step: 50_000, tokens_total: 400_000, loss: Some(1.0), ..StepFacts::default() });
    assert_eq!(series.curve("loss", Along::Step, 9999).x.last(), Some(&50_000.0));
}

#[test]
fn a_growing_log_is_read_once_and_one_that_was_cut_again() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("a");
    run(&folder, &(HEAD.to_string() + &steps(1..=20) + "{\"event\":\"step\",\"st"));
    let mut run_of = glance(&folder).unwrap();
    assert_eq!(run_of.facts.last.as_ref().unwrap().step, 20);
    assert!(run_of.is_whole && run_of.facts.params == 1000 && run_of.series.len() == 20);
    let mut log = OpenOptions::new().append(true).open(folder.join(LOG)).unwrap();
    let rest = step(21, 4.0);
    log.write_all(&rest.as_bytes()["{\"event\":\"step\",\"st".len()..]).unwrap();
    // Pieces that end inside lines.
    while run_of.follow(10).unwrap() {}
    assert_eq!(run_of.facts.last.as_ref().unwrap().loss, Some(4.0));
    assert_eq!((run_of.state(), run_of.facts.recipe_value("optimizer.lr")), (State::Running, Some("0.001")));

    // A resumed run writes its log again, as a new file.
    fs::write(folder.join("new"), HEAD.to_string() + &steps(1..=5) + "{\"event\":\"done\",\"step\":5}\n")
        .unwrap();
    fs::rename(folder.join("new"), folder.join(LOG)).unwrap();
    assert!(!run_of.follow(1 << 20).unwrap());
    assert_eq!((run_of.facts.last.as_ref().unwrap().step, run_of.series.len()), (5, 5));
    assert_eq!(run_of.state(), State::Finished);
}

#[test]
fn a_glance_at_a_long_log_sees_its_beginning_its_end_and_points_between() {
    let root = tempfile::tempdir().unwrap();
    let done = "{\"event\":\"eval_bits\",\"name\":\"t\",\"step\":30000,\"bits_per_byte\":1.5}\n{\"event\":\"done\",\"step\":30000}\n";
    run(root.path(), &(HEAD.to_string() + &steps(1..=30_000) + done));
    let glanced = glance(root.path()).unwrap();
    assert!(glanced.facts.finished && glanced.facts.figures["bits per byte"] == 1.5);
    assert_eq!(glanced.facts.name, "a");
    let curve = glanced.series.curve("loss", Along::Step, 9999);
    assert_eq!((curve.x[0], *curve.x.last().unwrap()), (1.0, 30_000.0));
    assert!(curve.x.windows(2).all(|pair| pair[0] < pair[1]));
    let middle = curve.x.iter().filter(|x| (8000.0..25000.0).contains(*x)).count();
    assert!(middle > 60, "{middle}");
}

#[test]
fn tags_are_kept_and_damaged_ones_are_none() {
    let root = tempfile::tempdir().unwrap();
    let own: BTreeSet<String> = ["best", "a \"quoted\" one"].map(String::from).into();
    write_tags(root.path(), &own).unwrap();
    assert_eq!(tags(root.path()), own);
    fs::write(root.path().join("tags.json"), "{").unwrap();
    assert!(tags(root.path()).is_empty());
}

/// The first log that is opened is read to its end; the index gives the same facts and curves, and what was added is read
/// after it.
#[test]
fn an_index_gives_what_the_whole_log_gives_and_goes_on_where_it_ends() {
    let root = tempfile::tempdir().unwrap();
    let rest =
        "{\"event\":\"eval_bits\",\"name\":\"t\",\"step\":30000,\"bits_per_byte\":1.5}\n{\"event\":\"st";
    run(root.path(), &(HEAD.to_string() + &steps(1..=30_000) + rest));
    let read = || {
        let mut run = glance(root.path()).unwrap();
        let at_once = run.is_whole;
        while run.follow(1 << 20).unwrap() {}
        (run, at_once)
    };
    let same = |a: &Run, b: &Run| {
        assert_eq!(a.facts, b.facts);
        for name in ["loss", "learning rate"] {
            assert_eq!(a.series.curve(name, Along::Time, 9999), b.series.curve(name, Along::Time, 9999));
        }
    };
    let (mut first, at_once) = read();
    assert!(!at_once && !root.path().join(index::NAME).exists());
    first.index();
    let (second, at_once) = read();
    assert!(at_once);
    same(&first, &second);

    // The torn line ends, and more steps follow.
    let mut log = OpenOptions::new().append(true).open(root.path().join(LOG)).unwrap();
    write!(log, "ep\",\"step\":30001,\"loss\":3.0}}\n{}", steps(30_002..=30_100)).unwrap();
    let (third, at_once) = read();
    assert!(at_once && third.facts.last.as_ref().unwrap().step == 30_100);
    fs::remove_file(root.path().join(index::NAME)).unwrap();
    let (whole, at_once) = read();
    assert!(!at_once);
    same(&third, &whole);

    // A log that was written again, and an index that is damaged, are of no use.
    first.index();
    assert!(!root.path().join(index::NAME).exists(), "nothing was added since");
    let mut whole = whole;
    whole.index();
    let good = fs::read(root.path().join(index::NAME)).unwrap();
    for bad in [&good[..good.len() - 1], &good[..50], b"{}\n", b""] {
        fs::write(root.path().join(index::NAME), bad).unwrap();
        assert!(!read().1);
    }
    fs::write(root.path().join(index::NAME), &good).unwrap();
    assert!(read().1);
    run(root.path(), &(HEAD.to_string() + &steps(2..=40_000)));
    let (again, at_once) = read();
    assert!(!at_once && again.facts.figures.is_empty() && again.facts.last.as_ref().unwrap().step == 40_000);
}
