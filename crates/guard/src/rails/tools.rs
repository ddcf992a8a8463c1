//! `tools`: calls of tools against the rules of `[tools.NAME]`: declared and allowed names, arguments against their
//! schema, conditions that deny, and budgets of calls, bytes and spend in a thread. Budgets are counted from the
//! messages of the thread.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::calls::as_object;
use crate::cel::Condition;
use crate::config::{Setting, ToolRule};
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, ToolUse, Until};
use crate::registry::{OptionError, RailKind};
use crate::schema;
use crate::verdict::{Direction, Reason};

/// Options.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Lets calls of tools pass that have no rule.
    #[serde(default)]
    allow_unlisted: bool,
    /// Checks arguments against the schemas of the request.
    #[serde(default = "yes")]
    check_schema: bool,
}

fn yes() -> bool {
    true
}

/// The rail.
pub struct Tools {
    options: Options,
    rules: BTreeMap<String, (ToolRule, Option<Condition>)>,
}

impl RailKind for Tools {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "tools",
        summary: "calls of tools against rules: names, arguments, conditions and budgets",
        directions: &[Direction::ToolCall, Direction::ToolResult],
        actions: &[Action::Block, Action::Flag],
        cost: Cost::Text,
    };

    fn build(options: Options, setting: &Setting, _: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        let mut rules = BTreeMap::new();
        for (name, rule) in setting.rules.iter() {
            let condition =
                rule.deny_when.as_deref().map(|text| Condition::parse(text, &["args", "tool", "result"]));
            let condition = condition
                .transpose()
                .map_err(|why| OptionError::new("use", format!("[tools.{name}]: `deny_when`: {why}")))?;
            if rule.spend.is_some() != rule.max_spend.is_some() {
                let message = format!("[tools.{name}]: `spend` and `max_spend` belong together; give both");
                return Err(OptionError::new("use", message));
            }
            rules.insert(name.clone(), (rule.clone(), condition));
        }
        Ok(Box::new(Tools { options, rules }))
    }
}

/// Earlier calls of a tool in a conversation, by their arguments.
fn calls<'a>(messages: &'a [Value], name: &'a str) -> impl Iterator<Item = Value> + 'a {
    let calls = messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
    let own = calls.filter(move |call| call["function"]["name"].as_str() == Some(name));
    own.map(|call| as_object(&call["function"]["arguments"]))
}

/// Bytes of earlier results of a tool in a conversation.
fn result_bytes(messages: &[Value], name: &str) -> usize {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for call in messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten() {
        if let (Some(id), Some(name)) = (call["id"].as_str(), call["function"]["name"].as_str()) {
            names.insert(id, name);
        }
    }
    let of = |message: &&Value| {
        let by_id = message["tool_call_id"].as_str().and_then(|id| names.get(id).copied());
        message["role"] == "tool" && message["name"].as_str().or(by_id) == Some(name)
    };
    messages.iter().filter(of).map(|message| message["content"].as_str().map_or(0, str::len)).sum()
}

