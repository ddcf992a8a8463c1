//! Rows for encoders: texts that belong together, texts ranked for a query, and texts, pairs and words with labels. Each
//! text is in the tokenizer's template, as when the model is asked.

use serde_json::{Map, Value};

use super::feedback::RowResult;
use super::teaching::{Answers, Judge, Lesson, LessonConversion};
use crate::Tokenizer;

type Row = Map<String, Value>;

const ANCHORS: [&str; 4] = ["anchor", "query", "question", "sentence1"];
const POSITIVES: [&str; 4] = ["positive", "document", "answer", "sentence2"];
const NEGATIVES: [&str; 2] = ["negative", "negatives"];
const QUERIES: [&str; 3] = ["query", "anchor", "question"];
const DOCUMENTS: [&str; 4] = ["document", "passage", "positive", "text"];
const LABELS: [&str; 3] = ["label", "score", "labels"];
const TEXTS: [&str; 4] = ["text", "sentence", "sentence1", "premise"];
const SECONDS: [&str; 3] = ["text_pair", "sentence2", "hypothesis"];
const TAGS: [&str; 3] = ["labels", "tags", "ner_tags"];

/// Documents of a row for an encoder; `None` for other kinds of rows.
pub(super) fn documents(
    row: &Row,
    tokenizer: &Tokenizer,
    teaching: &LessonConversion,
) -> Option<RowResult<Vec<Lesson>>> {
    let reader = Reader { row, tokenizer, teaching, answers: &teaching.answers };
    Some(match teaching.answers.judge {
        Judge::Related => reader.related(),
        Judge::Ranked => reader.ranked(),
        Judge::Classes { .. } | Judge::Numbers => reader.labelled().map(|one| vec![one]),
        Judge::Words => reader.words().map(|one| vec![one]),
        _ => return None,
    })
}

struct Reader<'a> {
    row: &'a Row,
    tokenizer: &'a Tokenizer,
    teaching: &'a LessonConversion,
    answers: &'a Answers,
}

