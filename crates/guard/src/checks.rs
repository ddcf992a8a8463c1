//! `/v1/checks` without HTTP: messages in, verdicts out, and no model is asked for an answer.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::calls::{Call, as_object};
use crate::config::FILE;
use crate::engine::{Engine, Outcome, Selection, Subject};
use crate::guard::Guard;
use crate::guarded::Session;
use crate::guards::Guards;
use crate::journal::JournalParts;
use crate::prompt::{answered_tool, note_result};
use crate::rail::Context;
use crate::stream::judge_call;
use crate::threads::{MessageId, chained};
use crate::verdict::{Decision, Direction, Verdict};

/// Error of a check, by the status of its response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// A malformed request (400).
    #[error("{0}")]
    Malformed(String),
    /// A request that cannot be fulfilled: no messages, an unknown configuration, no rail that judges (422).
    #[error("{0}")]
    Unprocessable(String),
    /// The audit log cannot be written (503).
    #[error("{0}")]
    Unavailable(String),
}

type CheckResult<T> = Result<T, CheckError>;

/// Fields of a message by its role.
const FIELDS: [(&str, &[&str]); 7] = [
    ("system", &["role", "content", "name"]),
    ("developer", &["role", "content", "name"]),
    ("user", &["role", "content", "name"]),
    ("assistant", &["role", "content", "name", "tool_calls", "refusal", "reasoning_content"]),
    ("tool", &["role", "content", "name", "tool_call_id"]),
    ("function", &["role", "content", "name"]),
    ("context", &["role", "content"]),
];

fn known(object: &Map<String, Value>, names: &[&str], owner: &str) -> CheckResult<()> {
    match object.keys().find(|key| !names.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let hint = fathom_base::recipe::suggest_name(key, names, "it has");
            Err(CheckError::Malformed(format!("{owner}: unknown field `{key}`; {hint}")))
        }
    }
}

/// A request, read.
struct Request {
    guard: Arc<Guard>,
    messages: Vec<Value>,
    tools: Vec<Value>,
    directions: Vec<Direction>,
    model: String,
    thread: Option<String>,
    selection: Selection,
}

/// Judges the messages of a request; returns the body of the response.
///
/// # Errors
/// A request that is malformed or cannot be fulfilled.
pub fn check(guards: &Guards, session: &Session, body: &Value) -> CheckResult<Value> {
    let request = read(guards, body)?;
    let engine = request.guard.engine();
    let thread = request.thread.clone().or_else(|| session.thread.clone());
    let context = Context {
        tools: request.tools.clone(),
        ledger: request.guard.ledgers.of(session.key.as_deref(), thread.as_deref()),
        thread,
        key: session.key.clone(),
        model: request.model.clone(),
        ..Context::default()
    };
    let selection = Arc::new(request.selection.clone());
    let check = Check { engine: &engine, request: &request, context, selection };
    check.run()
}

/// The configuration and the session that a request of a model selects by its `guardrails`: a configuration, a thread,
/// and the rails of each direction, as far as the configuration lets requests leave rails out.
///
/// # Errors
/// Unknown fields, configurations or rails; rails left out without leave.
pub fn session(
    guards: &Guards,
    options: Option<&Value>,
    key: Option<String>,
) -> CheckResult<(Arc<Guard>, Session)> {
    let empty = Map::new();
    let options = match options {
        None | Some(Value::Null) => &empty,
        Some(options) => {
            let malformed = || CheckError::Malformed("`guardrails` should be an object".into());
            options.as_object().ok_or_else(malformed)?
        }
    };
    known(options, &["config_id", "config_ids", "options", "thread_id"], "guardrails")?;
    let guard = selected(guards, |key| options.get(key).filter(|it| !it.is_null()))?;
    let selection = selection(options.get("options"), &guard)?;
    let engine = guard.engine();
    if !selection.kept.is_empty() && !engine.config().settings.selectable {
        let what = format!(
            "configuration {} does not let requests leave rails out (guard.selectable in its {FILE})",
            engine.config().id
        );
        return Err(CheckError::Unprocessable(what));
    }
    let thread = thread_id(options.get("thread_id"))?;
    let shown = (!options.is_empty()).then(|| shown(options.get("options"))).transpose()?;
    let journal = Some(Arc::default());
    Ok((guard, Session { selection: Arc::new(selection), thread, key, journal, shown }))
}

