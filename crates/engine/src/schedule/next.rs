//! Selection of the tokens that follow those read in a step.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use fathom_base::{Event, Flow, Stop, TokenLogprob};
use fathom_tensor::choice::{Draw, kept_bytes};
use fathom_tensor::{Category, DType, Tensor};

use super::sequence::{Request, Sequence};
use super::{Ready, Scheduler};
use crate::answer::TokenText;
use crate::error::Error;
use crate::sampler::{LOGIT, choose};
use crate::structure::Constraint;

/// A row of logits, and the token chosen from it if known.
struct Row {
    logits: Tensor,
    pick: Option<Pick>,
}

/// A token chosen from logits alone; its id is `None` if these are not finite.
#[derive(Clone)]
struct Pick {
    id: Option<u32>,
    /// Set if the request asked for log-probabilities.
    logprob: f32,
    /// Bit mask of the sampled candidates, if the request asked for it.
    kept: Vec<u8>,
}

impl Scheduler<'_> {
    /// Reports log-probabilities of the prompt tokens that follow these rows, if the request asked for them.
    pub(super) fn prompt_logprobs(
        &mut self,
        index: usize,
        hidden: &Tensor,
        rows: Range<usize>,
        known: Range<usize>,
    ) {
        let (sequence, lead) = (&self.batch.running[index], self.bounds.lead);
        let (first, end) = (known.start, known.end.min(sequence.prompt));
        let Some(request) = self.answers.requests.get_mut(&sequence.request) else { return };
        let from = request.reported_from;
        // The first token of text is reported as following nothing.
        let known = first.max(lead + from.max(1))..end;
        let (Some(top), true) = (request.asked.prompt_logprobs, known.start < end && sequence.answer == 0)
        else {
            return;
        };
        if request.logprobs.len() + from >= end - lead {
            return;
        }
        if request.logprobs.is_empty() && from == 0 {
            let id = sequence.ids[lead];
            request.logprobs.push(TokenLogprob {
                id,
                logprob: None,
                rank: None,
                top: Vec::new(),
                kept: Vec::new(),
            });
        }
        let labels = &sequence.ids[known.start..end];
        let rows = rows.start + known.start - first..rows.start + known.end - first;
        request.logprobs.extend(self.engine.logprobs(&hidden.view_rows(rows), labels, top));
    }

    /// Chooses the next tokens of the sequences that are read completely.
    pub(super) fn answer(&mut self, hidden: &Tensor, ready: &[Ready]) {
        if ready.is_empty() {
            return;
        }
        let rows: Vec<usize> = ready.iter().flat_map(|ready| ready.rows.clone()).collect();
        let logits = self.engine.head(hidden, &rows);
        let mut picks = self.pick(&logits, ready);
        let (mut ended, mut at) = (Vec::new(), 0);
        for Ready { index, rows } in ready {
            let rows = at..at + rows.len();
            at = rows.end;
            let row = |at: usize| Row { logits: logits.view_rows(at..at + 1), pick: picks[at].take() };
            let of: Vec<Row> = rows.map(row).collect();
            self.follow(*index, &of, &mut ended);
        }
        let searching =
            ready.iter().map(|ready| &self.batch.running[ready.index]).filter(|it| it.beam.is_some());
        let searching: BTreeSet<u64> = searching.map(|it| it.request).collect();
        ended.sort_unstable();
        ended.dedup();
        for index in ended.into_iter().rev() {
            let sequence = self.batch.running.remove(index);
            let request = sequence.request;
            self.retire(sequence);
            let open = self.answers.requests.get_mut(&request).map(|it| {
                it.open -= 1;
                it.open
            });
            if open == Some(0) {
                self.answers.finish(request);
            }
        }
        self.batch.waiting.retain(|sequence| self.answers.requests.contains_key(&sequence.request));
        self.memory.forget_reads(&self.batch.waiting);
        searching.into_iter().for_each(|request| self.search(request));
    }

    /// Chooses tokens from rows that depend on logits alone, for all sequences at once.
    fn pick(&self, logits: &Tensor, ready: &[Ready]) -> Vec<Option<Pick>> {
        let (mut draws, mut judged) = (Vec::with_capacity(logits.rows()), false);
        let mut keeps = Vec::with_capacity(logits.rows());
        for Ready { index, rows } in ready {
            let sequence = &self.batch.running[*index];
            let plain = sequence.structure.is_none() && sequence.beam.is_none();
            draws.extend((0..rows.len()).map(|guess| sequence.sampler.plain(guess).filter(|_| plain)));
            let asked = |request: &Request<'_>| request.asked.logprobs.is_some();
            let request = self.answers.requests.get(&sequence.request).filter(|_| plain);
            judged |= request.is_some_and(asked);
            keeps.resize(draws.len(), request.is_some_and(|request| request.asked.kept));
        }
        if draws.iter().all(Option::is_none) {
            return vec![None; draws.len()];
        }
        let chosen: Vec<Option<Draw>> = draws.iter().map(|draw| draw.flatten()).collect();
        let picks = self.picks(logits, &chosen, judged, &keeps);
        draws.iter().zip(picks).map(|(draw, pick)| draw.and(Some(pick))).collect()
    }

    /// Chooses a token in each row by its draw; with log-probabilities if `judged`, and with masks of the candidates in
    /// the rows of `keeps`.
    fn picks(&self, logits: &Tensor, draws: &[Option<Draw>], judged: bool, keeps: &[bool]) -> Vec<Pick> {
        let device = self.engine.device;
        let [rows, width] = [logits.rows(), kept_bytes(logits.cols())];
        let bits = keeps.contains(&true).then(|| device.empty(rows, width, DType::U8, Category::Activations));
        let ids = choose(device, logits, draws, bits.as_ref());
        let mut kept = Vec::new();
        if let Some(bits) = bits.as_ref().filter(|_| device.machine.has_data()) {
            kept = device.machine.read(bits).wait();
            if keeps.contains(&false) {
                let rows = kept.chunks_exact_mut(width).zip(keeps);
                rows.filter(|(_, keeps)| !**keeps).for_each(|(row, _)| row.fill(0xff));
                device.machine.write(bits, &kept);
            }
        }
        let labels: Vec<u32> = ids.iter().map(|id| id.unwrap_or(0)).collect();
        let losses = if judged { self.engine.surprises(logits, &labels, bits.as_ref()) } else { Vec::new() };
        let pick = |(row, id)| Pick {
            id,
            logprob: losses.get(row).map_or(0.0, |loss| -loss),
            kept: kept
                .get(row * width..(row + 1) * width)
                .filter(|_| keeps[row])
                .unwrap_or_default()
                .to_vec(),
        };
        ids.into_iter().enumerate().map(pick).collect()
    }

    /// [`Scheduler::picks`] for one row, if its sequence asks for the mask of candidates.
    fn pick_kept(&self, sequence: &Sequence, logits: &Tensor) -> Option<Pick> {
        let asked = self.answers.requests.get(&sequence.request).is_some_and(|request| request.asked.kept);
        let draw = sequence.sampler.plain(0).filter(|_| asked)?;
        self.picks(logits, &[draw], true, &[true]).pop()
    }

    /// Chooses the token after a sequence's last one and, as long as they are right, after its guesses.
    fn follow(&mut self, index: usize, of: &[Row], ended: &mut Vec<usize>) {
        let Some(Row { logits, .. }) = of.first() else { return };
        self.prompt_ends(index);
        if self.batch.running[index].beam.is_some() {
            if let Err(error) = self.weigh(index, logits) {
                self.fail(self.batch.running[index].request, error, ended);
            }
            return;
        }
        self.fork(index, logits, ended);
        let drafts = std::mem::take(&mut self.batch.running[index].drafts);
        let saved = self.batch.running[index].saved.take();
        let mut right = 0;
        for (guess, row) in of.iter().enumerate() {
            let chosen = self.next(index, row, ended);
            let goes_on = chosen.is_some() && chosen == drafts.get(guess).copied();
            if !goes_on {
                break;
            }
            // The guessed token was read already.
            right += 1;
            self.batch.running[index].held += 1;
        }
        self.judge(index, drafts.len(), right);
        if let Some(held) = saved.filter(|_| right < drafts.len()) {
            // States have taken in wrong guesses: the right ones are read again with the next token.
            self.memory.pages.step_back(self.engine.device, self.batch.running[index].slot);
            let sequence = &mut self.batch.running[index];
            sequence.again = std::mem::replace(&mut sequence.held, held) - held;
        }
    }

    /// Handles a prompt that is completely read for the first time: it is cached as a prefix, and the request has
    /// started.
    fn prompt_ends(&mut self, index: usize) {
        let sequence = &self.batch.running[index];
        if sequence.held != sequence.prompt {
            return;
        }
        self.memory.share_prompt(sequence, self.engine.spec());
        let Some(request) = self.answers.requests.get_mut(&sequence.request) else { return };
        if request.first.is_none() {
            request.first = Some(Instant::now());
            request.usage.prefill_s = request.started.map_or(0.0, |started| started.elapsed().as_secs_f64());
            let logprobs = std::mem::take(&mut request.logprobs);
            let (cached_tokens, prompt) =
                (request.usage.cached_tokens, sequence.prompt_ids(self.bounds.lead));
            (request.listener)(Event::Started { prompt, cached_tokens, logprobs });
        }
    }

    /// Starts the further answers to a prompt that has just been read, sharing its pages.
    fn fork(&mut self, index: usize, logits: &Tensor, ended: &mut Vec<usize>) {
        let sequence = &self.batch.running[index];
        let answers = self.answers.requests.get(&sequence.request).map_or(1, |it| it.asked.answers);
        if answers == 1 || sequence.answer != 0 || sequence.held != sequence.prompt {
            return;
        }
        for answer in 1..answers {
            let sequence = &self.batch.running[index];
            let Some(request) = self.answers.requests.get(&sequence.request) else { return };
            let prompt = &sequence.ids[self.bounds.lead..];
            let Ok((_, writer)) = self.answerer(&request.asked, prompt) else { return };
            let other = self.batch.running[index].again(answer, writer, self.memory.pages.table());
            let sequence = &self.batch.running[index];
            // Only one sequence on disk runs at a time.
            let room = self.batch.running.len() < self.bounds.capacity.sequences && !sequence.on_disk;
            let table =
                room.then(|| self.memory.pages.fork(self.engine.device, &sequence.table, sequence.held));
            match (table, room.then(|| self.batch.slots.pop()).flatten()) {
                (Some(Ok(table)), Some(slot)) => {
                    self.memory.pages.copy_states(self.engine.device, [sequence.slot, slot]);
                    let (held, pick) = (sequence.held, self.pick_kept(&other, logits));
                    self.batch.running.push(Sequence { table, held, slot, ..other });
                    let row = Row { logits: logits.clone(), pick };
                    self.next(self.batch.running.len() - 1, &row, ended);
                }
                (table, slot) => {
                    if let Some(Ok(mut table)) = table {
                        self.memory.pages.clear(&mut table);
                    }
                    self.batch.slots.extend(slot);
                    self.batch.waiting.push(other);
                }
            }
        }
    }

    /// Chooses the next token of a sequence from its logits, and returns it if the answer continues; otherwise records
    /// its end.
    fn next(&mut self, index: usize, row: &Row, ended: &mut Vec<usize>) -> Option<u32> {
        let logits = &row.logits;
        let (engine, sequence) = (self.engine, &mut self.batch.running[index]);
        let Some(request) = self.answers.requests.get_mut(&sequence.request) else {
            ended.push(index);
            return None;
        };
        let sampler = &mut sequence.sampler;
        let next = match &row.pick {
            Some(Pick { id, .. }) => id.map(|id| sampler.chose(id)).ok_or(Error::NotFinite { what: LOGIT }),
            None => {
                let allowed = sequence.structure.as_mut().map(Constraint::mask).transpose();
                allowed.and_then(|allowed| sampler.next(engine.device, logits, allowed))
            }
        };
        let id = match next {
            Ok(id) => id,
            Err(error) => {
                let id = sequence.request;
                self.fail(id, error, ended);
                return None;
            }
        };
        let TokenText { text, counts, mut stop } = sequence.writer.push(id);
        if counts
            && stop.is_none()
            && let Some(structure) = &mut sequence.structure
        {
            // The mask allowed this token; if it ends the text, it does so after being included.
            stop = (structure.take(id).unwrap_or(true)).then_some(Stop::Structure);
        }
        let mut logprobs = Vec::new();
        if counts {
            sequence.ids.push(id);
            request.usage.answer_tokens += 1;
            self.answers.totals.answer_tokens += 1;
            if let Some(top) = request.asked.logprobs {
                logprobs = match &row.pick {
                    Some(Pick { logprob, kept, .. }) => {
                        let ranked = engine.ranked(logits, (id, *logprob), top);
                        ranked.map(|token| TokenLogprob { kept: kept.clone(), ..token }).into_iter().collect()
                    }
                    None => engine.judge(logits, &[id], top),
                };
            }
        }
        let (answer, ids) = (sequence.answer, if counts { vec![id] } else { Vec::new() });
        let flow = (request.listener)(Event::Piece { answer, text, ids, logprobs });
        let stop = stop.or((flow == Flow::Stop).then_some(Stop::Receiver));
        if let Some(stop) = stop {
            (request.listener)(Event::Ended { answer, stop });
            ended.push(index);
            return None;
        }
        Some(id)
    }

    /// Fails a request; its sequences end.
    fn fail(&mut self, id: u64, error: Error, ended: &mut Vec<usize>) {
        self.answers.fail(id, error);
        ended.extend((0..self.batch.running.len()).filter(|at| self.batch.running[*at].request == id));
    }
}
