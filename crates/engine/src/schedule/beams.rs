//! Beam search: the most likely beginnings of an answer are extended in parallel, and the best answers are returned at
//! the end.
//!
//! A beginning (*beam*) is a sequence like any other; beams share the pages of their common tokens, and a page that two
//! would write to is copied. When all beams of a request have been read to their ends, the best continuations of all of
//! them become the beams of the next step. Scores, and the conditions for finishing an answer and the search, are those
//! of Transformers' `generate(num_beams=..)`.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use fathom_base::{Beams, EarlyStopping, Event, GenerateRequest, Stop, TokenLogprob};
use fathom_tensor::{Tensor, choice};

use super::Scheduler;
use super::sequence::Sequence;
use crate::engine::ranked;
use crate::error::Error;
use crate::pages::Table;

/// The search state of a sequence.
#[derive(Debug, Default)]
pub(super) struct Beam {
    /// Sum of its tokens' log-probabilities.
    sum: f64,
    /// Log-probabilities of the next token, once all tokens are read.
    next: Option<Vec<f32>>,
    /// Reported log-probabilities of its tokens.
    logprobs: Vec<TokenLogprob>,
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
    how: Beams,
    prompt: Vec<u32>,
    /// The distinct end tokens.
    ends: Vec<u32>,
    max_tokens: usize,
    /// The best finished answers, best first.
    finished: Vec<Found>,
}

/// A finished answer.
#[derive(Debug)]
struct Found {
    score: f64,
    ids: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
    stop: Stop,
}

/// A beam with one more token.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Next {
    beam: usize,
    id: u32,
    sum: f64,
}

impl Next {
    /// Most likely first; ties go to the earlier beam, then to the lower id.
    fn order(&self, other: &Next) -> Ordering {
        other.sum.total_cmp(&self.sum).then((self.beam, self.id).cmp(&(other.beam, other.id)))
    }
}

