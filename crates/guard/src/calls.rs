//! Calls of tools in the text of an answer, in the formats of all model families at once: what a server could read as
//! a call must be seen here. Text between markers, and JSON where an answer begins, is held until it is whole.

use std::ops::Range;

use serde_json::Value;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// Markers behind which the rest of an answer is calls.
const REST: [&str; 2] = ["[TOOL_CALLS]", "<|python_tag|>"];
/// Delimiters of thoughts, in which calls are only considered.
pub(crate) const THOUGHTS: [(&str, &str); 2] = [("<think>", "</think>"), ("[THINK]", "[/THINK]")];

/// A call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Name of the tool.
    pub name: String,
    /// Its arguments.
    pub arguments: Value,
}

impl Call {
    /// The text that rails judge: the arguments as JSON, and behind it each string that JSON writes with escapes, since
    /// a rail looks for what the tool will read.
    pub fn judged(&self) -> String {
        fn escaped(value: &Value, text: &mut String) {
            match value {
                Value::String(string)
                    if string.contains(|c: char| c.is_control() || c == '"' || c == '\\') =>
                {
                    text.push('\n');
                    text.push_str(string);
                }
                Value::Array(items) => items.iter().for_each(|item| escaped(item, text)),
                Value::Object(members) => members.values().for_each(|value| escaped(value, text)),
                _ => {}
            }
        }
        let mut text = self.arguments.to_string();
        escaped(&self.arguments, &mut text);
        text
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Only white space so far.
    Start,
    Text,
    /// Behind an opening tag at this offset.
    Tagged(usize),
    /// Behind this offset everything belongs to calls; true if a marker says so.
    Rest(usize, bool),
    Thoughts(&'static str),
}

/// Finds the parts of a growing text that may be calls.
#[derive(Debug)]
pub(crate) struct CallScanner {
    state: State,
    /// Offset up to which the text has been scanned.
    at: usize,
}

/// A complete part of a text that may contain calls.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallPart {
    /// Place, with its markers.
    pub span: Range<usize>,
    /// Its calls; `None` if it cannot be read as calls.
    pub calls: Option<Vec<Call>>,
    /// True if markers say that it is a call; otherwise it may be an answer in JSON.
    pub marked: bool,
}

/// Length of the end of a text that begins a marker.
pub(crate) fn partial(text: &str, mark: &str) -> usize {
    (1..mark.len()).rev().find(|len| text.as_bytes().ends_with(&mark.as_bytes()[..*len])).unwrap_or(0)
}

impl CallScanner {
    /// A scanner for an answer behind this end of a prompt, which may have opened thoughts.
    pub fn new(prompt: &str) -> CallScanner {
        let open = THOUGHTS.iter().find(|(open, _)| prompt.trim_end().ends_with(open));
        CallScanner { state: open.map_or(State::Start, |(_, close)| State::Thoughts(close)), at: 0 }
    }

    /// Reads on in the text so far; returns the parts that are complete.
    pub fn advance(&mut self, text: &str, ended: bool) -> Vec<CallPart> {
        let mut parts = Vec::new();
        while self.step(text, &mut parts) {}
        if ended {
            match self.state {
                State::Tagged(start) => parts.push(part(text, start..text.len(), true)),
                State::Rest(start, marked) => parts.push(part(text, start..text.len(), marked)),
                _ => {}
            }
            (self.state, self.at) = (State::Text, text.len());
        }
        parts
    }

    /// Offset from which the text must be held: an open part, or the beginning of a possible marker.
    pub fn open(&self, text: &str) -> usize {
        let marks = || [OPEN].into_iter().chain(REST);
        match self.state {
            State::Tagged(start) | State::Rest(start, _) => start,
            State::Start => self.at,
            State::Text => {
                text.len() - marks().map(|mark| partial(&text[self.at..], mark)).max().unwrap_or(0)
            }
            State::Thoughts(_) => text.len(),
        }
    }

