//! Tool calls in the text of an answer, in the formats of model families.

use serde_json::{Map, Value, json};

use super::raw;
use crate::settings::ToolFormat;

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The tool.
    pub name: String,
    /// Its arguments, as JSON.
    pub arguments: String,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// Text.
    Text(String),
    /// A call.
    Call(Call),
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const MISTRAL: &str = "[TOOL_CALLS]";
const LLAMA: &str = "<|python_tag|>";
/// Markers after a tool's name in Mistral's newer formats: before a call's id, and before its arguments.
const CALL_ID: &str = "[CALL_ID]";
const ARGS: &str = "[ARGS]";
/// Delimiters of thoughts. A call within them is only considered by the model, not made.
const THOUGHTS: [(&str, &str); 2] = [("<think>", "</think>"), ("[THINK]", "[/THINK]")];

/// Markers that must appear in an answer's text even if they are special tokens: those of thoughts, and of calls in a
/// format.
pub fn shown_marks(format: ToolFormat) -> Vec<String> {
    let calls: &[&str] = match format {
        ToolFormat::Auto => &[OPEN, CLOSE, MISTRAL, CALL_ID, ARGS, LLAMA],
        ToolFormat::Hermes => &[OPEN, CLOSE],
        ToolFormat::Llama3 => &[LLAMA],
        ToolFormat::Mistral => &[MISTRAL, CALL_ID, ARGS],
        ToolFormat::None => &[],
    };
    let thoughts = THOUGHTS.iter().flat_map(|(open, close)| [*open, *close]);
    thoughts.chain(calls.iter().copied()).map(str::to_string).collect()
}

/// Finds calls in a growing text.
#[derive(Debug)]
pub struct Scanner {
    format: ToolFormat,
    names: Vec<String>,
    /// Number of further calls to accept; others are dropped.
    most: usize,
    held: String,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only white space so far.
    Start,
    Text,
    /// Between Hermes tags.
    Tagged,
    /// Thoughts, up to this marker.
    Thoughts(&'static str),
    /// The rest is either calls to its end, or text.
    Whole,
}

impl Scanner {
    /// A scanner for calls of these tools.
    pub fn new(format: ToolFormat, names: Vec<String>) -> Scanner {
        let state = if names.is_empty() || format == ToolFormat::None { State::Text } else { State::Start };
        let format = if state == State::Text { ToolFormat::None } else { format };
        Scanner { format, names, most: usize::MAX, held: String::new(), state }
    }

    /// Adapts the scanner to the end of the prompt, which may have opened thoughts.
    pub fn after(mut self, prompt: &str) -> Scanner {
        let open = THOUGHTS.iter().find(|(open, _)| prompt.trim_end().ends_with(open));
        if let (Some((_, close)), State::Start) = (open, self.state) {
            self.state = State::Thoughts(close);
        }
        self
    }

    /// Limits the number of calls.
    pub fn of_at_most(self, most: usize) -> Scanner {
        Scanner { most, ..self }
    }

    /// Accepted calls as parts.
    fn taken(&mut self, calls: Vec<Call>) -> impl Iterator<Item = AnswerPart> + use<> {
        let taken = calls.len().min(self.most);
        self.most -= taken;
        calls.into_iter().take(taken).map(AnswerPart::Call)
    }

    /// Markers that open something other than text: calls and thoughts.
    fn openings(&self) -> impl Iterator<Item = &'static str> {
        let thoughts = if self.format == ToolFormat::None { &[][..] } else { &THOUGHTS[..] };
        self.marks().iter().copied().chain(thoughts.iter().map(|(open, _)| *open))
    }

