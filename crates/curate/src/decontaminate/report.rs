//! Report of the evaluation sets and n-grams found in the corpus.

use serde::{Deserialize, Serialize};

use super::{Decontaminator, Matches};

/// Result of the first pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecontaminationReport {
    /// Documents with a match, including matches of too common n-grams.
    pub documents: u64,
    /// The evaluation sets in their order.
    pub tasks: Vec<TaskReport>,
    /// Most frequent n-grams, up to a limit.
    pub grams: Vec<GramReport>,
}

/// Matches of one evaluation set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskReport {
    /// Name of the set.
    pub task: String,
    /// Texts read from it.
    pub texts: u64,
    /// Texts with too few words to match.
    pub too_short_texts: u64,
    /// Number of its n-grams.
    pub grams: u64,
    /// N-grams found in the corpus and removed.
    pub removed_grams: u64,
    /// N-grams found too often to be a leak, and kept.
    pub common_grams: u64,
    /// Matches of its n-grams in all documents.
    pub matches: u64,
}

/// An n-gram that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GramReport {
    /// Its words, in lower case and without punctuation.
    pub gram: String,
    /// The evaluation sets it comes from.
    pub tasks: Vec<String>,
    /// Matches in all documents.
    pub matches: u64,
    /// True if it was rare enough to be removed.
    pub removed: bool,
}

impl Decontaminator {
    /// Summarizes the first pass, with the `most` most frequent n-grams; ties are in set order.
    pub fn report(&self, matches: &Matches, most: usize) -> DecontaminationReport {
        let mut tasks: Vec<TaskReport> = self
            .tasks
            .iter()
            .map(|task| TaskReport {
                task: task.name.clone(),
                texts: task.texts,
                too_short_texts: task.too_short,
                ..TaskReport::default()
            })
            .collect();
        let removed = |count: u64| count <= self.options.max_matches;
        for (number, gram) in self.grams.iter().enumerate() {
            let count = matches.counts.get(number).copied().unwrap_or(0);
            for &task in &gram.tasks {
                let task = &mut tasks[task as usize];
                task.grams += 1;
                task.matches += count;
                task.removed_grams += u64::from(count > 0 && removed(count));
                task.common_grams += u64::from(!removed(count));
            }
        }
        let mut found: Vec<(u64, usize)> =
            matches.counts.iter().copied().zip(0..).filter(|&(count, _)| count > 0).collect();
        found.sort_unstable_by_key(|&(count, number)| (std::cmp::Reverse(count), number));
        let grams = found.into_iter().take(most).map(|(count, number)| GramReport {
            gram: self.grams[number].text.clone(),
            tasks: self.grams[number]
                .tasks
                .iter()
                .map(|&task| self.tasks[task as usize].name.clone())
                .collect(),
            matches: count,
            removed: removed(count),
        });
        DecontaminationReport { documents: matches.documents, tasks, grams: grams.collect() }
    }
}
