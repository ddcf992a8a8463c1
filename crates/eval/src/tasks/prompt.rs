//! Texts of an item: its question, target and choices by templates or columns, and the context with examples.

use fathom_text::jinja::Templates;
use serde_json::{Map, Value};

use super::config::TaskConfig;
use super::doc::Doc;
use super::pass_at_k::PassAtK;
use crate::error::{Error, Result};
use crate::python::{is_space, literal, pattern};

/// A part of a context, and what separates it from the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// Its text.
    pub content: String,
    /// Text behind it, unless a chat template joins the parts.
    pub delimiter: String,
}

/// The templates of a task.
#[derive(Debug)]
pub struct Writer<'c> {
    config: &'c TaskConfig,
    columns: Vec<String>,
    templates: Templates,
    /// True if each choice is a context of its own.
    pub many_inputs: bool,
    /// True if an item has several targets.
    pub many_targets: bool,
}

impl<'c> Writer<'c> {
    /// Compiles the templates; the first row shows of what kind targets and inputs are.
    ///
    /// # Errors
    /// An invalid template, or one that fails for the first row.
    pub fn new(config: &'c TaskConfig, columns: &[String], first: &Doc) -> Result<Writer<'c>> {
        let mut templates = Templates::new(pattern::replace);
        for keys in [&config.keys, &config.fewshot.own] {
            for key in ["doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix"] {
                if let Some(source) = keys.get(key).and_then(Value::as_str) {
                    let wrong = |reason| Error::task(&config.name, format!("`{key}`: {reason}"));
                    templates.add(source).map_err(wrong)?;
                }
            }
        }
        if let Some(metric) = PassAtK::of(&config.measures, config.repeats).ok().flatten() {
            let wrong = |reason| Error::task(&config.name, format!("`program`: {reason}"));
            templates.add(&metric.program).map_err(wrong)?;
        }
        let columns = columns.to_vec();
        let mut writer = Writer { config, columns, templates, many_inputs: false, many_targets: false };
        let has_choices = config.keys.contains_key("doc_to_choice");
        writer.many_inputs = has_choices && writer.text(first)?.is_i64();
        writer.many_targets = writer.target(first)?.is_array();
        Ok(writer)
    }

    /// The question: a text, or the index of a choice.
    ///
    /// # Errors
    /// The template fails.
    pub fn text(&self, doc: &Doc) -> Result<Value> {
        self.text_by(doc, self.config.keys.get("doc_to_text"))
    }

    /// The target: a text, the index of a choice, or several.
    ///
    /// # Errors
    /// The template fails.
    pub fn target(&self, doc: &Doc) -> Result<Value> {
        self.target_by(doc, self.config.keys.get("doc_to_target"))
    }

    /// The choices.
    ///
    /// # Errors
    /// The template fails or makes no list of texts.
    pub fn choices(&self, doc: &Doc) -> Result<Vec<String>> {
        self.choices_by(doc, self.config.keys.get("doc_to_choice"))
    }

    fn text_by(&self, doc: &Doc, source: Option<&Value>) -> Result<Value> {
        let Some(source) = source.and_then(Value::as_str) else {
            return source
                .filter(|it| it.is_i64())
                .cloned()
                .ok_or_else(|| self.wrong("has no `doc_to_text`"));
        };
        if self.columns.iter().any(|column| column == source) {
            return Ok(doc.get(source).cloned().unwrap_or_default());
        }
        let text = self.render("doc_to_text", source, doc)?;
        self.number(text)
    }

    fn target_by(&self, doc: &Doc, source: Option<&Value>) -> Result<Value> {
        let Some(source) = source.and_then(Value::as_str) else {
            let given = source.filter(|it| it.is_i64() || it.is_array());
            return given.cloned().ok_or_else(|| self.wrong("has no `doc_to_target`"));
        };
        if self.columns.iter().any(|column| column == source) {
            return Ok(doc.get(source).cloned().unwrap_or_default());
        }
        let text = self.render("doc_to_target", source, doc)?;
        if text.len() >= 2 && text.starts_with('[') && text.ends_with(']') {
            return Ok(literal::parse(&text).unwrap_or(Value::String(text)));
        }
        self.number(text)
    }

    /// A text of digits as an index, if the task has choices.
    fn number(&self, text: String) -> Result<Value> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if digits && self.config.keys.contains_key("doc_to_choice") {
            return literal::parse(&text).map_err(|reason| self.wrong(&reason));
        }
        Ok(Value::String(text))
    }