    /// Markers that may open a call.
    fn marks(&self) -> &'static [&'static str] {
        match self.format {
            ToolFormat::Auto => &[OPEN, MISTRAL, LLAMA],
            ToolFormat::Hermes => &[OPEN],
            ToolFormat::Llama3 => &[LLAMA],
            ToolFormat::Mistral => &[MISTRAL],
            ToolFormat::None => &[],
        }
    }

    /// True if a call may be bare JSON.
    fn takes_bare(&self) -> bool {
        !matches!(self.format, ToolFormat::Hermes | ToolFormat::None)
    }

    /// Adds text; returns the parts that are now certain.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while self.advance(&mut parts) {}
        parts
    }

    /// Ends the text; returns the remaining parts.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        let held = std::mem::take(&mut self.held);
        let (body, open) = match self.state {
            State::Whole => (held.as_str(), ""),
            State::Tagged => (held.as_str(), OPEN),
            State::Start | State::Text | State::Thoughts(_) => return text(held),
        };
        match self.calls(body) {
            Some(calls) => self.taken(calls).collect(),
            None => text(format!("{open}{held}")),
        }
    }

    /// Advances by one step; false if more text is needed.
    fn advance(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        match self.state {
            State::Whole => false,
            State::Start => {
                let rest = self.held.trim_start();
                // The beginning of a possible marker waits; no text precedes it.
                if rest.is_empty() || self.openings().any(|mark| mark.starts_with(rest) && mark != rest) {
                    return false;
                }
                let marked = self.openings().any(|mark| rest.starts_with(mark));
                let bare = self.takes_bare() && !marked && rest.starts_with(['{', '[']);
                self.state = if bare { State::Whole } else { State::Text };
                true
            }
            State::Text => self.begin(parts),
            State::Thoughts(close) => self.think(close, parts),
            State::Tagged => {
                let Some(end) = self.held.find(CLOSE) else { return false };
                let mut body: String = self.held.drain(..end + CLOSE.len()).collect();
                body.truncate(end);
                match self.calls(&body) {
                    Some(calls) => parts.extend(self.taken(calls)),
                    None => parts.extend(text(format!("{OPEN}{body}{CLOSE}"))),
                }
                self.state = State::Start;
                !self.held.trim().is_empty()
            }
        }
    }

    /// Processes text up to the next marker.
    fn begin(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let first = self.openings().filter_map(|mark| Some((self.held.find(mark)?, mark))).min();
        let Some((at, mark)) = first else {
            // The beginning of a possible marker waits.
            parts.extend(self.all_but(self.openings().map(|mark| partial(&self.held, mark)).max()));
            return false;
        };
        if let Some((_, close)) = THOUGHTS.iter().find(|(open, _)| *open == mark) {
            parts.extend(text(self.held.drain(..at + mark.len()).collect()));
            self.state = State::Thoughts(close);
            return true;
        }
        let before: String = self.held.drain(..at).collect();
        self.held.drain(..mark.len());
        if !before.trim().is_empty() {
            parts.extend(text(before));
        }
        self.state = if mark == OPEN { State::Tagged } else { State::Whole };
        true
    }

    /// Processes thoughts up to their end; afterwards the state is that at the beginning of an answer.
    fn think(&mut self, close: &'static str, parts: &mut Vec<AnswerPart>) -> bool {
        let Some(at) = self.held.find(close) else {
            parts.extend(self.all_but(Some(partial(&self.held, close))));
            return false;
        };
        parts.extend(text(self.held.drain(..at + close.len()).collect()));
        self.state = State::Start;
        true
    }

    /// Emits all but the last bytes, which may be the beginning of a marker.
    fn all_but(&mut self, bytes: Option<usize>) -> Vec<AnswerPart> {
        let sure = self.held.len() - bytes.unwrap_or(0);
        text(self.held.drain(..sure).collect())
    }

    /// The calls in a text; `None` if it is anything else, or calls an unknown tool.
    fn calls(&self, text: &str) -> Option<Vec<Call>> {
        let mut calls = Vec::new();
        let mut rest = text.trim().trim_start_matches(MISTRAL).trim();
        while !rest.is_empty() {
            let (named, body) = match self.names.iter().find_map(|name| Some((name, behind(name, rest)?))) {
                Some((name, body)) => (Some(name), body),
                None => (None, rest),
            };
            let (value, after) = raw::first(body)?;
            match (named, raw::elements(value)) {
                (Some(name), _) => calls.push(Call { name: name.clone(), arguments: value.to_string() }),
                (None, Some(values)) => {
                    for value in values {
                        calls.push(self.call(value)?);
                    }
                }
                (None, None) => calls.push(self.call(value)?),
            }
            rest = after.trim_start_matches([';', ',', ' ', '\n', '\t', '\r']);
            rest = rest.trim_start_matches(MISTRAL).trim();
        }
        (!calls.is_empty()).then_some(calls)
    }

    /// The call in an object. Arguments keep the model's spelling, including long numbers.
    fn call(&self, object: &str) -> Option<Call> {
        let mut members = raw::members(object)?;
        if let Some(inner) = member(&members, "function").and_then(raw::members) {
            members = inner;
        }
        let name = member(&members, "name").or(member(&members, "function"))?;
        let name: String = serde_json::from_str(name).ok()?;
        if !self.names.contains(&name) {
            return None;
        }
        let arguments = member(&members, "arguments").or(member(&members, "parameters")).unwrap_or("{}");
        // Arguments may be JSON in a string.
        let text: Option<String> = serde_json::from_str(arguments).ok();
        let arguments = text.unwrap_or_else(|| arguments.to_string());
        // Missing arguments are an empty object.
        let none = matches!(arguments.trim(), "" | "null");
        Some(Call { name, arguments: if none { "{}".to_string() } else { arguments } })
    }
}

