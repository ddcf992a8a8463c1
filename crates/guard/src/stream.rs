//! The streaming rule: an answer is released in parts, and the concatenated parts equal the rewritten whole answer,
//! byte for byte, for every chunking.
//!
//! Each rewriting rail is a [`Stage`]: text in, rewritten text out, in the order of the file. A stage releases text up
//! to its *mark*, before which no later text can change the rail's opinion; the mark is never inside a finding or a
//! grapheme. Rails that only read, and calls of tools, are a [`Gate`] behind the last stage. At the end every rail
//! judges the whole once: if what was released is not the beginning of the rewritten whole, the answer is blocked.

use std::sync::Arc;

use unicode_segmentation::GraphemeCursor;

use crate::calls::{Call, CallScanner};
use crate::config::Hold;
use crate::engine::{Engine, Subject, View};
use crate::rail::{Action, Context, Horizon, ToolUse};
use crate::threads::MessageId;
use crate::verdict::{Decision, Direction, Finding, Reason, Verdict, edited};

/// Bytes of released text that rails see as context.
const LOOKBEHIND: usize = 4 << 10;

/// An answer on its way through the rails.
pub struct AnswerStream {
    engine: Arc<Engine>,
    subject: Subject,
    stages: Vec<Stage>,
    gate: Gate,
    /// Tokens that no rail has seen.
    waiting: usize,
    /// Tokens between two judgements: the least of all rails.
    window: usize,
    /// Verdicts about the whole answer, once it has ended or is blocked.
    verdicts: Vec<Verdict>,
}

/// A rewriting rail with the text that it has read.
struct Stage {
    rail: usize,
    /// All text that came in.
    text: String,
    /// Offset up to which it has been released.
    done: usize,
    /// All text that went out.
    out: String,
    /// True behind a truncation.
    closed: bool,
}

/// The rails that only read, and the text that they let pass.
struct Gate {
    text: String,
    sent: usize,
    readers: Vec<Reader>,
    calls: Option<CallScanner>,
    /// Calls that passed.
    passed: Vec<Call>,
    /// Tools whose arguments the whole answer may be; each judges it.
    forced: Vec<String>,
    stream_first: bool,
}

struct Reader {
    rail: usize,
    window: usize,
    /// Tokens since its last judgement.
    since: usize,
    /// Offset up to which it lets pass; `None` if it does not hold the stream.
    mark: Option<usize>,
    /// True if it judges only whole answers.
    at_end: bool,
}

/// How an answer begins.
#[derive(Clone, Debug, Default)]
pub struct AnswerStart {
    /// End of the prompt, which may have opened thoughts.
    pub prompt: String,
    /// Tools whose arguments the whole answer may be.
    pub forced: Vec<String>,
}

impl AnswerStream {
    /// A stream of one answer; `subject` is in the direction of output.
    pub fn new(engine: Arc<Engine>, subject: Subject, beginning: &AnswerStart) -> AnswerStream {
        let config = engine.config().clone();
        let stage = |rail| Stage { rail, text: String::new(), done: 0, out: String::new(), closed: false };
        let stages: Vec<Stage> = engine.rails(&subject, true).into_iter().map(stage).collect();
        let readers: Vec<Reader> = engine
            .rails(&subject, false)
            .into_iter()
            .map(|rail| {
                let configured = &config.rails[rail];
                let at_end = configured.rail.horizon() == Horizon::Whole || configured.holds_all();
                let free = at_end && configured.setting.hold == Some(Hold::Window);
                let window = configured.setting.window;
                Reader { rail, window, since: 0, mark: (!free).then_some(0), at_end }
            })
            .collect();
        let windows = stages.iter().map(|stage| stage.rail).chain(readers.iter().map(|reader| reader.rail));
        let window = windows.map(|rail| config.rails[rail].setting.window).min();
        let judges_calls = config.on(Direction::ToolCall).next().is_some();
        let offers = !subject.context.tools.is_empty();
        let gate = Gate {
            text: String::new(),
            sent: 0,
            readers,
            calls: (judges_calls && offers && beginning.forced.is_empty())
                .then(|| CallScanner::new(&beginning.prompt)),
            passed: Vec::new(),
            forced: if judges_calls { beginning.forced.clone() } else { Vec::new() },
            stream_first: config.settings.stream_first,
        };
        let window = window.unwrap_or(config.settings.window);
        AnswerStream { engine, subject, stages, gate, waiting: 0, window, verdicts: Vec::new() }
    }

