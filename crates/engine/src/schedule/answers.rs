//! The requests of the batch, the events that they are sent, and the totals of all.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fathom_base::{Event, Load};
use fathom_tensor::PAGE_ROWS;

use super::clock::Clock;
use super::sequence::{Request, Sequence};
use crate::error::Error;
use crate::structure::Structures;

/// Number of steps in [`Load::step_tokens`].
const STEPS: usize = 64;

/// Requests and their answers.
pub(super) struct Answers<'e> {
    pub requests: BTreeMap<u64, Request<'e>>,
    pub structures: Structures,
    pub totals: Load,
    pub clock: Clock,
    requested: u64,
    /// Tokens of prompts read lately, and the seconds that it took.
    prefilled: [f64; 2],
}

impl<'e> Answers<'e> {
    pub fn new(clock: Clock) -> Answers<'e> {
        Answers {
            requests: BTreeMap::new(),
            structures: Structures::default(),
            totals: Load { page_tokens: PAGE_ROWS, ..Load::default() },
            clock,
            requested: 0,
            prefilled: [0.0; 2],
        }
    }

    /// The next number of a request.
    pub fn number(&mut self) -> u64 {
        self.requested += 1;
        self.requested
    }

    /// Requests whose time is up.
    pub fn expired(&self) -> Vec<u64> {
        let now = self.clock.now();
        let late = |request: &Request<'_>| {
            let open_s = now.saturating_sub(request.arrived).as_secs_f64();
            request.asked.deadline_s.is_some_and(|limit| open_s > limit)
        };
        self.requests.iter().filter(|(_, it)| late(it)).map(|(id, _)| *id).collect()
    }

    /// Number of leading tokens of a sequence that may be cached: those that precede the token before the first one
    /// whose log-probability is reported. `lead` of them are virtual.
    pub fn may_skip(&self, sequence: &Sequence<'_>, lead: usize) -> usize {
        let request = self.requests.get(&sequence.request);
        match request.filter(|it| it.asked.prompt_logprobs.is_some()).map(|it| it.reported_from) {
            None => usize::MAX,
            Some(0 | 1) => 0,
            Some(from) => lead + from - 1,
        }
    }

    /// Records that a sequence starts to run, with this many tokens of its prompt cached and `lead` virtual ones.
    pub fn start(&mut self, sequence: &Sequence<'_>, cached: usize, lead: usize) {
        if let Some(request) = self.requests.get_mut(&sequence.request)
            && request.started.is_none()
        {
            request.started = Some(Instant::now());
            request.usage.queue_s = request.submitted.elapsed().as_secs_f64();
            request.usage.cached_tokens = cached.saturating_sub(lead);
            self.totals.prefix_queries += sequence.prompt as u64;
            self.totals.prefix_hits += cached as u64;
        }
    }

    /// Sends an event of a request that is over, whatever the listener returns.
    pub fn tell(&mut self, id: u64, event: Event) {
        if let Some(request) = self.requests.get_mut(&id) {
            _ = (request.listener)(event);
        }
    }

    /// Reports that a request is done.
    pub fn finish(&mut self, id: u64) {
        let Some(mut request) = self.requests.remove(&id) else { return };
        request.usage.decode_s = request.first.map_or(0.0, |first| first.elapsed().as_secs_f64());
        (request.listener)(Event::Done(request.usage));
    }

    /// Reports that a request failed.
    pub fn fail(&mut self, id: u64, error: Error) {
        if let Some(mut request) = self.requests.remove(&id) {
            (request.listener)(Event::Failed(error.into()));
        }
    }

    /// Adds a step to the totals: the tokens that it read, those of prompts among them, and its time.
    pub fn count(&mut self, read: usize, prompts: usize, seconds: f64) {
        if self.totals.step_tokens.len() == STEPS {
            self.totals.step_tokens.remove(0);
        }
        self.totals.step_tokens.push(read as u32);
        self.totals.prompt_tokens += prompts as u64;
        if 2 * prompts > read {
            // A decaying average over the last few seconds of reading.
            let keep = if self.prefilled[1] > 10.0 { 0.5 } else { 1.0 };
            self.prefilled = [self.prefilled[0] * keep + read as f64, self.prefilled[1] * keep + seconds];
        }
    }

    /// Tokens of prompts read per second lately.
    pub fn prefill_tokens_per_s(&self) -> f64 {
        if self.prefilled[1] > 0.0 { self.prefilled[0] / self.prefilled[1] } else { 0.0 }
    }

    /// Time for waiting and deadlines.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }
}