    fn choices_by(&self, doc: &Doc, source: Option<&Value>) -> Result<Vec<String>> {
        let found = match source {
            Some(Value::String(source)) if self.columns.contains(source) => {
                doc.get(source).cloned().unwrap_or_default()
            }
            Some(Value::String(source)) => {
                let text = self.render("doc_to_choice", source, doc)?;
                literal::parse(&text).map_err(|reason| self.wrong(&format!("`doc_to_choice`: {reason}")))?
            }
            Some(Value::Object(members)) => members.values().cloned().collect(),
            Some(list @ Value::Array(_)) => list.clone(),
            _ => return Err(self.wrong("has no `doc_to_choice`")),
        };
        let texts = found.as_array().filter(|items| !items.is_empty());
        let texts: Option<Vec<String>> =
            texts.and_then(|items| items.iter().map(|item| item.as_str().map(str::to_string)).collect());
        texts.ok_or_else(|| self.wrong(&format!("`doc_to_choice` makes no list of texts: {found:.80}")))
    }

    /// A key by a column or a template; empty if it is not set.
    fn field(&self, doc: &Doc, key: &str, source: Option<&Value>) -> Result<String> {
        match source.and_then(Value::as_str).filter(|source| !source.is_empty()) {
            None => Ok(String::new()),
            Some(source) => match doc.get(source) {
                Some(value) => Ok(crate::python::printed::text(value)),
                None => self.render(key, source, doc),
            },
        }
    }

    /// Text that begins the answer.
    ///
    /// # Errors
    /// The template fails.
    pub fn prefix(&self, doc: &Doc) -> Result<String> {
        self.field(doc, "gen_prefix", self.config.keys.get("gen_prefix"))
    }

    /// The program of an answer, which is in the row as `answer`.
    ///
    /// # Errors
    /// The template fails.
    pub fn program(&self, source: &str, row: &Doc) -> Result<String> {
        self.render("program", source, row)
    }

    fn render(&self, key: &str, source: &str, doc: &Doc) -> Result<String> {
        let text = self.templates.render(source, doc);
        text.map_err(|reason| {
            let missing = if reason.contains("undefined") {
                format!("; the row has the columns {}", self.columns.join(", "))
            } else {
                String::new()
            };
            self.wrong(&format!("`{key}`: {reason}{missing}"))
        })
    }

    fn wrong(&self, reason: &str) -> Error {
        Error::task(&self.config.name, reason)
    }

