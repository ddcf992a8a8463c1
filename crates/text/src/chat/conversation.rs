//! Conversations in the common row formats: TRL's messages, ShareGPT's and NeMo's turns, prompts with answers,
//! Alpaca's instructions.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Overrides of the usual key names of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    /// List of messages.
    pub messages: Option<String>,
    /// Role of a message.
    pub role: Option<String>,
    /// Content of a message.
    pub content: Option<String>,
    /// Prompt before the answer.
    pub prompt: Option<String>,
    /// Answer.
    pub completion: Option<String>,
    /// System message.
    pub system: Option<String>,
    /// Tool schemas.
    pub tools: Option<String>,
    /// Better of two answers.
    pub chosen: Option<String>,
    /// Worse of two answers.
    pub rejected: Option<String>,
    /// Label of an answer.
    pub label: Option<String>,
}

/// A conversation. Messages have the form that templates read: objects with `role`, `content` and the row's other
/// keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// Messages in order.
    pub messages: Vec<Message>,
    /// Tool schemas.
    pub tools: Vec<Value>,
    /// Number of leading messages that form the prompt; they are context, whatever their role.
    pub prompt: usize,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The message object passed to the template.
    pub said: Value,
    /// Weight of its tokens as targets, if it is the model's.
    pub weight: f32,
}

/// Speaker of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// The model.
    Model,
    /// Any other role.
    Other,
}

impl Message {
    /// Creates a message with `role` and `content`.
    pub fn new(role: &str, content: &str) -> Message {
        Message { said: json!({"role": role, "content": content}), weight: 1.0 }
    }

    /// Parses the messages of a list under `key`: objects with `role` and `content`, or with `from` and `value`.
    ///
    /// # Errors
    /// A message if it is not a list of messages.
    pub fn list(key: &str, list: &Value, keys: &Keys) -> Result<Vec<Message>, String> {
        messages(key, list, keys)
    }

    /// Speaker of the message.
    pub fn by(&self) -> Speaker {
        match self.said["role"].as_str() {
            Some("assistant" | "model") => Speaker::Model,
            _ => Speaker::Other,
        }
    }
}

/// Role names of ShareGPT and NeMo, with their standard equivalents.
const ROLES: [(&str, &str); 14] = [
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("chatgpt", "assistant"),
    ("bard", "assistant"),
    ("bing", "assistant"),
    ("assistant", "assistant"),
    ("model", "assistant"),
    ("function_call", "assistant"),
    ("observation", "tool"),
    ("function", "tool"),
    ("tool", "tool"),
    ("system", "system"),
    ("developer", "developer"),
];

