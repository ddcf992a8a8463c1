//! RULER's figures over lengths: scores of tasks, their means, and the effective length.

use std::collections::BTreeMap;

use std::path::Path;

use fathom_base::LanguageModel;
use fathom_base::metrics::events::{EvalRuler, RulerLength};
use fathom_text::Tokenizer;
use serde::Serialize;
use serde_json::{Value, json};

use crate::Moment;
use crate::error::{Error, Result};
use crate::ruler::{DATASET, names};
use crate::tasks::{Data, Index, Node, Options, Results, Sets, Subject, TaskConfig, prepare, run};

/// Mean that a length has to reach: that of Llama-2-7B at 4096 tokens.
pub const THRESHOLD: f64 = 85.6;

/// RULER's tasks at lengths, drawn once, so that models of several moments answer the same rows.
pub struct Ruler {
    nodes: Vec<Node>,
    prepared: Vec<(TaskConfig, Data)>,
    longest: usize,
    rows: usize,
}

impl Ruler {
    /// Draws `rows` rows of each task at each length: of all tasks with a folder of RULER's files, else of the six that need
    /// none.
    ///
    /// # Errors
    /// A missing file; a length that is too short for a task.
    pub fn draw(
        tokenizer: &Tokenizer,
        lengths: &[usize],
        rows: usize,
        folder: Option<&Path>,
    ) -> Result<Ruler> {
        let mut index = Index::open(None)?;
        index.draw(lengths);
        let group = if folder.is_some() { "ruler" } else { "ruler_offline" };
        let names: std::collections::BTreeSet<String> =
            lengths.iter().map(|tokens| format!("{group}_{tokens}")).collect();
        let nodes = index.find(&Vec::from_iter(names))?;
        let sets = Sets { folder, tokenizer: Some(tokenizer), template_tokens: 0 };
        let prepared = prepare(&nodes, &sets, &limited(rows))?;
        Ok(Ruler { nodes, prepared, longest: lengths.iter().copied().max().unwrap_or(0), rows })
    }

    /// Asks a model all rows; `doing` is called with each task's name.
    ///
    /// # Errors
    /// A model that reads fewer tokens than the longest length; the model fails.
    pub fn ask(
        &self,
        model: &dyn LanguageModel,
        tokenizer: &Tokenizer,
        doing: &dyn Fn(&str),
    ) -> Result<Option<Scores>> {
        let max_length = model.max_tokens();
        if self.longest > max_length {
            let Ruler { longest, .. } = self;
            return Err(Error::Impossible(format!(
                "RULER's tasks of {longest} tokens cannot be asked: the model reads {max_length}"
            )));
        }
        // Context is extended of decoders alone.
        let mut subject = Subject::new(model, tokenizer, max_length);
        let options = Options { doing: Some(doing), ..limited(self.rows) };
        let results = run(&self.nodes, &self.prepared, &mut subject, &options)?;
        Ok(Scores::of(&results).map(|scores| Scores { rows: self.rows, ..scores }))
    }
}

/// Options for this many rows.
fn limited(rows: usize) -> Options<'static> {
    Options { limit: Some(rows as f64), ..Options::default() }
}

/// Scores by length and task, in percent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Scores {
    /// Rows of a task at a length; 0 if tasks differ.
    pub rows: usize,
    /// Per length, the scores of tasks in RULER's order.
    pub lengths: BTreeMap<usize, Vec<(&'static str, f64)>>,
}

impl Scores {
    /// The scores among results; `None` if none is RULER's.
    pub fn of(results: &Results) -> Option<Scores> {
        let mut scores = Scores::default();
        for task in &results.tasks {
            let kwargs = task.config.keys.get("dataset_kwargs");
            let own = kwargs.filter(|_| task.config.text("dataset_path") == Some(DATASET));
            let Some(kwargs) = own else { continue };
            let name = names().find(|known| kwargs["task"] == *known);
            let figure = task.figures.iter().find(|figure| figure.0 == "string_match");
            let tokens = kwargs["tokens"].as_u64();
            if let (Some(name), Some(figure), Some(tokens)) = (name, figure, tokens) {
                let score = (figure.2 * 1e4).round_ties_even() / 100.0;
                scores.lengths.entry(tokens as usize).or_default().push((name, score));
            }
        }
        for tasks in scores.lengths.values_mut() {
            tasks.sort_by_key(|(name, _)| names().position(|known| known == *name));
        }
        (!scores.lengths.is_empty()).then_some(scores)
    }

