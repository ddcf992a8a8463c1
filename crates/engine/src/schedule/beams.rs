//! Beam search: the most likely beginnings of an answer are extended in parallel, and the best answers are returned at
//! the end.
//!
//! A beginning (*beam*) is a sequence like any other; beams share the pages of their common tokens, and a page that two
//! would write to is copied. When all beams of a request have been read to their ends, the best continuations of all of
//! them become the beams of the next step. Scores, and the conditions for finishing an answer and the search, are those
//! of Transformers' `generate(num_beams=..)`.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use fathom_base::{Beams, EarlyStopping, GenerateRequest, Stop, TokenLogprob};

/// The search state of a sequence.
#[derive(Debug, Default)]
pub(super) struct Beam {
    /// Sum of its tokens' log-probabilities.
    pub sum: f64,
    /// Log-probabilities of the next token, once all tokens are read.
    pub next: Option<Vec<f32>>,
    /// Reported log-probabilities of its tokens.
    pub logprobs: Vec<TokenLogprob>,
}

impl Beam {
    /// True if it waits for the other beams.
    pub fn is_read(&self) -> bool {
        self.next.is_some()
    }
}

/// The search of a request.
#[derive(Debug)]
pub(super) struct Search {
    pub how: Beams,
    pub prompt: Vec<u32>,
    /// The distinct end tokens.
    pub ends: Vec<u32>,
    pub max_tokens: usize,
    /// The best finished answers, best first.
    pub finished: Vec<FinishedBeam>,
}

/// A finished answer.
#[derive(Debug)]
pub(super) struct FinishedBeam {
    pub score: f64,
    pub ids: Vec<u32>,
    pub logprobs: Vec<TokenLogprob>,
    pub stop: Stop,
}

/// A beam with one more token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Next {
    pub beam: usize,
    pub id: u32,
    pub sum: f64,
}

impl Next {
    /// Most likely first; ties go to the earlier beam, then to the lower id.
    fn order(&self, other: &Next) -> Ordering {
        other.sum.total_cmp(&self.sum).then((self.beam, self.id).cmp(&(other.beam, other.id)))
    }
}

/// Result of a step of the search.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The beams that end here.
    pub ended: Vec<Next>,
    /// The beams of the next step.
    pub open: Vec<Next>,
}

impl Search {
    /// The search of a request, if it asks for one.
    pub fn of(asked: &GenerateRequest, prompt: &[u32], ends: &[u32]) -> Option<Search> {
        let (how, max_tokens) = (asked.beams?, asked.sampling.max_tokens);
        let ends = ends.iter().copied().collect::<BTreeSet<u32>>().into_iter().collect();
        Some(Search { how, prompt: prompt.to_vec(), ends, max_tokens, finished: Vec::new() })
    }

    /// The best continuations of some beams, given their sums and next log-probabilities; `tokens` is the length of an
    /// answer with one more token.
    pub fn turn(&self, beams: &[(f64, &[f32])], tokens: usize) -> Turn {
        // Enough candidates that sufficiently many remain if all of the best end.
        let many = self.how.width * (1 + self.ends.len()).max(2);
        let mut all: Vec<Next> = Vec::with_capacity(2 * many);
        for (beam, (sum, next)) in beams.iter().enumerate() {
            let likely = next.iter().enumerate().filter(|(_, logprob)| logprob.is_finite());
            let mut own: Vec<Next> = likely
                .map(|(id, logprob)| Next { beam, id: id as u32, sum: sum + f64::from(*logprob) })
                .collect();
            if own.len() > many {
                own.select_nth_unstable_by(many - 1, Next::order);
                own.truncate(many);
            }
            all.extend(own);
        }
        all.sort_unstable_by(Next::order);
        all.truncate(many);
        let ends = |next: &Next| tokens >= self.max_tokens || self.ends.contains(&next.id);
        let ended = all.iter().take(self.how.width).copied().filter(ends).collect();
        let open = all.iter().copied().filter(|next| !ends(next)).take(self.how.width).collect();
        Turn { ended, open }
    }

    /// Score of an answer of `tokens` tokens, including the end token.
    pub fn score(&self, sum: f64, tokens: usize) -> f64 {
        sum / (tokens as f64).powf(self.how.length_penalty)
    }

    /// Adds a finished answer, if it is among the best.
    pub fn finish(&mut self, found: FinishedBeam) {
        let at = self.finished.partition_point(|other| other.score >= found.score);
        self.finished.insert(at, found);
        self.finished.truncate(self.how.width);
    }

    /// True if no further step can change the result; the open beams have `tokens` tokens, and the best of them this
    /// sum.
    pub fn is_over(&self, best: Option<f64>, tokens: usize) -> bool {
        let Some(best) = best.filter(|_| tokens < self.max_tokens) else { return true };
        let Some(worst) = self.finished.get(self.how.width - 1) else { return false };
        let tokens = match self.how.early_stopping {
            EarlyStopping::First => return true,
            EarlyStopping::Never if self.how.length_penalty > 0.0 => self.max_tokens,
            EarlyStopping::Never | EarlyStopping::Likely => tokens,
        };
        self.score(best, tokens) <= worst.score
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(width: usize, ends: &[u32], early_stopping: EarlyStopping) -> Search {
        let how = Beams { width, length_penalty: 1.0, early_stopping };
        Search { how, prompt: vec![1], ends: ends.to_vec(), max_tokens: 10, finished: Vec::new() }
    }

    fn found(score: f64) -> FinishedBeam {
        FinishedBeam { score, ids: Vec::new(), logprobs: Vec::new(), stop: Stop::EndOfText }
    }

    #[test]
    fn continuations_are_the_best_of_all_beams_and_endings_of_the_first() {
        let search = search(2, &[0], EarlyStopping::Likely);
        let rows: [&[f32]; 2] = [&[-1.0, -1.5, -4.0], &[-0.5, f32::NEG_INFINITY, -0.75]];
        let Turn { ended, open } = search.turn(&[(0.0, rows[0]), (-1.0, rows[1])], 3);
        // -1.0 ends (beam 0), then -1.5 twice: the earlier beam comes first and continues.
        assert_eq!(ended, [Next { beam: 0, id: 0, sum: -1.0 }]);
        assert_eq!(open, [Next { beam: 0, id: 1, sum: -1.5 }, Next { beam: 1, id: 2, sum: -1.75 }]);
        // At the maximum length all of the best end, and none continues.
        let Turn { ended, open } = search.turn(&[(0.0, rows[0]), (-1.0, rows[1])], 10);
        assert_eq!((ended.len(), open.len()), (2, 0));
    }

    #[test]
    fn a_search_ends_where_nothing_better_is_likely() {
        for (early_stopping, over) in [
            (EarlyStopping::Likely, [false, true]),
            (EarlyStopping::First, [true; 2]),
            (EarlyStopping::Never, [false; 2]),
        ] {
            let mut search = search(2, &[0], early_stopping);
            search.finish(found(-0.5));
            assert!(!search.is_over(Some(-100.0), 4), "one answer is missing");
            search.finish(found(-2.0));
            search.finish(found(-1.0));
            assert_eq!(search.finished.iter().map(|it| it.score).collect::<Vec<_>>(), [-0.5, -1.0]);
            // Sums of four tokens: -0.75 per token, and -1.25.
            assert_eq!([-3.0, -5.0].map(|sum| search.is_over(Some(sum), 4)), over, "{early_stopping:?}");
            assert!(search.is_over(Some(-11.0), 4) || early_stopping != EarlyStopping::Never);
            assert!(search.is_over(Some(-0.1), 10) && search.is_over(None, 4));
        }
    }
}