    fn step(&mut self, text: &str, parts: &mut Vec<CallPart>) -> bool {
        let rest = &text[self.at..];
        match self.state {
            State::Rest(..) => false,
            State::Start => {
                let word = rest.trim_start();
                let begin = text.len() - word.len();
                let openings = || [OPEN].into_iter().chain(REST).chain(THOUGHTS.map(|(open, _)| open));
                if word.is_empty() || openings().any(|mark| mark.starts_with(word) && mark != word) {
                    return false;
                }
                let marked = openings().any(|mark| word.starts_with(mark));
                let bare = !marked && word.starts_with(['{', '[']);
                self.state = if bare { State::Rest(begin, false) } else { State::Text };
                true
            }
            State::Text => {
                let all = [OPEN].into_iter().chain(REST).chain(THOUGHTS.map(|(open, _)| open));
                let Some((at, mark)) = all.filter_map(|mark| Some((rest.find(mark)?, mark))).min() else {
                    // The beginning of a marker may stand at the end.
                    let kept = text.len().saturating_sub(16).max(self.at);
                    self.at = text.floor_char_boundary(kept).max(self.at);
                    return false;
                };
                let start = self.at + at;
                self.at = start + mark.len();
                self.state = match THOUGHTS.iter().find(|(open, _)| *open == mark) {
                    Some((_, close)) => State::Thoughts(close),
                    None if mark == OPEN => State::Tagged(start),
                    None => State::Rest(start, true),
                };
                true
            }
            State::Thoughts(close) => match rest.find(close) {
                Some(at) => {
                    self.at += at + close.len();
                    self.state = State::Start;
                    true
                }
                None => {
                    let kept = text.len().saturating_sub(close.len()).max(self.at);
                    self.at = text.floor_char_boundary(kept).max(self.at);
                    false
                }
            },
            State::Tagged(start) => match rest.find(CLOSE) {
                Some(at) => {
                    self.at += at + CLOSE.len();
                    parts.push(part(text, start..self.at, true));
                    self.state = State::Start;
                    true
                }
                None => false,
            },
        }
    }
}

fn part(text: &str, span: Range<usize>, marked: bool) -> CallPart {
    let text = &text[span.clone()];
    let calls = calls(text);
    // JSON that a server may read and this crate cannot, such as numbers beyond `f64`, counts as a call.
    let is_json = || serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
    let unreadable = calls.is_none() && is_json() && serde_json::from_str::<Value>(text).is_err();
    CallPart { span, calls, marked: marked || unreadable }
}

/// The calls in a text with its markers; `None` if it is anything else.
pub(crate) fn calls(text: &str) -> Option<Vec<Call>> {
    let mut rest = text.trim();
    let mut calls = Vec::new();
    let separators = [';', ',', ' ', '\n', '\t', '\r'];
    loop {
        let before = rest;
        for mark in [OPEN, CLOSE].into_iter().chain(REST) {
            rest = rest.strip_prefix(mark).unwrap_or(rest).trim_start_matches(separators);
        }
        if rest.is_empty() {
            break;
        }
        if rest == before || !rest.starts_with(['{', '[']) {
            rest = named(rest, &mut calls).unwrap_or(rest);
            if rest == before && !rest.starts_with(['{', '[']) {
                return None;
            }
            if rest.is_empty() {
                break;
            }
        }
        if rest.starts_with(['{', '[']) {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
            let value = values.next()?.ok()?;
            rest = rest[values.byte_offset()..].trim_start_matches(separators);
            match value {
                Value::Array(all) => all.iter().try_for_each(|it| call(it).map(|it| calls.push(it)))?,
                one => calls.push(call(&one)?),
            }
        }
    }
    (!calls.is_empty()).then_some(calls)
}

/// A tool's name with its arguments behind it, in Mistral's newer formats: `add{..}`, `add[ARGS]{..}`,
/// `add[CALL_ID]x[ARGS]{..}`. Returns the text behind.
fn named<'t>(text: &'t str, calls: &mut Vec<Call>) -> Option<&'t str> {
    let is_name = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    let end = text.find(|c| !is_name(c))?;
    let (name, rest) = text.split_at(end);
    let rest = rest.trim_start();
    let rest = match rest.strip_prefix("[CALL_ID]") {
        Some(called) => called.split_once("[ARGS]")?.1,
        None => rest.strip_prefix("[ARGS]").unwrap_or(rest),
    };
    let rest = rest.trim_start();
    if name.is_empty() || !rest.starts_with('{') {
        return None;
    }
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
    let arguments = values.next()?.ok()?;
    calls.push(Call { name: name.to_string(), arguments });
    Some(rest[values.byte_offset()..].trim_start())
}

