//! How much text fills a length: RULER's search for the size of a haystack, and samples that are drawn again with less
//! of it where they are too long.

use std::path::{Path, PathBuf};

use fathom_text::Tokenizer;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::python::is_space;
use crate::python::random::Random;

/// Draws of a sample of the least size, of which none is short enough, before the length is refused.
const DRAWS: usize = 200;
/// Places of needles in essays, in percent: `round(linspace(0, 100, 40))`.
const DEPTHS: usize = 40;

/// The parts that all tasks draw with.
pub struct HaystackParts<'t> {
    /// Tokenizer that lengths are measured with.
    pub tokenizer: &'t Tokenizer,
    /// Length asked for, answer included.
    pub tokens: usize,
    /// Tokens of the length that a sample may fill: without those of the chat template.
    pub most: usize,
    /// Tokens of an answer.
    pub answer_tokens: usize,
    /// Seed.
    pub seed: u64,
    /// Python's generator, which the whole set is drawn by.
    pub random: Random,
    /// Task, for messages.
    pub task: String,
    /// Folder of the user's files.
    pub folder: Option<PathBuf>,
}

/// A sample.
pub struct Sample {
    /// Prompt with the beginning of its answer.
    pub text: String,
    /// Texts that an answer should have.
    pub answers: Vec<String>,
    /// Tokens, those of the answer included.
    pub tokens: usize,
}

/// A size that grows by steps.
pub struct Size {
    /// Least size, and the step by which a sample that is too long shrinks.
    pub step: usize,
    /// Size that shows the tokens of a unit.
    pub probe: usize,
    /// Largest size that is tried, by the length and the tokens of a unit.
    pub bound: fn(f64, f64) -> usize,
    /// Tokens that every sample has besides its text.
    pub extra: usize,
}

/// Three times what should fit.
pub fn thrice(tokens: f64, unit: f64) -> usize {
    ((tokens / unit) * 3.0) as usize
}

/// Twice what should fit, as `int(tokens // unit) * 2`.
pub fn twice(tokens: f64, unit: f64) -> usize {
    let floor = ((tokens - tokens % unit) / unit).round();
    floor as usize * 2
}

/// A text and the answers in it.
pub type TextWithAnswers = (String, Vec<String>);

impl<'t> HaystackParts<'t> {
    /// Number of tokens of a text, without those that a tokenizer puts around it.
    ///
    /// # Errors
    /// The tokenizer cannot encode the text.
    pub fn count(&self, text: &str) -> Result<usize> {
        Ok(self.tokenizer.encode_special(text)?.len())
    }

    /// A generator of its own with the seed, as `random.Random(seed)`.
    pub fn fixed(&self) -> Random {
        Random::new(self.seed)
    }

    /// Letters from `first` on, as `random.choices` of an alphabet of 26.
    pub fn letters(&mut self, first: u8, count: usize) -> String {
        (0..count).map(|_| char::from(first + self.random.choice_index(26) as u8)).collect()
    }

    /// A refusal.
    pub fn wrong(&self, reason: impl Into<String>) -> Error {
        Error::task(&self.task, reason)
    }

    /// The largest size whose sample fits, by bisection.
    ///
    /// # Errors
    /// A sample cannot be drawn.
    pub fn largest(
        &mut self,
        size: &Size,
        draw: &mut dyn FnMut(&mut Self, usize) -> Result<TextWithAnswers>,
    ) -> Result<usize> {
        let (text, _) = draw(self, size.probe)?;
        let unit = self.count(&text)? as f64 / size.probe as f64;
        let (mut lower, mut found) = (size.step, None);
        let mut upper = (size.bound)(self.most as f64, unit).max(2 * size.step);
        while lower <= upper {
            let middle = (lower + upper) / 2;
            let (text, _) = draw(self, middle)?;
            if self.count(&text)? + size.extra <= self.most {
                found = Some(middle);
                lower = middle + 1;
            } else {
                upper = middle - 1;
            }
        }
        Ok(found.unwrap_or(size.step))
    }

    /// A sample that fits: of a size, or of smaller ones where it is too long.
    ///
    /// # Errors
    /// None of the least size fits, where RULER's scripts go on forever.
    pub fn sample(
        &mut self,
        size: &Size,
        from: usize,
        draw: &mut dyn FnMut(&mut Self, usize) -> Result<TextWithAnswers>,
    ) -> Result<Sample> {
        let (mut used, mut least, mut last) = (from, usize::MAX, None);
        for _ in 0..DRAWS + from / size.step {
            match draw(self, used) {
                Ok((text, answers)) => {
                    let tokens = self.count(&text)? + self.answer_tokens;
                    if tokens <= self.most {
                        return Ok(Sample { text, answers, tokens });
                    }
                    least = least.min(tokens);
                }
                Err(error) => last = Some(error),
            }
            if used > size.step {
                used -= size.step;
            }
        }
        Err(match last {
            Some(error) if least == usize::MAX => error,
            _ => self.wrong(format!(
                "the shortest sample has {least} tokens of this tokenizer, and the length is {}; ask for a longer one",
                self.most
            )),
        })
    }

