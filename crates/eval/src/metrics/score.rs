//! The metric `score` of an answer by a named rule: those of LongBench, NoLiMa, HELMET and MATH.

use std::sync::OnceLock;

use jieba_rs::Jieba;
use serde_json::{Map, Value};

use super::aggregate::mean;
use super::{mathematics, overlap, rankings, similar, summary};
use crate::python::pattern::Pattern;
use crate::python::strip;

/// Name of the metric.
pub const SCORE: &str = "score";
/// Rank that NDCG looks at.
const CUT: usize = 10;

/// How an answer is compared with one reference of its row.
type Compare = fn(&Score, &str, &str, &Map<String, Value>) -> Result<f64, String>;

/// The rules by name.
#[rustfmt::skip]
const RULES: [(&str, Compare); 17] = [
    ("qa_f1", |_, answer, gold, _| overlap::f1(answer, gold)),
    ("qa_f1_zh", |score, answer, gold, _| Ok(overlap::chinese_f1(answer, gold, score.jieba()))),
    ("rouge", |_, answer, gold, _| Ok(summary::rouge_l(answer, gold))),
    ("rouge_zh", |score, answer, gold, _| {
        let [answer, gold] = [answer, gold].map(|text| overlap::cut(text, score.jieba()).collect::<Vec<_>>().join(" "));
        Ok(summary::rouge_l(&answer, &gold))
    }),
    ("classification", classification),
    ("retrieval", |_, answer, gold, _| counted_numbers(answer, &first(gold, r"Paragraph (\d+)")?)),
    ("retrieval_zh", |_, answer, gold, _| counted_numbers(answer, &first(gold, r"段落(\d+)")?)),
    ("count", |_, answer, gold, _| counted_numbers(answer, gold)),
    ("code_sim", |_, answer, gold, _| Ok(code_similarity(answer, gold))),
    ("contains", |_, answer, gold, _| Ok(truth(answer.contains(gold)))),
    ("contains_any_case", |_, answer, gold, _| Ok(truth(answer.to_lowercase().contains(&gold.to_lowercase())))),
    ("exact_match", |_, answer, gold, _| Ok(truth(overlap::plain(answer)? == overlap::plain(gold)?))),
    ("substring_exact_match", |_, answer, gold, _| Ok(truth(overlap::plain(answer)?.contains(&overlap::plain(gold)?)))),
    ("f1", |_, answer, gold, _| guarded_f1(answer, gold)),
    ("ndcg", |_, answer, _, row| gain(answer, row)),
    ("math", |_, answer, gold, _| Ok(truth(mathematics::is_right(answer, gold)))),
    ("minerva", |_, answer, gold, _| Ok(truth(mathematics::is_final(answer, gold)?))),
];

/// A rule with its options.
#[derive(Debug)]
pub struct Score {
    compare: Compare,
    /// Leaves the first line of the answer.
    first_line: bool,
    /// Text before the answer that a model may repeat; both readings are tried, and the better counts.
    prefix: Option<String>,
    /// Takes the mean over the references of a row, not the best.
    mean: bool,
    jieba: OnceLock<Jieba>,
}

impl Score {
    /// Reads the options of a metric.
    ///
    /// # Errors
    /// A rule or an option that is not known.
    pub fn new(options: &Map<String, Value>) -> Result<Score, String> {
        let known = || RULES.map(|rule| rule.0).join(", ");
        let rule = options.get("rule").and_then(Value::as_str);
        let rule = rule.ok_or_else(|| format!("score needs a `rule`: {}", known()))?;
        let found = RULES.iter().find(|it| it.0 == rule);
        let compare = found.ok_or_else(|| format!("`{rule}` is no rule of score: {}", known()))?.1;
        if let Some(other) =
            options.keys().find(|key| !["rule", "first_line", "prefix", "mean"].contains(&key.as_str()))
        {
            return Err(format!("score has no option `{other}`"));
        }
        let flag = |key: &str| options.get(key) == Some(&Value::Bool(true));
        let (first_line, mean) = (flag("first_line"), flag("mean"));
        let prefix = options.get("prefix").and_then(Value::as_str).map(str::to_string);
        Ok(Score { compare, first_line, prefix, mean, jieba: OnceLock::new() })
    }

    fn jieba(&self) -> &Jieba {
        self.jieba.get_or_init(Jieba::new)
    }

