//! Runs the rails of a configuration on texts: rewriting rails in the order of the file, each on its predecessor's
//! text, then those that only read, of which the first that blocks decides. Every failure blocks, unless the file
//! allows it by the rail's name.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fathom_base::clock::Clock;
use fathom_base::guard::guarded;

use crate::config::{Config, ConfiguredRail, OnFailure, Setting};
use crate::metrics::Metrics;
use crate::rail::{Action, Context, Cost, Failure, Opinion, RailInput, ToolUse, Until};
use crate::verdict::{Decision, Direction, Edit, Reason, Verdict, edited};

/// Failures within [`BREAKER_S`] that open a rail's breaker.
const BREAKER_FAILURES: usize = 3;
/// Seconds in which failures are counted, and for which a breaker stays open.
const BREAKER_S: f64 = 60.0;
/// Threads of one rail that may hang at the same time.
const MAX_ABANDONED: usize = 16;

/// Selection of rails for one request: all of a direction by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// Directions that are switched off, and the rails by name that are kept in a direction. Only rails that the
    /// configuration has can be selected.
    pub kept: std::collections::BTreeMap<Direction, Vec<String>>,
}

impl Selection {
    fn keeps(&self, direction: Direction, rail: &str) -> bool {
        self.kept.get(&direction).is_none_or(|names| names.iter().any(|name| name == rail))
    }
}

/// Result of judging a whole text.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The text after all rewriting rails.
    pub text: String,
    /// Verdicts in the order in which they were reached.
    pub verdicts: Vec<Verdict>,
    /// Index of the verdict that blocks.
    pub blocked: Option<usize>,
}

impl Outcome {
    /// The verdict that blocks.
    pub fn block(&self) -> Option<&Verdict> {
        self.blocked.map(|at| &self.verdicts[at])
    }

    /// Returns whether a rail changed the text.
    pub fn is_rewritten(&self) -> bool {
        self.verdicts.iter().any(|verdict| verdict.decision == Decision::Rewrite)
    }
}

/// Failures of one rail.
#[derive(Default)]
struct Breaker {
    /// Times of recent failures, in seconds of the clock.
    failures: Mutex<VecDeque<f64>>,
    /// Threads that were abandoned and have not ended.
    abandoned: Arc<AtomicUsize>,
}

impl Breaker {
    fn failed(&self, now_s: f64) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.push_back(now_s);
        if failures.len() > BREAKER_FAILURES {
            failures.pop_front();
        }
    }

    /// Failures in the last seconds.
    fn recent(&self, now_s: f64) -> usize {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.iter().filter(|at| now_s - **at < BREAKER_S).count()
    }

    fn is_open(&self, now_s: f64) -> bool {
        self.recent(now_s) >= BREAKER_FAILURES || self.abandoned.load(Ordering::Relaxed) >= MAX_ABANDONED
    }
}

/// Runs the rails of one configuration.
pub struct Engine {
    config: Arc<Config>,
    clock: Clock,
    breakers: Vec<Breaker>,
    metrics: Arc<Metrics>,
}

/// A verdict with the mark before which no later text changes it.
pub(crate) struct MarkedVerdict {
    pub verdict: Verdict,
    pub mark: usize,
}

/// Everything about a text but the text, shared with the threads of rails.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Direction.
    pub direction: Direction,
    /// Circumstances.
    pub context: Arc<Context>,
    /// The call or the result that the text belongs to.
    pub tool: Option<Arc<ToolUse>>,
    /// Rails that judge it.
    pub selection: Arc<Selection>,
}

impl Subject {
    /// A text of this direction, judged by all rails.
    pub fn new(direction: Direction, context: Arc<Context>) -> Subject {
        Subject { direction, context, tool: None, selection: Arc::default() }
    }

    fn judged<'a>(&'a self, text: &'a str, from: usize, whole: bool) -> RailInput<'a> {
        let tool = self.tool.as_deref();
        RailInput { text, from, whole, direction: self.direction, context: &self.context, tool }
    }
}

/// A text of a stream or a whole one, as a rail sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub text: &'a str,
    pub from: usize,
    pub whole: bool,
}

