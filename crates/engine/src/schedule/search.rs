//! Beam search over the batch: beams are read together, and continued or ended once all of them are read.

use fathom_base::{Event, Stop, TokenLogprob};
use fathom_tensor::{Tensor, choice};

use super::Scheduler;
use super::beams::{Beam, FinishedBeam, Next, Search, Turn};
use super::sequence::Sequence;
use crate::engine::ranked;
use crate::error::Error;
use crate::pages::Table;

impl<'e> Scheduler<'e> {
    /// Stores the next log-probabilities of a beam that is read to its end.
    pub(super) fn weigh(&mut self, index: usize, logits: &Tensor) -> Result<(), Error> {
        let sequence = &mut self.batch.running[index];
        let (Some(beam), Some(request)) = (&mut sequence.beam, self.answers.requests.get(&sequence.request))
        else {
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
        let is_read = |it: &Sequence<'_>| it.beam.as_ref().is_some_and(Beam::is_read);
        let Some(record) = self.answers.requests.get_mut(&request) else { return };
        let (Some(search), top) = (&mut record.search, record.asked.logprobs) else { return };
        if !self.batch.of(request).all(is_read) {
            return;
        }
        let (beams, ran) = self.batch.take(request);
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
            search.finish(FinishedBeam { score: search.score(next.sum, tokens), ids, logprobs, stop });
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
                self.memory.pages.clear(&mut sequence.table);
                self.batch.slots.push(sequence.slot);
            }
        }
        for (mut sequence, mut children, ran) in left {
            let Some(own) = children.pop() else { continue };
            for child in children {
                let writer = sequence.writer.again(self.engine.tokenizer.stream());
                let mut other = sequence.again(child.answer, writer, self.memory.pages.table());
                other.follow(child);
                match if ran { self.place(&sequence) } else { None } {
                    Some((table, slot)) => {
                        self.batch.running.push(Sequence { table, slot, held: sequence.held, ..other });
                    }
                    None => self.batch.waiting.push(other),
                }
            }
            sequence.follow(own);
            if ran { self.batch.running.push(sequence) } else { self.batch.waiting.push(sequence) }
        }
    }

    /// A table that shares a running sequence's pages, and a slot; `None` if there is no room.
    fn place(&mut self, of: &Sequence<'e>) -> Option<(Table, usize)> {
        let slot = self.batch.slots.pop()?;
        loop {
            match self.memory.pages.fork(self.engine.device, &of.table, of.held) {
                Ok(table) => {
                    self.memory.pages.copy_states(self.engine.device, [of.slot, slot]);
                    return Some((table, slot));
                }
                Err(short) if self.memory.evict(short.class, (short.pages, false)) => {}
                Err(_) => {
                    self.batch.slots.push(slot);
                    return None;
                }
            }
        }
    }

    /// Ends a search whose time is up with its current results.
    pub(super) fn cut(&mut self, request: u64) {
        let Some(search) = self.answers.requests.get_mut(&request).and_then(|it| it.search.as_mut()) else {
            return;
        };
        for it in self.batch.of(request) {
            let ids = it.ids[it.prompt..].to_vec();
            if let (Some(beam), false) = (&it.beam, ids.is_empty()) {
                let score = search.score(beam.sum, ids.len());
                search.finish(FinishedBeam {
                    score,
                    ids,
                    logprobs: beam.logprobs.clone(),
                    stop: Stop::Deadline,
                });
            }
        }
        self.conclude(request);
        self.drop_sequences(request);
    }

    /// Reports the best answers of a search, and ends its request.
    fn conclude(&mut self, id: u64) {
        let Some(request) = self.answers.requests.get_mut(&id) else { return };
        let Some(Search { prompt, finished, .. }) = request.search.take() else { return };
        let asked = request.asked.clone();
        let mut found = finished.into_iter();
        for answer in 0..asked.answers {
            let Some(FinishedBeam { ids, logprobs, stop, .. }) = found.next() else {
                // There are fewer answers than requested: the vocabulary is exhausted, or the time was up.
                self.answers.tell(id, Event::Ended { answer, stop: Stop::Length });
                continue;
            };
            let Ok((_, mut writer)) = self.answerer(&asked, &prompt) else { return };
            let mut text: String = ids.iter().map(|id| writer.push(*id).text).collect();
            text.push_str(&writer.rest());
            self.answers.totals.answer_tokens += ids.len() as u64;
            if let Some(request) = self.answers.requests.get_mut(&id) {
                request.usage.answer_tokens += ids.len();
            }
            self.answers.tell(id, Event::Piece { answer, text, ids, logprobs });
            self.answers.tell(id, Event::Ended { answer, stop });
        }
        self.answers.finish(id);
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