/// The arguments after a tool's name in Mistral's newer formats: `add{..}`, `add[ARGS]{..}`, `add[CALL_ID]x[ARGS]{..}`.
fn behind<'t>(name: &str, text: &'t str) -> Option<&'t str> {
    let rest = text.strip_prefix(name)?.trim_start();
    let rest = match rest.strip_prefix(CALL_ID) {
        Some(called) => called.split_once(ARGS)?.1,
        None => rest.strip_prefix(ARGS).unwrap_or(rest),
    };
    Some(rest.trim_start()).filter(|arguments| arguments.starts_with('{'))
}

/// A member of an object by name; the last of several.
fn member<'a>(members: &[(String, &'a str)], name: &str) -> Option<&'a str> {
    members.iter().rev().find(|(other, _)| other == name).map(|(_, value)| *value)
}

/// Length of the end of a text that begins a marker.
fn partial(text: &str, mark: &str) -> usize {
    (1..mark.len()).rev().find(|len| text.as_bytes().ends_with(&mark.as_bytes()[..*len])).unwrap_or(0)
}

fn text(text: String) -> Vec<AnswerPart> {
    if text.is_empty() { Vec::new() } else { vec![AnswerPart::Text(text)] }
}

/// Converts another protocol's tool, with its schema in `schema`, to a function; missing fields are omitted.
pub fn function(tool: &Value, schema: &str) -> Value {
    let mut function = Map::new();
    for (theirs, ours) in [("name", "name"), ("description", "description"), (schema, "parameters")] {
        let given = tool.get(theirs).filter(|given| !given.is_null());
        function.extend(given.map(|given| (ours.to_string(), given.clone())));
    }
    json!({"type": "function", "function": function})
}

/// Names of the tools of a request.
pub fn names(tools: &[Value]) -> Vec<String> {
    let name = |tool: &Value| tool["function"]["name"].as_str().or(tool["name"].as_str()).map(str::to_string);
    tools.iter().filter_map(name).collect()
}

/// The schema of a non-empty list of calls of these tools. The parameters of each are a definition, with their
/// references adjusted.
pub fn schema(tools: &[Value]) -> Value {
    let mut definitions = Map::new();
    let mut one = |(at, tool): (usize, &Value)| {
        let mut parameters = tool["function"]["parameters"].clone();
        if !parameters.is_object() {
            parameters = json!({"type": "object"});
        }
        // References in a schema with an identifier are relative to it.
        if parameters.get("$id").is_none() {
            moved(&mut parameters, &format!("#/$defs/{at}"));
        }
        definitions.insert(at.to_string(), parameters);
        json!({
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "parameters": {"$ref": format!("#/$defs/{at}")},
            },
            "required": ["name", "parameters"],
            "additionalProperties": false,
        })
    };
    let calls: Value = tools.iter().enumerate().map(&mut one).collect();
    json!({"type": "array", "minItems": 1, "items": {"anyOf": calls}, "$defs": definitions})
}

