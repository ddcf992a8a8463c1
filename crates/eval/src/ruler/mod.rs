//! RULER's thirteen tasks (NVIDIA, 2024) at a length: sets that are drawn by its rules from a seed and a tokenizer, its
//! score, and its effective length.
//!
//! Rows are equal to those of its scripts to the byte, with two exceptions: tasks over essays divide them into sentences
//! by a simple rule and not by NLTK's trained model, and a length that is too short for a sample is refused.

mod chain;
mod counts;
mod haystack;
mod needles;
mod questions;
mod score;
mod words;

use std::path::Path;

use fathom_text::Tokenizer;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::python::random::Random;
use haystack::{HaystackParts, Sample};
use needles::{Hay, Kind, Needles};
use questions::Set;

pub(crate) use score::string_match;

/// Name of the data path of its sets in task files.
pub const DATASET: &str = "ruler";
/// Items of a task in its scripts.
pub const ITEMS: usize = 500;
/// Seed of its scripts.
pub const SEED: u64 = 42;
/// Length without `--lengths`.
pub const LENGTH: usize = 4096;

/// Rule of a task.
#[derive(Clone, Copy)]
enum Rule {
    Needles(Needles),
    Chain,
    CommonWords,
    FrequentWords,
    Questions(Set),
}

const fn niah(hay: Hay, key: Kind, value: Kind, [keys, values, asked]: [usize; 3]) -> Rule {
    Rule::Needles(Needles { hay, key, value, keys, values, asked })
}

/// Its tasks, with the tokens of an answer and the beginning by which its scripts find the answer's prefix.
#[rustfmt::skip]
const TASKS: [(&str, Rule, usize, &str); 13] = [
    ("niah_single_1", niah(Hay::Noise, Kind::Words, Kind::Numbers, [1, 1, 1]), 128, " The speci"),
    ("niah_single_2", niah(Hay::Essays, Kind::Words, Kind::Numbers, [1, 1, 1]), 128, " The speci"),
    ("niah_single_3", niah(Hay::Essays, Kind::Words, Kind::Uuids, [1, 1, 1]), 128, " The speci"),
    ("niah_multikey_1", niah(Hay::Essays, Kind::Words, Kind::Numbers, [4, 1, 1]), 128, " The speci"),
    ("niah_multikey_2", niah(Hay::Needles, Kind::Words, Kind::Numbers, [1, 1, 1]), 128, " The speci"),
    ("niah_multikey_3", niah(Hay::Needles, Kind::Uuids, Kind::Uuids, [1, 1, 1]), 128, " The speci"),
    ("niah_multivalue", niah(Hay::Essays, Kind::Words, Kind::Numbers, [1, 4, 1]), 128, " The speci"),
    ("niah_multiquery", niah(Hay::Essays, Kind::Words, Kind::Numbers, [4, 1, 4]), 128, " The speci"),
    ("vt", Rule::Chain, 30, " Answer: A"),
    ("cwe", Rule::CommonWords, 120, " Answer: T"),
    ("fwe", Rule::FrequentWords, 50, " Answer: A"),
    ("qa_1", Rule::Questions(Set::Squad), 32, " Answer:"),
    ("qa_2", Rule::Questions(Set::Hotpot), 32, " Answer:"),
];

impl Rule {
    /// True if the rows need no file.
    fn is_offline(&self) -> bool {
        match self {
            Rule::Needles(needles) => needles.hay != Hay::Essays,
            Rule::Questions(_) => false,
            Rule::Chain | Rule::CommonWords | Rule::FrequentWords => true,
        }
    }
}

/// Names of all tasks.
pub fn names() -> impl Iterator<Item = &'static str> {
    TASKS.iter().map(|task| task.0)
}

/// A set to draw.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// Name of the task.
    pub task: &'r str,
    /// Tokens of prompt and answer together.
    pub tokens: usize,
    /// Tokens of them that are for a chat template.
    pub template_tokens: usize,
    /// Number of rows.
    pub rows: usize,
    /// Seed.
    pub seed: u64,
    /// Folder of the user's files: essays, SQuAD, HotpotQA.
    pub folder: Option<&'r Path>,
}