    /// Adds text of this many tokens; returns what is released.
    ///
    /// # Errors
    /// The verdict that blocks the answer: nothing more is released.
    pub fn push(&mut self, text: &str, tokens: usize) -> Result<String, Box<Verdict>> {
        match self.stages.first_mut() {
            Some(stage) => stage.text.push_str(text),
            None => self.gate.text.push_str(text),
        }
        self.waiting += tokens.max(usize::from(!text.is_empty()));
        let due = self.waiting >= self.window;
        let released = if due { self.advance() } else { Ok(self.gate.first_of_all()) };
        let held = self.held();
        self.engine.metrics().held(held);
        match released {
            Ok(_) if held > self.engine.config().settings.max_held => {
                Err(self.block(own("max_held", Reason::Unreadable)))
            }
            Ok(released) => Ok(released),
            Err(verdict) => Err(self.block(*verdict)),
        }
    }

    /// Ends the answer: judges all of it once, and returns the rest of its text.
    ///
    /// # Errors
    /// The verdict that blocks the answer.
    pub fn finish(&mut self) -> Result<String, Box<Verdict>> {
        match self.finished() {
            Ok(rest) => Ok(rest),
            Err(verdict) => Err(self.block(*verdict)),
        }
    }

    /// Verdicts about the whole answer; complete once it has ended or is blocked.
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// Text that has been released.
    pub fn released(&self) -> &str {
        &self.gate.text[..self.gate.sent]
    }

    /// Text of the answer so far, as the model wrote it.
    pub fn text(&self) -> &str {
        self.stages.first().map_or(&self.gate.text, |stage| &stage.text)
    }

    fn held(&self) -> usize {
        let stages: usize = self.stages.iter().map(Stage::held).sum();
        stages + self.gate.text.len() - self.gate.sent
    }

    fn block(&mut self, verdict: Verdict) -> Box<Verdict> {
        let is_late = verdict.reason == Reason::Late
            || verdict.findings.iter().any(|finding| finding.span.start < self.gate.sent);
        if is_late {
            self.engine.metrics().late();
        }
        self.verdicts.push(verdict.clone());
        Box::new(verdict)
    }

    fn advance(&mut self) -> Result<String, Box<Verdict>> {
        for at in 0..self.stages.len() {
            let released = self.stages[at].advance(&self.engine, &self.subject)?;
            match self.stages.get_mut(at + 1) {
                Some(next) => next.text.push_str(&released),
                None => self.gate.text.push_str(&released),
            }
        }
        let tokens = std::mem::take(&mut self.waiting);
        self.gate.advance(&self.engine, &self.subject, tokens)
    }

    fn finished(&mut self) -> Result<String, Box<Verdict>> {
        for at in 0..self.stages.len() {
            let (released, verdict) = self.stages[at].finish(&self.engine, &self.subject)?;
            self.verdicts.push(verdict);
            match self.stages.get_mut(at + 1) {
                Some(next) => next.text.push_str(&released),
                None => self.gate.text.push_str(&released),
            }
        }
        self.gate.finish(&self.engine, &self.subject, &mut self.verdicts)
    }
}

impl Stage {
    fn held(&self) -> usize {
        if self.closed { 0 } else { self.text.len() - self.done }
    }

    /// Releases up to the mark.
    fn advance(&mut self, engine: &Engine, subject: &Subject) -> Result<String, Box<Verdict>> {
        if self.closed || self.text.len() == self.done || engine.config().rails[self.rail].holds_all() {
            return Ok(String::new());
        }
        let begin = context_start(&self.text, self.done);
        let view = View { text: &self.text[begin..], from: self.done - begin, whole: false };
        let marked = engine.run(self.rail, view, subject);
        let verdict = marked.verdict;
        if verdict.decision == Decision::Block {
            return Err(Box::new(moved(verdict, begin)));
        }
        if verdict.decision == Decision::Rewrite
            && verdict.findings.iter().any(|it| it.span.start < view.from)
        {
            return Err(Box::new(late(moved(verdict, begin))));
        }
        let findings = if verdict.decision == Decision::Rewrite { &verdict.findings[..] } else { &[] };
        let mark = settled(view.text, marked.mark, findings).max(view.from);
        let final_edits = verdict.edits.into_iter().filter(|edit| edit.span.start < mark);
        let mut edits: Vec<_> = final_edits.collect();
        if let Some(last) = edits.last_mut()
            && engine.config().rails[self.rail].setting.action == Action::Truncate
        {
            // The finding is final, and all later text is dropped.
            last.span.end = mark;
            self.closed = true;
        }
        for edit in &mut edits {
            edit.span = edit.span.start - view.from..edit.span.end - view.from;
        }
        let released = edited(&view.text[view.from..mark], &edits);
        self.done = begin + mark;
        self.out.push_str(&released);
        Ok(released)
    }

