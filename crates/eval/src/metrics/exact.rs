//! Exact match with the normalisations of Hugging Face's `evaluate`.

use serde_json::{Map, Value};

use crate::python::pattern::Pattern;

/// Normalisations of both texts before they are compared.
#[derive(Debug, Default)]
pub struct ExactMatch {
    ignored: Vec<Pattern>,
    case: bool,
    punctuation: bool,
    numbers: bool,
}

impl ExactMatch {
    /// Reads the options of a metric.
    ///
    /// # Errors
    /// A pattern that is invalid, or an option that exact match does not have.
    pub fn new(options: &Map<String, Value>) -> Result<ExactMatch, String> {
        let mut all = ExactMatch::default();
        for (name, value) in options {
            let flag = value.as_bool().unwrap_or(false);
            match name.as_str() {
                "ignore_case" => all.case = flag,
                "ignore_punctuation" => all.punctuation = flag,
                "ignore_numbers" => all.numbers = flag,
                "regexes_to_ignore" => {
                    let patterns = value.as_array().into_iter().flatten().filter_map(Value::as_str);
                    all.ignored = patterns.map(Pattern::new).collect::<Result<_, _>>()?;
                }
                other => return Err(format!("exact_match has no option `{other}`")),
            }
        }
        Ok(all)
    }

    /// Compares two texts.
    ///
    /// # Errors
    /// A pattern does not end within its limit of steps.
    pub fn is_same(&self, answer: &str, reference: &str) -> Result<bool, String> {
        Ok(self.normal(answer)? == self.normal(reference)?)
    }

    fn normal(&self, text: &str) -> Result<String, String> {
        let mut text = text.to_string();
        for pattern in &self.ignored {
            text = pattern.replace_all(&text, "")?;
        }
        if self.case {
            text = text.to_lowercase();
        }
        text.retain(|c| {
            !(self.punctuation && c.is_ascii_punctuation() || self.numbers && c.is_ascii_digit())
        });
        // NumPy's arrays of texts drop NUL characters at the end.
        Ok(text.trim_end_matches('\0').to_string())
    }
}
