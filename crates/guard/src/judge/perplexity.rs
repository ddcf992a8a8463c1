//! Perplexity of a text under a language model, by the formula of NeMo Guardrails 0.24.1
//! (`jailbreak_detection/heuristics/checks.py`): windows of 1,024 tokens at a stride of 512, the exponential of the mean
//! of the windows' mean losses. A window's loss is that of the tokens that no earlier window had.

use std::ops::Range;
use std::time::SystemTime;

use fathom_base::{Evaluate, Numbers, Service, SpecialTokens, Usage};

use super::question::{JudgeError, JudgeResult, Question};

/// Longest window, in tokens.
const WINDOW: usize = 1024;
/// Words of an affix; the last word of a text is in none.
const AFFIX_WORDS: usize = 19;
/// Fewest words of a text whose affixes are read.
const FEWEST_WORDS: usize = 20;
/// Tokens whose probabilities are computed in one call.
const CALL_TOKENS: usize = 1 << 14;

/// Perplexity of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// By the formula of 0.24.1: windows count equally.
    pub by_windows: f64,
    /// Tokens count equally.
    pub by_tokens: f64,
    /// Predicted tokens.
    pub tokens: usize,
}

/// A window of tokens, and how many of its last tokens count.
#[derive(Clone, Debug, PartialEq)]
struct LossWindow {
    range: Range<usize>,
    counted: usize,
}

/// Windows over `len` tokens.
fn windows(len: usize, context: usize) -> Vec<LossWindow> {
    let window = WINDOW.min(context);
    let stride = (window / 2).max(1);
    let (mut all, mut done) = (Vec::new(), 0);
    for start in (0..len).step_by(stride) {
        let end = (start + window).min(len);
        all.push(LossWindow { range: start..end, counted: end - done });
        done = end;
        if end == len {
            break;
        }
    }
    all
}

impl Perplexity {
    /// Computes the perplexity of a text; `None` if it has fewer than two tokens, of which none is predicted.
    ///
    /// # Errors
    /// The text has more than `most` tokens, the model fails, or the time limit passes.
    pub(crate) fn of(
        service: &dyn Service,
        text: &str,
        most: usize,
        question: Question<'_>,
    ) -> JudgeResult<Option<Perplexity>> {
        let ids = service.encode(text, SpecialTokens::Text)?;
        if ids.len() > most {
            return Err(JudgeError::TooLong { tokens: ids.len(), most });
        }
        if ids.len() < 2 {
            return Ok(None);
        }
        let windows = windows(ids.len(), service.card().context_tokens);
        let mut rows = Vec::with_capacity(windows.len());
        for group in windows.chunks((CALL_TOKENS / WINDOW).max(1)) {
            let texts = group.iter().map(|window| ids[window.range.clone()].to_vec().into()).collect();
            let began = SystemTime::now();
            let found = Evaluate::look_while(service, texts, Numbers::Logprobs, question.wanted)?;
            let tokens = group.iter().map(|window| window.range.len()).sum();
            (question.called)(
                &service.card().name,
                began,
                Usage { prompt_tokens: tokens, ..Usage::default() },
            );
            rows.extend(found.ok_or(JudgeError::Late)?);
        }
        Ok(Some(Perplexity::from_rows(&windows, &rows)))
    }

    fn from_rows(windows: &[LossWindow], rows: &[Vec<f32>]) -> Perplexity {
        let (mut means, mut sum, mut tokens) = (0.0, 0.0, 0);
        for (window, row) in windows.iter().zip(rows) {
            let losses: Vec<f64> = row.chunks_exact(2).map(|token| -f64::from(token[0])).collect();
            let own = &losses[losses.len().saturating_sub(window.counted)..];
            let total: f64 = own.iter().sum();
            means += total / own.len() as f64;
            sum += total;
            tokens += own.len();
        }
        Perplexity {
            by_windows: (means / windows.len() as f64).exp(),
            by_tokens: (sum / tokens as f64).exp(),
            tokens,
        }
    }
}

/// The perplexity of a text of at most `most` tokens under a language model; `None` if it has fewer than two.
///
/// # Errors
/// The text is too long, the model fails, or `wanted` returns false.
pub fn perplexity(
    service: &dyn Service,
    text: &str,
    most: usize,
    wanted: &dyn Fn() -> bool,
) -> Result<Option<Perplexity>, JudgeError> {
    Perplexity::of(service, text, most, Question { scope: "", wanted, called: &|_, _, _| () })
}

/// The first 19 words of a text and the last 20 without the last, as 0.24.1 reads them; `None` for fewer than 20 words.
pub fn jailbreak_affixes(text: &str) -> Option<[String; 2]> {
    let is_space = |c: char| c.is_whitespace() || ('\x1c'..='\x1f').contains(&c);
    let words: Vec<&str> = text.split(is_space).filter(|word| !word.is_empty()).collect();
    if words.len() < FEWEST_WORDS {
        return None;
    }
    let last = words.len() - FEWEST_WORDS;
    Some([words[..AFFIX_WORDS].join(" "), words[last..words.len() - 1].join(" ")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_those_of_the_formula() {
        let of = |len, context| {
            windows(len, context)
                .into_iter()
                .map(|it| (it.range.start, it.range.end, it.counted))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(5, 1024), [(0, 5, 5)]);
        assert_eq!(of(1024, 1024), [(0, 1024, 1024)]);
        assert_eq!(of(1025, 4096), [(0, 1024, 1024), (512, 1025, 1)]);
        assert_eq!(of(2000, 1024), [(0, 1024, 1024), (512, 1536, 512), (1024, 2000, 464)]);
        // A model with a shorter context reads every token as well.
        assert_eq!(of(10, 4), [(0, 4, 4), (2, 6, 2), (4, 8, 2), (6, 10, 2)]);
    }

    #[test]
    fn windows_count_equally_whatever_their_tokens() {
        let windows = [LossWindow { range: 0..4, counted: 4 }, LossWindow { range: 2..5, counted: 1 }];
        let row = |losses: &[f32]| losses.iter().flat_map(|loss| [-loss, 0.0]).collect::<Vec<f32>>();
        let found = Perplexity::from_rows(&windows, &[row(&[1.0, 1.0, 1.0]), row(&[9.0, 3.0])]);
        assert!((found.by_windows - 2.0f64.exp()).abs() < 1e-9);
        assert!((found.by_tokens - 1.5f64.exp()).abs() < 1e-9);
        assert_eq!(found.tokens, 4);
    }

    #[test]
    fn affixes_leave_the_last_word_out() {
        let words: Vec<String> = (0..25).map(|at| at.to_string()).collect();
        let [prefix, suffix] = jailbreak_affixes(&words.join(" \n")).unwrap();
        assert_eq!((prefix.split(' ').count(), suffix.split(' ').count()), (19, 19));
        assert!(prefix.starts_with("0 1") && suffix.starts_with("5 6") && suffix.ends_with("23"));
        assert_eq!(jailbreak_affixes(&words[..19].join(" ")), None);
    }
}
