//! Rewards by rule, for answers that can be checked without a model. A file of rewards is TOML with one `[[reward]]`
//! per reward.

use std::path::{Path, PathBuf};

use fathom_base::recipe::{Layers, Loaded};
use fathom_base::{choice, recipe};
use regex::Regex;
use serde_json::{Map, Value};

use super::reward::{Reward, RewardInput, WeightedReward};
use super::schema::Schema;
use crate::error::{Error, Result};

choice! {
    /// How an answer is scored.
    pub enum RuleName {
        /// 1 if the text, without white space around it, is what the row's `key` says, or one of a list; else 0.
        Exact = "exact",
        /// 1 if the last number of the text is the row's `key`, within `tolerance`; else 0.
        Numeric = "numeric",
        /// 1 if `pattern` matches in the text; else 0.
        Regex = "regex",
        /// 1 if the text is JSON that meets the schema in the file `schema`; else 0.
        JsonSchema = "json_schema",
        /// 0 from `min_tokens` to `max_tokens` tokens, falling to -1 at twice as many, and at none.
        Length = "length",
        /// 1 if the answer ended by itself; else 0.
        Ended = "ended",
        /// A number from a process: one JSON object a line each way. Needs `--allow-processes`.
        Process = "process",
        /// 1 if the tests in the row's `key` pass on the code of the answer, run by `command` in a jail; else 0. Needs
        /// `--allow-processes`.
        Tests = "tests",
        /// A number from a function of the program around the run, called by `name` (`@fathom.reward` of Python).
        Function = "function",
        /// The score that a trained reward model gives the prompt with the answer.
        Model = "model",
        /// The number in what a language model writes when it is asked; of what has none it says nothing, which is counted.
        Judge = "judge",
    }
}

recipe! {
    /// Reward of an answer.
    pub struct RewardFile {
        /// The parts.
        pub reward: Vec<RewardTable>,
    }

    /// A part of an answer's reward.
    pub struct RewardTable {
        /// Its name in logs.
        pub name: String,
        /// How it scores.
        pub rule: RuleName = RuleName::Exact,
        /// Its weight in the sum.
        pub weight: f64 = 1.0,
        /// The key of the row that has the right answer.
        pub key: String = "answer".into(),
        /// For `exact` and `numeric`: a regular expression whose first group is the part of the text that counts; what it does not
        /// match is wrong. For `tests`: one whose first group is the code; none for the last block between ``` marks, or without any the
        /// whole text. For `judge`: one whose first group is the number; none for the last number.
        pub extract: Option<String>,
        /// For `exact`: upper and lower case are the same.
        pub ignore_case: bool = false,
        /// For `numeric`: difference that is still right, as a share of the number.
        pub tolerance: f64 = 1e-6,
        /// For `regex`: the pattern. For `tests`: one that what the tests print has to match as well, so that code that ends them early
        /// does not pass.
        pub pattern: Option<String>,
        /// For `function`: its version, which its owner changes with its answers.
        pub version: String,
        /// For `function`: SHA-256 hash of its source.
        pub source: String,
        /// For `function`: the same answers get the same numbers, so that a resumed run goes on as if it had not ended.
        pub pure: bool = true,
        /// For `json_schema`: the file.
        pub schema: Option<PathBuf>,
        /// For `length`: tokens of an answer at least.
        pub min_tokens: usize = 0,
        /// For `length`: tokens of an answer at most. For `judge`: tokens that it writes at most; 0 for 64.
        pub max_tokens: usize = 0,
        /// For `model` and `judge`: the folder of the model, or of the run that made it; from the file's folder on.
        pub model: Option<PathBuf>,
        /// For `model`: which of its scores, from 0.
        pub output: usize = 0,
        /// For `model`: the score of an answer without text, in place of what the model says of the prompt and the end of a text.
        pub empty: Option<f64>,
        /// For `judge`: what it is asked, with `{prompt}`, `{answer}` and `{KEY}` of the prompt's row in it.
        pub template: Option<String>,
        /// For `process` and `tests`: the program and its arguments.
        pub command: Vec<String>,
        /// For `process`: seconds for the answers of a rollout. For `tests`: for one answer.
        pub timeout_s: f64 = 60.0,
        /// For `tests`: the file that the answer's code is written to.
        pub answer_file: String = "answer.py".into(),
        /// For `tests`: the file that the row's tests are written to.
        pub tests_file: String = "tests.py".into(),
        /// For `tests`: folders that programs can read, besides those of the system; from the file's folder on.
        pub shown: Vec<PathBuf>,
        /// For `tests`: MiB of memory of a process.
        pub memory_mib: u64 = 1024,
        /// For `tests`: MiB of files, which are in memory too.
        pub disk_mib: u64 = 64,
        /// For `tests`: seconds of processor time of a process.
        pub cpu_s: u64 = 10,
        /// For `tests`: processes of an answer at once.
        pub processes: u64 = 32,
    }
}