/// Adjusts the references in a schema for a document that contains it at `place`.
fn moved(schema: &mut Value, place: &str) {
    match schema {
        Value::Array(all) => all.iter_mut().for_each(|one| moved(one, place)),
        Value::Object(members) => {
            for (key, value) in members {
                match (key.as_str(), value) {
                    ("$ref", Value::String(to)) => {
                        if let Some(inside) =
                            to.strip_prefix('#').filter(|it| it.is_empty() || it.starts_with('/'))
                        {
                            *to = format!("{place}{inside}");
                        }
                    }
                    // Values contain no references.
                    ("const" | "enum" | "default" | "examples", _) => {}
                    // Schemas by name; the names may equal keywords.
                    (
                        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                        Value::Object(named),
                    ) => named.values_mut().for_each(|one| moved(one, place)),
                    (_, value) => moved(value, place),
                }
            }
        }
        _ => {}
    }
}

/// The arguments of a call for a template: an object rather than its text; empty if missing.
pub fn as_object(arguments: &Value) -> Value {
    let read = match arguments {
        Value::String(text) if text.trim().is_empty() => Value::Null,
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| arguments.clone()),
        other => other.clone(),
    };
    if read.is_null() { Map::new().into() } else { read }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(format: ToolFormat, text: &str, step: usize) -> Vec<AnswerPart> {
        let mut scanner = Scanner::new(format, vec!["add".into(), "now".into()]);
        let chars: Vec<char> = text.chars().collect();
        let mut all: Vec<AnswerPart> =
            chars.chunks(step).flat_map(|some| scanner.push(&some.iter().collect::<String>())).collect();
        all.extend(scanner.finish());
        let mut joined: Vec<AnswerPart> = Vec::new();
        for part in all {
            match (joined.last_mut(), part) {
                (Some(AnswerPart::Text(before)), AnswerPart::Text(text)) => before.push_str(&text),
                (_, part) => joined.push(part),
            }
        }
        joined
    }

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        for step in [1, 3, 1000] {
            let found = parts(ToolFormat::Auto, text, step).into_iter().map(|part| match part {
                AnswerPart::Text(text) => text,
                AnswerPart::Call(call) => format!("{}({})", call.name, call.arguments),
            });
            assert_eq!(found.collect::<Vec<_>>(), expected, "{text:?} by {step}");
        }
    }

    #[test]
    fn calls_of_all_families_are_found_however_the_text_comes() {
        let add = r#"add({"a": 1})"#;
        check("Two words < and [more].", &["Two words < and [more]."]);
        check("<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>", &[add]);
        check(
            "I see.\n<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call>",
            &["I see.\n", add, "now({})"],
        );
        check(r#"{"name": "add", "parameters": {"a": 1}}"#, &[add]);
        check(
            r#"<|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}"#,
            &[add, "now({})"],
        );
        check(
            r#"[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}]"#,
            &[add, "now({})"],
        );
        check(r#"[TOOL_CALLS]add[ARGS]{"a": 1}"#, &[add]);
        check(
            r#"[TOOL_CALLS]add[CALL_ID]x9[ARGS]{"a": 1}[TOOL_CALLS]now[CALL_ID]y8[ARGS]{}"#,
            &[add, "now({})"],
        );
        check(r#"[{"name": "add", "arguments": {"a": 1}}]"#, &[add]);
    }

    #[test]
    fn arguments_are_what_the_model_wrote() {
        let given = r#"{"z": 12345678901234567890123, "id": 18446744073709551616, "e": 1E2, "f": 1.10, "n": -0, "x": 1e400, "u": "\ud83d", "z": 1}"#;
        let expected = format!("add({given})");
        for (before, after) in [
            (r#"<tool_call>{"name": "add", "arguments": "#, "}</tool_call>"),
            (r#"{"name": "add", "parameters": "#, "}"),
            (r#"{"type": "function", "function": {"name": "add", "arguments": "#, "}}"),
            (r#"{"function": "add", "parameters": "#, "}"),
            (r#"[TOOL_CALLS][{"name": "add", "arguments": "#, "}]"),
            ("[TOOL_CALLS]add[ARGS]", ""),
        ] {
            check(&format!("{before}{given}{after}"), &[&expected]);
        }
        check(
            r#"{"name": "add", "parameters": "{\"a\": 18446744073709551616}"}"#,
            &["add({\"a\": 18446744073709551616})"],
        );
    }

    #[test]
    fn arguments_that_are_null_are_an_empty_object() {
        for arguments in ["null", r#""null""#, r#""""#] {
            check(&format!(r#"{{"name": "now", "arguments": {arguments}}}"#), &["now({})"]);
            let text: Value = serde_json::from_str(arguments).unwrap();
            assert_eq!(as_object(&text), json!({}));
        }
    }

    /// References within parameters still resolve inside the schema of all calls; names and values are unchanged.
    #[test]
    fn references_of_parameters_are_moved_with_them() {
        let parameters = json!({
            "type": "object",
            "properties": {"to": {"$ref": "#/$defs/Place"}, "$ref": {"type": "string"}, "const": {"$ref": "#"}},
            "$defs": {"Place": {"enum": [{"$ref": "#/x"}]}},
        });
        let tools =
            json!([{"function": {"name": "now"}}, {"function": {"name": "go", "parameters": parameters}}]);
        let whole = schema(tools.as_array().unwrap());
        let properties = &whole["$defs"]["1"]["properties"];
        assert_eq!(properties["to"], json!({"$ref": "#/$defs/1/$defs/Place"}));
        assert_eq!(properties["const"], json!({"$ref": "#/$defs/1"}));
        assert_eq!(properties["$ref"], json!({"type": "string"}));
        assert_eq!(whole["$defs"]["1"]["$defs"]["Place"]["enum"], json!([{"$ref": "#/x"}]));
        let second = &whole["items"]["anyOf"][1]["properties"];
        assert_eq!(
            (&second["name"]["const"], &second["parameters"]["$ref"]),
            (&json!("go"), &json!("#/$defs/1"))
        );
        for reference in ["/$defs/0", "/$defs/1", "/$defs/1/$defs/Place"] {
            assert!(whole.pointer(reference).is_some(), "{reference}");
        }
    }

    #[test]
    fn a_call_in_thoughts_is_none() {
        let call = r#"<tool_call>{"name": "now"}</tool_call>"#;
        for (open, close) in THOUGHTS {
            let thought = format!("{open}Should I {call}? [TOOL_CALLS]now[ARGS]{{}}{close}");
            check(&format!("{thought}No."), &[&format!("{thought}No.")]);
            check(&format!("\n{thought}\n\n{call}"), &[&format!("\n{thought}"), "now({})"]);
            check(&format!("{thought}{{\"name\": \"now\"}}"), &[&thought, "now({})"]);
            check(&format!("Well. {thought}{call}"), &[&format!("Well. {thought}"), "now({})"]);
            let endless = format!("{open}I {call}");
            check(&endless, &[&endless]);
            // The prompt may end with the beginning of thoughts.
            for (prompt, calls) in [(format!("assistant\n{open}\n"), 0), (format!("{open}{close}\n"), 1)] {
                let mut scanner = Scanner::new(ToolFormat::Auto, vec!["now".into()]).after(&prompt);
                let parts = [scanner.push(call), scanner.finish()].concat();
                let found = parts.iter().filter(|part| matches!(part, AnswerPart::Call(_))).count();
                assert_eq!(found, calls, "{prompt:?}");
            }
        }
        check("a <thin [THIN", &["a <thin [THIN"]);
    }

    #[test]
    fn what_is_no_call_stays_text() {
        for text in [
            r#"{"name": "other", "parameters": {}}"#,
            r#"{"answer": 4}"#,
            "[1, 2",
            "<tool_call>{\"name\": \"add\"",
            "<tool_call>nothing</tool_call>",
            "[TOOL",
            "<tool_",
        ] {
            let found = parts(ToolFormat::Auto, text, 2);
            let calls = found.iter().any(|part| matches!(part, AnswerPart::Call(_)));
            assert!(!calls || text.contains("\"add\""), "{text}: {found:?}");
        }
        check("[TOOL", &["[TOOL"]);
        check("<tool_call>nothing</tool_call>", &["<tool_call>nothing</tool_call>"]);
        assert_eq!(parts(ToolFormat::None, "<tool_call>x", 1), [AnswerPart::Text("<tool_call>x".into())]);
    }
}