    /// The parts of the context of an item after its examples: one list, or one for each choice.
    ///
    /// # Errors
    /// A template fails; a text or a label is of the wrong kind.
    pub fn context(&self, doc: &Doc, examples: &[&Doc], system: Option<&str>) -> Result<Vec<Vec<Message>>> {
        let (own, keys) = (&self.config.fewshot.own, &self.config.keys);
        let delimiter =
            |keys: &Map<String, Value>, key: &str| keys[key].as_str().unwrap_or_default().to_string();
        let description = self.field(doc, "description", keys.get("description"))?;
        let between = delimiter(keys, "fewshot_delimiter");
        let system = delimited(system.unwrap_or_default(), &description, &between);
        let mut messages = Vec::new();
        if !system.is_empty() {
            messages.push(Message { role: "system", content: system, delimiter: String::new() });
        }
        for example in examples {
            let mut question = self.text_by(example, own.get("doc_to_text"))?;
            let mut choices = match own.get("doc_to_choice").filter(|it| !it.is_null()) {
                Some(source) => Some(self.choices_by(example, Some(source))?),
                None => None,
            };
            if self.many_inputs {
                let choice = choices.take().unwrap_or_default();
                question = Value::String(self.choice(&choice, &question)?);
            }
            let target = self.target_by(example, own.get("doc_to_target"))?;
            let answer = match (&target, &choices) {
                (Value::Number(_) | Value::Bool(_), Some(choices)) => self.choice(choices, &target)?,
                (Value::Array(all), _) => all.first().and_then(Value::as_str).unwrap_or_default().to_string(),
                (Value::String(text), _) => text.clone(),
                (other, _) => {
                    return Err(self.wrong(&format!("the target of an example is no text: {other:.80}")));
                }
            };
            let prefix = self.field(example, "gen_prefix", own.get("gen_prefix"))?;
            let delimiters = [delimiter(own, "target_delimiter"), delimiter(own, "fewshot_delimiter")];
            messages.extend(self.turn(&question, Some(&answer), &prefix, delimiters)?);
        }
        let prefix = self.prefix(doc)?;
        if self.many_inputs {
            let turns = self.choices(doc)?.into_iter().map(|question| {
                let turn =
                    self.turn(&Value::String(question), None, &prefix, [String::new(), between.clone()])?;
                Ok([messages.clone(), turn].concat())
            });
            return turns.collect();
        }
        let delimiters = [delimiter(keys, "target_delimiter"), String::new()];
        messages.extend(self.turn(&self.text(doc)?, None, &prefix, delimiters)?);
        Ok(vec![messages])
    }

    /// The choice that an index names; negative ones count from the end.
    ///
    /// # Errors
    /// There is no such choice.
    pub fn choice(&self, choices: &[String], index: &Value) -> Result<String> {
        let at = index_of(index).map(|at| if at < 0 { at + choices.len() as i64 } else { at });
        let found = at.and_then(|at| choices.get(usize::try_from(at).ok()?));
        found
            .cloned()
            .ok_or_else(|| self.wrong(&format!("label {index} is none of {} choices", choices.len())))
    }

    /// A question and, if given, its answer.
    fn turn(
        &self,
        question: &Value,
        answer: Option<&str>,
        prefix: &str,
        [target_delimiter, delimiter]: [String; 2],
    ) -> Result<Vec<Message>> {
        let question = match question {
            Value::String(text) => text.clone(),
            other => return Err(self.wrong(&format!("`doc_to_text` makes no text: {other:.80}"))),
        };
        let answer = answer.filter(|answer| !answer.is_empty());
        let parted = !question.is_empty()
            && !question.ends_with(is_space)
            && !prefix.starts_with(is_space)
            && !prefix.is_empty();
        let behind =
            if (answer.is_some() && prefix.is_empty()) || parted { target_delimiter } else { String::new() };
        let mut turn = vec![Message { role: "user", content: question, delimiter: behind }];
        match answer {
            Some(answer) => {
                turn.push(Message { role: "assistant", content: delimited(prefix, answer, " "), delimiter });
            }
            None if !prefix.is_empty() => {
                turn.push(Message { role: "assistant", content: prefix.into(), delimiter: String::new() });
            }
            None => {}
        }
        Ok(turn)
    }
}

/// An index; true and false are 1 and 0, as in Python.
pub fn index_of(value: &Value) -> Option<i64> {
    value.as_i64().or(value.as_bool().map(i64::from))
}

/// Two texts with a delimiter between them, unless one is empty or has white space there.
fn delimited(first: &str, second: &str, delimiter: &str) -> String {
    let touches = first.is_empty() || second.is_empty();
    if touches || first.ends_with(is_space) || second.starts_with(is_space) {
        return format!("{first}{second}");
    }
    format!("{first}{delimiter}{second}")
}

/// The parts as one text.
pub fn joined(messages: &[Message]) -> String {
    messages.iter().map(|message| format!("{}{}", message.content, message.delimiter)).collect()
}
