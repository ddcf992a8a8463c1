//! The answers to one request: events of the model in, events within rails out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use fathom_base::{Event, Sink, Stop, TokenLogprob, Usage};

use crate::config::Reasoning;
use crate::engine::{Engine, Subject};
use crate::reasoning::ThoughtFilter;
use crate::stream::{AnswerStart, AnswerStream, own};
use crate::verdict::{Reason, Verdict};

/// Records a judged answer; returns whether it may pass.
type Record<'a> = &'a dyn Fn(&str, &[Verdict]) -> bool;

/// Text for the user in place of a refused one.
pub(crate) fn refused_text(engine: &Engine, verdict: &Verdict) -> String {
    verdict.message.clone().unwrap_or_else(|| engine.config().settings.refusal.clone())
}

/// The answers to one request.
pub(crate) struct Answers {
    engine: Arc<Engine>,
    subject: Subject,
    beginning: AnswerStart,
    /// True if token ids and log-probabilities are withheld, since texts are rewritten.
    withheld: bool,
    all: Vec<GuardedAnswer>,
    usage: Usage,
    first: Option<Instant>,
    has_released: bool,
}

struct GuardedAnswer {
    stream: AnswerStream,
    thoughts: Option<ThoughtFilter>,
    /// Bytes that came in and went out.
    bytes_in: usize,
    bytes_out: usize,
    /// Tokens by the byte at which their text ends.
    tokens: VecDeque<(usize, Vec<u32>, Vec<TokenLogprob>)>,
    is_over: bool,
}

impl Answers {
    /// The answers to a request, before its first event.
    pub fn new(
        engine: Arc<Engine>,
        subject: Subject,
        (answers, beginning): (usize, AnswerStart),
        withheld: bool,
    ) -> Answers {
        let mut new = Answers {
            engine,
            subject,
            beginning,
            withheld,
            all: Vec::new(),
            usage: Usage::default(),
            first: None,
            has_released: false,
        };
        new.grow(answers);
        new
    }

    fn grow(&mut self, answers: usize) {
        while self.all.len() < answers {
            let drops = self.engine.config().settings.reasoning == Reasoning::Drop;
            self.all.push(GuardedAnswer {
                stream: AnswerStream::new(self.engine.clone(), self.subject.clone(), &self.beginning),
                thoughts: drops.then(|| ThoughtFilter::new(&self.beginning.prompt)),
                bytes_in: 0,
                bytes_out: 0,
                tokens: VecDeque::new(),
                is_over: false,
            });
        }
    }

    /// Begins with the end of the prompt, which may have opened thoughts.
    pub fn begin(&mut self, prompt: String) {
        let answers = self.all.len();
        self.beginning.prompt = prompt;
        self.all.clear();
        self.grow(answers);
    }

    /// Returns whether all answers have ended.
    pub fn are_over(&self) -> bool {
        !self.all.is_empty() && self.all.iter().all(|answer| answer.is_over)
    }

    /// Tokens so far, for a request that the rails end.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Counts the tokens of an event.
    pub fn count(&mut self, event: &Event) {
        match event {
            Event::Started { prompt, cached_tokens, .. } => {
                (self.usage.prompt_tokens, self.usage.cached_tokens) = (prompt.len(), *cached_tokens);
            }
            Event::Piece { ids, .. } => self.usage.answer_tokens += ids.len(),
            _ => {}
        }
    }

    /// Judges an event of the model and sends what may pass.
    pub fn push(&mut self, event: Event, sink: &mut Sink, record: Record<'_>) {
        self.count(&event);
        match event {
            Event::Piece { answer, text, ids, logprobs } => {
                self.first.get_or_insert_with(Instant::now);
                self.grow(answer + 1);
                if !self.all[answer].is_over {
                    self.piece(answer, &text, (ids, logprobs), sink, record);
                }
            }
            Event::Ended { answer, stop } => {
                self.grow(answer + 1);
                if !self.all[answer].is_over {
                    self.ended(answer, stop, sink, record);
                }
            }
            other => sink(other),
        }
    }

    fn piece(
        &mut self,
        index: usize,
        text: &str,
        (ids, logprobs): (Vec<u32>, Vec<TokenLogprob>),
        sink: &mut Sink,
        record: Record<'_>,
    ) {
        let answer = &mut self.all[index];
        let tokens = ids.len();
        let released = match &mut answer.thoughts {
            Some(thoughts) => answer.stream.push(&thoughts.push(text), tokens),
            None => answer.stream.push(text, tokens),
        };
        answer.bytes_in += text.len();
        if !self.withheld {
            answer.tokens.push_back((answer.bytes_in, ids, logprobs));
        }
        match released {
            Ok(released) => self.release(index, released, false, sink),
            Err(verdict) => self.refuse(index, &verdict, sink, record),
        }
    }

    fn ended(&mut self, index: usize, stop: Stop, sink: &mut Sink, record: Record<'_>) {
        let answer = &mut self.all[index];
        let rest = answer.thoughts.as_mut().map(ThoughtFilter::finish).unwrap_or_default();
        let last = answer.stream.push(&rest, 0);
        let ended = last.and_then(|mut last| {
            last.push_str(&answer.stream.finish()?);
            Ok(last)
        });
        match ended {
            Ok(released) => {
                if !record(answer.stream.text(), answer.stream.verdicts()) {
                    let verdict = Verdict { failed: true, ..own("audit", Reason::Failed) };
                    return self.refuse(index, &verdict, sink, &|_, _| true);
                }
                self.all[index].is_over = true;
                self.release(index, released, true, sink);
                sink(Event::Ended { answer: index, stop });
            }
            Err(verdict) => self.refuse(index, &verdict, sink, record),
        }
    }

    /// Sends released text with the tokens whose text it completes.
    fn release(&mut self, index: usize, text: String, is_last: bool, sink: &mut Sink) {
        let answer = &mut self.all[index];
        answer.bytes_out += text.len();
        let (mut ids, mut logprobs) = (Vec::new(), Vec::new());
        while answer.tokens.front().is_some_and(|(end, ..)| is_last || *end <= answer.bytes_out) {
            if let Some((_, more, more_logprobs)) = answer.tokens.pop_front() {
                ids.extend(more);
                logprobs.extend(more_logprobs);
            }
        }
        if text.is_empty() && ids.is_empty() {
            return;
        }
        if !self.has_released && !text.is_empty() {
            self.has_released = true;
            if let Some(first) = self.first {
                self.engine.metrics().first_release(first.elapsed());
            }
        }
        sink(Event::Piece { answer: index, text, ids, logprobs });
    }

    fn refuse(&mut self, index: usize, verdict: &Verdict, sink: &mut Sink, record: Record<'_>) {
        let answer = &mut self.all[index];
        answer.is_over = true;
        answer.tokens.clear();
        record(answer.stream.text(), std::slice::from_ref(verdict));
        self.engine.metrics().blocked(verdict.direction);
        let why = refused_text(&self.engine, verdict);
        sink(Event::Ended { answer: index, stop: Stop::Refused { rail: verdict.rail.clone(), why } });
    }
}