    /// The text of one of RULER's files (`NAME`, in `--data-dir` or its folder `ruler`).
    ///
    /// # Errors
    /// The file is missing; the message says where people get it.
    pub fn file(&self, name: &str, what: &str) -> Result<String> {
        let places =
            self.folder.iter().flat_map(|folder| [folder.join("ruler").join(name), folder.join(name)]);
        let found = places.clone().find(|path| path.is_file()).ok_or_else(|| {
            let place = self.folder.as_deref().unwrap_or(Path::new("DIR")).join("ruler").join(name);
            self.wrong(format!(
                "needs {what}, and nothing is downloaded. NVIDIA/RULER's scripts/data/synthetic/json has or gets it as {name}; with \
                 --data-dir DIR it is read from {}. The group `ruler_offline` has the six tasks that need no file",
                place.display()
            ))
        })?;
        std::fs::read_to_string(&found)
            .map_err(|error| self.wrong(format!("cannot read {}: {error}", found.display())))
    }

    /// One of RULER's files as JSON.
    ///
    /// # Errors
    /// The file is missing or no JSON.
    pub fn json(&self, name: &str, what: &str) -> Result<Value> {
        let text = self.file(name, what)?;
        serde_json::from_str(&text).map_err(|error| self.wrong(format!("{name}: {error}")))
    }

    /// The words of the essays, which are repeated where more are asked for.
    ///
    /// # Errors
    /// The file is missing or has no text.
    pub fn essay(&self) -> Result<Vec<String>> {
        let found = self.json("PaulGrahamEssays.json", "essays ({\"text\": ..}, any will do)")?;
        let text = found["text"].as_str().filter(|text| !text.trim().is_empty());
        let text = text.ok_or_else(|| self.wrong("PaulGrahamEssays.json has no string `text`"))?;
        // Equal to `re.sub(r"\s+", " ", text).split(" ")`.
        let mut words = vec![String::new()];
        let mut spaced = false;
        for c in text.chars() {
            match (is_space(c), spaced) {
                (true, false) => words.push(String::new()),
                (true, true) => {}
                (false, _) => words.last_mut().into_iter().for_each(|word| word.push(c)),
            }
            spaced = is_space(c);
        }
        Ok(words)
    }

    /// Texts put between the sentences of the beginning of an essay, at depths that are drawn.
    ///
    /// # Errors
    /// More texts than depths.
    pub fn planted(&mut self, essay: &[String], words: usize, needles: &[String]) -> Result<String> {
        let text = essay.iter().cycle().take(words).map(String::as_str).collect::<Vec<_>>().join(" ");
        let sentences = sentences(text.trim_matches(is_space));
        let depth = |at: usize| (100.0 * at as f64 / (DEPTHS - 1) as f64).round() / 100.0;
        let drawn = self.random.sample(DEPTHS, needles.len());
        let drawn = drawn.ok_or_else(|| self.wrong("has more needles than there are depths"))?;
        let mut places: Vec<usize> =
            drawn.into_iter().map(|at| (sentences.len() as f64 * depth(at)) as usize).collect();
        places.sort_unstable();
        let mut parts = Vec::new();
        let mut from = 0;
        for (place, needle) in places.iter().zip(needles) {
            parts.extend([sentences[from..*place].join(" "), needle.clone()]);
            from = *place;
        }
        parts.push(sentences[from..].join(" "));
        Ok(parts.join(" "))
    }
}

/// Sentences of a text: they end with `.`, `!` or `?`, closing quotes and brackets included, before white space and
/// anything but a small letter. RULER asks NLTK's trained model instead, which also knows abbreviations.
fn sentences(text: &str) -> Vec<&str> {
    let (mut found, mut from) = (Vec::new(), 0);
    let mut ends = false;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '.' | '!' | '?' => ends = true,
            '"' | '\'' | ')' | ']' | '\u{201d}' | '\u{2019}' if ends => {}
            c if is_space(c) && ends => {
                let next = chars.peek().map(|(_, next)| *next);
                if next.is_some_and(|next| !next.is_lowercase() && !is_space(next)) {
                    found.push(&text[from..at]);
                    from = at + c.len_utf8();
                }
                ends = false;
            }
            _ => ends = false,
        }
    }
    if from < text.len() {
        found.push(&text[from..]);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_before_what_is_no_small_letter() {
        let text = "One is. \"Two?\" (Three 3.5 e.g. here!) And four";
        assert_eq!(sentences(text), ["One is.", "\"Two?\"", "(Three 3.5 e.g. here!)", "And four"]);
        assert!(sentences("").is_empty());
    }

    #[test]
    fn bounds_are_those_of_python() {
        // int((1000 / 7.3) * 3), int(1000 // 7.3) * 2, int(1.0 // 0.1) * 2
        assert_eq!((thrice(1000.0, 7.3), twice(1000.0, 7.3), twice(1.0, 0.1)), (410, 272, 18));
    }
}