/// The parts of the log that `options.log` asks for.
fn shown(options: Option<&Value>) -> CheckResult<JournalParts> {
    let malformed = |what: &str| CheckError::Malformed(what.to_string());
    let Some(options) = options.filter(|it| !it.is_null()) else { return Ok(JournalParts::default()) };
    let options = options.as_object().ok_or_else(|| malformed("`options` should be an object"))?;
    known(options, &["rails", "log"], "guardrails.options")?;
    let Some(log) = options.get("log").filter(|it| !it.is_null()) else { return Ok(JournalParts::default()) };
    let log = log.as_object().ok_or_else(|| malformed("`options.log` should be an object"))?;
    known(log, &["activated_rails", "llm_calls"], "guardrails.options.log")?;
    let is_on = |key: &str| match log.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(value) => value.as_bool().ok_or_else(|| malformed("`options.log` should have true or false")),
    };
    Ok(JournalParts { activated_rails: is_on("activated_rails")?, llm_calls: is_on("llm_calls")? })
}

/// The configuration that a request names.
fn selected<'v>(guards: &Guards, of: impl Fn(&str) -> Option<&'v Value>) -> CheckResult<Arc<Guard>> {
    let ids =
        of("config_ids").and_then(Value::as_array).map(|ids| ids.iter().filter_map(Value::as_str).collect());
    let ids: Vec<&str> = ids.unwrap_or_else(|| of("config_id").and_then(Value::as_str).into_iter().collect());
    if ids.len() > 1 {
        return Err(CheckError::Unprocessable("one configuration at a time; put all rails into one".into()));
    }
    let guard = guards.get(ids.first().copied()).ok_or_else(|| {
        let hint = fathom_base::recipe::suggest_name(ids[0], &guards.ids(), "there are");
        CheckError::Unprocessable(format!("no configuration is called `{}`; {hint}", ids[0]))
    })?;
    Ok(guard.clone())
}

fn thread_id(given: Option<&Value>) -> CheckResult<Option<String>> {
    match given {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) if (16..=255).contains(&id.len()) => Ok(Some(id.clone())),
        Some(_) => Err(CheckError::Malformed("`thread_id` should have 16 to 255 characters".into())),
    }
}

fn read(guards: &Guards, body: &Value) -> CheckResult<Request> {
    let malformed = |what: &str| CheckError::Malformed(what.to_string());
    let object = body.as_object().ok_or_else(|| malformed("the body should be an object"))?;
    known(object, &["model", "messages", "tools", "guardrails", "config_id", "rail_types"], "the request")?;
    let empty = Map::new();
    let options = match object.get("guardrails") {
        None => &empty,
        Some(options) => options.as_object().ok_or_else(|| malformed("`guardrails` should be an object"))?,
    };
    known(options, &["config_id", "config_ids", "rail_types", "options", "thread_id"], "guardrails")?;
    let of = |key: &str| options.get(key).or_else(|| object.get(key)).filter(|it| !it.is_null());
    let guard = selected(guards, of)?;
    let messages = match object.get("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages.clone(),
        Some(Value::Array(_)) => return Err(CheckError::Unprocessable("`messages` is empty".into())),
        _ => return Err(malformed("`messages` should be a list")),
    };
    for (at, message) in messages.iter().enumerate() {
        readable(message, &format!("messages[{at}]"))?;
    }
    let tools = match object.get("tools") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(tools)) => tools.clone(),
        Some(_) => return Err(malformed("`tools` should be a list")),
    };
    let directions = directions(of("rail_types"), &guard)?;
    let thread = thread_id(of("thread_id"))?;
    Ok(Request {
        messages,
        tools,
        directions,
        model: object.get("model").and_then(Value::as_str).unwrap_or("").to_string(),
        thread,
        selection: selection(options.get("options"), &guard)?,
        guard,
    })
}