impl<'a> View<'a> {
    /// A whole text.
    pub fn whole(text: &'a str) -> View<'a> {
        View { text, from: 0, whole: true }
    }
}

impl Engine {
    /// An engine for a configuration.
    pub fn new(config: Arc<Config>, clock: Clock, metrics: Arc<Metrics>) -> Engine {
        let breakers = config.rails.iter().map(|_| Breaker::default()).collect();
        Engine { config, clock, breakers, metrics }
    }

    /// The configuration.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Counters.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Names of rails that failed within the last minute.
    pub fn degraded(&self) -> Vec<String> {
        let now_s = self.clock.now_s();
        let rails = self.config.rails.iter().zip(&self.breakers);
        rails
            .filter(|(_, breaker)| breaker.recent(now_s) > 0)
            .map(|(rail, _)| rail.setting.name.clone())
            .collect()
    }

    /// Asks every rail's model once.
    ///
    /// # Errors
    /// The first rail that does not answer, by name.
    pub fn ready(&self) -> Result<(), (String, Failure)> {
        for rail in &self.config.rails {
            let until = Until::within(&self.clock, rail.setting.timeout_ms as f64 / 1e3);
            let answer =
                guarded(|| rail.rail.ready(&until)).unwrap_or_else(|why| Err(Failure::Panicked(why)));
            answer.map_err(|failure| (rail.setting.name.clone(), failure))?;
        }
        Ok(())
    }

    /// Indices of the rails that judge a subject and rewrite it, or only read it.
    pub(crate) fn rails(&self, subject: &Subject, rewriting: bool) -> Vec<usize> {
        let all = self.config.rails.iter().enumerate();
        all.filter(|(_, rail)| rail.rewrites() == rewriting && applies(rail, subject))
            .map(|(at, _)| at)
            .collect()
    }

    /// Judges a whole text.
    pub fn judge(&self, text: &str, subject: &Subject) -> Outcome {
        let mut out = Outcome { text: text.to_string(), verdicts: Vec::new(), blocked: None };
        for at in self.rails(subject, true) {
            let verdict = self.run(at, View::whole(&out.text), subject).verdict;
            if verdict.decision == Decision::Rewrite {
                out.text = edited(&out.text, &verdict.edits);
            }
            out.verdicts.push(verdict);
            if out.verdicts.last().is_some_and(|it| it.decision == Decision::Block) {
                out.blocked = Some(out.verdicts.len() - 1);
                return out;
            }
        }
        let readers = self.rails(subject, false);
        let read = self.read(&readers, View::whole(&out.text), subject);
        out.verdicts.extend(read.into_iter().map(|(_, marked)| marked.verdict));
        out.blocked = out.verdicts.iter().position(|verdict| verdict.decision == Decision::Block);
        out
    }

    /// Runs rails that only read: those of text on this thread, then those that ask models next to each other. Ends
    /// with the first that blocks; the others are cancelled.
    pub(crate) fn read(
        &self,
        rails: &[usize],
        view: View<'_>,
        subject: &Subject,
    ) -> Vec<(usize, MarkedVerdict)> {
        let mut done = Vec::with_capacity(rails.len());
        let is_text = |at: &&usize| self.config.rails[**at].manifest.cost == Cost::Text;
        for &at in rails.iter().filter(is_text) {
            let marked = self.run(at, view, subject);
            let blocks = marked.verdict.decision == Decision::Block;
            done.push((at, marked));
            if blocks {
                return done;
            }
        }
        let models: Vec<usize> = rails.iter().filter(|at| !is_text(at)).copied().collect();
        match models[..] {
            [] => {}
            [one] => done.push((one, self.run(one, view, subject))),
            _ => self.read_together(&models, view, subject, &mut done),
        }
        done
    }

