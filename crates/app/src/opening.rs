//! Prompts to try a model with: first words of held-out text whose continuation is worth reading. The best is shown in
//! the report and suggested at the end of a run.

use fathom_base::clock::Deadline;
use fathom_base::metrics::events::Sample;
use fathom_base::{GenerateRequest, Prompt, Sampling};
use fathom_text::Tokenizer;

use crate::error::Result;
use crate::measure::{Subject, real_ids};

/// Temperature of the continuations and of the suggested command, so that both give the same text with the same seed.
pub const TEMPERATURE: f64 = 0.7;
/// Words of a prompt, and its maximum number of characters.
const WORDS: usize = 4;
const MOST: usize = 60;
/// Number of prompts per round, and of rounds.
const TOGETHER: usize = 4;
const ROUNDS: usize = 3;
/// Tokens of a continuation.
const TOKENS: usize = 48;
/// Number of documents searched for prompts, and tokens read of each.
const DOCUMENTS: usize = 64;
const READ: usize = 512;
/// Minimum share of distinct groups of four characters in a continuation; below it, the continuation is considered
/// repetitive. Ordinary text has nine tenths; a phrase that is repeated has less than a third.
const DIFFERENT: f64 = 0.55;
/// Minimum number of letters in a continuation.
const LEAST: usize = 12;

/// Tries prompts until one has a continuation that is not repetitive, and returns the best one tried; `None` if the
/// held-out text offers no prompt.
///
/// # Errors
/// Stores that cannot be read; a model that computes NaN or infinity.
pub fn sample(subject: &Subject<'_>, step: u64, by: Option<&Deadline>) -> Result<Option<Sample>> {
    let documents = real_ids(subject)?;
    let openings = openings(fathom_eval::mixed(&documents).into_iter().take(DOCUMENTS), subject.tokenizer);
    let engine = subject.engine(256, 256);
    let mut best: Option<(f64, Sample)> = None;
    for round in openings.chunks(TOGETHER) {
        let is_late = by.is_some_and(|by| by.left_s() <= 0.0);
        if best.as_ref().is_some_and(|(variety, _)| is_late || *variety >= DIFFERENT) {
            break;
        }
        let sampling = || Sampling { temperature: TEMPERATURE, max_tokens: TOKENS, ..Sampling::default() };
        let ask = |text: &String| GenerateRequest::new(Prompt::Text(text.clone()), sampling());
        let said = engine.generate_all(round.iter().map(ask).collect())?.into_iter().flatten();
        for (prompt, text) in round.iter().zip(said.map(|answer| answer.text)) {
            let variety = variety(&text);
            if best.as_ref().is_none_or(|(most, _)| variety > *most) {
                best = Some((variety, Sample { step, prompt: prompt.clone(), text }));
            }
        }
    }
    Ok(best.map(|(_, sample)| sample))
}

/// Returns whether a sample can be suggested: its prompt fits on a shell's line, and its continuation is not
/// repetitive.
pub fn is_worth_a_try(sample: &Sample) -> bool {
    let line = &sample.prompt;
    !line.contains('\n') && line.chars().count() <= MOST && variety(&sample.text) >= DIFFERENT
}

/// Returns the share of distinct groups of four characters in a text, with white space collapsed; 0 if the text is too
/// short.
fn variety(text: &str) -> f64 {
    let words: Vec<&str> = text.split_whitespace().collect();
    let text: Vec<char> = words.join(" ").chars().collect();
    let letters = text.iter().filter(|c| c.is_alphabetic()).count();
    let mut groups: Vec<&[char]> = text.windows(4).collect();
    if letters < LEAST {
        return 0.0;
    }
    let all = groups.len() as f64;
    groups.sort_unstable();
    groups.dedup();
    groups.len() as f64 / all
}

/// Returns the beginnings of lines, at most one per document.
fn openings<'a>(documents: impl Iterator<Item = &'a Vec<u32>>, tokenizer: &Tokenizer) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for ids in documents {
        // Special tokens are decoded as text; the beginning-of-text token is added to a prompt anyway.
        let text = tokenizer.decode_text(&ids[..ids.len().min(READ)]);
        found.extend(opening(text.lines()).filter(|words| !found.contains(words)));
        if found.len() == TOGETHER * ROUNDS {
            break;
        }
    }
    found
}

/// Returns the first words of the first suitable line.
fn opening<'a>(lines: impl Iterator<Item = &'a str>) -> Option<String> {
    let words = |line: &str| {
        // A line may begin with part of a character, which cannot be typed.
        let line = line.replace('\u{fffd}', "");
        let words: Vec<&str> = line.split_whitespace().take(WORDS).collect();
        (words.len() >= 2).then(|| words.join(" "))
    };
    let is_typed = |text: &String| {
        let letters = text.chars().filter(|c| c.is_alphabetic()).count();
        let plain = !text.chars().any(char::is_control) && !text.starts_with('-');
        plain && text.chars().count() <= MOST && 2 * letters >= text.chars().count()
    };
    lines.filter_map(words).find(is_typed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_words_of_the_text() {
        for (text, expected) in [
            ("the old river carries stone", Some("the old river carries")),
            ("}\n--- ---\nit's the\told light", Some("it's the old light")),
            ("\u{fffd}\u{fffd}une pierre", Some("une pierre")),
            ("-- flags of this kind", None),
            ("0x0000 0x0001 ab", None),
            ("word\n", None),
            (&format!("{} b", "a".repeat(80)), None),
        ] {
            assert_eq!(opening(text.lines()).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_continuation_that_repeats_itself_is_not_suggested() {
        let sample = |text: &str| Sample { step: 1, prompt: "the old river".into(), text: text.into() };
        for repeated in [
            "iiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiii",
            "the value of the value of the value of the value of the value of the value of the value of",
            "    \n\n      ,\n     ,\n   ,\n      ,",
            "0 0 0 0 0 0 0 0 0 0 0 0 1 0 0 0 0 0",
            "",
        ] {
            assert!(!is_worth_a_try(&sample(repeated)), "{repeated}");
        }
        for text in [
            " is carried by its own weight, and what it carries is stone.",
            "(&self) -> bool {\n        self.len() == 0\n    }\n\n    /// Returns the number of elements in the map.",
        ] {
            assert!(is_worth_a_try(&sample(text)), "{text} {}", variety(text));
        }
        assert!(!is_worth_a_try(&Sample {
            prompt: "two\nlines".into(),
            ..sample(" is carried by its own weight")
        }));
    }

    #[test]
    fn a_beginning_has_no_spelling_of_a_special_token() {
        let text = "the old river carries stone\n".repeat(8);
        let tokenizer = Tokenizer::train_bpe(std::iter::once(text.clone()), 300, &["<s>"]).unwrap();
        let ids = tokenizer.encode_special(&format!("<s>{text}")).unwrap();
        assert!(tokenizer.decode(&ids).starts_with("<s>"));
        assert_eq!(openings([ids].iter(), &tokenizer), ["the old river carries"]);
    }
}
