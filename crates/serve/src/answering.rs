//! Requests in progress at a model: their permits, events and statistics. Dropping one cancels them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use fathom_base::{Event, GenerateRequest, Prompt, RequestOutput, Stop, Ticket, Usage};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

use crate::admission::{Permit, Permits};
use crate::api::{RequestNames, schema};
use crate::drain::Phase;
use crate::fault::Fault;
use crate::metrics::State;
use crate::shared::{Model, ServerState};
use crate::traces::{Span, SpanSubject};

/// Requests to one model, for the prompts of one HTTP request.
pub struct ModelRequests {
    shared: Arc<ServerState>,
    /// The model.
    pub model: Arc<Model>,
    adapter: Option<String>,
    named: RequestNames,
    /// Reported settings, if the request is traced.
    asked: Vec<(&'static str, Value)>,
    events: UnboundedReceiver<(usize, Event)>,
    _tickets: Vec<Ticket>,
    held: Permits,
    _permits: Vec<Permit>,
    phase: watch::Receiver<Phase>,
    /// Prompts with unfinished answers.
    open: usize,
    /// Total usage of all prompts so far.
    pub usage: Usage,
    arrived: Instant,
    /// True if a prompt has been read.
    started: bool,
    first_s: Option<f64>,
    last: BTreeMap<(usize, usize), Instant>,
    stops: Vec<&'static str>,
    failed: Option<&'static str>,
}

/// The reason why an answer ended, in OpenAI's terms.
pub fn reason(stop: &Stop) -> &'static str {
    match stop {
        Stop::EndOfText | Stop::StopToken(_) | Stop::StopText(_) | Stop::Structure => "stop",
        Stop::Length | Stop::Deadline => "length",
        Stop::Receiver => "abort",
        Stop::Refused { .. } => "content_filter",
    }
}

/// The stop text or the token of `stop_token_ids` that ended an answer, as reported by vLLM; or the rail that refused it.
pub fn ended_by(stop: Option<&Stop>) -> Value {
    match stop {
        Some(Stop::StopText(text)) => text.as_str().into(),
        Some(Stop::StopToken(id)) => (*id).into(),
        Some(Stop::Refused { rail, .. }) => rail.as_str().into(),
        _ => Value::Null,
    }
}

/// The frame that follows the last chunk of a stream of which a rail has blocked the rest, as NeMo Guardrails sends it.
pub fn blocked(stop: &Stop) -> Option<Value> {
    let Stop::Refused { rail, why } = stop else { return None };
    let error = json!({
        "message": format!("blocked by {rail}: {why}"),
        "type": "guardrails_violation",
        "param": "output_rails",
        "code": "content_blocked",
    });
    Some(json!({ "error": error }))
}

/// A request's settings as attributes of a span.
fn settings(request: &GenerateRequest) -> Vec<(&'static str, Value)> {
    let how = &request.sampling;
    vec![
        ("gen_ai.request.max_tokens", json!(how.max_tokens)),
        ("gen_ai.request.temperature", json!(how.temperature)),
        ("gen_ai.request.top_p", json!(how.top_p)),
        ("gen_ai.request.top_k", json!((how.top_k > 0).then_some(how.top_k))),
        ("gen_ai.request.frequency_penalty", json!(how.frequency_penalty)),
        ("gen_ai.request.presence_penalty", json!(how.presence_penalty)),
        ("gen_ai.request.seed", json!(how.seed as i64)),
        ("gen_ai.request.choice.count", json!((request.answers > 1).then_some(request.answers))),
    ]
}

/// Limits the log-probabilities of a response.
///
/// # Errors
/// The answers would list more log-probabilities than `most`: those of a prompt are repeated for each of its answers.
fn listed(requests: &[GenerateRequest], most: u64) -> Result<(), Fault> {
    let of = |request: &GenerateRequest| {
        let prompt = request.most_prompt_tokens();
        let each = |tokens: usize, top: Option<usize>| {
            tokens.saturating_mul(top.map_or(0, |top| top.saturating_add(1)))
        };
        let one = each(prompt, request.prompt_logprobs)
            .saturating_add(each(request.sampling.max_tokens, request.logprobs));
        (one as u64).saturating_mul(request.answers as u64)
    };
    let all = requests.iter().map(of).fold(0, u64::saturating_add);
    if all <= most {
        return Ok(());
    }
    Err(Fault::bad(format!(
        "the answers would list up to {all} log-probabilities, and {most} are the most (serve.max_listed_logprobs); ask for fewer \
         alternatives, tokens or answers"
    )))
}

