//! Filters of answers, as pipelines by name.

use serde_json::{Map, Value};

use super::doc::Doc;
use super::index::function;
use crate::python::pattern::Pattern;
use crate::python::{printed, strip};

/// The answers to one request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answers {
    /// One per repeat.
    Many(Vec<Value>),
    /// The one that a filter chose.
    One(Value),
}

impl Answers {
    /// JSON of the answers: a list, or the answer itself.
    pub fn json(&self) -> Value {
        match self {
            Answers::Many(all) => all.clone().into(),
            Answers::One(one) => one.clone(),
        }
    }
}

/// A pipeline.
#[derive(Debug, Clone)]
pub struct Filters {
    /// Its name, which follows that of a metric in results.
    pub name: String,
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
enum Step {
    TakeFirst,
    TakeFirstK(usize),
    Majority,
    Lowercase,
    Uppercase,
    RemoveWhitespace,
    Map(Map<String, Value>, Value),
    Regex(Select),
    Choices(Select, Ignore),
}

/// A search for a pattern.
#[derive(Debug, Clone)]
struct Select {
    pattern: std::sync::Arc<Pattern>,
    group: i64,
    fallback: String,
}

/// Differences that a search for the texts of choices ignores.
#[derive(Debug, Clone, Default)]
struct Ignore {
    case: bool,
    punctuation: bool,
    patterns: Vec<std::sync::Arc<Pattern>>,
}

impl Filters {
    /// The pipelines of `filter_list`; by default one that takes the first answer.
    ///
    /// # Errors
    /// A filter that is unknown, or an invalid option.
    pub fn all(list: Option<&Value>) -> Result<Vec<Filters>, String> {
        let Some(list) = list.filter(|list| !list.is_null()) else {
            return Ok(vec![Filters { name: "none".into(), steps: vec![Step::TakeFirst] }]);
        };
        let list =
            list.as_array().filter(|list| !list.is_empty()).ok_or("`filter_list` is no list of filters")?;
        let one = |entry: &Value| {
            let name = entry["name"].as_str().ok_or("an entry of `filter_list` has no name")?.to_string();
            let steps = entry["filter"].as_array().ok_or("an entry of `filter_list` has no list `filter`")?;
            let steps = steps.iter().map(Step::new).collect::<Result<_, String>>()?;
            Ok(Filters { name, steps })
        };
        list.iter().map(one).collect()
    }

    /// Filters the answers to a request about a row.
    ///
    /// # Errors
    /// A filter of texts over other answers; a pattern that does not end.
    pub fn apply(&self, answers: Answers, doc: &Doc) -> Result<Answers, String> {
        self.steps.iter().try_fold(answers, |answers, step| step.apply(answers, doc))
    }
}

impl Step {
    fn new(config: &Value) -> Result<Step, String> {
        let name = config["function"].as_str().ok_or("a filter has no `function`")?;
        let text = |key: &str, default: &str| config[key].as_str().unwrap_or(default).to_string();
        let select = || -> Result<Select, String> {
            let pattern = text("regex_pattern", r"#### (\-?[0-9\.\,]+)");
            let group = config["group_select"].as_i64().unwrap_or(0);
            Ok(Select {
                pattern: Pattern::new(&pattern)?.into(),
                group,
                fallback: text("fallback", "[invalid]"),
            })
        };
        Ok(match name {
            "take_first" => Step::TakeFirst,
            "take_first_k" => {
                Step::TakeFirstK(config["k"].as_u64().ok_or("take_first_k has no `k`")? as usize)
            }
            "majority_vote" => Step::Majority,
            "lowercase" => Step::Lowercase,
            "uppercase" => Step::Uppercase,
            "remove_whitespace" => Step::RemoveWhitespace,
            "map" => Step::Map(
                config["mapping_dict"].as_object().cloned().unwrap_or_default(),
                config["default_value"].clone(),
            ),
            "regex" => Step::Regex(select()?),
            "multi_choice_regex" => {
                let patterns = config["regexes_to_ignore"].as_array().into_iter().flatten();
                let patterns = patterns.filter_map(Value::as_str).map(|it| Pattern::new(it).map(Into::into));
                let flag = |key: &str| config[key].as_bool().unwrap_or(false);
                let ignore = Ignore {
                    case: flag("ignore_case"),
                    punctuation: flag("ignore_punctuation"),
                    patterns: patterns.collect::<Result<_, _>>()?,
                };
                Step::Choices(select()?, ignore)
            }
            "custom" => {
                let called = function(&config["filter_fn"]).unwrap_or("filter_fn");
                return Err(format!(
                    "the filter `{called}` is written in Python, which Fathom does not run; `lm_eval run --model \
                     local-completions` can, against `fathom serve`"
                ));
            }
            other => return Err(format!("there is no filter `{other}`")),
        })
    }