/// Reads the tables of a file of rewards.
///
/// # Errors
/// A missing file, unknown keys, no reward at all.
pub fn read(path: &Path) -> Result<Vec<RewardTable>> {
    let loaded: Loaded<RewardFile> = Loaded::load(Layers::new().file(path))?;
    let parts = loaded.value.reward;
    if parts.is_empty() {
        return Err(refuse(path, "has no [[reward]]: nothing says what an answer is worth"));
    }
    if let Some(part) = parts.iter().find(|part| part.name.is_empty() || !part.weight.is_finite()) {
        return Err(refuse(path, &format!("a [[reward]] needs a name and a finite weight: {part:?}")));
    }
    Ok(parts)
}

fn refuse(path: &Path, message: &str) -> Error {
    Error::Recipe { key: "rl.reward".into(), message: format!("{}: {message}", path.display()) }
}

impl RewardTable {
    /// True if it runs a model.
    pub fn asks_model(&self) -> bool {
        matches!(self.rule, RuleName::Model | RuleName::Judge)
    }
}

/// The rewards of a file. `outside` creates those that use a process, a function or a model.
///
/// # Errors
/// Those of [`read`]; invalid patterns, schemas that cannot be read, and errors of `outside`.
pub fn parts(
    path: &Path,
    outside: &dyn Fn(&RewardTable) -> Result<Box<dyn Reward>>,
) -> Result<Vec<WeightedReward>> {
    let part = |table: RewardTable| {
        let reward: Box<dyn Reward> = match table.rule {
            RuleName::Process | RuleName::Tests | RuleName::Function | RuleName::Model | RuleName::Judge => {
                outside(&table)?
            }
            _ => {
                let rule = rule(&table, path);
                Box::new(rule.map_err(|why| refuse(path, &format!("reward `{}`: {why}", table.name)))?)
            }
        };
        Ok(WeightedReward { name: table.name, weight: table.weight, reward })
    };
    read(path)?.into_iter().map(part).collect()
}

/// Finds the number in a judge's text.
pub struct Number(Option<Regex>);

impl Number {
    /// From a table of the file.
    ///
    /// # Errors
    /// A message: an invalid pattern, or one without a group.
    pub fn of(table: &RewardTable) -> std::result::Result<Number, String> {
        extract(table).map(Number)
    }

    /// The number in a text; `None` without one.
    pub fn read(&self, text: &str) -> Option<f64> {
        let text = part(text, self.0.as_ref())?;
        if self.0.is_none() {
            last_number(text)
        } else {
            text.trim().parse().ok().filter(|it: &f64| it.is_finite())
        }
    }
}

/// Finds the code in an answer, and decides from the tests' output whether they passed.
pub struct Code {
    extract: Option<Regex>,
    pattern: Option<Regex>,
}

impl Code {
    /// From a table of the file.
    ///
    /// # Errors
    /// A message: an invalid pattern, or one without a group.
    pub fn of(table: &RewardTable) -> std::result::Result<Code, String> {
        Ok(Code { extract: extract(table)?, pattern: table.pattern.as_deref().map(pattern).transpose()? })
    }