/// Checks a message's fields by its role.
fn readable(message: &Value, name: &str) -> CheckResult<()> {
    let malformed = |what: String| CheckError::Malformed(format!("{name}: {what}"));
    let object = message.as_object().ok_or_else(|| malformed("should be an object".into()))?;
    let role = object.get("role").and_then(Value::as_str).ok_or_else(|| malformed("has no `role`".into()))?;
    let Some((_, fields)) = FIELDS.iter().find(|(other, _)| *other == role) else {
        let roles: Vec<&str> = FIELDS.iter().map(|(role, _)| *role).collect();
        let hint = fathom_base::recipe::suggest_name(role, &roles, "roles are");
        return Err(malformed(format!("no role is called `{role}`; {hint}")));
    };
    known(object, fields, name)?;
    match object.get("content") {
        Some(Value::String(_)) => Ok(()),
        None | Some(Value::Null) if object.contains_key("tool_calls") => Ok(()),
        Some(Value::Object(_)) if role == "context" => Ok(()),
        Some(Value::Array(parts))
            if parts.iter().all(|part| part["text"].is_string() && part["type"] == "text") =>
        {
            Ok(())
        }
        Some(Value::Array(_)) => {
            Err(malformed("has parts that are not text, which no rail can judge".into()))
        }
        _ => Err(malformed("`content` should be a text or a list of texts".into())),
    }
}

/// Name of a direction, or an older one of NeMo Guardrails.
fn direction(name: &str) -> Option<Direction> {
    match name {
        "tool_output" => Some(Direction::ToolCall),
        "tool_input" => Some(Direction::ToolResult),
        name => Direction::ALL.into_iter().find(|it| it.name() == name),
    }
}

fn directions(types: Option<&Value>, guard: &Guard) -> CheckResult<Vec<Direction>> {
    let engine = guard.engine();
    let config = engine.config();
    let Some(types) = types else { return Ok(Direction::ALL.to_vec()) };
    let types =
        types.as_array().ok_or_else(|| CheckError::Malformed("`rail_types` should be a list".into()))?;
    if types.is_empty() {
        return Err(CheckError::Unprocessable(
            "`rail_types` is empty, so that nothing would be judged".into(),
        ));
    }
    let one = |name: &Value| {
        let name = name.as_str().unwrap_or("");
        let Some(direction) = direction(name) else {
            let names = Direction::ALL.map(Direction::name);
            let hint = fathom_base::recipe::suggest_name(name, &names, "rail types are");
            return Err(CheckError::Unprocessable(format!("no rail type is called `{name}`; {hint}")));
        };
        if config.on(direction).next().is_none() {
            return Err(CheckError::Unprocessable(format!(
                "configuration {} has no {name} rails",
                config.id
            )));
        }
        Ok(direction)
    };
    types.iter().map(one).collect()
}

/// The rails that `options.rails` keeps: a direction switched on or off, or a list of names.
///
/// # Errors
/// Unknown directions, rails, or forms.
pub fn selection(options: Option<&Value>, guard: &Guard) -> CheckResult<Selection> {
    let mut selection = Selection::default();
    let Some(rails) = options.and_then(|options| options.get("rails")) else { return Ok(selection) };
    let rails = rails
        .as_object()
        .ok_or_else(|| CheckError::Malformed("`options.rails` should be an object".into()))?;
    let engine = guard.engine();
    for (name, wanted) in rails {
        let Some(direction) = direction(name) else {
            return Err(CheckError::Unprocessable(format!(
                "`options.rails`: no direction is called `{name}`"
            )));
        };
        let kept = match wanted {
            Value::Bool(true) => continue,
            Value::Bool(false) => Vec::new(),
            Value::Array(names) => {
                names.iter().map(|name| name.as_str().unwrap_or("").to_string()).collect::<Vec<String>>()
            }
            _ => {
                return Err(CheckError::Malformed(format!(
                    "`options.rails.{name}` should be true, false or a list"
                )));
            }
        };
        let known: Vec<&str> = engine.config().on(direction).map(|rail| rail.setting.name.as_str()).collect();
        if let Some(other) = kept.iter().find(|it| !known.contains(&it.as_str())) {
            let hint = fathom_base::recipe::suggest_name(other, &known, "there are");
            return Err(CheckError::Unprocessable(format!("no {name} rail is called `{other}`; {hint}")));
        }
        selection.kept.insert(direction, kept);
    }
    Ok(selection)
}