impl ModelRequests {
    /// Submits requests to a model. `permit` is that of the HTTP request, which has room for one prompt.
    ///
    /// # Errors
    /// There is no room, or the model refuses.
    pub fn ask(
        shared: Arc<ServerState>,
        model: Arc<Model>,
        requests: Vec<GenerateRequest>,
        (named, permit): (RequestNames, Option<Permit>),
    ) -> Result<ModelRequests, Fault> {
        listed(&requests, shared.settings.max_listed_logprobs)?;
        // All prompts of a request have the same structure; that of tools was created by this server.
        if let Some(structure) = requests.first().and_then(|request| request.structure.as_ref()) {
            schema::check("structure", structure, &shared.settings)?;
        }
        let mut permits = vec![permit.ok_or_else(|| Fault::ours("this route takes no permit"))?];
        if requests.len() > 1 {
            let more = shared.requests.take(requests.len() as u64 - 1);
            permits.push(more.ok_or_else(|| Fault::busy("more prompts than requests are let in", 1.0))?);
        }
        let tokens = |request: &GenerateRequest| match (&request.ids, &request.prompt) {
            (Some(ids), _) | (None, Prompt::Ids(ids)) => ids.len() as u64,
            // Some three bytes of natural text are a token.
            (None, prompt) => prompt.most_tokens() as u64 / 3,
        };
        let prompts: u64 = requests.iter().map(tokens).sum();
        let answers =
            |it: &GenerateRequest| (it.sequences() as u64).saturating_mul(it.sampling.max_tokens as u64);
        let answers = requests.iter().map(answers).fold(0, u64::saturating_add);
        let per_s = model.service.load().prefill_tokens_per_s;
        let held = model.admission.admit(prompts, answers, per_s)?;
        let (send, events) = unbounded_channel();
        let adapter = requests.first().and_then(|request| request.adapter.clone());
        let asked = if shared.traces.wanted() { requests.first().map(settings) } else { None };
        let (open, mut tickets) = (requests.len(), Vec::with_capacity(requests.len()));
        for (index, request) in requests.into_iter().enumerate() {
            shared.metrics.asked(&model.name, request.answers, request.sampling.max_tokens);
            let send = send.clone();
            let sink = Box::new(move |event| _ = send.send((index, event)));
            let ticket = model.service.submit_while(request, sink, &|| !named.has_left());
            tickets.push(ticket.map_err(Fault::refused)?);
        }
        adapter.iter().for_each(|name| shared.metrics.adapter(&model.name, name, None, Some(State::Waiting)));
        Ok(ModelRequests {
            phase: shared.drain.watch(),
            shared,
            model,
            adapter,
            named,
            asked: asked.unwrap_or_default(),
            events,
            _tickets: tickets,
            held,
            _permits: permits,
            open,
            usage: Usage::default(),
            arrived: Instant::now(),
            started: false,
            first_s: None,
            last: BTreeMap::new(),
            stops: Vec::new(),
            failed: None,
        })
    }

    /// The next event; `None` after the last answer has ended, or after a fault.
    pub async fn next(&mut self) -> Option<Result<(usize, Event), Fault>> {
        if self.is_over() {
            return None;
        }
        let heard = tokio::select! {
            biased;
            event = self.events.recv() => Some(event),
            _ = self.phase.wait_for(|phase| *phase >= Phase::Cut) => None,
        };
        Some(match heard {
            Some(event) => self.see(event),
            None => Err(self.fail(Fault::ending())),
        })
    }

    /// The next event if one is available.
    pub fn ready(&mut self) -> Option<Result<(usize, Event), Fault>> {
        if self.is_over() {
            return None;
        }
        self.events.try_recv().ok().map(|event| self.see(Some(event)))
    }

    fn is_over(&self) -> bool {
        self.open == 0 || self.failed.is_some()
    }

    fn fail(&mut self, fault: Fault) -> Fault {
        self.failed = Some(fault.cause());
        fault
    }