    /// The code in a text: the match of `extract`, or the last fenced block, or the whole text.
    pub fn read<'a>(&self, text: &'a str) -> Option<&'a str> {
        if self.extract.is_some() {
            return part(text, self.extract.as_ref());
        }
        let (mut last, mut open) = (None, None);
        for (at, mark) in text.match_indices("```") {
            match open.take() {
                None => open = Some(at + mark.len()),
                Some(start) => last = Some(&text[start..at]),
            }
        }
        // The rest of the fence's line names the language; an unclosed block extends to the end.
        let block = last.or(open.map(|start| &text[start..]));
        Some(block.map_or(text, |block| block.split_once('\n').map_or(block, |(_, code)| code)))
    }

    /// True if tests with this output passed.
    pub fn says_so(&self, printed: &str) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(printed))
    }
}

fn pattern(text: &str) -> std::result::Result<Regex, String> {
    Regex::new(text).map_err(|error| format!("is no regular expression: {error}"))
}

/// The pattern for the part of a text that counts; `None` for all of it.
fn extract(table: &RewardTable) -> std::result::Result<Option<Regex>, String> {
    let extract = table.extract.as_deref().map(pattern).transpose()?;
    if extract.as_ref().is_some_and(|extract| extract.captures_len() < 2) {
        return Err("`extract` has no group; put what counts in parentheses".into());
    }
    Ok(extract)
}

/// A rule, ready to score.
enum Rule {
    Exact { key: String, extract: Option<Regex>, ignore_case: bool },
    Numeric { key: String, extract: Option<Regex>, tolerance: f64 },
    Regex(Regex),
    JsonSchema(Schema),
    Length { least: usize, most: usize },
    Ended,
}

/// The rule of a table, or an error message.
fn rule(table: &RewardTable, file: &Path) -> std::result::Result<Rule, String> {
    let extract = extract(table)?;
    let key = table.key.clone();
    Ok(match table.rule {
        RuleName::Exact => Rule::Exact { key, extract, ignore_case: table.ignore_case },
        RuleName::Numeric => Rule::Numeric { key, extract, tolerance: table.tolerance },
        RuleName::Regex => {
            let text = table.pattern.as_ref().ok_or("needs a `pattern`")?;
            Rule::Regex(pattern(text)?)
        }
        RuleName::JsonSchema => {
            let schema = table.schema.as_ref().ok_or("needs a file `schema`")?;
            let schema = file.parent().map_or(schema.clone(), |folder| folder.join(schema));
            let said = |error: &dyn std::fmt::Display| format!("{}: {error}", schema.display());
            let text = std::fs::read(&schema).map_err(|error| said(&error))?;
            let schema: Value = serde_json::from_slice(&text).map_err(|error| said(&error))?;
            Rule::JsonSchema(Schema::new(&schema)?)
        }
        RuleName::Length if table.max_tokens == 0 => return Err("needs `max_tokens`".into()),
        RuleName::Length => Rule::Length { least: table.min_tokens, most: table.max_tokens },
        RuleName::Ended => Rule::Ended,
        RuleName::Process | RuleName::Tests | RuleName::Function | RuleName::Model | RuleName::Judge => {
            return Err("is no rule of a text".into());
        }
    })
}

/// The right answers in a row: a text, a number, or a list of them.
fn right<'a>(row: &'a Map<String, Value>, key: &str) -> std::result::Result<Vec<&'a Value>, String> {
    match row.get(key) {
        Some(Value::Array(list)) => Ok(list.iter().collect()),
        Some(value) if !value.is_null() => Ok(vec![value]),
        _ => {
            let keys: Vec<String> = row.keys().map(|key| format!("`{key}`")).collect();
            Err(format!(
                "a prompt's row has no `{key}`, which is to say what is right; its keys are {}",
                keys.join(", ")
            ))
        }
    }
}

/// The part of a text that counts.
fn part<'a>(text: &'a str, extract: Option<&Regex>) -> Option<&'a str> {
    match extract {
        None => Some(text),
        Some(extract) => Some(extract.captures(text)?.get(1)?.as_str()),
    }
}

/// The last number of a text; commas may separate thousands.
fn last_number(text: &str) -> Option<f64> {
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '-' | '+' | 'e' | 'E');
    let number = |piece: &str| {
        let piece = piece.trim_matches(['.', ',', 'e', 'E', '+']).trim_end_matches('-').replace(',', "");
        piece.parse::<f64>().ok().filter(|number| number.is_finite())
    };
    text.split(|c: char| !is_part(c)).rev().find_map(number)
}