struct Check<'a> {
    engine: &'a Engine,
    request: &'a Request,
    context: Context,
    selection: Arc<Selection>,
}

/// Findings so far.
#[derive(Default)]
struct Findings {
    verdicts: Vec<Value>,
    /// Texts that were judged, or known from before.
    judged: usize,
    blocked: Option<Verdict>,
    rewriting: Option<String>,
    failed: bool,
    /// Content of the last message.
    content: String,
}

impl Check<'_> {
    fn run(&self) -> CheckResult<Value> {
        let mut found = Findings::default();
        let config = self.engine.config();
        let beginning = [
            "checks",
            &config.hash,
            self.context.key.as_deref().unwrap_or(""),
            self.context.thread.as_deref().unwrap_or(""),
        ];
        let mut id: MessageId =
            chained(&[0; 32], &format!("{:?}", self.selection.kept), &beginning.join("\n"));
        let last = self.request.messages.len() - 1;
        for (at, message) in self.request.messages.iter().enumerate() {
            id = chained(&id, "message", &message.to_string());
            if at != last && self.request.guard.seen.contains(&id) {
                found.judged += 1;
                continue;
            }
            let before = found.verdicts.len();
            self.message(at, (message, &id), &mut found)?;
            let passes = |verdict: &Value| verdict["decision"] == "allow" && verdict["failed"] == false;
            if found.blocked.is_none() && found.verdicts[before..].iter().all(passes) {
                self.request.guard.seen.insert(id);
            }
            if found.blocked.is_some() {
                break;
            }
        }
        if found.judged == 0 {
            let what = "no message is judged: no rail of the configuration is for these roles and rail types";
            return Err(CheckError::Unprocessable(what.into()));
        }
        let (status, rail) = match (&found.blocked, found.rewriting) {
            (Some(verdict), _) => {
                self.engine.metrics().blocked(verdict.direction);
                found.content = crate::answers::refused_text(self.engine, verdict);
                ("blocked", Some(verdict.rail.clone()))
            }
            (None, Some(rail)) => ("modified", Some(rail)),
            (None, None) => ("passed", None),
        };
        Ok(json!({
            "status": status,
            "content": found.content,
            "rail": rail,
            "verdicts": found.verdicts,
            "failed": found.failed,
        }))
    }

    fn message(
        &self,
        at: usize,
        (message, id): (&Value, &MessageId),
        found: &mut Findings,
    ) -> CheckResult<()> {
        let direction = match message["role"].as_str() {
            Some("assistant") => Direction::Output,
            Some("tool" | "function") => Direction::ToolResult,
            Some("context") => Direction::Retrieval,
            _ => Direction::Input,
        };
        found.content = content(&message["content"]);
        if self.judges(direction) {
            let texts = if direction == Direction::Retrieval {
                passages(&message["content"])
            } else {
                vec![found.content.clone()]
            };
            let reasoning = message["reasoning_content"].as_str().map(str::to_string);
            let mut rewritten = Vec::new();
            for text in texts.into_iter().chain(reasoning) {
                let outcome = self.text(at, &text, direction, found)?;
                rewritten.push(outcome.text);
            }
            if let Some(first) = rewritten.into_iter().next() {
                found.content = first;
            }
        }
        if self.judges(Direction::ToolCall) && found.blocked.is_none() {
            self.calls(at, (message, id), found)?;
        }
        Ok(())
    }

    fn judges(&self, direction: Direction) -> bool {
        self.request.directions.contains(&direction) && self.engine.config().on(direction).next().is_some()
    }

    fn subject(&self, at: usize, direction: Direction) -> Subject {
        let messages = self.request.messages[..=at].to_vec();
        let mut subject = Subject::new(direction, Arc::new(Context { messages, ..self.context.clone() }));
        subject.selection = self.selection.clone();
        subject
    }

    fn text(
        &self,
        at: usize,
        text: &str,
        direction: Direction,
        found: &mut Findings,
    ) -> CheckResult<Outcome> {
        let mut subject = self.subject(at, direction);
        if direction == Direction::ToolResult {
            subject.tool = Some(Arc::new(answered_tool(&subject.context)));
        }
        let outcome = self.engine.judge(text, &subject);
        note_result(&subject, text, &outcome);
        self.record(text, direction, &outcome.verdicts)?;
        found.judged += 1;
        for verdict in &outcome.verdicts {
            found.add(at, verdict);
        }
        Ok(outcome)
    }

    fn calls(&self, at: usize, (message, id): (&Value, &MessageId), found: &mut Findings) -> CheckResult<()> {
        let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut earlier = Vec::new();
        for (which, call) in calls.iter().enumerate() {
            let function = &call["function"];
            let Some(name) = function["name"].as_str() else {
                return Err(CheckError::Malformed(format!(
                    "messages[{at}].tool_calls: a call has no `function.name`"
                )));
            };
            let call = Call { name: name.to_string(), arguments: as_object(&function["arguments"]) };
            let before = if at > 0 { at - 1 } else { 0 };
            let subject = self.subject(before, Direction::Output);
            let id = chained(id, "call", &which.to_string());
            let verdicts = match judge_call(self.engine, &subject, (&call, Some(id)), &earlier) {
                Ok(verdicts) => verdicts,
                Err(verdict) => vec![*verdict],
            };
            self.record(&call.arguments.to_string(), Direction::ToolCall, &verdicts)?;
            found.judged += 1;
            verdicts.iter().for_each(|verdict| found.add(at, verdict));
            earlier.push(call);
        }
        Ok(())
    }

    fn record(&self, text: &str, direction: Direction, verdicts: &[Verdict]) -> CheckResult<()> {
        if self.request.guard.recorded(self.engine, &self.context, (text, direction), verdicts) {
            return Ok(());
        }
        Err(CheckError::Unavailable("the guard's log cannot be written".into()))
    }
}