    fn apply(&self, answers: Answers, doc: &Doc) -> Result<Answers, String> {
        let all = match (self, answers) {
            (Step::TakeFirst, one @ Answers::One(_)) => return Ok(one),
            (_, Answers::One(_)) => return Err("a filter follows one that has chosen one answer".into()),
            (_, Answers::Many(all)) => all,
        };
        let mapped = |of: &dyn Fn(&str) -> Result<Value, String>| {
            let text = |answer: &Value| of(answer.as_str().unwrap_or_default());
            Ok(Answers::Many(all.iter().map(text).collect::<Result<_, String>>()?))
        };
        match self {
            Step::TakeFirst => {
                all.into_iter().next().map(Answers::One).ok_or_else(|| "there is no answer".to_string())
            }
            Step::TakeFirstK(k) if all.len() < *k => {
                Err(format!("take_first_k takes {k} answers and there are {}; raise `repeats`", all.len()))
            }
            Step::TakeFirstK(k) => Ok(Answers::Many(all[..*k].to_vec())),
            Step::Majority => Ok(Answers::Many(majority(&all).into_iter().collect())),
            Step::Lowercase => mapped(&|text| Ok(text.to_lowercase().into())),
            Step::Uppercase => mapped(&|text| Ok(text.to_uppercase().into())),
            Step::RemoveWhitespace => mapped(&|text| Ok(strip(text).into())),
            Step::Map(to, default) => mapped(&|text| Ok(to.get(text).unwrap_or(default).clone())),
            Step::Regex(select) => mapped(&|text| {
                let found =
                    select.find(&select.pattern, text)?.unwrap_or_else(|| Some(select.fallback.clone()));
                Ok(found.unwrap_or_else(|| select.fallback.clone()).into())
            }),
            Step::Choices(select, ignore) => {
                let choices = doc.get("choices").and_then(Value::as_array);
                let choices: Vec<&str> = choices.into_iter().flatten().filter_map(Value::as_str).collect();
                if choices.is_empty() {
                    return Err("multi_choice_regex needs a column `choices`".into());
                }
                mapped(&|text| Ok(select.choice(text, &choices, ignore)?.into()))
            }
        }
    }
}

/// The most frequent answer, the first of equals.
fn majority(answers: &[Value]) -> Option<Value> {
    let count = |answer: &Value| answers.iter().filter(|other| *other == answer).count();
    let most = answers.iter().map(count).max()?;
    answers.iter().find(|answer| count(answer) == most).cloned()
}

impl Select {
    /// The chosen match of a pattern: none without a match, an empty one if all of its groups are.
    fn find(&self, pattern: &Pattern, text: &str) -> Result<Option<Option<String>>, String> {
        let found = pattern.find_all(text)?;
        if found.is_empty() {
            return Ok(None);
        }
        let at = if self.group < 0 { found.len() as i64 + self.group } else { self.group };
        let chosen = usize::try_from(at).ok().and_then(|at| found.get(at));
        let groups =
            chosen.ok_or_else(|| format!("group_select {} of {} matches", self.group, found.len()))?;
        let first =
            if groups.len() == 1 { groups.first() } else { groups.iter().find(|group| !group.is_empty()) };
        Ok(Some(first.map(|text| strip(text).to_string())))
    }

