//! NoLiMa's needles: sentences that answer a question without sharing its words, placed in shuffled books at depths.
//!
//! Needle sets, books and the prompt are the user's files. Placements are those of its evaluation, by its seeds; books come in the
//! order of their names, where it takes the order of the folder.

use fathom_text::Tokenizer;
use serde_json::{Map, Value, json};

use super::files::{Files, Row, filled};
use crate::error::Result;
use crate::python::random::Random;

/// Name of its data path in task files.
pub const DATASET: &str = "nolima";
/// Where people get its files.
const SOURCE: &str = "https://huggingface.co/datasets/amodaresi/NoLiMa";
/// Depths of a needle, from the beginning to the end.
const DEPTHS: usize = 26;
/// First seed; that of a test adds its number and that of its book.
const SEED: u64 = 42;
/// Share of the context next to a needle that has no distractor.
const FREE_ZONE: f64 = 0.2;
/// Tokens of an answer.
const ANSWER_TOKENS: usize = 192;
/// Tokens of a prompt without the book, at most.
const AROUND: usize = 320;
/// Length of contexts in which distractors stand at fixed depths.
const SHORT: usize = 500;
/// Names of tasks, and the files of needles.
const SETS: [(&str, &str); 6] = [
    ("nolima", "needle_set"),
    ("nolima_mc", "needle_set_MC"),
    ("nolima_direct", "needle_set_ONLYDirect"),
    ("nolima_hard", "needle_set_hard"),
    ("nolima_cot", "needle_set_w_CoT"),
    ("nolima_distractor", "needle_set_w_Distractor"),
];
/// File of the prompt of needles that have none of their own.
const PROMPT: &str = "task_template.txt";

/// Task files at lengths: `nolima_LENGTH`, and the group `nolima` of all lengths; the same for its other needles.
pub fn task_files(lengths: &[usize]) -> Vec<Map<String, Value>> {
    let mut files = Vec::new();
    for (name, set) in SETS {
        for tokens in lengths {
            files.push(json!({
                "task": format!("{name}_{tokens}"), "dataset_path": DATASET, "test_split": "test",
                "dataset_kwargs": {"set": set, "tokens": tokens, "room": tokens + AROUND + ANSWER_TOKENS},
                "output_type": "generate_until", "num_fewshot": 0,
                "description": "{{system_prompt}}", "fewshot_delimiter": "\n\n",
                "doc_to_text": "prompt", "doc_to_target": "answers", "target_delimiter": "",
                "generation_kwargs":
                    {"until": [], "do_sample": false, "temperature": 0.0, "max_gen_toks": ANSWER_TOKENS},
                "metric_list": [{"metric": "score", "rule": "contains"}],
                "metadata": {"version": 1.0},
            }));
        }
        let members: Vec<String> = lengths.iter().map(|tokens| format!("{name}_{tokens}")).collect();
        files.push(json!({"group": name, "task": members}));
    }
    files.into_iter().filter_map(|file| file.as_object().cloned()).collect()
}

/// A question about a needle.
struct Needle {
    name: String,
    system: String,
    prompt: Option<String>,
    seed: u64,
    text: String,
    question: String,
    distractor: Option<String>,
    golds: Vec<String>,
    characters: Vec<String>,
}

