//! A service within rails. It implements all that a service can be asked, so that what holds it cannot ask around the
//! rails: prompts are judged before anything is generated, and answers before anything of them is passed on.
//!
//! Numbers of given texts ([`Evaluate`]) are passed on after the texts have been judged as input, unless the
//! configuration says otherwise. Numbers that reveal tokens of the model's own choice (`Top`, `Logits`, `Hidden`) are
//! refused while rails judge answers, since no rail sees such tokens.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use fathom_base::{
    Administer, Conversation, Describe, Error, Evaluate, Event, Generate, GenerateRequest, Load, ModelCard,
    Numbers, Prompt, Result, Service, Sink, SpecialTokens, Stop, Structure, TextIds, TextPair, Ticket,
    Tokenize, Usage, VectorSink, relay,
};

use crate::answers::{Answers, refused_text};
use crate::config::Reasoning;
use crate::engine::{Engine, Selection, Subject};
use crate::guard::Guard;
use crate::journal::{Journal, JournalParts};
use crate::prompt::{JudgedPrompt, PromptJudge};
use crate::rail::{Context, Cost};
use crate::reasoning;
use crate::stream::{AnswerStart, own};
use crate::verdict::{Direction, Reason, Verdict};

/// Events of the model that wait for the rails, before pieces are joined.
const RELAYED: usize = 64;

/// Circumstances of requests: those of one client, or of one request.
#[derive(Clone, Debug, Default)]
pub struct Session {
    /// Rails that judge; all by default.
    pub selection: Arc<Selection>,
    /// Thread that the client named.
    pub thread: Option<String>,
    /// Hash or name of the client's key.
    pub key: Option<String>,
    /// Where runs of rails are noted.
    pub journal: Option<Arc<Journal>>,
    /// Parts of the journal that the answer shows; `None` if the request says nothing about rails.
    pub shown: Option<JournalParts>,
}

/// A service within rails. Clones share everything but the session.
#[derive(Clone)]
pub struct GuardedService {
    inner: Arc<dyn Service>,
    guard: Arc<Guard>,
    session: Session,
}

impl GuardedService {
    /// Puts a service within rails.
    pub fn new(inner: Arc<dyn Service>, guard: Arc<Guard>) -> GuardedService {
        GuardedService { inner, guard, session: Session::default() }
    }

    /// The same service for a session.
    pub fn of(&self, session: Session) -> GuardedService {
        GuardedService { session, ..self.clone() }
    }

    /// The rails.
    pub fn guard(&self) -> &Arc<Guard> {
        &self.guard
    }

    fn context(&self) -> Context {
        Context {
            thread: self.session.thread.clone(),
            key: self.session.key.clone(),
            model: self.inner.card().name,
            ledger: self.guard.ledgers.of(self.session.key.as_deref(), self.session.thread.as_deref()),
            journal: self.session.journal.clone(),
            ..Context::default()
        }
    }

    /// Judges a prompt and records it.
    fn judge(&self, engine: &Engine, request: &GenerateRequest, context: &Context) -> Result<JudgedPrompt> {
        let judge = PromptJudge {
            engine,
            tokenizer: &*self.inner,
            seen: &self.guard.seen,
            context: context.clone(),
            selection: self.session.selection.clone(),
            scope: &request.scope,
        };
        let mut judged = judge.judge(&request.prompt)?;
        for text in &judged.texts {
            if !self.guard.record(engine, context, text) {
                judged.blocked = Some(Verdict { failed: true, ..own("audit", Reason::Failed) });
            }
        }
        if let Some(verdict) = &judged.blocked {
            self.guard.metrics().blocked(verdict.direction);
        }
        Ok(judged)
    }

    /// Returns whether generation may start while rails judge its prompt.
    fn is_speculative(&self, engine: &Engine) -> bool {
        let config = engine.config();
        config.settings.speculative
            && !config.rewrites(Direction::Input)
            && config.on(Direction::Input).any(|rail| rail.manifest.cost == Cost::Model)
    }

    /// Circumstances of the answers to a prompt.
    fn subject(&self, request: &GenerateRequest, context: &Context) -> Subject {
        let mut context = context.clone();
        match &request.prompt {
            Prompt::Conversation(talk) => {
                context.messages = talk.messages.clone();
                context.tools = talk.tools.clone();
                context.evidence = evidence(talk);
            }
            Prompt::Text(text) => {
                context.messages = vec![serde_json::json!({"role": "user", "content": text})];
            }
            Prompt::Ids(_) | Prompt::Parts(_) => {}
        }
        let mut subject = Subject::new(Direction::Output, Arc::new(context));
        subject.selection = self.session.selection.clone();
        subject
    }
}

/// Documents of a conversation, on which its answer has to be based.
fn evidence(talk: &Conversation) -> Vec<String> {
    let Some(documents) = talk.variables.get("documents").and_then(|it| it.as_array()) else {
        return Vec::new();
    };
    let text = |document: &serde_json::Value| {
        let members =
            ["text", "content", "body", "snippet"].into_iter().find_map(|key| document[key].as_str());
        document.as_str().or(members).map(str::to_string)
    };
    documents.iter().filter_map(text).collect()
}

