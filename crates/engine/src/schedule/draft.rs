//! Guessed next tokens, several of which one step can verify (speculative decoding: Leviathan et al., 2023,
//! arXiv:2211.17192). Guesses are the tokens that followed the same tokens earlier in the sequence (prompt lookup:
//! Saxena, 2023), or else a draft model's ([`super::drafter`]).
//!
//! The sequence's own sampler chooses every token, from the logits and with the draw that it would have without
//! guesses; a correct guess saves the step that would read it. Answers are therefore the same with and without guesses,
//! sampled or not, bit for bit.

use crate::pages::Table;

/// Minimum length of a match before its continuation is guessed.
pub(super) const LEAST_MATCH: usize = 3;
/// A match of this length is used even if recent guesses failed, and in preference to a draft model.
pub(super) const LONG_MATCH: usize = 8;
/// Initial number of guesses of a sequence.
const FIRST: usize = 3;
/// Maximum steps without guesses after failures.
const MOST_QUIET: u32 = 64;

/// The draft model's progress in a sequence.
#[derive(Debug)]
pub(super) struct Draft {
    pub table: Table,
    pub held: usize,
}

impl Draft {
    /// Drops all but the first `tokens`.
    pub fn keep(&mut self, tokens: usize) {
        self.held = self.held.min(tokens);
    }
}

/// The guessing state of a sequence.
#[derive(Clone, Debug)]
pub(crate) struct DraftState {
    most: usize,
    length: usize,
    quiet: u32,
    failed: u32,
}

impl DraftState {
    /// At most `most` guesses per step; 0 for none.
    pub fn new(most: usize) -> DraftState {
        DraftState { most, length: FIRST.min(most), quiet: 0, failed: 0 }
    }

    /// The same settings for another sequence.
    pub fn fresh(&self) -> DraftState {
        DraftState::new(self.most)
    }

    /// Guesses the next tokens of a sequence, at most `room`: the continuation of an earlier match of at least `least`
    /// tokens. Repetitive text is continued like this.
    pub fn draft(&mut self, ids: &[u32], room: usize, least: usize) -> Vec<u32> {
        let room = room.min(self.length);
        if room == 0 {
            return Vec::new();
        }
        let Some((at, matched)) = earlier(ids).filter(|(_, matched)| *matched >= least) else {
            return Vec::new();
        };
        if self.quiet > 0 && matched < LONG_MATCH {
            self.quiet -= 1;
            return Vec::new();
        }
        // `earlier` ends before the last token, so the guess starts within known tokens.
        let (period, mut guess) = (ids.len() - at, Vec::with_capacity(room));
        for index in 0..room {
            let known = ids.get(at + index).copied();
            guess.push(known.unwrap_or_else(|| guess[index - period]));
        }
        guess
    }

    /// True if recent guesses, if any, were right.
    pub fn is_right(&self) -> bool {
        self.failed == 0
    }

    /// Number of guesses in this step for a method that needs no match, at most `room`.
    pub fn many(&mut self, room: usize) -> usize {
        let room = room.min(self.length);
        if room > 0 && self.quiet > 0 {
            self.quiet -= 1;
            return 0;
        }
        room
    }

    /// Adapts to the number of correct guesses.
    pub fn judge(&mut self, drafted: usize, right: usize) {
        if drafted == 0 {
            return;
        }
        if right == 0 {
            self.failed = (self.failed + 1).min(MOST_QUIET.ilog2());
            self.quiet = 1 << self.failed;
            self.length = (self.length / 2).max(1);
            return;
        }
        (self.failed, self.quiet) = (0, 0);
        self.length =
            if right == drafted { (2 * self.length).min(self.most) } else { right.clamp(1, self.most) };
    }
}

/// Position after the earlier occurrence of the longest token run that ends the sequence, the latest of equals, and its
/// length, up to [`LONG_MATCH`].
fn earlier(ids: &[u32]) -> Option<(usize, usize)> {
    let last = *ids.last()?;
    let mut best: Option<(usize, usize)> = None;
    for at in (LEAST_MATCH..ids.len()).rev() {
        if ids[at - 1] != last {
            continue;
        }
        let same =
            ids[..at].iter().rev().zip(ids.iter().rev()).take(LONG_MATCH).take_while(|(a, b)| a == b).count();
        if same >= LEAST_MATCH && best.is_none_or(|(_, most)| same > most) {
            best = Some((at, same));
            if same == LONG_MATCH {
                break;
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_before_is_guessed() {
        let ids = [1, 2, 3, 4, 5, 6, 9, 1, 2, 3];
        assert_eq!(earlier(&ids), Some((3, 3)));
        let mut drafting = DraftState::new(8);
        assert_eq!(drafting.draft(&ids, 100, LEAST_MATCH), [4, 5, 6]);
        assert_eq!(drafting.draft(&ids, 1, LEAST_MATCH), [4]);
        assert!(drafting.draft(&ids[..6], 100, LEAST_MATCH).is_empty());
        drafting.judge(3, 3);
        assert_eq!(drafting.draft(&ids, 100, LEAST_MATCH), [4, 5, 6, 9, 1, 2]);
        drafting.judge(6, 0);
        assert!(drafting.draft(&ids, 100, LEAST_MATCH).is_empty());
        assert!(drafting.draft(&ids, 100, LEAST_MATCH).is_empty());
        assert_eq!(drafting.draft(&ids, 100, LEAST_MATCH), [4, 5, 6]);
        // A long match is used at once.
        let long: Vec<u32> = (0..10).chain(0..10).collect();
        drafting.judge(3, 0);
        assert_eq!(drafting.draft(&long[..19], 100, LONG_MATCH), [9]);
        assert!(DraftState::new(8).draft(&ids, 100, LONG_MATCH).is_empty());
        // Repetitions of one token, and alternations of two, are continued.
        let mut drafting = DraftState::new(8);
        assert_eq!(drafting.draft(&[7; 6], 100, LEAST_MATCH), [7; 3]);
        drafting.judge(3, 3);
        assert_eq!(drafting.draft(&[1, 2, 1, 2, 1, 2, 1], 5, LEAST_MATCH), [2, 1, 2, 1, 2]);
        assert!(DraftState::new(0).draft(&ids, 100, LEAST_MATCH).is_empty());
    }
}