impl Conversation {
    /// Reads a row; `None` if it is not a conversation.
    ///
    /// # Errors
    /// A message if the row is a malformed conversation.
    pub fn read(row: &Map<String, Value>, keys: &Keys) -> Result<Option<Conversation>, String> {
        let tools = tools(row, keys)?;
        let named = |key: &Option<String>, usual: &'static str| {
            let name = key.as_deref().unwrap_or(usual);
            row.get(name).filter(|value| !value.is_null()).map(|value| (name.to_string(), value))
        };
        let turns = named(&keys.messages, "messages").or_else(|| named(&None, "conversations"));
        let mut conversation = if let Some((key, turns)) = turns {
            Conversation { messages: messages(&key, turns, keys)?, tools, prompt: 0 }
        } else if let Some((instruction, answer)) = instruction(row) {
            alpaca(row, instruction, answer)?
        } else if let (Some((prompt_key, prompt)), Some((key, completion))) =
            (named(&keys.prompt, "prompt"), named(&keys.completion, "completion"))
        {
            if !(prompt.is_array() && completion.is_array()) {
                return Ok(None);
            }
            let mut all = messages(&prompt_key, prompt, keys)?;
            let before = all.len();
            all.extend(messages(&key, completion, keys)?);
            Conversation { messages: all, tools, prompt: before }
        } else {
            return Ok(None);
        };
        if let Some((key, system)) = named(&keys.system, "system").or_else(|| named(&None, "system_prompt")) {
            let text = system.as_str().ok_or_else(|| format!("`{key}` is no string"))?;
            let has = conversation.messages.first().is_some_and(|first| first.said["role"] == "system");
            if !has && !text.is_empty() {
                conversation.messages.insert(0, Message::new("system", text));
                conversation.prompt += usize::from(conversation.prompt > 0);
            }
        }
        if row.get("mask").and_then(Value::as_str).is_some() {
            conversation.mask(&row["mask"]);
        }
        conversation.check()?;
        Ok(Some(conversation))
    }

    /// Reads the prompt of a row: the list of messages in its prompt, or its messages up to the last one that is not
    /// the model's.
    ///
    /// # Errors
    /// A message if the row has no such messages.
    pub fn asked(row: &Map<String, Value>, keys: &Keys) -> Result<Conversation, String> {
        let named = |key: &Option<String>, usual: &'static str| {
            let name = key.as_deref().unwrap_or(usual);
            row.get(name).filter(|value| !value.is_null()).map(|value| (name.to_string(), value))
        };
        let found = named(&keys.prompt, "prompt").or_else(|| named(&keys.messages, "messages"));
        let Some((key, list)) = found.or_else(|| named(&None, "conversations")) else {
            let seen: Vec<String> = row.keys().map(|key| format!("`{key}`")).collect();
            return Err(format!("has neither `prompt` nor `messages`; its keys are {}", seen.join(", ")));
        };
        let mut messages = messages(&key, list, keys)?;
        let last = messages.iter().rposition(|message| message.by() == Speaker::Other);
        messages.truncate(last.map_or(0, |last| last + 1));
        if messages.is_empty() {
            return Err(format!("`{key}` has no message that asks something"));
        }
        let prompt = messages.len();
        Ok(Conversation { messages, tools: tools(row, keys)?, prompt })
    }

    /// Applies NeMo's `mask`, which names the role whose turns are context.
    fn mask(&mut self, masked: &Value) {
        let role = masked.as_str().map(str::to_lowercase).unwrap_or_default();
        let role = ROLES.iter().find(|(name, _)| *name == role).map_or(role.as_str(), |(_, role)| role);
        for message in &mut self.messages {
            if message.said["role"].as_str() == Some(role) {
                message.weight = 0.0;
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.messages.is_empty() {
            return Err("is a conversation without messages".into());
        }
        if !self.messages[self.prompt..].iter().any(|message| message.by() == Speaker::Model) {
            let roles: Vec<&str> = self.messages.iter().filter_map(|it| it.said["role"].as_str()).collect();
            return Err(format!("has no turn of the assistant to learn: the roles are {}", roles.join(", ")));
        }
        Ok(())
    }
}

/// Tool schemas: a list, or one as JSON text.
fn tools(row: &Map<String, Value>, keys: &Keys) -> Result<Vec<Value>, String> {
    let name = keys.tools.as_deref().unwrap_or("tools");
    match row.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(tools)) => Ok(tools.clone()),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(Vec::new()),
        Some(Value::String(text)) => serde_json::from_str(text)
            .map_err(|error| format!("`{name}` is text that is no JSON list: {error}")),
        Some(_) => Err(format!("`{name}` is no list of tools")),
    }
}

/// Parses a list of messages with `role` and `content`, or of turns with `from` and `value`.
fn messages(key: &str, list: &Value, keys: &Keys) -> Result<Vec<Message>, String> {
    let Value::Array(list) = list else { return Err(format!("`{key}` is no list of messages")) };
    list.iter()
        .enumerate()
        .map(|(at, turn)| message(turn, keys).map_err(|why| format!("`{key}[{at}]` {why}")))
        .collect()
}

