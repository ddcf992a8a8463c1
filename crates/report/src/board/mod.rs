//! The board: one page over all runs of a folder, which it follows while they go on.
//!
//! [`Board::open`] glances at every run; [`Board::follow`], called again and again, reads the logs piece by piece. The page
//! asks for a table of runs and for curves ([`Board::answer`]), which have as many points as it can draw.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::runs::{Along, Run, State, find, glance, name_below};

const PAGE: &str = include_str!("page.html");
/// Bytes of one log that are read before the next one has its turn.
const PIECE: usize = 4 << 20;
/// Threads that glance at logs.
const GLANCERS: usize = 4;
/// Most points of a curve.
const MOST_POINTS: usize = 2000;
/// Recipe keys that differ between runs and say nothing about them.
const OWN_KEYS: [&str; 2] = ["run.out", "run.name"];

/// Runs of a folder, shared by the thread that follows them and those that answer.
pub struct Board {
    root: PathBuf,
    runs: RwLock<BTreeMap<String, Arc<Mutex<Run>>>>,
}

/// A question of the page.
#[derive(Deserialize)]
#[serde(tag = "what", rename_all = "lowercase")]
enum Question {
    /// The table of runs.
    Runs,
    /// Curves of a metric.
    Curves { runs: Vec<String>, metric: String, along: Along, points: usize },
    /// Texts that the models have written.
    Samples { runs: Vec<String> },
}

fn lock(run: &Mutex<Run>) -> MutexGuard<'_, Run> {
    run.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    /// Glances at the runs of a folder.
    pub fn open(root: &Path) -> Board {
        let board = Board { root: root.to_path_buf(), runs: RwLock::default() };
        board.look_again();
        board
    }

    /// Looks for new runs, and forgets those that were removed.
    pub fn look_again(&self) {
        let found: BTreeMap<String, PathBuf> =
            find(&self.root).into_iter().map(|run| (name_below(&self.root, &run), run)).collect();
        let known: BTreeSet<String> = self.known().into_iter().map(|(name, _)| name).collect();
        let new: Vec<(&String, &PathBuf)> = found.iter().filter(|(name, _)| !known.contains(*name)).collect();
        let part = new.len().div_ceil(GLANCERS).max(1);
        let glanced: Vec<(String, Run)> = thread::scope(|scope| {
            let see = |part: &[(&String, &PathBuf)]| -> Vec<(String, Run)> {
                let run =
                    |(name, folder): &(&String, &PathBuf)| Some(((*name).clone(), glance(folder).ok()?));
                part.iter().filter_map(run).collect()
            };
            let threads: Vec<_> = new.chunks(part).map(|part| scope.spawn(move || see(part))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
        });
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|name, _| found.contains_key(name));
        runs.extend(glanced.into_iter().map(|(name, run)| (name, Arc::new(Mutex::new(run)))));
    }

    fn known(&self) -> Vec<(String, Arc<Mutex<Run>>)> {
        let runs = self.runs.read().unwrap_or_else(PoisonError::into_inner);
        runs.iter().map(|(name, run)| (name.clone(), run.clone())).collect()
    }

    /// Reads a piece of every log that has more, and returns whether any has.
    pub fn follow(&self) -> bool {
        let mut more = false;
        for (_, run) in self.known() {
            let mut run = lock(&run);
            match run.follow(PIECE) {
                Ok(true) => more = true,
                Ok(false) => run.index(),
                Err(_) => {}
            }
        }
        more
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.known().len()
    }

    /// Whether there is no run.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The page.
    pub fn page(&self) -> &'static str {
        PAGE
    }

    /// Answers a question of the page, as JSON text.
    ///
    /// # Errors
    /// A question that the page does not ask, in words.
    pub fn answer(&self, question: &Value) -> Result<String, String> {
        let question = Question::deserialize(question).map_err(|error| format!("no question: {error}"))?;
        let answer = match question {
            Question::Runs => self.table(),
            Question::Curves { runs, metric, along, points } => {
                let points = points.clamp(1, MOST_POINTS);
                self.each(&runs, |run| json!(run.series.curve(&metric, along, points)))
            }
            Question::Samples { runs } => self.each(&runs, |run| json!(run.facts.samples)),
        };
        Ok(answer.to_string())
    }

    fn each(&self, names: &[String], of: impl Fn(&Run) -> Value) -> Value {
        let runs = self.runs.read().unwrap_or_else(PoisonError::into_inner);
        let known = names.iter().filter_map(|name| Some((name.clone(), runs.get(name)?.clone())));
        let known: Vec<_> = known.collect();
        drop(runs);
        known.into_iter().map(|(name, run)| (name, of(&lock(&run)))).collect::<Map<_, _>>().into()
    }

    /// All runs with the recipe keys in which they differ.
    fn table(&self) -> Value {
        let known = self.known();
        let mut values: BTreeMap<String, Vec<Option<String>>> = BTreeMap::new();
        let (mut rows, mut metrics) = (Vec::new(), BTreeSet::new());
        for (at, (name, run)) in known.iter().enumerate() {
            let run = lock(run);
            for row in run.facts.recipe.iter().filter(|row| !OWN_KEYS.contains(&row.path.as_str())) {
                let of_key = values.entry(row.path.clone()).or_insert_with(|| vec![None; known.len()]);
                of_key[at] = Some(row.value.clone());
            }
            metrics.extend(run.series.names().map(str::to_string));
            rows.push(row(name, &run));
        }
        values.retain(|_, of_key| of_key.windows(2).any(|pair| pair[0] != pair[1]));
        for (at, row) in rows.iter_mut().enumerate() {
            let own =
                values.iter().filter_map(|(key, of_key)| Some((key.clone(), json!(of_key[at].clone()?))));
            row["recipe"] = own.collect::<Map<_, _>>().into();
        }
        json!({ "folder": self.root.display().to_string(), "runs": rows, "metrics": metrics, "keys": values.keys().collect::<Vec<_>>() })
    }
}