    /// Mean over the tasks of each length.
    pub fn means(&self) -> impl Iterator<Item = (usize, f64)> {
        self.lengths.iter().map(|(tokens, tasks)| {
            (*tokens, tasks.iter().map(|task| task.1).sum::<f64>() / tasks.len() as f64)
        })
    }

    /// The longest length whose mean reaches [`THRESHOLD`].
    pub fn effective(&self) -> Option<usize> {
        self.means().filter(|(_, mean)| *mean >= THRESHOLD).map(|(tokens, _)| tokens).max()
    }

    /// True if every length has all of RULER's tasks, without which means are not those of its table.
    pub fn is_whole(&self) -> bool {
        self.lengths.values().all(|tasks| tasks.len() == names().count())
    }

    /// The event for the metrics log.
    pub fn to_event(&self, moment: &Moment) -> EvalRuler {
        let length = |(tokens, mean): (usize, f64)| RulerLength {
            tokens: tokens as u64,
            mean,
            tasks: self.lengths[&tokens].iter().map(|(name, score)| (name.to_string(), *score)).collect(),
        };
        EvalRuler {
            when: moment.when.clone(),
            step: moment.step,
            trained_tokens: moment.trained_tokens,
            threshold: THRESHOLD,
            effective_tokens: self.effective().unwrap_or(0) as u64,
            all_tasks: self.is_whole(),
            rows: self.rows as u64,
            lengths: self.means().map(length).collect(),
        }
    }

    /// The object of the results' file.
    pub fn json(&self) -> Value {
        let of = |(tokens, mean): (usize, f64)| {
            let tasks: serde_json::Map<String, Value> =
                self.lengths[&tokens].iter().map(|(name, score)| (name.to_string(), json!(score))).collect();
            json!({"tokens": tokens, "mean": mean, "tasks": tasks})
        };
        json!({
            "lengths": self.means().map(of).collect::<Vec<_>>(), "threshold": THRESHOLD, "effective_length": self.effective(),
            "all_tasks": self.is_whole(),
        })
    }

    /// A table with a column per length, as Markdown.
    pub fn table(&self) -> String {
        let row = |name: &str, cells: Vec<String>| format!("|{name:<15}|{}|\n", cells.join("|"));
        let lengths: Vec<String> = self.lengths.keys().map(|tokens| format!("{tokens:>8}")).collect();
        let mut table = row("RULER", lengths.clone());
        table += &row("---------------", vec!["-------:".into(); lengths.len()]);
        for name in names() {
            let score =
                |tasks: &Vec<(&str, f64)>| tasks.iter().find(|task| task.0 == name).map(|task| task.1);
            let found: Vec<Option<f64>> = self.lengths.values().map(score).collect();
            if found.iter().any(Option::is_some) {
                let cell = |it: Option<f64>| it.map_or(" ".repeat(8), |it| format!("{it:>8.2}"));
                table += &row(name, found.into_iter().map(cell).collect());
            }
        }
        table += &row("mean", self.means().map(|(_, mean)| format!("{mean:>8.2}")).collect());
        let effective = self.effective().map_or_else(|| "none of these".into(), |it| format!("{it} tokens"));
        table += &format!("effective length: {effective} (mean of at least {THRESHOLD}");
        table += if self.is_whole() { ")\n" } else { "; not RULER's, which is over all thirteen tasks)\n" };
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_length_is_the_longest_that_reaches_the_threshold() {
        let of = |scores: &[(usize, f64)]| Scores {
            lengths: scores.iter().map(|(tokens, score)| (*tokens, vec![("vt", *score)])).collect(),
            ..Scores::default()
        };
        let llama =
            of(&[(4096, 95.5), (8192, 93.8), (16384, 91.6), (32768, 87.4), (65536, 84.7), (131072, 77.0)]);
        assert_eq!((llama.effective(), llama.is_whole()), (Some(32768), false));
        assert_eq!(of(&[(4096, 85.5)]).effective(), None);
        assert!(
            llama.table().contains("|mean           |   95.50|") && llama.table().contains("not RULER's")
        );
    }
}
