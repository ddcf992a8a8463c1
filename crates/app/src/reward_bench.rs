//! Accuracy of a reward model at preferring the better of two answers, on RewardBench's files: JSON lines with
//! `prompt`, `chosen`, `rejected` and `subset`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fathom_text::lessons::Rows;
use fathom_train::policy::reward::RewardInput;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result, caught, refuse};
use crate::events::Events;
use crate::judges::scorer;
use crate::machine::Machine;
use crate::models;

/// Rows per batch.
const ROWS: usize = 32;

/// Options of a reward benchmark.
pub struct Request {
    /// Folder of a reward model, or of the run that trained it.
    pub model: PathBuf,
    /// Adapter over it, if the adapter has the head of scores.
    pub adapter: Option<PathBuf>,
    /// RewardBench file.
    pub data: PathBuf,
}

/// Result for a subset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubsetAccuracy {
    /// Number of rows.
    pub rows: usize,
    /// Number of rows whose chosen answer has the higher score.
    pub right: usize,
}

impl SubsetAccuracy {
    /// Returns the share of right rows.
    pub fn accuracy(&self) -> f64 {
        self.right as f64 / self.rows.max(1) as f64
    }
}

/// A row of the file.
struct Pair {
    prompt: String,
    /// Answers, the chosen one first.
    answers: [String; 2],
    subset: String,
    /// Prompt as a conversation, for models with a chat template.
    row: Map<String, Value>,
}

/// Measures the accuracy by subset.
///
/// # Errors
/// No reward model there; a row without a prompt and two answers.
pub fn reward_bench(
    request: &Request,
    machine: &Machine,
    events: &dyn Events,
) -> Result<BTreeMap<String, SubsetAccuracy>> {
    let ready = models::open_with(&request.model, request.adapter.as_deref(), None, machine, events)?;
    caught(|| {
        let converses = models::converses(&ready.folder);
        let scorer = scorer(ready)?;
        let mut found: BTreeMap<String, SubsetAccuracy> = BTreeMap::new();
        let pairs: Vec<Pair> = pairs(request, converses)?;
        for (at, pairs) in pairs.chunks(ROWS).enumerate() {
            events.doing(&format!("scoring answers: row {}", at * ROWS + 1));
            let answers = pairs.iter().flat_map(|pair| pair.answers.iter().map(move |text| (pair, text)));
            let answered = answers.map(|(pair, text)| RewardInput {
                row: &pair.row,
                prompt: &pair.prompt,
                text,
                messages: &[],
                earned: None,
                tokens: 0,
                ended: true,
            });
            let scores = scorer.score(&answered.collect::<Vec<_>>()).map_err(Error::Refused)?;
            for (pair, scores) in pairs.iter().zip(scores.chunks(2)) {
                let of = found.entry(pair.subset.clone()).or_default();
                of.rows += 1;
                of.right += usize::from(scores[0] > scores[1]);
            }
        }
        Ok(found)
    })
}

/// Reads the rows of the file.
fn pairs(request: &Request, converses: bool) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for row in Rows::open(&request.data)? {
        let row = row?;
        let text = |key: &str| row.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let (Some(prompt), Some(chosen), Some(rejected)) = (text("prompt"), text("chosen"), text("rejected"))
        else {
            refuse!(
                "{}: row {} has no strings `prompt`, `chosen` and `rejected`, which RewardBench's rows have",
                request.data.display(),
                pairs.len() + 1
            );
        };
        let asked = json!({"prompt": [{"role": "user", "content": prompt}]});
        let row_of = asked.as_object().filter(|_| converses).cloned().unwrap_or_default();
        pairs.push(Pair {
            prompt: prompt.into(),
            answers: [chosen, rejected].map(str::to_string),
            subset: text("subset").unwrap_or("all").into(),
            row: row_of,
        });
    }
    if pairs.is_empty() {
        refuse!("{} has no rows", request.data.display());
    }
    Ok(pairs)
}
