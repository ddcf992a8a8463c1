//! A classifier over all windows of a text.

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use fathom_base::{Evaluate, Numbers, Service, SpecialTokens, TextIds, Usage};

use super::question::{JudgeError, JudgeResult, Question};
use super::windows::{Windows, spans_of};

/// A model with labels.
#[derive(Clone)]
pub(crate) struct Classifier {
    /// The model.
    pub service: Arc<dyn Service>,
    /// How a text is divided; tokens added around a text count.
    pub windows: Windows,
}

/// Probabilities of the labels for a window.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WindowClasses {
    /// Bytes of the text.
    pub span: Range<usize>,
    /// One number per label.
    pub numbers: Vec<f32>,
}

impl Classifier {
    /// Positions of labels.
    ///
    /// # Errors
    /// The model is no classifier, or has no such label.
    pub fn labels(&self, names: &[String]) -> JudgeResult<Vec<usize>> {
        let labels = self.service.card().labels;
        let find = |name: &String| {
            let same = |label: &String| label.eq_ignore_ascii_case(name);
            labels.iter().position(same).ok_or_else(|| {
                JudgeError::Unfit(format!(
                    "the classifier has no label `{name}`; it has {}",
                    labels.join(", ")
                ))
            })
        };
        names.iter().map(find).collect()
    }

    /// The labels' probabilities for every window of a text.
    ///
    /// # Errors
    /// The text is too long, or the model fails.
    pub fn classes(&self, text: &str, question: Question<'_>) -> JudgeResult<Vec<WindowClasses>> {
        let whole = self.service.read(&(text.to_string(), None), Numbers::Classes, None)?;
        let size = self.windows.tokens.min(self.service.card().context_tokens);
        if whole.ids.len() <= size && whole.ids.len() <= self.windows.most {
            let numbers = self.look(vec![whole], question)?.swap_remove(0);
            return Ok(vec![WindowClasses { span: 0..text.len(), numbers }]);
        }
        let ids = self.service.encode(text, SpecialTokens::Text)?;
        let (before, after) = frame(&whole.ids, &ids).ok_or_else(|| {
            JudgeError::Unfit("the classifier's tokenizer changes a long text's tokens".into())
        })?;
        let windows = self.windows.of(ids.len(), size.saturating_sub(before.len() + after.len()))?;
        let framed = |window: &Range<usize>| [before, &ids[window.clone()], after].concat().into();
        let rows = self.look(windows.iter().map(framed).collect(), question)?;
        let spans = spans_of(text, &ids, &windows, &|id| self.service.token_bytes(id).len());
        Ok(spans.into_iter().zip(rows).map(|(span, numbers)| WindowClasses { span, numbers }).collect())
    }

    /// The labels' probabilities for pairs of texts, each truncated to the context.
    ///
    /// # Errors
    /// The model fails.
    pub fn pairs(&self, pairs: &[(String, String)], question: Question<'_>) -> JudgeResult<Vec<Vec<f32>>> {
        let size = self.windows.tokens.min(self.service.card().context_tokens);
        let read = |(first, second): &(String, String)| {
            let pair = (first.clone(), Some(second.clone()));
            let ids = self.service.read(&pair, Numbers::Classes, None)?;
            if ids.ids.len() > size {
                return Err(JudgeError::TooLong { tokens: ids.ids.len(), most: size });
            }
            Ok(ids)
        };
        self.look(pairs.iter().map(read).collect::<JudgeResult<_>>()?, question)
    }

    fn look(&self, texts: Vec<TextIds>, question: Question<'_>) -> JudgeResult<Vec<Vec<f32>>> {
        let count = texts.len();
        let (began, tokens) = (SystemTime::now(), texts.iter().map(|text| text.ids.len()).sum());
        let rows = Evaluate::look_while(&*self.service, texts, Numbers::Classes, question.wanted)?;
        (question.called)(
            &self.service.card().name,
            began,
            Usage { prompt_tokens: tokens, ..Usage::default() },
        );
        let rows = rows.ok_or(JudgeError::Late)?;
        if rows.len() != count || rows.iter().flatten().any(|number| !number.is_finite()) {
            return Err(JudgeError::Unfit("the classifier's results are incomplete".into()));
        }
        Ok(rows)
    }
}

/// Tokens before and after a text's own among all tokens.
fn frame<'a>(whole: &'a [u32], own: &[u32]) -> Option<(&'a [u32], &'a [u32])> {
    let around = whole.len().checked_sub(own.len())?;
    let at = (0..=around).find(|at| whole[*at..].starts_with(own))?;
    Some((&whole[..at], &whole[at + own.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_what_the_tokenizer_adds() {
        assert_eq!(frame(&[1, 5, 6, 2], &[5, 6]), Some((&[1][..], &[2][..])));
        assert_eq!(frame(&[5, 6], &[5, 6]), Some((&[][..], &[][..])));
        assert_eq!(frame(&[1, 5, 7, 2], &[5, 6]), None);
    }
}