fn message(turn: &Value, keys: &Keys) -> Result<Message, String> {
    let Value::Object(turn) = turn else { return Err("is no object".into()) };
    let (role_key, content_key) = (keys.role.as_deref(), keys.content.as_deref());
    let find = |named: Option<&str>, usual: [&'static str; 2]| {
        named.into_iter().chain(usual).find(|key| turn.contains_key(*key)).map(str::to_string)
    };
    let seen = || turn.keys().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
    let role_key = find(role_key, ["role", "from"])
        .ok_or_else(|| format!("has neither `role` nor `from`; its keys are {}", seen()))?;
    let content_key = find(content_key, ["content", "value"]);
    let from = turn[&role_key].as_str().ok_or_else(|| format!("`{role_key}` is no string"))?;
    let lower = from.to_lowercase();
    let role = ROLES.iter().find(|(name, _)| *name == lower).map_or(from, |(_, role)| role);
    let mut said = turn.clone();
    let content = content_key.as_ref().and_then(|key| said.remove(key));
    said.remove(&role_key);
    let weight = weight(&mut said)?;
    let mut all = Map::new();
    all.insert("role".into(), json!(role));
    // A message of only tool calls has no content, but templates read it anyway.
    if content.is_none() && !turn.contains_key("tool_calls") {
        return Err(format!("has neither `content` nor `value`; its keys are {}", seen()));
    }
    all.insert("content".into(), content.unwrap_or(Value::Null));
    if lower == "function_call" {
        calls(&mut all)?;
    }
    all.extend(said);
    Ok(Message { said: Value::Object(all), weight })
}

/// Removes and returns the weight of a message: `weight`, or `train` and its equivalents in LLaMA-Factory and NeMo.
fn weight(said: &mut Map<String, Value>) -> Result<f32, String> {
    let mut weight = 1.0;
    for key in ["weight", "train", "training"] {
        let Some(value) = said.remove(key) else { continue };
        let number = match &value {
            Value::Bool(train) => Some(f64::from(u8::from(*train))),
            value => value.as_f64(),
        };
        let number = number.filter(|number| number.is_finite() && *number >= 0.0);
        weight *=
            number.ok_or_else(|| format!("`{key}` is {value}, and a weight is a number from 0 up"))? as f32;
    }
    Ok(weight)
}

/// Parses ShareGPT's tool-call turn, which holds JSON as text.
fn calls(said: &mut Map<String, Value>) -> Result<(), String> {
    let text = said.get("content").and_then(Value::as_str).unwrap_or_default();
    let call: Value =
        serde_json::from_str(text).map_err(|error| format!("is a call that is no JSON: {error}"))?;
    let list = match call {
        Value::Array(list) => list,
        one => vec![one],
    };
    let wrap = |call: Value| json!({"type": "function", "function": call});
    said.insert("tool_calls".into(), Value::Array(list.into_iter().map(wrap).collect()));
    said.insert("content".into(), Value::Null);
    Ok(())
}

/// Alpaca's and NeMo's `instruction` and `output`.
fn instruction(row: &Map<String, Value>) -> Option<(&Value, &Value)> {
    let answer = ["output", "response"].into_iter().find_map(|key| row.get(key))?;
    Some((row.get("instruction")?, answer))
}

fn alpaca(row: &Map<String, Value>, instruction: &Value, answer: &Value) -> Result<Conversation, String> {
    let text = |key: &str, value: &Value| {
        value.as_str().map(str::to_string).ok_or_else(|| format!("`{key}` is no string"))
    };
    let mut all = Vec::new();
    for turn in row.get("history").and_then(Value::as_array).into_iter().flatten() {
        let pair = turn.as_array().filter(|pair| pair.len() == 2).ok_or("`history` is no list of pairs")?;
        all.push(Message::new("user", &text("history", &pair[0])?));
        all.push(Message::new("assistant", &text("history", &pair[1])?));
    }
    let mut asked = text("instruction", instruction)?;
    if let Some(more) = row.get("input").and_then(Value::as_str).filter(|more| !more.is_empty()) {
        asked = format!("{asked}\n{more}");
    }
    all.push(Message::new("user", &asked));
    all.push(Message::new("assistant", &text("output", answer)?));
    Ok(Conversation { messages: all, tools: Vec::new(), prompt: 0 })
}