/// The call in an object.
fn call(value: &Value) -> Option<Call> {
    let inner = value.get("function").filter(|it| it.is_object()).unwrap_or(value);
    let name = inner.get("name").or_else(|| inner.get("function"))?.as_str()?;
    let arguments = inner.get("arguments").or_else(|| inner.get("parameters")).unwrap_or(&Value::Null);
    Some(Call { name: name.to_string(), arguments: as_object(arguments) })
}

/// Arguments as an object: they may be JSON in a string, or missing.
pub(crate) fn as_object(arguments: &Value) -> Value {
    let empty = || Value::Object(serde_json::Map::new());
    match arguments {
        Value::Null => empty(),
        Value::String(text) if matches!(text.trim(), "" | "null") => empty(),
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| arguments.clone()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(text: &str, chunk: usize) -> Vec<(String, Value)> {
        let mut scanner = CallScanner::new("");
        let (mut so_far, mut all) = (String::new(), Vec::new());
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(chunk) {
            so_far.extend(piece);
            all.extend(scanner.advance(&so_far, false));
        }
        all.extend(scanner.advance(&so_far, true));
        all.into_iter()
            .flat_map(|part| part.calls.unwrap_or_default())
            .map(|it| (it.name, it.arguments))
            .collect()
    }

    #[test]
    fn calls_of_all_formats_are_found_for_every_chunking() {
        let one = vec![("add".to_string(), json!({"a": 1}))];
        let two = vec![("add".to_string(), json!({"a": 1})), ("f".to_string(), json!({}))];
        for (text, expected) in [
            (r#"Sure. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>"#, &one),
            (
                r#"<tool_call>{"name": "add", "arguments": "{\"a\": 1}"}</tool_call> <tool_call>{"name": "f"}</tool_call>"#,
                &two,
            ),
            (r#"[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "f"}]"#, &two),
            (r#"[TOOL_CALLS]add[ARGS]{"a": 1}"#, &one),
            (r#"<|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "f"}"#, &two),
            (r#" {"name": "add", "parameters": {"a": 1}}"#, &one),
            (r#"<think>{"name": "no"}</think>{"function": {"name": "add", "arguments": {"a": 1}}}"#, &one),
            (r#"<tool_call>{"name": "add", "arguments": {"a": 1}}"#, &one),
        ] {
            for chunk in [1, 3, 7, 1000] {
                assert_eq!(&found(text, chunk), expected, "{text} in pieces of {chunk}");
            }
        }
        assert_eq!(found("A set {1, 2} and [3].", 2), []);
    }

    #[test]
    fn an_open_call_is_held_from_its_marker() {
        let mut scanner = CallScanner::new("");
        let text = "Yes <tool_";
        assert!(scanner.advance(text, false).is_empty());
        assert_eq!(scanner.open(text), 4);
        let text = "Yes <tool_call>{\"name\"";
        scanner.advance(text, false);
        assert_eq!(scanner.open(text), 4);
        let text = "Yes <tool_box> no";
        let mut scanner = CallScanner::new("");
        scanner.advance(text, false);
        assert_eq!(scanner.open(text), text.len());
    }
}