    fn read_together(
        &self,
        rails: &[usize],
        view: View<'_>,
        subject: &Subject,
        done: &mut Vec<(usize, MarkedVerdict)>,
    ) {
        let (send, receive) = channel();
        let mut open = Vec::new();
        for &at in rails {
            match self.start(at, view, subject, &send) {
                Ok(until) => open.push((at, until, Instant::now())),
                Err(failure) => done.push((at, self.marked(at, view, subject, Err(failure), Duration::ZERO))),
            }
        }
        drop(send);
        let blocks = |done: &[(usize, MarkedVerdict)]| {
            done.iter().any(|(_, it)| it.verdict.decision == Decision::Block)
        };
        while !open.is_empty() && !blocks(done) {
            let left = open.iter().map(|(_, until, _)| until.left_s()).fold(f64::MAX, f64::min).max(0.0);
            match receive.recv_timeout(Duration::from_secs_f64(left.min(3600.0))) {
                Ok((at, result)) => {
                    if let Some(place) = open.iter().position(|(other, ..)| *other == at) {
                        let (_, _, began) = open.remove(place);
                        done.push((at, self.marked(at, view, subject, result, began.elapsed())));
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let late = open.iter().position(|(_, until, _)| until.left_s() <= 0.0).unwrap_or(0);
                    let (at, until, began) = open.remove(late);
                    until.cancel();
                    done.push((at, self.marked(at, view, subject, Err(Failure::TimedOut), began.elapsed())));
                }
            }
        }
        open.iter().for_each(|(_, until, _)| until.cancel());
    }

    /// Runs one rail within its time limit.
    pub(crate) fn run(&self, at: usize, view: View<'_>, subject: &Subject) -> MarkedVerdict {
        let rail = &self.config.rails[at];
        let began = Instant::now();
        let opinion = match rail.manifest.cost {
            Cost::Text => self.run_here(at, view, subject),
            Cost::Model => {
                let (send, receive) = channel();
                self.start(at, view, subject, &send).and_then(|until| {
                    let left = Duration::from_secs_f64(until.left_s().max(0.0));
                    let result =
                        receive.recv_timeout(left).map_or(Err(Failure::TimedOut), |(_, result)| result);
                    until.cancel();
                    result
                })
            }
        };
        self.marked(at, view, subject, opinion, began.elapsed())
    }

    /// Runs a rail of text on this thread.
    fn run_here(&self, at: usize, view: View<'_>, subject: &Subject) -> Result<Opinion, Failure> {
        let rail = &self.config.rails[at];
        if self.breakers[at].is_open(self.clock.now_s()) {
            return Err(Failure::BreakerOpen);
        }
        let until = self.until(&rail.setting, subject);
        let judged = subject.judged(view.text, view.from, view.whole);
        let opinion = guarded(|| rail.rail.judge(&judged, &until));
        let opinion = opinion.unwrap_or_else(|why| Err(Failure::Panicked(why)))?;
        if until.wanted() { Ok(opinion) } else { Err(Failure::TimedOut) }
    }

    /// The time limit of a rail for a text.
    fn until(&self, setting: &Setting, subject: &Subject) -> Until {
        let until = Until::within(&self.clock, setting.timeout_ms as f64 / 1e3);
        until.noting(subject.context.journal.as_ref(), &setting.name)
    }

    /// Starts a rail on a thread of its own, which sends its opinion with the rail's index.
    fn start(
        &self,
        at: usize,
        view: View<'_>,
        subject: &Subject,
        send: &Sender<(usize, Result<Opinion, Failure>)>,
    ) -> Result<Until, Failure> {
        let rail = self.config.rails[at].clone();
        if self.breakers[at].is_open(self.clock.now_s()) {
            return Err(Failure::BreakerOpen);
        }
        let until = self.until(&rail.setting, subject);
        let send = send.clone();
        let (text, from, whole) = (view.text.to_string(), view.from, view.whole);
        let (subject, limit) = (subject.clone(), until.clone());
        let running = ThreadCount::enter(&self.breakers[at].abandoned);
        let thread = std::thread::Builder::new().name("rail".into()).spawn(move || {
            let _running = running;
            let judged = subject.judged(&text, from, whole);
            let opinion = guarded(|| rail.rail.judge(&judged, &limit));
            _ = send.send((at, opinion.unwrap_or_else(|why| Err(Failure::Panicked(why)))));
        });
        thread.map_err(|error| Failure::Unavailable(format!("cannot start a thread: {error}")))?;
        Ok(until)
    }

    /// Turns an opinion or a failure into a verdict, and counts it.
    fn marked(
        &self,
        at: usize,
        view: View<'_>,
        subject: &Subject,
        opinion: Result<Opinion, Failure>,
        took: Duration,
    ) -> MarkedVerdict {
        let rail = &self.config.rails[at];
        let opinion = opinion.and_then(|opinion| sound(opinion, view.text));
        let (verdict, mark) = match opinion {
            Ok(opinion) => {
                let judged = subject.judged(view.text, view.from, view.whole);
                let mark = if view.whole { view.text.len() } else { rail.rail.mark(&judged, &opinion) };
                (verdict(rail, view, subject.direction, opinion, took), mark.min(view.text.len()))
            }
            Err(failure) => {
                if failure != Failure::BreakerOpen {
                    self.breakers[at].failed(self.clock.now_s());
                    log::warn!("rail {} failed: {failure}", rail.setting.name);
                }
                (failed(rail, subject.direction, &failure, took), view.text.len())
            }
        };
        self.metrics.judged(&verdict);
        if let Some(journal) = &subject.context.journal {
            journal.ran(&verdict);
        }
        MarkedVerdict { verdict, mark }
    }
}

/// Counts a thread while it runs.
struct ThreadCount(Arc<AtomicUsize>);

impl ThreadCount {
    fn enter(count: &Arc<AtomicUsize>) -> ThreadCount {
        count.fetch_add(1, Ordering::Relaxed);
        ThreadCount(count.clone())
    }
}

impl Drop for ThreadCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn applies(rail: &ConfiguredRail, subject: &Subject) -> bool {
    let setting = &rail.setting;
    let of_tool = match &subject.tool {
        Some(tool) => setting.tools.is_empty() || setting.tools.contains(&tool.name),
        None => true,
    };
    setting.on.contains(&subject.direction)
        && of_tool
        && subject.selection.keeps(subject.direction, &setting.name)
}

/// Checks a rail's findings: within the text, on characters, ascending and disjoint.
fn sound(opinion: Opinion, text: &str) -> Result<Opinion, Failure> {
    let mut end = 0;
    for finding in &opinion.findings {
        let span = &finding.span;
        let is_span = span.start <= span.end
            && span.start >= end
            && text.is_char_boundary(span.start.min(text.len()))
            && text.is_char_boundary(span.end.min(text.len()))
            && span.end <= text.len();
        if !is_span {
            return Err(Failure::Malformed("its findings are not ascending parts of the text".into()));
        }
        end = span.end;
    }
    Ok(opinion)
}

fn verdict(
    rail: &ConfiguredRail,
    view: View<'_>,
    direction: Direction,
    opinion: Opinion,
    took: Duration,
) -> Verdict {
    let (text, from) = (view.text, view.from);
    let mut findings = opinion.findings;
    // Text before `from` has been judged and released.
    findings.retain(|finding| finding.span.end > from || finding.span.is_empty() && finding.span.end == from);
    let condemned = opinion.condemned.filter(|_| !findings.is_empty());
    let decision = match (condemned, rail.setting.action) {
        (None, _) => Decision::Allow,
        (Some(_), Action::Block) => Decision::Block,
        (Some(_), Action::Flag) => Decision::Flag,
        (Some(_), Action::Mask | Action::Omit | Action::Truncate) => Decision::Rewrite,
    };
    let edits = match (decision, rail.setting.action) {
        (Decision::Rewrite, Action::Truncate) => {
            vec![Edit { span: findings[0].span.start..text.len(), text: String::new() }]
        }
        (Decision::Rewrite, action) => findings
            .iter()
            .map(|finding| Edit {
                span: finding.span.clone(),
                text: if action == Action::Mask { rail.rail.mask(finding) } else { String::new() },
            })
            .collect(),
        _ => Vec::new(),
    };
    Verdict {
        rail: rail.setting.name.clone(),
        direction,
        decision,
        reason: condemned.unwrap_or(Reason::Clean),
        findings,
        score: opinion.score,
        edits,
        failed: false,
        message: opinion.message.or_else(|| rail.setting.message.clone()),
        took,
    }
}

fn failed(rail: &ConfiguredRail, direction: Direction, failure: &Failure, took: Duration) -> Verdict {
    let allowed = rail.setting.on_failure == OnFailure::Allow;
    Verdict {
        rail: rail.setting.name.clone(),
        direction,
        decision: if allowed { Decision::Allow } else { Decision::Block },
        reason: failure.reason(),
        findings: Vec::new(),
        score: None,
        edits: Vec::new(),
        failed: true,
        message: None,
        took,
    }
}