    /// The best score over the references of a row, or their mean.
    ///
    /// # Errors
    /// A reference or a row that the rule cannot use.
    pub fn value(&self, answer: &str, golds: &[String], row: &Map<String, Value>) -> Result<f64, String> {
        let mut answers = vec![answer.to_string()];
        if self.first_line {
            let line = answer.trim_start_matches('\n').split('\n').next().unwrap_or_default();
            answers = vec![line.to_string()];
        }
        if let Some(prefix) = &self.prefix {
            answers.push(behind(answer, prefix)?);
        }
        let mut best = 0.0f64;
        for answer in &answers {
            let mut scores = Vec::with_capacity(golds.len());
            for gold in golds {
                scores.push((self.compare)(self, answer, gold, row)?);
            }
            let over = if self.mean { mean(&scores) } else { scores.into_iter().fold(0.0, f64::max) };
            best = best.max(over);
        }
        Ok(best)
    }
}

fn truth(is: bool) -> f64 {
    f64::from(u8::from(is))
}

/// The line behind a prefix in any case, or else the first line; a prefix that is repeated is left out.
fn behind(answer: &str, prefix: &str) -> Result<String, String> {
    let escaped = fancy_regex::escape(prefix);
    let found = Pattern::new(&format!("(?i)(?:{prefix})(.*)(?:\n|$)"))?.find_all(answer)?;
    let line = match found.into_iter().next() {
        Some(mut groups) => groups.remove(0),
        None => answer.split('\n').next().unwrap_or_default().to_string(),
    };
    let rest = crate::python::pattern::replace(strip(&line), &format!("(?i)^{escaped}"), "")?;
    Ok(strip(&rest).to_string())
}

/// The share of the classes in an answer that is the right one; classes that are part of the right one do not count, by
/// LongBench's loop, which passes over the class behind one that it leaves out.
fn classification(_: &Score, answer: &str, gold: &str, row: &Map<String, Value>) -> Result<f64, String> {
    let classes =
        row.get("all_classes").and_then(Value::as_array).ok_or("the row has no list `all_classes`")?;
    let named = classes.iter().filter_map(Value::as_str).filter(|class| answer.contains(class));
    let mut named: Vec<&str> = named.collect();
    let mut at = 0;
    while at < named.len() {
        let class = named[at];
        if gold.contains(class) && class != gold {
            let first = named.iter().position(|it| *it == class).unwrap_or(at);
            named.remove(first);
        }
        at += 1;
    }
    Ok(if named.contains(&gold) { 1.0 / named.len() as f64 } else { 0.0 })
}

fn first(text: &str, pattern: &str) -> Result<String, String> {
    let found = Pattern::new(pattern)?.find_all(text)?.into_iter().next();
    found
        .map(|mut groups| groups.remove(0))
        .ok_or_else(|| format!("the answer `{text}` of a row is not of the form {pattern}"))
}

/// The share of the numbers in an answer that is the right one.
fn counted_numbers(answer: &str, gold: &str) -> Result<f64, String> {
    let numbers = Pattern::new(r"\d+")?.find_all(answer)?;
    let right = numbers.iter().filter(|number| number[0] == gold).count();
    Ok(if numbers.is_empty() { 0.0 } else { right as f64 / numbers.len() as f64 })
}

/// Similarity of the first line that is neither a comment nor a fence, in whole percent.
fn code_similarity(answer: &str, gold: &str) -> f64 {
    let is_code = |line: &&str| !line.contains('`') && !line.contains('#') && !line.contains("//");
    let line = answer.trim_start_matches('\n').split('\n').find(is_code).unwrap_or_default();
    match () {
        () if line == gold => 1.0,
        () if line.is_empty() || gold.is_empty() => 0.0,
        () => (100.0 * similar::ratio(line, gold)).round_ties_even() / 100.0,
    }
}

/// F1 of words, 0 where one of both is `yes`, `no` or `noanswer` and the other is not.
fn guarded_f1(answer: &str, gold: &str) -> Result<f64, String> {
    let [plain_answer, plain_gold] = [overlap::plain(answer)?, overlap::plain(gold)?];
    let is_word = |text: &str| ["yes", "no", "noanswer"].contains(&text);
    if plain_answer != plain_gold && (is_word(&plain_answer) || is_word(&plain_gold)) {
        return Ok(0.0);
    }
    overlap::f1(answer, gold)
}

/// NDCG at 10 of the ranking in an answer, by the labels of `ctxs`.
fn gain(answer: &str, row: &Map<String, Value>) -> Result<f64, String> {
    let documents = row.get("ctxs").and_then(Value::as_array).ok_or("the row has no list `ctxs`")?;
    let label = |document: &Value| {
        let label = &document["label"];
        label.as_f64().or_else(|| label.as_str()?.parse().ok()).unwrap_or(0.0)
    };
    let gains: Vec<f64> = documents.iter().map(label).collect();
    let of = |id: &str| documents.iter().find(|it| it["id"] == id).map_or(0.0, label);
    Ok(rankings::ndcg(&rankings::ranking(answer)?, of, &gains, CUT))
}