fn row(name: &str, run: &Run) -> Value {
    let facts = &run.facts;
    let last = facts.last.clone().unwrap_or_default();
    json!({
        "id": name,
        "name": facts.name,
        "state": if facts.finished { State::Finished } else { run.state() },
        "whole": run.is_whole,
        "step": last.step,
        "steps": facts.planned_steps,
        "tokens": last.tokens_total,
        "time_s": last.time_s,
        "loss": last.loss,
        "tokens_per_s": last.tokens_per_s,
        "params": facts.params,
        "family": facts.family,
        "start": facts.start_unix_s,
        "peak_bytes": facts.peak_bytes,
        "figures": facts.figures,
        "tags": run.tags,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn log(lr: &str, steps: u64) -> String {
        let head = format!(
            "{{\"event\":\"run\",\"name\":\"x\",\"recipe\":[{{\"path\":\"optimizer.lr\",\"value\":\"{lr}\",\"source\":\"\"}},\
             {{\"path\":\"model.hidden\",\"value\":\"64\",\"source\":\"\"}},{{\"path\":\"run.out\",\"value\":\"{lr}\",\"source\":\"\"}}]}}\n"
        );
        let step = |at: u64| {
            format!(
                "{{\"event\":\"step\",\"step\":{at},\"tokens_total\":{at},\"loss\":{at}.5,\"metrics\":{{\"reward\":1}}}}\n"
            )
        };
        head + &(1..=steps).map(step).collect::<String>()
    }

    #[test]
    fn a_board_answers_with_runs_their_differences_and_their_curves_while_they_grow() {
        let root = tempfile::tempdir().unwrap();
        for (name, lr) in [("a", "0.1"), ("b/c", "0.2")] {
            let folder = root.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("metrics.jsonl"), log(lr, 3)).unwrap();
        }
        let board = Board::open(root.path());
        let ask = |question: Value| serde_json::from_str::<Value>(&board.answer(&question).unwrap()).unwrap();
        let table = ask(json!({ "what": "runs" }));
        assert_eq!(table["keys"], json!(["optimizer.lr"]));
        assert_eq!(table["metrics"], json!(["loss", "reward"]));
        assert_eq!(table["runs"][1]["recipe"], json!({ "optimizer.lr": "0.2" }));
        assert_eq!((&table["runs"][0]["id"], &table["runs"][0]["step"]), (&json!("a"), &json!(3)));
        while board.follow() {}
        fs::write(root.path().join("a/metrics.jsonl"), log("0.1", 5)).unwrap();
        fs::create_dir(root.path().join("d")).unwrap();
        fs::write(root.path().join("d/metrics.jsonl"), log("0.3", 1)).unwrap();
        board.look_again();
        while board.follow() {}
        let question = json!({ "what": "curves", "runs": ["a", "d", "gone"], "metric": "loss", "along": "tokens", "points": 100 });
        let curves = ask(question);
        assert_eq!(curves["a"]["x"], json!([1.0, 2.0, 3.0, 4.0, 5.0]));
        assert_eq!(curves["d"]["mean"], json!([1.5]));
        assert!(curves.get("gone").is_none());
        assert!(board.answer(&json!({ "what": "secrets" })).is_err());
        assert!(board.page().contains("connect") || board.page().contains("fetch(\"/ask\""));
    }
}
