//! A pretended model: it writes at a given pace, or at once, and its texts contain the time of writing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fathom_base::{
    Administer, Conversation, Describe, Error, Evaluate, Event, Generate, GenerateRequest, Load, ModelCard,
    Numbers, Prompt, Result, Sink, SpecialTokens, Stop, TextIds, TextPair, Ticket, Tokenize, Usage,
    VectorSink,
};

/// Marks a text that contains its time of writing, in microseconds.
const MARK: &str = "@";

/// Times of written tokens, and their delays at the clients.
#[derive(Debug)]
pub(super) struct Clock {
    origin: Instant,
    delays: Mutex<Vec<f64>>,
}

impl Clock {
    /// A clock without delays.
    pub fn new() -> Arc<Clock> {
        Arc::new(Clock { origin: Instant::now(), delays: Mutex::default() })
    }

    /// A text with the current time.
    fn text(&self) -> String {
        format!("{MARK}{} ", self.origin.elapsed().as_micros())
    }

    /// Records the delay of a received text, if it contains its time of writing.
    pub fn heard(&self, text: &str) {
        let now = self.origin.elapsed().as_micros() as u64;
        if let Some(written) = text.strip_prefix(MARK).and_then(|text| text.trim().parse::<u64>().ok()) {
            let delay = now.saturating_sub(written) as f64 / 1e6;
            self.delays.lock().unwrap_or_else(PoisonError::into_inner).push(delay);
        }
    }

    /// All delays in seconds.
    pub fn take(&self) -> Vec<f64> {
        std::mem::take(&mut self.delays.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A request in progress.
struct MockRequest {
    clock: Arc<Clock>,
    request: GenerateRequest,
    sink: Sink,
    written: usize,
}

/// The pretended model.
pub(super) struct StandInModel {
    clock: Arc<Clock>,
    /// `None` answers at once.
    writes: Option<Sender<MockRequest>>,
}

impl StandInModel {
    /// A model that answers within the submission.
    pub fn at_once() -> StandInModel {
        StandInModel { clock: Clock::new(), writes: None }
    }

    /// A model that writes `per_s` tokens per second to each request, by a clock.
    pub fn paced(per_s: f64, clock: &Arc<Clock>) -> StandInModel {
        let (send, receive) = channel();
        thread::spawn(move || write(&receive, Duration::from_secs_f64(1.0 / per_s)));
        StandInModel { clock: clock.clone(), writes: Some(send) }
    }
}

impl MockRequest {
    fn prompt(&self) -> Vec<u32> {
        match &self.request.prompt {
            Prompt::Ids(ids) => ids.clone(),
            _ => Vec::new(),
        }
    }

    /// Writes a token; false at the end.
    fn token(&mut self) -> bool {
        if self.written == 0 {
            let prompt = self.prompt();
            (self.sink)(Event::Started { prompt, cached_tokens: 0, logprobs: Vec::new() });
        }
        let text = self.clock.text();
        (self.sink)(Event::Piece { answer: 0, text, ids: vec![1], logprobs: Vec::new() });
        self.written += 1;
        if self.written < self.request.sampling.max_tokens {
            return true;
        }
        (self.sink)(Event::Ended { answer: 0, stop: Stop::Length });
        let (prompt_tokens, answer_tokens) = (self.prompt().len(), self.written);
        (self.sink)(Event::Done(Usage { prompt_tokens, answer_tokens, ..Usage::default() }));
        false
    }
}

/// Writes the requested tokens until all senders are gone.
fn write(asked: &Receiver<MockRequest>, pace: Duration) {
    let mut all: Vec<Option<MockRequest>> = Vec::new();
    let mut due: BinaryHeap<Reverse<(Instant, usize)>> = BinaryHeap::new();
    loop {
        let wait = due
            .peek()
            .map_or(Duration::from_secs(1), |Reverse((at, _))| at.saturating_duration_since(Instant::now()));
        match asked.recv_timeout(wait) {
            Ok(writing) => {
                due.push(Reverse((Instant::now() + pace, all.len())));
                all.push(Some(writing));
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        while let Some(Reverse((at, index))) =
            due.peek().copied().filter(|Reverse((at, _))| *at <= Instant::now())
        {
            due.pop();
            if all[index].as_mut().is_some_and(MockRequest::token) {
                due.push(Reverse((at + pace, index)));
            } else {
                all[index] = None;
            }
        }
    }
}

impl Describe for StandInModel {
    fn card(&self) -> ModelCard {
        let (name, context_tokens, vocabulary) = ("pretended".to_string(), 1 << 20, 256);
        ModelCard { name, context_tokens, vocabulary, generates: true, ..ModelCard::default() }
    }

    fn load(&self) -> Load {
        Load::default()
    }
}

impl Tokenize for StandInModel {
    fn encode(&self, text: &str, _: SpecialTokens) -> Result<Vec<u32>> {
        Ok(text.split(' ').map(|word| word.len() as u32).collect())
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        Ok(format!("{} tokens", ids.len()))
    }

    fn token_bytes(&self, _: u32) -> Vec<u8> {
        Vec::new()
    }

    fn render(&self, _: &Conversation) -> Result<String> {
        Err(Error::product("a pretended model does not converse"))
    }
}

impl Generate for StandInModel {
    fn submit_while(&self, request: GenerateRequest, sink: Sink, _: &dyn Fn() -> bool) -> Result<Ticket> {
        let mut writing = MockRequest { clock: self.clock.clone(), request, sink, written: 0 };
        match &self.writes {
            None => while writing.token() {},
            Some(send) => send.send(writing).map_err(|_| Error::product("the pretended model has ended"))?,
        }
        Ok(Ticket::new(|| ()))
    }
}

impl Evaluate for StandInModel {
    fn read(&self, (text, _): &TextPair, _: Numbers, _: Option<usize>) -> Result<TextIds> {
        Ok(self.encode(text, SpecialTokens::Prompt)?.into())
    }

    fn numbers(&self, _: Vec<TextIds>, _: Numbers, _: VectorSink) -> Result<Ticket> {
        Err(Error::product("a pretended model has no vectors"))
    }
}

impl Administer for StandInModel {
    fn load_adapter(&self, _: &str, _: &Path) -> Result<()> {
        Err(Error::product("a pretended model takes no adapters"))
    }

    fn unload_adapter(&self, _: &str) -> Result<()> {
        Err(Error::product("a pretended model has no adapters"))
    }

    fn erase_prefixes(&self) -> Result<u64> {
        Ok(0)
    }
}