impl Rule {
    fn of(&self, answer: &RewardInput<'_>) -> std::result::Result<f64, String> {
        let is = |is: bool| Ok(if is { 1.0 } else { 0.0 });
        match self {
            Rule::Exact { key, extract, ignore_case } => {
                let right = right(answer.row, key)?;
                let Some(found) = part(answer.text, extract.as_ref()) else { return Ok(0.0) };
                let same = |value: &&Value| {
                    let want = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    let (want, found) = (want.trim(), found.trim());
                    if *ignore_case { want.to_lowercase() == found.to_lowercase() } else { want == found }
                };
                is(right.iter().any(same))
            }
            Rule::Numeric { key, extract, tolerance } => {
                let right = right(answer.row, key)?;
                let found = part(answer.text, extract.as_ref()).and_then(last_number);
                let Some(found) = found else { return Ok(0.0) };
                let near = |value: &&Value| {
                    let want = value.as_f64().or_else(|| value.as_str().and_then(last_number));
                    want.is_some_and(|want| (found - want).abs() <= tolerance * want.abs().max(1e-9))
                };
                is(right.iter().any(near))
            }
            Rule::Regex(pattern) => is(pattern.is_match(answer.text)),
            Rule::JsonSchema(schema) => {
                is(serde_json::from_str(answer.text.trim()).is_ok_and(|value: Value| schema.holds(&value)))
            }
            Rule::Length { least, most } => {
                let tokens = answer.tokens;
                let short = if tokens < *least { (least - tokens) as f64 / *least as f64 } else { 0.0 };
                let long = tokens.saturating_sub(*most) as f64 / *most as f64;
                Ok(-short.max(long).min(1.0))
            }
            Rule::Ended => is(answer.ended),
        }
    }
}