    /// The letter of a choice: by the pattern, by the text of a choice, or by a letter after a colon.
    fn choice(&self, text: &str, choices: &[&str], ignore: &Ignore) -> Result<String, String> {
        let found = |pattern: &Pattern, text: &str| -> Result<Option<String>, String> {
            Ok(self.find(pattern, text)?.flatten().filter(|found| !found.is_empty()))
        };
        if let Some(letter) = found(&self.pattern, text)? {
            return Ok(letter);
        }
        let letter = |at: usize| char::from_u32('A' as u32 + at as u32).unwrap_or('?');
        let texts = choices.iter().map(|choice| ignore.apply(strip(choice)));
        let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
        let mut sorted: Vec<&String> = texts.iter().collect();
        sorted.sort_by_key(|text| std::cmp::Reverse(text.chars().count()));
        let any = sorted.iter().map(|text| fancy_regex::escape(text)).collect::<Vec<_>>().join("|");
        if let Some(choice) = found(&Pattern::new(&any)?, &ignore.apply(text)?)? {
            let at = texts.iter().rposition(|text| *text == choice);
            return Ok(at.map_or(choice, |at| format!("({})", letter(at))));
        }
        let letters: Vec<String> = (0..choices.len()).map(|at| letter(at).to_string()).collect();
        let behind = Pattern::new(&format!(r":[\s]*({})", letters.join("|")))?;
        let letter = found(&behind, text)?;
        Ok(letter.map_or_else(|| self.fallback.clone(), |letter| format!("({letter})")))
    }
}

impl Ignore {
    fn apply(&self, text: &str) -> Result<String, String> {
        let mut text = text.to_string();
        for pattern in &self.patterns {
            text = pattern.replace_all(&text, "")?;
        }
        if self.case {
            text = text.to_lowercase();
        }
        if self.punctuation {
            text = Pattern::new(r"\p{P}")?.replace_all(&text, "")?;
        }
        Ok(text)
    }
}

/// An answer as text.
pub fn said(answer: &Value) -> String {
    printed::text(answer)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filtered(list: Value, answers: &[&str], doc: Value) -> Result<Value, String> {
        let filters = Filters::all(Some(&json!([{"name": "x", "filter": list}])))?.remove(0);
        let answers = Answers::Many(answers.iter().map(|it| json!(it)).collect());
        Ok(filters.apply(answers, doc.as_object().unwrap())?.json())
    }

    #[test]
    fn filters_choose_what_those_of_the_harness_choose() {
        let first = json!({"function": "take_first"});
        for (list, answers, expected) in [
            (
                json!([{"function": "regex", "regex_pattern": "(\\d+)|(x)"}, first]),
                vec!["a 12 3"],
                json!("12"),
            ),
            (
                json!([{"function": "regex", "group_select": -1, "regex_pattern": "(\\d+)"}, first]),
                vec!["1 2"],
                json!("2"),
            ),
            (json!([{"function": "regex"}]), vec!["none", "#### 5,0"], json!(["[invalid]", "5,0"])),
            (json!([{"function": "majority_vote"}, first]), vec!["a", "b", "b"], json!("b")),
            (json!([{"function": "take_first_k", "k": 2}]), vec!["a", "b", "c"], json!(["a", "b"])),
            (
                json!([{"function": "map", "mapping_dict": {"a": 1}, "default_value": 0}]),
                vec!["a", "b"],
                json!([1, 0]),
            ),
            (
                json!([{"function": "multi_choice_regex", "regex_pattern": "\\(([A-Z])\\)"}]),
                vec!["It is (C).", "surely Guilty of Romance", "answer: B", "?"],
                json!(["C", "(B)", "(B)", "[invalid]"]),
            ),
        ] {
            let doc = json!({"choices": ["Guilty", "Guilty of Romance"]});
            assert_eq!(filtered(list.clone(), &answers, doc).as_ref(), Ok(&expected), "{list}");
        }
        assert!(filtered(json!([{"function": "take_first_k", "k": 2}]), &["a"], json!({})).is_err());
        assert!(
            filtered(json!([{"function": "custom", "filter_fn": {"!function": "utils.f"}}]), &[], json!({}))
                .unwrap_err()
                .contains("Python")
        );
        assert!(filtered(json!([{"function": "guess"}]), &[], json!({})).is_err());
    }
}