    fn see(&mut self, event: Option<(usize, Event)>) -> Result<(usize, Event), Fault> {
        let Some((index, event)) = event else {
            return Err(self.fail(Fault::ours("the model failed while it worked on this request; try again")));
        };
        let name = &self.model.name;
        match &event {
            Event::Started { prompt, .. } => {
                self.held.started(prompt.len());
                self.adapter_is(Some(State::Running));
            }
            Event::Piece { answer, ids, .. } if !ids.is_empty() => {
                let now = Instant::now();
                if self.first_s.is_none() {
                    let first_s = self.arrived.elapsed().as_secs_f64();
                    self.first_s = Some(first_s);
                    self.shared.metrics.first(name, first_s);
                }
                if let Some(before) = self.last.insert((index, *answer), now) {
                    self.shared.metrics.between(name, (now - before).as_secs_f64(), ids.len());
                }
            }
            Event::Piece { .. } => {}
            Event::Ended { stop, .. } => {
                self.stops.push(reason(stop));
                self.shared.metrics.finished(name, reason(stop));
            }
            Event::Done(usage) => {
                self.shared.metrics.answered(name, usage, self.arrived.elapsed().as_secs_f64());
                self.open -= 1;
                self.usage.prompt_tokens += usage.prompt_tokens;
                self.usage.cached_tokens += usage.cached_tokens;
                self.usage.answer_tokens += usage.answer_tokens;
                self.usage.queue_s = self.usage.queue_s.max(usage.queue_s);
                self.usage.prefill_s = self.usage.prefill_s.max(usage.prefill_s);
                self.usage.decode_s = self.usage.decode_s.max(usage.decode_s);
            }
            Event::Failed(_) => {}
        }
        match event {
            Event::Failed(error) => Err(self.fail(Fault::failed(&error))),
            event => Ok((index, event)),
        }
    }
}

impl ModelRequests {
    /// `guardrails` of the answer, if the request says something about rails.
    pub fn guardrails(&self) -> Option<Value> {
        self.model.record.as_ref()?.answer()
    }

    /// Sends the request's span, if spans are wanted.
    fn trace(&mut self, failed: Option<&'static str>) {
        if !self.shared.traces.wanted() {
            return;
        }
        let Usage { prompt_tokens, answer_tokens, cached_tokens, queue_s, prefill_s, decode_s } = self.usage;
        let took = self.arrived.elapsed();
        let model = self.adapter.clone().unwrap_or_else(|| self.model.name.clone());
        let mut attributes = std::mem::take(&mut self.asked);
        attributes.extend([
            ("gen_ai.request.model", json!(model)),
            ("gen_ai.response.model", json!(model)),
            ("gen_ai.response.finish_reasons", json!(self.stops)),
            ("gen_ai.usage.input_tokens", json!(prompt_tokens)),
            ("gen_ai.usage.output_tokens", json!(answer_tokens)),
            ("gen_ai.usage.cache_read.input_tokens", json!(cached_tokens)),
            // Names as in vLLM.
            ("gen_ai.latency.time_to_first_token", json!(self.first_s)),
            ("gen_ai.latency.e2e", json!(took.as_secs_f64())),
            ("gen_ai.latency.time_in_queue", json!(queue_s)),
            ("gen_ai.latency.time_in_model_prefill", json!(prefill_s)),
            ("gen_ai.latency.time_in_model_decode", json!(decode_s)),
            ("gen_ai.request.id", json!(self.named.id)),
        ]);
        let span = Span {
            traced: self.named.traced.clone(),
            unique: self.shared.unique(""),
            subject: SpanSubject::Request { operation: self.named.operation, model },
            began: SystemTime::now() - took,
            took,
            attributes,
            failed,
        };
        let rails = self.model.record.as_ref().map(|record| record.runs()).unwrap_or_default();
        for run in rails {
            self.shared.traces.take(span.of_rail(self.shared.unique(""), run));
        }
        self.shared.traces.take(span);
    }

    /// Counts a request with an adapter in its current state; `None` when it has ended.
    fn adapter_is(&mut self, now: Option<State>) {
        if let Some(name) = &self.adapter {
            let was = Some(if self.started { State::Running } else { State::Waiting });
            self.shared.metrics.adapter(&self.model.name, name, was, now);
            self.started = true;
        }
    }
}

impl Drop for ModelRequests {
    fn drop(&mut self) {
        self.adapter_is(None);
        let cause = self.failed.or((self.open > 0).then_some("dropped"));
        if let Some(cause) = cause {
            self.shared.metrics.failed(cause);
        }
        self.trace(cause);
        self.shared.log(|| {
            json!({
                "event": "answered",
                "id": self.named.id,
                "model": self.model.name,
                "adapter": self.adapter,
                "prompt_tokens": self.usage.prompt_tokens,
                "cached_tokens": self.usage.cached_tokens,
                "answer_tokens": self.usage.answer_tokens,
                "finish": self.stops,
                "failed": cause,
                "queue_s": self.usage.queue_s,
                "first_s": self.first_s,
                "seconds": self.arrived.elapsed().as_secs_f64(),
            })
        });
    }
}

/// Waits for all answers to `prompts` prompts.
///
/// # Errors
/// One of them failed.
pub async fn collect(answering: &mut ModelRequests, prompts: usize) -> Result<Vec<RequestOutput>, Fault> {
    let mut all: Vec<RequestOutput> = (0..prompts).map(|_| RequestOutput::default()).collect();
    while let Some(event) = answering.next().await {
        let (index, event) = event?;
        all[index].push(event);
    }
    Ok(all)
}