impl Reader<'_> {
    /// The first of some keys that the row has, with its value.
    fn find<'k>(&self, keys: &[&'k str]) -> Option<(&'k str, &Value)> {
        let present = |key: &&&str| self.row.get(**key).is_some_and(|value| !value.is_null());
        keys.iter().find(present).map(|key| (*key, &self.row[*key]))
    }

    fn missing<T>(&self, what: &str) -> RowResult<T> {
        let keys: Vec<String> = self.row.keys().map(|key| format!("`{key}`")).collect();
        let keys = if keys.is_empty() { "of an empty object".into() } else { keys.join(", ") };
        Err(format!("has the keys {keys}; {what}"))
    }

    /// The text of a key.
    fn text(&self, keys: &[&str], what: &str) -> RowResult<&str> {
        match self.find(keys) {
            Some((key, value)) => text(key, value),
            None => self.missing(what),
        }
    }

    /// A text or a pair in the template, and where the second text begins.
    fn framed(&self, first: &str, second: Option<&str>) -> RowResult<(Vec<u32>, usize)> {
        let most = Some(self.teaching.max_tokens);
        let (ids, begins) =
            self.tokenizer.encode_pair(first, second, most).map_err(|error| error.to_string())?;
        if ids.is_empty() {
            return Err("has a text without tokens".into());
        }
        // Templates may give both texts of a pair the first type.
        Ok((ids, begins))
    }

    fn lesson(&self, first: &str, second: Option<&str>, values: &[f32]) -> RowResult<Lesson> {
        let (ids, begins) = self.framed(first, second)?;
        let values = [begins as f32].into_iter().chain(values.iter().copied()).collect();
        Ok(Lesson { weights: vec![1.0; ids.len()], ids, values, ..Lesson::default() })
    }

    /// Negatives of a row: a text or a list, or keys with numbers.
    fn negatives(&self) -> RowResult<Vec<&str>> {
        let mut all = match self.find(&NEGATIVES) {
            Some((key, Value::Array(list))) => {
                list.iter().map(|value| text(key, value)).collect::<RowResult<Vec<_>>>()?
            }
            Some((key, value)) => vec![text(key, value)?],
            None => Vec::new(),
        };
        for number in 1.. {
            let key = format!("negative_{number}");
            let Some(value) = self.row.get(&key) else { break };
            all.push(text(&key, value)?);
        }
        let wanted = self.answers.negatives;
        if all.len() < wanted {
            return Err(format!(
                "has {} negatives, and objective.negatives={wanted}; give each row as many (`negative`, a text or a list)",
                all.len()
            ));
        }
        all.truncate(wanted);
        Ok(all)
    }

    fn related(&self) -> RowResult<Vec<Lesson>> {
        let needs = "a row of texts that belong together has `anchor`, `positive` and optionally `negative`";
        let anchor = self.text(&ANCHORS, needs)?;
        let positive = self.text(&POSITIVES, "it has no `positive`, the text that belongs to the anchor")?;
        let [query, document] = &self.answers.prefixes;
        let others = [positive].into_iter().chain(self.negatives()?).map(|text| format!("{document}{text}"));
        let texts = [format!("{query}{anchor}")].into_iter().chain(others);
        texts.map(|text| self.lesson(&text, None, &[])).collect()
    }

    fn ranked(&self) -> RowResult<Vec<Lesson>> {
        let needs = "a row of ranked texts has `query` with `document` and `label`, `documents` and `labels`, or `positive` and `negative`";
        let query = self.text(&QUERIES, needs)?;
        let mut rows: Vec<(&str, f32)> = Vec::new();
        if let Some((key, Value::Array(list))) = self.find(&["documents", "texts", "passages"]) {
            let Some((_, Value::Array(labels))) = self.find(&["labels", "scores"]) else {
                return self.missing("`documents` need `labels`, a number each");
            };
            if labels.len() != list.len() {
                return Err(format!("has {} labels for {} documents", labels.len(), list.len()));
            }
            for (document, label) in list.iter().zip(labels) {
                rows.push((text(key, document)?, number("labels", label)?));
            }
        } else if let (Some((key, document)), Some((of, label))) = (self.find(&DOCUMENTS), self.find(&LABELS))
        {
            rows.push((text(key, document)?, number(of, label)?));
        } else {
            let positive = match self.find(&["positive"]) {
                Some((key, value)) => text(key, value)?,
                None => return self.missing(needs),
            };
            rows.push((positive, 1.0));
            rows.extend(self.negatives()?.into_iter().map(|text| (text, 0.0)));
        }
        let group = self.answers.group();
        if !self.answers.alone {
            if rows.len() < group {
                return Err(format!(
                    "has {} texts for its query, and objective.negatives={} needs {group}",
                    rows.len(),
                    group - 1
                ));
            }
            rows.truncate(group);
            if rows.iter().all(|(_, label)| *label <= 0.0) {
                return Err("has no text with a label above 0, so there is nothing to rank first".into());
            }
        }
        rows.into_iter().map(|(document, label)| self.lesson(query, Some(document), &[label])).collect()
    }

    /// Number of a label: its name's, or the number itself.
    fn label(&self, value: &Value) -> RowResult<usize> {
        let labels = &self.answers.labels;
        let name = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        let named = labels.iter().position(|label| *label == name);
        let numbered = value.as_u64().and_then(|at| usize::try_from(at).ok()).filter(|at| *at < labels.len());
        named
            .or(numbered)
            .ok_or_else(|| format!("has the label {value}, and objective.labels are {}", labels.join(", ")))
    }

    fn labelled(&self) -> RowResult<Lesson> {
        let first = self.text(&TEXTS, "a row with a label has `text`, or `sentence1` and `sentence2`")?;
        let second = self.find(&SECONDS).map(|(key, value)| text(key, value)).transpose()?;
        let values: Vec<f32> = match self.answers.judge {
            Judge::Numbers => {
                let each = self.answers.ratings.iter().map(|name| match self.row.get(name) {
                    Some(value) => number(name, value),
                    None => self.missing(&format!("objective.attributes names `{name}`")),
                });
                each.collect::<RowResult<_>>()?
            }
            Judge::Classes { several: true } => {
                let mut values = vec![0.0; self.answers.labels.len()];
                match self.find(&LABELS) {
                    Some((_, Value::Array(names))) => {
                        for name in names {
                            values[self.label(name)?] = 1.0;
                        }
                    }
                    Some((key, _)) => return Err(format!("`{key}` is no list of labels")),
                    None => return self.missing("it has no `labels`"),
                }
                values
            }
            _ => match self.find(&LABELS) {
                Some((_, value)) => vec![self.label(value)? as f32],
                None => return self.missing("it has no `label`"),
            },
        };
        self.lesson(first, second, &values)
    }

    fn words(&self) -> RowResult<Lesson> {
        let Some((_, Value::Array(words))) = self.find(&["tokens", "words"]) else {
            return self.missing("a row of words has `tokens`, a list of strings, and `labels`");
        };
        let Some((_, Value::Array(labels))) = self.find(&TAGS) else {
            return self.missing("it has no `labels`, one for each of its `tokens`");
        };
        if words.len() != labels.len() || words.is_empty() {
            return Err(format!("has {} labels for {} tokens", labels.len(), words.len()));
        }
        let words = words.iter().map(|word| text("tokens", word)).collect::<RowResult<Vec<_>>>()?;
        let labels = labels.iter().map(|label| self.label(label)).collect::<RowResult<Vec<_>>>()?;
        let mut ends = Vec::with_capacity(words.len());
        for word in &words {
            ends.push(ends.last().map_or(0, |end| end + 1) + word.len());
        }
        let (ids, token_ends) =
            self.tokenizer.encode_with_ends(&words.join(" ")).map_err(|error| error.to_string())?;
        let (before, after) = self.tokenizer.frame().unwrap_or_default();
        let room = self.teaching.max_tokens.saturating_sub(before.len() + after.len());
        let mut lesson = Lesson { weights: vec![0.0; before.len()], ids: before, ..Lesson::default() };
        let mut next = 0;
        for (id, end) in ids.iter().zip(token_ends).take(room) {
            let word = ends.partition_point(|last| *last < end);
            let begins = word >= next && word < labels.len();
            lesson.ids.push(*id);
            lesson.weights.push(if begins { (labels[word] + 1) as f32 } else { 0.0 });
            next = if begins { word + 1 } else { next };
        }
        lesson.ids.extend(&after);
        lesson.weights.resize(lesson.ids.len(), 0.0);
        lesson.cut = ids.len().saturating_sub(room);
        lesson.values = vec![lesson.ids.len() as f32];
        if lesson.supervised() == 0 {
            return Err("has no labelled token".into());
        }
        Ok(lesson)
    }
}

/// A text that is not blank.
fn text<'a>(key: &str, value: &'a Value) -> RowResult<&'a str> {
    match value.as_str() {
        Some(text) if !text.trim().is_empty() => Ok(text),
        Some(_) => Err(format!("has an empty `{key}`")),
        None => Err(format!("`{key}` is no string")),
    }
}

fn number(key: &str, value: &Value) -> RowResult<f32> {
    let number = value.as_f64().filter(|number| number.is_finite());
    number.map(|number| number as f32).ok_or_else(|| format!("`{key}` is {value}, which is no number"))
}