    /// The rest of the rewritten whole.
    fn finish(&mut self, engine: &Engine, subject: &Subject) -> Result<(String, Verdict), Box<Verdict>> {
        let verdict = engine.run(self.rail, View::whole(&self.text), subject).verdict;
        if verdict.decision == Decision::Block {
            return Err(Box::new(verdict));
        }
        let whole = edited(&self.text, &verdict.edits);
        match whole.strip_prefix(&self.out) {
            Some(rest) => Ok((rest.to_string(), verdict)),
            None => Err(Box::new(late(verdict))),
        }
    }
}

impl Gate {
    /// With `stream_first`, text passes before it is judged.
    fn first_of_all(&mut self) -> String {
        if !self.stream_first || self.calls.is_some() || !self.forced.is_empty() {
            return String::new();
        }
        self.release(self.text.len())
    }

    fn release(&mut self, mark: usize) -> String {
        let mark = mark.max(self.sent);
        let released = self.text[self.sent..mark].to_string();
        self.sent = mark;
        released
    }

    fn advance(&mut self, engine: &Engine, subject: &Subject, tokens: usize) -> Result<String, Box<Verdict>> {
        self.readers.iter_mut().for_each(|reader| reader.since += tokens);
        let is_due = |reader: &Reader| !reader.at_end && reader.since >= reader.window;
        let due: Vec<usize> = self.readers.iter().filter(|it| is_due(it)).map(|it| it.rail).collect();
        let seen = self.readers.iter().filter(|it| is_due(it)).filter_map(|it| it.mark).min();
        if let Some(seen) = seen.filter(|seen| *seen < self.text.len()) {
            let begin = context_start(&self.text, seen);
            let view = View { text: &self.text[begin..], from: seen - begin, whole: false };
            for (rail, marked) in engine.read(&due, view, subject) {
                if marked.verdict.decision == Decision::Block {
                    return Err(Box::new(moved(marked.verdict, begin)));
                }
                // Findings of a reader that lets the text pass hold nothing back: the text is sent unchanged.
                let mark = begin + settled(view.text, marked.mark, &[]);
                if let Some(reader) = self.readers.iter_mut().find(|reader| reader.rail == rail) {
                    reader.since = 0;
                    reader.mark = reader.mark.map(|old| old.max(mark));
                }
            }
        }
        let mut mark = settled(&self.text, self.text.len(), &[]);
        if !self.stream_first {
            mark = self.readers.iter().filter_map(|reader| reader.mark).fold(mark, usize::min);
        }
        if !self.forced.is_empty() {
            mark = self.sent;
        }
        if self.calls.is_some() {
            self.judge_calls(engine, subject, false, &mut Vec::new())?;
            mark = mark.min(self.calls.as_ref().map_or(mark, |calls| calls.open(&self.text)));
        }
        Ok(self.release(mark))
    }

    fn finish(
        &mut self,
        engine: &Engine,
        subject: &Subject,
        verdicts: &mut Vec<Verdict>,
    ) -> Result<String, Box<Verdict>> {
        let all: Vec<usize> = self.readers.iter().map(|reader| reader.rail).collect();
        for (_, marked) in engine.read(&all, View::whole(&self.text), subject) {
            if marked.verdict.decision == Decision::Block {
                return Err(Box::new(marked.verdict));
            }
            verdicts.push(marked.verdict);
        }
        self.judge_calls(engine, subject, true, verdicts)?;
        Ok(self.release(self.text.len()))
    }

    /// Judges the calls that have become complete.
    fn judge_calls(
        &mut self,
        engine: &Engine,
        subject: &Subject,
        ended: bool,
        verdicts: &mut Vec<Verdict>,
    ) -> Result<(), Box<Verdict>> {
        if ended && !self.forced.is_empty() {
            let arguments: serde_json::Value =
                serde_json::from_str(&self.text).map_err(|_| Box::new(own("tools", Reason::Arguments)))?;
            for name in &self.forced {
                let call = Call { name: name.clone(), arguments: arguments.clone() };
                verdicts.extend(judge_call(engine, subject, (&call, None), &[])?);
            }
        }
        let parts = self.calls.as_mut().map(|scanner| scanner.advance(&self.text, ended)).unwrap_or_default();
        for part in parts {
            match part.calls {
                Some(calls) => {
                    for call in calls {
                        verdicts.extend(judge_call(engine, subject, (&call, None), &self.passed)?);
                        self.passed.push(call);
                    }
                }
                // A server shows it as text; whether a client reads it as a call is unknown.
                None if part.marked => return Err(Box::new(own("tools", Reason::Arguments))),
                None => {}
            }
        }
        Ok(())
    }
}