impl Tools {
    /// The reason against a call, with its kind.
    fn against(&self, tool: &ToolUse, judged: &RailInput<'_>) -> Option<(Reason, &'static str)> {
        if !tool.declared {
            return Some((Reason::UnknownTool, "undeclared"));
        }
        if self.options.check_schema {
            if !tool.arguments.is_object() {
                return Some((Reason::Arguments, "no_object"));
            }
            if let Some(schema) = &tool.schema
                && schema::check(&tool.arguments, schema).is_err()
            {
                return Some((Reason::Arguments, "schema"));
            }
        }
        let Some((rule, condition)) = self.rules.get(&tool.name) else {
            return (!self.options.allow_unlisted).then_some((Reason::UnknownTool, "unlisted"));
        };
        let key = judged.context.key.as_deref();
        if !rule.allow || !rule.keys.is_empty() && key.is_none_or(|key| !rule.keys.iter().any(|it| it == key))
        {
            return Some((Reason::UnknownTool, "not_allowed"));
        }
        if let Some(condition) = condition.as_ref().filter(|it| !it.uses("result"))
            && denies(condition, tool, Value::Null)
        {
            return Some((Reason::Denied, "deny_when"));
        }
        // A client that sends all messages and one that leaves some out have the same budget.
        let noted = judged.context.ledger.as_ref().map(|ledger| ledger.calls(&tool.name)).unwrap_or_default();
        let sent: Vec<Value> = calls(&judged.context.messages, &tool.name).collect();
        if rule.max_calls.is_some_and(|most| sent.len().max(noted.len()) as u64 >= most) {
            return Some((Reason::Budget, "max_calls"));
        }
        if let (Some(argument), Some(most)) = (&rule.spend, rule.max_spend) {
            let of = |arguments: &Value| arguments[argument.as_str()].as_f64();
            let Some(own) = of(&tool.arguments).filter(|own| *own >= 0.0) else {
                return Some((Reason::Budget, "spend_unknown"));
            };
            let spent = |all: &[Value]| all.iter().filter_map(of).sum::<f64>();
            if spent(&sent).max(spent(&noted)) + own > most {
                return Some((Reason::Budget, "max_spend"));
            }
        }
        None
    }

    /// The reason against a result.
    fn against_result(&self, tool: &ToolUse, judged: &RailInput<'_>) -> Option<(Reason, &'static str)> {
        let (rule, condition) = self.rules.get(&tool.name)?;
        let messages = &judged.context.messages;
        if let Some(condition) = condition.as_ref().filter(|it| it.uses("result")) {
            let arguments = arguments(messages);
            let tool = ToolUse { arguments, ..tool.clone() };
            let result = serde_json::from_str(judged.text).unwrap_or_else(|_| judged.text.into());
            if denies(condition, &tool, result) {
                return Some((Reason::Denied, "deny_when"));
            }
        }
        let most = rule.max_result_bytes?;
        let sent = result_bytes(&messages[..messages.len().saturating_sub(1)], &tool.name);
        let call = messages.last().and_then(|message| message["tool_call_id"].as_str());
        let noted = judged.context.ledger.as_ref();
        let noted = noted.map_or(0, |ledger| ledger.other_bytes(&tool.name, call, judged.text));
        let before = sent.max(noted);
        ((before + judged.text.len()) as u64 > most).then_some((Reason::Budget, "max_result_bytes"))
    }
}

/// Returns whether a condition denies; an error denies, too.
fn denies(condition: &Condition, tool: &ToolUse, result: Value) -> bool {
    let variables = BTreeMap::from([
        ("args".to_string(), tool.arguments.clone()),
        ("tool".to_string(), tool.name.as_str().into()),
        ("result".to_string(), result),
    ]);
    condition.is_true(&variables).unwrap_or(true)
}

/// Arguments of the call that the last message answers.
fn arguments(messages: &[Value]) -> Value {
    let id = messages.last().and_then(|message| message["tool_call_id"].as_str());
    let mut calls = messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
    let call = calls.find(|call| id.is_some() && call["id"].as_str() == id);
    call.map_or(Value::Null, |call| as_object(&call["function"]["arguments"]))
}

impl Rail for Tools {
    fn judge(&self, judged: &RailInput<'_>, _: &Until) -> Result<Opinion, Failure> {
        let Some(tool) = judged.tool else {
            return Err(Failure::Unreadable("a call without a tool".into()));
        };
        let against = match judged.direction {
            Direction::ToolResult => self.against_result(tool, judged),
            _ => self.against(tool, judged),
        };
        Ok(against.map_or_else(Opinion::clean, |(reason, kind)| Opinion::whole(judged, reason, kind)))
    }

    fn horizon(&self) -> Horizon {
        Horizon::Whole
    }
}