/// The rows of a set: per book, needle and depth one.
pub fn rows(
    files: &Files<'_>,
    kwargs: &Row,
    tokenizer: &Tokenizer,
    most: &dyn Fn(usize) -> usize,
) -> Result<Vec<Row>> {
    let set = kwargs.get("set").and_then(Value::as_str).unwrap_or(SETS[0].1);
    let tokens = kwargs.get("tokens").and_then(Value::as_u64).filter(|tokens| *tokens > 0);
    let tokens = tokens.ok_or_else(|| files.wrong("`dataset_kwargs` needs a number of `tokens`"))? as usize;
    let path = files.find(&["nolima/needlesets", "needlesets"], &format!("{set}.json"), SOURCE)?;
    let mut needles = Vec::new();
    for experiment in files.read(&path)? {
        needles.extend(
            of_experiment(&experiment)
                .map_err(|reason| files.wrong(format!("{}: {reason}", path.display())))?,
        );
    }
    if needles.iter().any(|needle| needle.prompt.is_none()) {
        let source =
            "`DEFAULT_TASK_TEMPLATE` in evaluation/run_tests.py of https://github.com/adobe-research/NoLiMa";
        let path = files.find(&["nolima", ""], PROMPT, source)?;
        let failed = |error| files.wrong(format!("cannot read {}: {error}", path.display()));
        let prompt = std::fs::read_to_string(&path).map_err(failed)?;
        for needle in &mut needles {
            needle.prompt.get_or_insert_with(|| prompt.clone());
        }
    }
    let books = files.find(&["nolima/haystack", "haystack"], "rand_shuffle", SOURCE)?;
    let failed = |error: std::io::Error| files.wrong(format!("cannot read {}: {error}", books.display()));
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(&books).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        paths.extend(path.extension().is_some_and(|it| it == "txt").then_some(path));
    }
    paths.sort();
    let wanted = most(paths.len() * needles.len() * DEPTHS);
    let mut rows = Vec::new();
    for (number, path) in paths.iter().enumerate() {
        let book = Book::new(&std::fs::read_to_string(path).map_err(failed)?, tokenizer, tokens)?;
        for needle in &needles {
            if rows.len() >= wanted {
                return Ok(rows);
            }
            let found = of_needle(needle, &book, needle.seed + number as u64);
            let found = found.map_err(|reason| {
                files.wrong(format!(
                    "needle {} at {tokens} tokens of {}: {reason}",
                    needle.name,
                    path.display()
                ))
            })?;
            let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
            rows.extend(found.into_iter().map(|mut row| {
                row.insert("book".into(), name.clone().into());
                row
            }));
        }
    }
    Ok(rows)
}

/// The needles of an entry of the file: each of its questions with the arguments of each test.
fn of_experiment(entry: &Row) -> std::result::Result<Vec<Needle>, String> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str);
    let (Some(id), Some(needle)) = (text("id"), text("needle")) else {
        return Err("an entry has no `id` or `needle`".into());
    };
    let number = id.get(..4).and_then(|id| id.parse::<u64>().ok());
    let number = number.ok_or_else(|| format!("the id {id} does not begin with four digits"))?;
    let members =
        |key: &str| entry.get(key).and_then(Value::as_object).ok_or_else(|| format!("{id} has no `{key}`"));
    let texts = |value: Option<&Value>| -> Vec<String> {
        let list =
            value.map_or_else(Vec::new, |it| it.as_array().cloned().unwrap_or_else(|| vec![it.clone()]));
        list.iter().filter_map(Value::as_str).filter(|it| !it.is_empty()).map(str::to_string).collect()
    };
    let mut needles = Vec::new();
    for (kind, question) in members("questions")? {
        for (test_id, test) in members("tests")? {
            let question = question.as_str().unwrap_or_default();
            let distractor = entry.get("distractors").and_then(|it| it[kind].as_str());
            let mut made = Needle {
                name: format!("{id}_{test_id}_{kind}"),
                system: text("system_prompt").unwrap_or_default().to_string(),
                prompt: text("task_template").map(str::to_string),
                seed: SEED + number,
                text: needle.to_string(),
                question: question.to_string(),
                distractor: None,
                golds: texts(test.get("gold_answers")),
                characters: texts(entry.get("character_set")),
            };
            for (at, argument) in test["input_args"].as_array().into_iter().flatten().enumerate() {
                let (place, argument) = (format!("{{{}}}", at + 1), argument.as_str().unwrap_or_default());
                made.text = made.text.replace(&place, argument);
                // The last one of several arguments in a question is put in, as by its scripts.
                if question.contains(&place) {
                    made.question = question.replace(&place, argument);
                }
                if let Some(distractor) = distractor.filter(|it| it.contains(&place)) {
                    made.distractor = Some(distractor.replace(&place, argument));
                }
            }
            needles.push(made);
        }
    }
    Ok(needles)
}