/// Judges one call of a tool, with its identity if it may be judged again, and notes it in the thread's ledger if it
/// passes; `earlier` are the calls before it in the same answer.
///
/// # Errors
/// The verdict that blocks.
pub(crate) fn judge_call(
    engine: &Engine,
    subject: &Subject,
    (call, id): (&Call, Option<MessageId>),
    earlier: &[Call],
) -> Result<Vec<Verdict>, Box<Verdict>> {
    let mut context = Context::clone(&subject.context);
    context.messages.extend(earlier.iter().map(|call| {
        let function = serde_json::json!({"name": call.name, "arguments": call.arguments});
        serde_json::json!({"role": "assistant", "tool_calls": [{"type": "function", "function": function}]})
    }));
    let tool = tool_use(&context.tools, &call.name, call.arguments.clone());
    let subject = Subject {
        direction: Direction::ToolCall,
        context: Arc::new(context),
        tool: Some(Arc::new(tool)),
        selection: subject.selection.clone(),
    };
    if let (Some(ledger), Some(id)) = (&subject.context.ledger, &id) {
        ledger.forget(id);
    }
    let outcome = engine.judge(&call.judged(), &subject);
    match outcome.block() {
        Some(verdict) => Err(Box::new(verdict.clone())),
        None => {
            if let Some(ledger) = &subject.context.ledger {
                ledger.called(id, &call.name, &call.arguments);
            }
            Ok(outcome.verdicts)
        }
    }
}

/// A use of a tool, with its declaration among a request's tools.
pub(crate) fn tool_use(tools: &[serde_json::Value], name: &str, arguments: serde_json::Value) -> ToolUse {
    let declared = tools.iter().find_map(|tool| {
        let function = tool.get("function").unwrap_or(tool);
        (function["name"].as_str() == Some(name)).then_some(function)
    });
    let schema = declared.map(|it| it.get("parameters").or_else(|| it.get("input_schema")));
    ToolUse {
        name: name.to_string(),
        arguments,
        schema: schema.flatten().cloned(),
        declared: declared.is_some(),
    }
}

/// Beginning of the context before `done`: all of a short text, else some bytes back, behind white space if there is
/// some.
fn context_start(text: &str, done: usize) -> usize {
    let Some(back) = done.checked_sub(LOOKBEHIND).filter(|back| *back > 0) else { return 0 };
    let begin = text.ceil_char_boundary(back);
    let space = text[begin..done].find(char::is_whitespace).filter(|at| *at < LOOKBEHIND / 2);
    space.map_or(begin, |at| text.ceil_char_boundary(begin + at + 1))
}

/// The mark moved out of findings and graphemes, towards the beginning. The last grapheme of a text may grow.
fn settled(text: &str, mark: usize, findings: &[Finding]) -> usize {
    let mut mark = mark.min(text.len());
    loop {
        let outside = findings
            .iter()
            .find(|it| it.span.start < mark && mark < it.span.end)
            .map_or(mark, |it| it.span.start);
        let floor = grapheme_floor(text, outside);
        if floor == mark {
            return mark;
        }
        mark = floor;
    }
}

/// The grapheme boundary at or before an offset; before the last grapheme, if the offset is the text's end.
fn grapheme_floor(text: &str, at: usize) -> usize {
    let at = text.floor_char_boundary(at);
    if at == 0 {
        return 0;
    }
    let bytes = text.as_bytes();
    if at < text.len() && bytes[at - 1].is_ascii() && bytes[at].is_ascii() && bytes[at - 1] != b'\r' {
        return at;
    }
    let mut cursor = GraphemeCursor::new(at, text.len(), true);
    if at < text.len() && cursor.is_boundary(text, 0).unwrap_or(false) {
        return at;
    }
    cursor.prev_boundary(text, 0).ok().flatten().unwrap_or(0)
}

fn moved(mut verdict: Verdict, by: usize) -> Verdict {
    for finding in &mut verdict.findings {
        finding.span = finding.span.start + by..finding.span.end + by;
    }
    for edit in &mut verdict.edits {
        edit.span = edit.span.start + by..edit.span.end + by;
    }
    verdict
}

fn late(verdict: Verdict) -> Verdict {
    Verdict { decision: Decision::Block, reason: Reason::Late, edits: Vec::new(), ..verdict }
}

/// A verdict of the guard itself, about an answer.
pub(crate) fn own(rail: &str, reason: Reason) -> Verdict {
    Verdict {
        rail: rail.to_string(),
        direction: Direction::Output,
        decision: Decision::Block,
        reason,
        findings: Vec::new(),
        score: None,
        edits: Vec::new(),
        failed: false,
        message: None,
        took: std::time::Duration::ZERO,
    }
}