/// The tools whose arguments the whole answer may have to be: those whose schema the request demands.
fn forced(request: &GenerateRequest) -> Vec<String> {
    let (Some(Structure::JsonSchema(schema)), Prompt::Conversation(talk)) =
        (&request.structure, &request.prompt)
    else {
        return Vec::new();
    };
    let Ok(schema) = serde_json::from_str::<serde_json::Value>(schema) else { return Vec::new() };
    let name = |tool: &serde_json::Value| {
        let function = tool.get("function").unwrap_or(tool);
        let any = serde_json::json!({"type": "object"});
        let parameters = function.get("parameters").filter(|it| it.is_object()).unwrap_or(&any);
        (*parameters == schema).then(|| function["name"].as_str().unwrap_or("").to_string())
    };
    talk.tools.iter().filter_map(name).collect()
}

impl Generate for GuardedService {
    fn submit_while(
        &self,
        mut request: GenerateRequest,
        mut sink: Sink,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Ticket> {
        let began = Instant::now();
        let engine = self.guard.engine();
        let mut context = self.context();
        if let Prompt::Conversation(talk) = &request.prompt {
            context.tools = talk.tools.clone();
        }
        if let Some(why) = self.guard.broken() {
            self.guard.metrics().error();
            return Err(Error::Gone { what: format!("the guard's log cannot be written: {why}") });
        }
        let answers = request.answers;
        let speculative = self.is_speculative(&engine);
        let judged_later = speculative.then(|| request.clone());
        if !speculative {
            let judged = self.judge(&engine, &request, &context)?;
            if let Some(verdict) = &judged.blocked {
                refuse(&engine, answers, verdict, &mut sink);
                self.guard.metrics().request(began.elapsed());
                return Ok(Ticket::new(|| ()));
            }
            if let Some(prompt) = judged.rewritten {
                (request.prompt, request.ids) = (prompt, None);
            }
        } else if request.scope.is_empty() {
            // A prompt that is refused later must not be in a cache that other keys share.
            request.scope = format!("guard:{}", self.session.key.as_deref().unwrap_or(""));
        }
        let subject = self.subject(&request, &context);
        let config = engine.config();
        let drops = config.settings.reasoning == Reasoning::Drop;
        let rewrites = !engine.rails(&subject, true).is_empty();
        let judges_calls =
            config.on(Direction::ToolCall).next().is_some() && !subject.context.tools.is_empty();
        if rewrites || drops {
            (request.logprobs, request.kept) = (None, false);
        }
        if drops {
            request.shown.extend(reasoning::marks());
        }
        if !speculative && !rewrites && !drops && !judges_calls && engine.rails(&subject, false).is_empty() {
            self.guard.metrics().request(began.elapsed());
            return self.inner.submit_while(request, sink, wanted);
        }
        let beginning = AnswerStart { prompt: String::new(), forced: forced(&request) };
        let (inner_sink, events) = relay(RELAYED);
        let ticket = self.inner.submit_while(request, inner_sink, wanted)?;
        let ticket = Arc::new(Mutex::new(Some(ticket)));
        let left = Arc::new(AtomicBool::new(false));
        let work = Work {
            guarded: self.clone(),
            engine: engine.clone(),
            context,
            judged_later,
            answers: Answers::new(engine, subject, (answers, beginning), rewrites || drops),
            ticket: ticket.clone(),
            left: left.clone(),
            began,
        };
        let thread = std::thread::Builder::new().name("guard".into()).spawn(move || work.run(events, sink));
        if let Err(error) = thread {
            drop(take(&ticket));
            return Err(Error::Unmet { what: format!("the guard cannot start a thread: {error}") });
        }
        Ok(Ticket::new(move || {
            left.store(true, Ordering::Relaxed);
            drop(take(&ticket));
        }))
    }
}

fn take(ticket: &Mutex<Option<Ticket>>) -> Option<Ticket> {
    ticket.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Ends all answers of a request as refused.
fn refuse(engine: &Engine, answers: usize, verdict: &Verdict, sink: &mut Sink) {
    sink(Event::Started { prompt: Vec::new(), cached_tokens: 0, logprobs: Vec::new() });
    for answer in 0..answers {
        let why = refused_text(engine, verdict);
        sink(Event::Ended { answer, stop: Stop::Refused { rail: verdict.rail.clone(), why } });
    }
    sink(Event::Done(Usage::default()));
}

/// A request on its way through the rails, on a thread of its own.
struct Work {
    guarded: GuardedService,
    engine: Arc<Engine>,
    context: Context,
    /// The request whose prompt is judged while the model answers already.
    judged_later: Option<GenerateRequest>,
    answers: Answers,
    ticket: Arc<Mutex<Option<Ticket>>>,
    /// Set once the receiver has left.
    left: Arc<AtomicBool>,
    began: Instant,
}

impl Work {
    fn run(mut self, mut events: fathom_base::Relay, mut sink: Sink) {
        if let Some(request) = self.judged_later.take() {
            let judged = self.guarded.judge(&self.engine, &request, &self.context);
            let blocked = match judged {
                Ok(judged) => judged.blocked,
                Err(error) => {
                    drop(take(&self.ticket));
                    return sink(Event::Failed(error));
                }
            };
            if let Some(verdict) = blocked {
                drop(take(&self.ticket));
                // Tokens that were generated in vain are counted all the same.
                events.by_ref().for_each(|event| self.answers.count(&event));
                refuse(&self.engine, request.answers, &verdict, &mut sink);
                self.guarded.guard.metrics().request(self.began.elapsed());
                return;
            }
        }
        for event in events.by_ref() {
            if self.left.load(Ordering::Relaxed) {
                break;
            }
            let is_last = matches!(event, Event::Done(_) | Event::Failed(_));
            if matches!(event, Event::Failed(_)) {
                self.guarded.guard.metrics().error();
            }
            if let Event::Started { prompt, .. } = &event {
                self.answers.begin(self.end_of(prompt));
            }
            let guard = self.guarded.guard.clone();
            let (engine, context) = (self.engine.clone(), &self.context);
            self.answers.push(event, &mut sink, &|text, verdicts| {
                guard.recorded(&engine, context, (text, Direction::Output), verdicts)
            });
            if !is_last && self.answers.are_over() {
                drop(take(&self.ticket));
                sink(Event::Done(self.answers.usage()));
                break;
            }
        }
        self.guarded.guard.metrics().request(self.began.elapsed());
    }

    /// The end of a prompt, in which a marker may have opened thoughts.
    fn end_of(&self, prompt: &[u32]) -> String {
        let last = &prompt[prompt.len().saturating_sub(64)..];
        self.guarded.inner.decode(last).unwrap_or_default()
    }
}

impl Describe for GuardedService {
    fn card(&self) -> ModelCard {
        self.inner.card()
    }

    fn load(&self) -> Load {
        self.inner.load()
    }
}

impl Tokenize for GuardedService {
    fn encode(&self, text: &str, reading: SpecialTokens) -> Result<Vec<u32>> {
        self.inner.encode(text, reading)
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        self.inner.decode(ids)
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.inner.token_bytes(id)
    }

    fn render(&self, conversation: &Conversation) -> Result<String> {
        self.inner.render(conversation)
    }

    fn ids(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        self.inner.ids(prompt)
    }
}

impl GuardedService {
    /// Judges a text whose numbers are wanted; returns its replacement, if it is rewritten.
    fn judge_read(&self, text: &str) -> Result<Option<String>> {
        let engine = self.guard.engine();
        if !engine.config().settings.evaluate || engine.config().on(Direction::Input).next().is_none() {
            return Ok(None);
        }
        let context = self.context();
        let mut subject = Subject::new(Direction::Input, Arc::new(context.clone()));
        subject.selection = self.session.selection.clone();
        let outcome = engine.judge(text, &subject);
        let recorded = self.guard.recorded(&engine, &context, (text, Direction::Input), &outcome.verdicts);
        match outcome.block() {
            Some(verdict) => {
                self.guard.metrics().blocked(Direction::Input);
                Err(Error::Unmet { what: format!("{} (rail `{}`)", verdict.reason.words(), verdict.rail) })
            }
            None if !recorded => Err(Error::Gone { what: "the guard's log cannot be written".into() }),
            None => Ok(outcome.is_rewritten().then_some(outcome.text)),
        }
    }
}

impl Evaluate for GuardedService {
    fn read(&self, text: &TextPair, asked: Numbers, most: Option<usize>) -> Result<TextIds> {
        let first = self.judge_read(&text.0)?.unwrap_or_else(|| text.0.clone());
        let second = match &text.1 {
            Some(second) => Some(self.judge_read(second)?.unwrap_or_else(|| second.clone())),
            None => None,
        };
        self.inner.read(&(first, second), asked, most)
    }

    fn numbers(&self, texts: Vec<TextIds>, asked: Numbers, sink: VectorSink) -> Result<Ticket> {
        let engine = self.guard.engine();
        let reveals = matches!(asked, Numbers::Top { .. } | Numbers::Logits { .. } | Numbers::Hidden);
        if reveals && engine.config().on(Direction::Output).next().is_some() {
            let what =
                "these numbers reveal tokens that no rail judges; ask a model without rails on its answers";
            return Err(Error::Unmet { what: what.into() });
        }
        for text in &texts {
            if self.judge_read(&self.inner.decode(&text.ids)?)?.is_some() {
                let what = "a rail rewrites this text; send it as text rather than as token ids";
                return Err(Error::Unmet { what: what.into() });
            }
        }
        self.inner.numbers(texts, asked, sink)
    }
}

impl Administer for GuardedService {
    fn load_adapter(&self, name: &str, folder: &Path) -> Result<()> {
        self.inner.load_adapter(name, folder)
    }

    fn unload_adapter(&self, name: &str) -> Result<()> {
        self.inner.unload_adapter(name)
    }

    fn erase_prefixes(&self) -> Result<u64> {
        self.inner.erase_prefixes()
    }
}