fn of_needle(needle: &Needle, book: &Book<'_>, seed: u64) -> std::result::Result<Vec<Row>, String> {
    const CHARACTER: &str = "{CHAR}";
    let mut random = Random::numpy(seed as u32);
    let drawn = needle.text.contains(CHARACTER);
    if drawn && needle.characters.is_empty() {
        return Err("has {CHAR}, and the set no `character_set`".into());
    }
    let mut rows = Vec::with_capacity(DEPTHS);
    for at in 0..DEPTHS {
        let depth = 100.0 * at as f64 / (DEPTHS - 1) as f64 / 100.0;
        let mut golds = needle.golds.clone();
        let [mut text, mut question] = [&needle.text, &needle.question].map(String::clone);
        if drawn {
            let character = &needle.characters[random.numpy_below(needle.characters.len())];
            [text, question] = [text, question].map(|it| it.replace(CHARACTER, character));
            golds = vec![character.clone()];
        }
        let haystack = match &needle.distractor {
            None => book.with(&text, depth)?,
            Some(distractor) => {
                let drawn = distractor_depth(depth, random.random(), book.tokens);
                book.with_both((&text, depth), (distractor, drawn))?
            }
        };
        let prompt = filled(needle.prompt.as_deref().unwrap_or_default(), &|name| match name {
            "haystack" => Some(haystack.clone()),
            "question" => Some(question.clone()),
            _ => None,
        });
        let row = json!({"prompt": prompt, "system_prompt": needle.system, "answers": golds, "needle": needle.name, "depth": depth});
        rows.extend(row.as_object().cloned());
    }
    Ok(rows)
}

/// Depth of a distractor, far from its needle.
fn distractor_depth(depth: f64, drawn: f64, tokens: usize) -> f64 {
    if tokens < SHORT {
        return match depth {
            depth if depth < 0.6 => 0.7,
            depth if depth > 0.75 => 0.6,
            _ => 0.5,
        };
    }
    let (left, right) = ((depth - 2.0 * FREE_ZONE).max(0.0), (1.0 - (depth + 2.0 * FREE_ZONE)).max(0.0));
    let place = drawn * (left + right);
    if place > left { depth + FREE_ZONE + (place - left) } else { place + FREE_ZONE }
}

/// A book as tokens, with the ends of its lines.
struct Book<'b> {
    tokenizer: &'b Tokenizer,
    ids: Vec<u32>,
    lines: Vec<usize>,
    tokens: usize,
}

impl Book<'_> {
    fn new<'b>(text: &str, tokenizer: &'b Tokenizer, tokens: usize) -> Result<Book<'b>> {
        let ids = tokenizer.encode(text)?;
        let ends = ids.iter().enumerate().filter(|(_, id)| tokenizer.decode(&[**id]).contains('\n'));
        let lines = std::iter::once(0).chain(ends.map(|(at, _)| at)).collect();
        Ok(Book { tokenizer, ids, lines, tokens })
    }

    /// A part of the book with a needle at a depth, as a line of its own.
    fn with(&self, needle: &str, depth: f64) -> std::result::Result<String, String> {
        let delta = |line: &usize| *line as f64 / (self.tokens as f64 + 1.0) - depth;
        let mut line = None;
        for (at, delta) in self.lines.iter().map(|line| (*line, delta(line))).filter(|it| it.1 >= 0.0) {
            if line.is_none_or(|(_, least)| delta < least) {
                line = Some((at, delta));
            }
        }
        let before = (self.tokens as f64 * depth).round_ties_even() as usize;
        let line = line.map(|it| it.0).filter(|line| *line >= before);
        let (line, from) = line.map(|line| (line, line - before)).ok_or("the book is too short")?;
        let to = from + self.tokens;
        if to > self.ids.len() {
            return Err("the book is too short".into());
        }
        let first = self.tokenizer.decode(&self.ids[from..=line]);
        let first = &first[..first.rfind('\n').unwrap_or(0)];
        let rest = self.ids.get(line + 1..to).map_or_else(String::new, |ids| self.tokenizer.decode(ids));
        Ok(format!("{first} {needle}\n{rest}"))
    }

    /// The same with a distractor behind the text that stands before it where it is placed alone.
    fn with_both(
        &self,
        (needle, depth): (&str, f64),
        (distractor, other): (&str, f64),
    ) -> std::result::Result<String, String> {
        let alone = self.with(distractor, other)?;
        let at = alone.find(distractor).ok_or("the distractor is not where it was put")?;
        let before: Vec<char> = alone[..at].chars().collect();
        let (width, offset) = if self.tokens < SHORT { (25, 23) } else { (50, 49) };
        let span: String =
            before[before.len().saturating_sub(width)..before.len().saturating_sub(1)].iter().collect();
        let text = self.with(needle, depth)?;
        if text.matches(&span).count() > 1 {
            return Err("the text before the distractor is there twice".into());
        }
        let found = text.find(&span).ok_or("the text before the distractor is not there")?;
        let place = text[found..].char_indices().nth(offset).map_or(text.len(), |it| found + it.0);
        Ok(format!("{} {distractor}\n{}", &text[..place], &text[place..]))
    }
}
