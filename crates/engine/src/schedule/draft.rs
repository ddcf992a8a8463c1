//! Tokens that are guessed to follow, so that one step confirms several (speculative decoding: Leviathan et al., 2023,
//! arXiv:2211.17192; the guess is what followed the same tokens earlier in the sequence, prompt lookup: Saxena, 2023, or else a draft
//! model's: [`super::drafter`]).
//!
//! The sequence's own sampler chooses every token, from the logits and with the draw that it has without guesses; a guess that
//! is the token saves the step that would read it. So answers are the same with and without, drawn or not, bit for bit.

/// Tokens that have to be the same before what followed them is guessed.
pub(super) const LEAST_MATCH: usize = 3;
/// A match of so many is tried even where guesses failed lately, and before a draft model is asked.
pub(super) const LONG_MATCH: usize = 8;
/// First guesses of a sequence.
const FIRST: usize = 3;
/// Steps without a guess, after failures, at most.
const MOST_QUIET: u32 = 64;

/// How a sequence guesses.
#[derive(Clone, Debug)]
pub(crate) struct Drafting {
    most: usize,
    length: usize,
    quiet: u32,
    failed: u32,
}

impl Drafting {
    /// At most so many guesses a step; 0 for none.
    pub fn new(most: usize) -> Drafting {
        Drafting { most, length: FIRST.min(most), quiet: 0, failed: 0 }
    }

    /// The same for another sequence.
    pub fn fresh(&self) -> Drafting {
        Drafting::new(self.most)
    }

    /// What is guessed to follow a sequence's tokens, at most `room`: what followed where at least as many as `least` were the same. A
    /// text that repeats itself goes on so.
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
        // `earlier` ends before the last token, so what is guessed lies behind what is known by then.
        let (period, mut guess) = (ids.len() - at, Vec::with_capacity(room));
        for index in 0..room {
            let known = ids.get(at + index).copied();
            guess.push(known.unwrap_or_else(|| guess[index - period]));
        }
        guess
    }

    /// Whether its guesses were right lately, as far as there were any.
    pub fn is_right(&self) -> bool {
        self.failed == 0
    }

    /// Guesses of this step of what needs no earlier tokens, at most `room`.
    pub fn many(&mut self, room: usize) -> usize {
        let room = room.min(self.length);
        if room > 0 && self.quiet > 0 {
            self.quiet -= 1;
            return 0;
        }
        room
    }

    /// So many of the guesses were right.
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

/// Where the longest run of tokens that the sequence ends with ended before, the latest of equals, and how long it is, up to
/// [`LONG_MATCH`].
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
        let mut drafting = Drafting::new(8);
        assert_eq!(drafting.draft(&ids, 100, LEAST_MATCH), [4, 5, 6]);
        assert_eq!(drafting.draft(&ids, 1, LEAST_MATCH), [4]);
        assert!(drafting.draft(&ids[..6], 100, LEAST_MATCH).is_empty());
        drafting.judge(3, 3);
        assert_eq!(drafting.draft(&ids, 100, LEAST_MATCH), [4, 5, 6, 9, 1, 2]);
        drafting.judge(6, 0);
        assert!(drafting.draft(&ids, 100, LEAST_MATCH).is_empty());
        assert!(drafting.draft(&ids, 100, LEAST_MATCH).is_empty());
        assert_eq!(drafting.draft(&ids, 100, LEAST_MATCH), [4, 5, 6]);
        // A long match is tried at once.
        let long: Vec<u32> = (0..10).chain(0..10).collect();
        drafting.judge(3, 0);
        assert_eq!(drafting.draft(&long[..19], 100, LONG_MATCH), [9]);
        assert!(Drafting::new(8).draft(&ids, 100, LONG_MATCH).is_empty());
        // One token again and again, and two in turns, go on.
        let mut drafting = Drafting::new(8);
        assert_eq!(drafting.draft(&[7; 6], 100, LEAST_MATCH), [7; 3]);
        drafting.judge(3, 3);
        assert_eq!(drafting.draft(&[1, 2, 1, 2, 1, 2, 1], 5, LEAST_MATCH), [2, 1, 2, 1, 2]);
        assert!(Drafting::new(0).draft(&ids, 100, LEAST_MATCH).is_empty());
    }
}