/// The rows of a set, with the columns of RULER's files.
///
/// # Errors
/// No such task; a missing file; a length that is too short.
pub fn rows(request: &Request<'_>, tokenizer: &Tokenizer) -> Result<Vec<Map<String, Value>>> {
    let known = TASKS.iter().find(|known| known.0 == request.task);
    let (name, rule, answer_tokens, prefix) = known.ok_or_else(|| {
        let all: Vec<&str> = names().collect();
        Error::task(request.task, format!("is none of RULER's tasks: {}", all.join(", ")))
    })?;
    let Some(most) = request.tokens.checked_sub(request.template_tokens).filter(|most| most > answer_tokens)
    else {
        return Err(Error::task(name, format!("a length of {} tokens is too short", request.tokens)));
    };
    let mut drawing = HaystackParts {
        tokenizer,
        tokens: request.tokens,
        most,
        answer_tokens: *answer_tokens,
        seed: request.seed,
        random: Random::new(request.seed),
        task: format!("{name} at {} tokens", request.tokens),
        folder: request.folder.map(Path::to_path_buf),
    };
    let samples = match rule {
        Rule::Needles(needles) => needle_samples(&mut drawing, needles, request.rows)?,
        Rule::Chain => chain::samples(&mut drawing, request.rows)?,
        Rule::CommonWords => counts::common_words(&mut drawing, request.rows)?,
        Rule::FrequentWords => counts::frequent_words(&mut drawing, request.rows)?,
        Rule::Questions(set) => questions::samples(&mut drawing, *set, request.rows)?,
    };
    let row = |(at, sample): (usize, Sample)| {
        let found = sample.text.rfind(prefix).unwrap_or(sample.text.len());
        let (input, prefix) = sample.text.split_at(found);
        // Where the first answer is, in characters; RULER writes it for the row's number.
        let place = sample.answers.first().and_then(|answer| input.find(answer.as_str()));
        let is_needle = matches!(rule, Rule::Needles(_));
        let index =
            if is_needle { place.map_or(-1, |at| input[..at].chars().count() as i64) } else { at as i64 };
        let mut row = json!({
            "index": index, "input": input, "outputs": sample.answers, "length": sample.tokens,
            "length_w_model_temp": sample.tokens + request.template_tokens, "answer_prefix": prefix,
        });
        if is_needle {
            let before = place.unwrap_or(input.len());
            row["token_position_answer"] = drawing.count(&input[..before])?.into();
        }
        Ok(row.as_object().cloned().unwrap_or_default())
    };
    samples.into_iter().enumerate().map(row).collect()
}

fn needle_samples(drawing: &mut HaystackParts<'_>, needles: &Needles, count: usize) -> Result<Vec<Sample>> {
    let pairs = words::Pairs::new();
    let essay = if needles.hay == Hay::Essays { drawing.essay()? } else { Vec::new() };
    let size = needles.size(drawing);
    let mut draw =
        |drawing: &mut HaystackParts<'_>, size: usize| needles.draw(drawing, (&pairs, &essay[..]), size);
    let largest = drawing.largest(&size, &mut draw)?;
    (0..count).map(|_| drawing.sample(&size, largest, &mut draw)).collect()
}

/// Task files at lengths: `ruler_LENGTH_TASK`, the group `ruler_LENGTH` of the thirteen and `ruler_offline_LENGTH` of
/// the six that need no file, and the groups `ruler` and `ruler_offline` of all lengths.
pub fn task_files(lengths: &[usize]) -> Vec<Map<String, Value>> {
    let mean = json!([{"metric": "string_match", "weight_by_size": false}]);
    let mut files = Vec::new();
    for tokens in lengths {
        for (name, rule, answer_tokens, _) in &TASKS {
            let any = matches!(rule, Rule::Questions(_));
            files.push(json!({
                "task": format!("ruler_{tokens}_{name}"),
                "task_alias": name,
                "dataset_path": DATASET,
                "dataset_kwargs": {"task": name, "tokens": tokens, "seed": SEED, "rows": ITEMS},
                "test_split": "test",
                "output_type": "generate_until",
                "doc_to_text": "{{input}}",
                "gen_prefix": "{{answer_prefix}}",
                "target_delimiter": "",
                "doc_to_target": "outputs",
                "generation_kwargs":
                    {"until": [], "do_sample": false, "temperature": 0.0, "max_gen_toks": answer_tokens},
                "metric_list": [{"metric": "string_match", "any": any}],
                "metadata": {"version": 1.0},
            }));
        }
    }
    for group in ["ruler", "ruler_offline"] {
        let is_member = |rule: &Rule| group == "ruler" || rule.is_offline();
        for tokens in lengths {
            let members = TASKS.iter().filter(|task| is_member(&task.1));
            let members: Vec<String> = members.map(|task| format!("ruler_{tokens}_{}", task.0)).collect();
            let name = format!("{group}_{tokens}");
            files.push(json!({"group": name, "task": members, "aggregate_metric_list": mean}));
        }
        let members: Vec<String> = lengths.iter().map(|tokens| format!("{group}_{tokens}")).collect();
        files.push(json!({"group": group, "task": members}));
    }
    files.into_iter().filter_map(|file| file.as_object().cloned()).collect()
}
