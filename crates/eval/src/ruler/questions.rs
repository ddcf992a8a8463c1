//! `qa_1` and `qa_2`: questions of SQuAD and HotpotQA over documents of their sets.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::Value;

use super::haystack::{HaystackParts, Sample, Size, thrice};
use crate::error::Result;

/// Set of the questions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Set {
    Squad,
    Hotpot,
}

/// A question.
struct Question {
    text: String,
    answers: Vec<String>,
    /// Documents that hold the answer.
    own: Vec<usize>,
    /// Documents of the same article, which come before others.
    near: Vec<usize>,
}

/// Questions and documents, the latter sorted.
struct Questions {
    all: Vec<Question>,
    documents: Vec<String>,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

fn list<'v>(value: &'v Value, key: &str) -> impl Iterator<Item = &'v Value> {
    value[key].as_array().into_iter().flatten()
}

fn numbered(documents: BTreeSet<String>) -> (Vec<String>, HashMap<String, usize>) {
    let documents: Vec<String> = documents.into_iter().collect();
    let at = documents.iter().enumerate().map(|(at, text)| (text.clone(), at)).collect();
    (documents, at)
}

fn squad(found: &Value) -> Questions {
    let paragraphs = || list(found, "data").flat_map(|article| list(article, "paragraphs"));
    let (documents, at) = numbered(paragraphs().map(|it| text(&it["context"])).collect());
    let mut all = Vec::new();
    for article in list(found, "data") {
        let of_article: Vec<usize> =
            list(article, "paragraphs").map(|it| at[&text(&it["context"])]).collect();
        for paragraph in list(article, "paragraphs") {
            let own = at[&text(&paragraph["context"])];
            let near: Vec<usize> = of_article.iter().copied().filter(|other| *other != own).collect();
            for asked in list(paragraph, "qas").filter(|asked| asked["is_impossible"] != true) {
                let answers = list(asked, "answers").map(|answer| text(&answer["text"])).collect();
                all.push(Question {
                    text: text(&asked["question"]),
                    answers,
                    own: vec![own],
                    near: near.clone(),
                });
            }
        }
    }
    Questions { all, documents }
}

fn hotpot(found: &Value) -> Questions {
    let document = |pair: &Value| {
        let sentences: String = pair[1].as_array().into_iter().flatten().map(text).collect();
        format!("{}\n{sentences}", text(&pair[0]))
    };
    let rows = || found.as_array().into_iter().flatten();
    let documents = rows().flat_map(|row| list(row, "context")).map(document).collect();
    let (documents, at) = numbered(documents);
    let one = |row: &Value| Question {
        text: text(&row["question"]),
        answers: vec![text(&row["answer"])],
        own: list(row, "context").map(|pair| at[&document(pair)]).collect(),
        near: Vec::new(),
    };
    Questions { all: rows().map(one).collect(), documents }
}

impl Questions {
    fn draw(
        &self,
        drawing: &mut HaystackParts<'_>,
        at: usize,
        count: usize,
    ) -> Result<(String, Vec<String>)> {
        let question = &self.all[at];
        let (own, near, all) = (&question.own, &question.near, self.documents.len());
        let few =
            |drawing: &HaystackParts<'_>| drawing.wrong("its set has too few documents for this length");
        let mut shown: Vec<&str> = if count >= all {
            self.documents.iter().cycle().take(count).map(String::as_str).collect()
        } else {
            let more = count.checked_sub(own.len()).ok_or_else(|| few(drawing))?;
            let chosen = if more > near.len() {
                let known: HashSet<usize> = own.iter().chain(near).copied().collect();
                let others: Vec<usize> = (0..all).filter(|at| !known.contains(at)).collect();
                let drawn = drawing.random.sample(others.len(), more - near.len());
                let drawn = drawn.ok_or_else(|| few(drawing))?;
                [own.clone(), near.clone(), drawn.into_iter().map(|at| others[at]).collect()].concat()
            } else {
                let drawn = drawing.random.sample(near.len(), more).ok_or_else(|| few(drawing))?;
                [own.clone(), drawn.into_iter().map(|at| near[at]).collect()].concat()
            };
            chosen.into_iter().map(|at| self.documents[at].as_str()).collect()
        };
        drawing.fixed().shuffle(&mut shown);
        let documents: Vec<String> =
            shown.iter().enumerate().map(|(at, text)| format!("Document {}:\n{text}", at + 1)).collect();
        let rule = "Answer the question based on the given documents. Only give me the answer and do not output any other words.";
        let text = format!(
            "{rule}\n\nThe following are given documents.\n\n{}\n\n{rule}\n\nQuestion: {} Answer:",
            documents.join("\n\n"),
            question.text
        );
        Ok((text, question.answers.clone()))
    }
}

/// The samples of the task, at most one for each question.
///
/// # Errors
/// The file is missing or of another form; the length is too short.
pub fn samples(drawing: &mut HaystackParts<'_>, set: Set, count: usize) -> Result<Vec<Sample>> {
    let (name, what) = match set {
        Set::Squad => ("squad.json", "SQuAD 2's development set (dev-v2.0.json)"),
        Set::Hotpot => ("hotpotqa.json", "HotpotQA's development set (hotpot_dev_distractor_v1.json)"),
    };
    let found = drawing.json(name, what)?;
    let questions = if set == Set::Squad { squad(&found) } else { hotpot(&found) };
    if questions.all.is_empty() {
        return Err(drawing.wrong(format!("{name} has no questions: it should be {what}")));
    }
    let size = Size { step: 10, probe: 10, bound: thrice, extra: drawing.answer_tokens };
    let documents = drawing.largest(&size, &mut |drawing, count| questions.draw(drawing, 0, count))?;
    let one = |at| drawing.sample(&size, documents, &mut |drawing, count| questions.draw(drawing, at, count));
    (0..count.min(questions.all.len())).map(one).collect()
}