/// Result of a step of the search.
#[derive(Debug, Default)]
struct Turn {
    /// The beams that end here.
    ended: Vec<Next>,
    /// The beams of the next step.
    open: Vec<Next>,
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
    fn turn(&self, beams: &[(f64, &[f32])], tokens: usize) -> Turn {
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
    fn score(&self, sum: f64, tokens: usize) -> f64 {
        sum / (tokens as f64).powf(self.how.length_penalty)
    }

    /// Adds a finished answer, if it is among the best.
    fn finish(&mut self, found: Found) {
        let at = self.finished.partition_point(|other| other.score >= found.score);
        self.finished.insert(at, found);
        self.finished.truncate(self.how.width);
    }

    /// True if no further step can change the result; the open beams have `tokens` tokens, and the best of them this
    /// sum.
    fn is_over(&self, best: Option<f64>, tokens: usize) -> bool {
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

impl<'e> Scheduler<'e> {
    /// Stores the next log-probabilities of a beam that is read to its end.
    ///
    /// # Errors
    /// The logits are not finite.
    pub(super) fn weigh(&mut self, index: usize, logits: &Tensor) -> Result<(), Error> {
        let sequence = &mut self.running[index];
        let (Some(beam), Some(request)) = (&mut sequence.beam, self.requests.get(&sequence.request)) else {
            return Ok(());
        };
        let mut row = self.engine.device.to_f32(logits);
        let top = choice::largest(&row).ok_or(Error::NotFinite { what: "a logit" })?;
        let top = f64::from(row[top]);
        let mass = top + row.iter().map(|logit| (f64::from(*logit) - top).exp()).sum::<f64>().ln();
        row.iter_mut().for_each(|logit| *logit = (f64::from(*logit) - mass) as f32);
        let tokens = sequence.ids.len() - sequence.prompt;
        if let Some(search) = request.search.as_ref().filter(|_| tokens < request.asked.sampling.min_tokens) {
            for id in &search.ends {
                row.get_mut(*id as usize).into_iter().for_each(|it| *it = f32::NEG_INFINITY);
            }
        }
        beam.next = Some(row);
        Ok(())
    }

    /// Continues a request's search if all of its beams are read.
    pub(super) fn search(&mut self, request: u64) {
        let of_it = |sequence: &&Sequence<'_>| sequence.request == request;
        let is_read = |it: &Sequence<'_>| it.beam.as_ref().is_some_and(Beam::is_read);
        let Some(record) = self.requests.get_mut(&request) else { return };
        let (Some(search), top) = (&mut record.search, record.asked.logprobs) else { return };
        if !self.running.iter().chain(&self.waiting).filter(of_it).all(is_read) {
            return;
        }
        let (mut beams, rest) = self.running.drain(..).partition::<Vec<_>, _>(|it| it.request == request);
        self.running = rest;
        let ran = beams.len();
        beams.extend(self.waiting.extract_if(.., |it| it.request == request));
        let mut order: Vec<usize> = (0..beams.len()).collect();
        order.sort_by_key(|at| beams[*at].answer);
        let rows: Vec<(f64, &[f32])> = order
            .iter()
            .filter_map(|at| beams[*at].beam.as_ref())
            .map(|beam| (beam.sum, beam.next.as_deref().unwrap_or_default()))
            .collect();
        let tokens = beams.first().map_or(0, |beam| beam.ids.len() - beam.prompt) + 1;
        let Turn { ended, open } = search.turn(&rows, tokens);
        let logprobs = |next: &Next| -> Vec<TokenLogprob> {
            let (Some(top), Some(beam)) = (top, &beams[order[next.beam]].beam) else { return Vec::new() };
            let row = rows[next.beam].1;
            let mut logprobs = beam.logprobs.clone();
            logprobs.push(ranked(next.id, row[next.id as usize], row, top));
            logprobs
        };
        for next in ended {
            let parent = &beams[order[next.beam]];
            let (mut ids, mut logprobs) = (parent.ids[parent.prompt..].to_vec(), logprobs(&next));
            let ends = search.ends.contains(&next.id);
            if ends {
                logprobs.truncate(ids.len());
            } else {
                ids.push(next.id);
            }
            let stop = if ends { Stop::EndOfText } else { Stop::Length };
            search.finish(Found { score: search.score(next.sum, tokens), ids, logprobs, stop });
        }
        let is_over = search.is_over(open.first().map(|next| next.sum), tokens);
        let mut children: Vec<Vec<Child>> = beams.iter().map(|_| Vec::new()).collect();
        for (answer, next) in open.iter().enumerate() {
            let beam = Beam { sum: next.sum, next: None, logprobs: logprobs(next) };
            children[order[next.beam]].push(Child { answer, id: next.id, beam });
        }
        if is_over {
            children.iter_mut().for_each(Vec::clear);
        }
        self.go_on(beams.into_iter().zip(children).collect(), ran);
        if is_over {
            self.conclude(request);
        }
    }

    /// Replaces beams by their children; the first `ran` beams have pages. Beams without children free theirs first.
    fn go_on(&mut self, beams: Vec<(Sequence<'e>, Vec<Child>)>, ran: usize) {
        let mut left = Vec::with_capacity(beams.len());
        for (at, (mut sequence, children)) in beams.into_iter().enumerate() {
            if !children.is_empty() {
                left.push((sequence, children, at < ran));
            } else if at < ran {
                self.pages.clear(&mut sequence.table);
                self.slots.push(sequence.slot);
            }
        }
        for (mut sequence, mut children, ran) in left {
            let Some(own) = children.pop() else { continue };
            for child in children {
                let writer = sequence.writer.again(self.engine.tokenizer.stream());
                let mut other = sequence.again(child.answer, writer, self.pages.table());
                other.follow(child);
                match if ran { self.place(&sequence) } else { None } {
                    Some((table, slot)) => {
                        self.running.push(Sequence { table, slot, held: sequence.held, ..other });
                    }
                    None => self.waiting.push(other),
                }
            }
            sequence.follow(own);
            if ran { self.running.push(sequence) } else { self.waiting.push(sequence) }
        }
    }

    /// A table that shares a running sequence's pages, and a slot; `None` if there is no room.
    fn place(&mut self, of: &Sequence<'e>) -> Option<(Table, usize)> {
        let slot = self.slots.pop()?;
        loop {
            match self.pages.fork(self.engine.device, &of.table, of.held) {
                Ok(table) => return Some((table, slot)),
                Err(short) if self.evict(short.class, (short.pages, false)) => {}
                Err(_) => {
                    self.slots.push(slot);
                    return None;
                }
            }
        }
    }

    /// Ends a search whose time is up with its current results.
    pub(super) fn cut(&mut self, request: u64) {
        let Some(search) = self.requests.get_mut(&request).and_then(|it| it.search.as_mut()) else { return };
        for it in self.running.iter().chain(&self.waiting).filter(|it| it.request == request) {
            let ids = it.ids[it.prompt..].to_vec();
            if let (Some(beam), false) = (&it.beam, ids.is_empty()) {
                let score = search.score(beam.sum, ids.len());
                search.finish(Found { score, ids, logprobs: beam.logprobs.clone(), stop: Stop::Deadline });
            }
        }
        self.conclude(request);
        self.drop_sequences(request);
    }

    /// Reports the best answers of a search, and ends its request.
    fn conclude(&mut self, id: u64) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let Some(Search { prompt, finished, .. }) = request.search.take() else { return };
        let asked = request.asked.clone();
        let mut found = finished.into_iter();
        for answer in 0..asked.answers {
            let Some(Found { ids, logprobs, stop, .. }) = found.next() else {
                // There are fewer answers than requested: the vocabulary is exhausted, or the time was up.
                self.tell(id, Event::Ended { answer, stop: Stop::Length });
                continue;
            };
            let Ok((_, mut writer)) = self.answerer(&asked, &prompt) else { return };
            let mut text: String = ids.iter().map(|id| writer.push(*id).text).collect();
            text.push_str(&writer.rest());
            self.totals.answer_tokens += ids.len() as u64;
            if let Some(request) = self.requests.get_mut(&id) {
                request.usage.answer_tokens += ids.len();
            }
            self.tell(id, Event::Piece { answer, text, ids, logprobs });
            self.tell(id, Event::Ended { answer, stop });
        }
        self.finish(id);
    }

    fn tell(&mut self, id: u64, event: Event) {
        if let Some(request) = self.requests.get_mut(&id) {
            // The request is over, whatever the listener returns.
            _ = (request.listener)(event);
        }
    }
}

/// The continuation of a beam.
struct Child {
    answer: usize,
    id: u32,
    beam: Beam,
}

impl Sequence<'_> {
    fn follow(&mut self, Child { answer, id, beam }: Child) {
        self.answer = answer;
        self.ids.push(id);
        self.beam = Some(beam);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(width: usize, ends: &[u32], early_stopping: EarlyStopping) -> Search {
        let how = Beams { width, length_penalty: 1.0, early_stopping };
        Search { how, prompt: vec![1], ends: ends.to_vec(), max_tokens: 10, finished: Vec::new() }
    }

    fn found(score: f64) -> Found {
        Found { score, ids: Vec::new(), logprobs: Vec::new(), stop: Stop::EndOfText }
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