impl Reward for Rule {
    fn score(&self, answers: &[RewardInput<'_>]) -> std::result::Result<Vec<Option<f64>>, String> {
        answers.iter().map(|answer| self.of(answer).map(Some)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::reward::score;
    use super::*;

    #[track_caller]
    fn check(toml: &str, row: Value, texts: &[(&str, f64)]) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reward.toml");
        let schema = r#"{"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}"#;
        std::fs::write(folder.path().join("schema.json"), schema).unwrap();
        std::fs::write(&path, format!("[[reward]]\nname = \"r\"\n{toml}")).unwrap();
        let parts = parts(&path, &|_| panic!("no process")).unwrap();
        let Value::Object(row) = row else { panic!("a row") };
        for (text, want) in texts {
            let answered = RewardInput {
                row: &row,
                prompt: "",
                text,
                messages: &[],
                earned: None,
                tokens: text.len(),
                ended: true,
            };
            assert_eq!(score(&parts, &[answered]).unwrap().sums, [*want], "{toml}: {text:?}");
        }
    }

    #[test]
    fn rules_score() {
        check("", json!({"answer": "7"}), &[(" 7\n", 1.0), ("8", 0.0), ("", 0.0)]);
        check(
            "weight = 2.0\nignore_case = true",
            json!({"answer": ["Yes", "y"]}),
            &[("YES", 2.0), ("Y", 2.0), ("n", 0.0)],
        );
        let extract = "extract = '<answer>(.*?)</answer>'";
        check(extract, json!({"answer": 7}), &[("so <answer> 7 </answer>.", 1.0), ("7", 0.0)]);
        let numbers = [
            ("it is 1,234.50.", 1.0),
            ("1234.5", 1.0),
            ("-1234.5", 0.0),
            ("5 or 1234.5e0", 1.0),
            ("none", 0.0),
        ];
        check("rule = \"numeric\"", json!({"answer": "#### 1234.5"}), &numbers);
        check(
            "rule = \"numeric\"\ntolerance = 0.01",
            json!({"answer": 2.14}),
            &[("2.15", 1.0), ("2.2", 0.0)],
        );
        check("rule = \"regex\"\npattern = '^\\d+$'", json!({}), &[("12", 1.0), ("12 ", 0.0)]);
        let schema = "rule = \"json_schema\"\nschema = \"schema.json\"";
        check(schema, json!({}), &[("{\"a\": 1}", 1.0), ("{\"a\": 1.5}", 0.0), ("{", 0.0)]);
        let length = "rule = \"length\"\nmin_tokens = 2\nmax_tokens = 4";
        check(
            length,
            json!({}),
            &[("abc", 0.0), ("a", -0.5), ("", -1.0), ("abcdef", -0.5), (&"a".repeat(20), -1.0)],
        );
        check("rule = \"ended\"", json!({}), &[("", 1.0)]);
    }

    #[test]
    fn code_is_found_in_answers() {
        let code = |extract: Option<&str>| {
            let extract = extract.map(str::to_string);
            Code::of(&RewardTable { extract, ..RewardTable::default() }).unwrap()
        };
        for (text, want) in [
            ("x = 1", "x = 1"),
            ("So:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
            ("```\na\n```\nbetter:\n```py\nb\nc\n```", "b\nc\n"),
            ("```python\nnever ends", "never ends"),
            ("", ""),
        ] {
            assert_eq!(code(None).read(text), Some(want), "{text:?}");
        }
        let tagged = code(Some("(?s)<code>(.*)</code>"));
        assert_eq!([tagged.read("<code>1\n2</code>"), tagged.read("1")], [Some("1\n2"), None]);
    }

    #[test]
    fn bad_files_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reward.toml");
        for (text, said) in [
            ("", "no [[reward]]"),
            ("[[reward]]\nrule = \"exact\"\n", "needs a name"),
            ("[[reward]]\nname = \"a\"\nrule = \"regex\"\n", "needs a `pattern`"),
            ("[[reward]]\nname = \"a\"\nrule = \"regex\"\npattern = '('\n", "no regular expression"),
            ("[[reward]]\nname = \"a\"\nextract = 'a'\n", "no group"),
            ("[[reward]]\nname = \"a\"\nrule = \"length\"\n", "max_tokens"),
            ("[[reward]]\nname = \"a\"\nwieght = 2\n", "weight"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = parts(&path, &|_| panic!("no process")).err().unwrap().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        std::fs::write(&path, "[[reward]]\nname = \"a\"\n").unwrap();
        let (parts, row) = (parts(&path, &|_| panic!("no process")).unwrap(), Map::new());
        let answered = RewardInput {
            row: &row,
            prompt: "",
            text: "7",
            messages: &[],
            earned: None,
            tokens: 1,
            ended: true,
        };
        let error = score(&parts, &[answered]).unwrap_err();
        assert!(error.contains("reward `a`") && error.contains("`answer`"), "{error}");
    }

    struct FixedScore(Option<f64>);

    impl Reward for FixedScore {
        fn score(&self, answers: &[RewardInput<'_>]) -> std::result::Result<Vec<Option<f64>>, String> {
            Ok(vec![self.0; answers.len()])
        }
    }

    #[test]
    fn what_is_not_there_counts_as_nothing_and_what_is_no_number_as_none() {
        let part = |number, weight| WeightedReward {
            name: "p".into(),
            weight,
            reward: Box::new(FixedScore(number)),
        };
        let row = Map::new();
        let answered = [RewardInput {
            row: &row,
            prompt: "",
            text: "",
            messages: &[],
            earned: None,
            tokens: 0,
            ended: false,
        }];
        let sum = |parts: &[WeightedReward]| score(parts, &answered).unwrap().sums[0];
        assert_eq!(sum(&[part(Some(1.0), 0.5), part(None, 1.0), part(Some(2.0), 2.0)]), 4.5);
        assert!(sum(&[part(Some(1.0), 0.5), part(Some(f64::NAN), 1.0)]).is_nan());
        assert!(sum(&[part(Some(f64::INFINITY), 1.0)]).is_nan());
        // A missing score is not an invalid one.
        assert!(sum(&[part(None, 1.0)]).is_nan());
        assert_eq!(score(&[part(None, 1.0)], &answered).unwrap().wrong, [0; 0]);
        assert_eq!(score(&[part(Some(f64::NAN), 1.0)], &answered).unwrap().wrong, [0]);
    }
}