impl Findings {
    fn add(&mut self, at: usize, verdict: &Verdict) {
        self.failed |= verdict.failed;
        if verdict.decision == Decision::Block && self.blocked.is_none() {
            self.blocked = Some(verdict.clone());
        }
        if verdict.decision == Decision::Rewrite && self.rewriting.is_none() {
            self.rewriting = Some(verdict.rail.clone());
        }
        self.verdicts.push(verdict_json(at, verdict));
    }
}

/// A verdict as JSON; `at` is the index of its message.
pub fn verdict_json(at: usize, verdict: &Verdict) -> Value {
    let span = |it: &crate::Finding| json!([it.span.start, it.span.end, it.kind]);
    let mut value = json!({
        "message": at,
        "rail": verdict.rail,
        "direction": verdict.direction,
        "decision": verdict.decision,
        "reason": verdict.reason,
        "spans": verdict.findings.iter().map(span).collect::<Vec<Value>>(),
        "failed": verdict.failed,
        "took_us": verdict.took.as_micros() as u64,
    });
    if let Some(score) = verdict.score {
        value["score"] = score.into();
    }
    value
}

/// Text of a message's content.
fn content(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// Passages of a message in the role `context`.
fn passages(content: &Value) -> Vec<String> {
    match content {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items.iter().flat_map(passages).collect(),
        Value::Object(members) => members.values().flat_map(passages).collect(),
        _ => Vec::new(),
    }
}
