//! Requests that converse: messages, tools, and the answers in progress.

use fathom_base::{Conversation, RequestOutput};
use serde_json::{Map, Value, json};

use super::params::{Params, most};
use super::tools::{self, AnswerPart, Call, Scanner};
use super::{AdmittedRequest, Server, schema, search};
use crate::answering::{ModelRequests, collect};
use crate::fault::Fault;
use crate::fields::Fields;
use crate::knowledge::Sources;
use crate::settings::{Settings, ToolFormat};

/// Last tokens of a prompt in which a marker that opens thoughts is looked for.
const END_TOKENS: usize = 64;

/// The tools that an answer may call.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    format: ToolFormat,
    names: Vec<String>,
    /// The tool whose arguments are the whole answer.
    forced: Option<String>,
    /// True if at most one call is allowed.
    single: bool,
    /// The end of the prompt that the answer continues.
    prompt: String,
}

impl Tools {
    /// A scanner for calls in an answer.
    pub fn scanner(&self) -> Scanner {
        match &self.forced {
            Some(_) => Scanner::new(ToolFormat::None, Vec::new()),
            None => {
                let most = if self.single { 1 } else { usize::MAX };
                Scanner::new(self.format, self.names.clone()).after(&self.prompt).of_at_most(most)
            }
        }
    }

    /// The tool whose arguments are the whole answer.
    pub fn forced(&self) -> Option<&str> {
        self.forced.as_deref()
    }

    /// Markers that must appear in the text of an answer even if they are special tokens.
    fn shown(&self) -> Vec<String> {
        tools::shown_marks(if self.offered() { self.format } else { ToolFormat::None })
    }

    /// True if tools were offered.
    pub fn offered(&self) -> bool {
        !self.names.is_empty()
    }

    /// The text and the calls of a whole answer.
    pub fn split(&self, text: &str) -> (String, Vec<Call>) {
        if let Some(name) = &self.forced {
            return (String::new(), vec![Call { name: name.clone(), arguments: text.to_string() }]);
        }
        let mut scanner = self.scanner();
        let mut parts = scanner.push(text);
        parts.extend(scanner.finish());
        let (mut words, mut calls) = (String::new(), Vec::new());
        for part in parts {
            match part {
                AnswerPart::Text(text) => words.push_str(&text),
                AnswerPart::Call(call) => calls.push(call),
            }
        }
        if !calls.is_empty() && words.trim().is_empty() {
            words.clear();
        }
        (words, calls)
    }
}

/// A conversation in progress.
pub struct Talk {
    /// The answers.
    pub answering: ModelRequests,
    /// The parameters of the request.
    pub params: Params,
    /// The available tools.
    pub tools: Tools,
    /// Alternatives of each prompt token, if log-probabilities are requested.
    pub prompt_logprobs: Option<usize>,
    /// Alternatives of each token, if log-probabilities are requested.
    pub logprobs: Option<usize>,
    /// Documents that the answers may cite.
    pub sources: Option<Sources>,
    /// Fields of the request that have no effect.
    pub unknown: Vec<String>,
}

/// Alternatives of each prompt token, if log-probabilities are requested in vLLM's way.
///
/// # Errors
/// Too many, or with a streamed answer.
pub fn prompt_logprobs(fields: &mut Fields, settings: &Settings) -> Result<Option<usize>, Fault> {
    let top: Option<usize> = fields.take("prompt_logprobs")?;
    most("prompt_logprobs", top.unwrap_or(0), settings.max_logprobs)?;
    if top.is_some() && fields.get("stream") == Some(&Value::Bool(true)) {
        return Err(Fault::field("prompt_logprobs", "is no part of a stream; ask without `stream`"));
    }
    Ok(top)
}

/// The messages of a request, normalised for templates.
fn messages(fields: &mut Fields) -> Result<Vec<Value>, Fault> {
    let messages: Vec<Map<String, Value>> = fields.need("messages")?;
    if messages.is_empty() {
        return Err(Fault::field("messages", "is empty"));
    }
    messages.into_iter().enumerate().map(|(at, message)| Ok(readable(message, at)?.into())).collect()
}

/// A message with its text as one string, and with objects as the arguments of calls.
fn readable(mut message: Map<String, Value>, at: usize) -> Result<Map<String, Value>, Fault> {
    let name = format!("messages[{at}]");
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(Fault::field(&name, "has no `role`"));
    }
    let calls = message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    let content = match message.remove("content") {
        // Some templates test whether a message of calls only has no content.
        None | Some(Value::Null) if calls => Value::Null,
        None | Some(Value::Null) => "".into(),
        Some(Value::String(text)) => text.into(),
        Some(Value::Array(parts)) => {
            let text = |part: &Value| match part["type"].as_str() {
                Some("text" | "input_text" | "output_text") | None => {
                    part["text"].as_str().or(part.as_str()).map(str::to_string)
                }
                _ => None,
            };
            let wrong = || Fault::field(&name, "has parts that are not text; this model reads text alone");
            parts
                .iter()
                .map(|part| text(part).ok_or_else(wrong))
                .collect::<Result<Vec<_>, _>>()?
                .join("")
                .into()
        }
        Some(_) => {
            return Err(Fault::field(&name, "has a `content` that is neither a string nor a list of parts"));
        }
    };
    message.insert("content".into(), content);
    match message.get_mut("tool_calls") {
        None => {}
        Some(Value::Null) => _ = message.remove("tool_calls"),
        Some(Value::Array(calls)) => {
            for (which, call) in calls.iter_mut().enumerate() {
                readable_call(call)
                    .map_err(|why| Fault::field(&format!("{name}.tool_calls[{which}]"), why))?;
            }
        }
        Some(_) => return Err(Fault::field(&name, "has `tool_calls` that are no list")),
    }
    Ok(message)
}

/// Converts the arguments of an earlier call to an object.
fn readable_call(call: &mut Value) -> Result<(), &'static str> {
    if !call["function"]["name"].is_string() {
        return Err("is no call: it has no `function.name`");
    }
    let arguments = tools::as_object(&call["function"]["arguments"]);
    if !arguments.is_object() {
        return Err("has `function.arguments` that are no JSON object");
    }
    call["function"]["arguments"] = arguments;
    Ok(())
}

/// The conversation of a request, as passed to the template.
///
/// # Errors
/// Invalid messages, or variables that a client must not set.
pub fn conversation(fields: &mut Fields) -> Result<Conversation, Fault> {
    let mut variables: Map<String, Value> = fields.or("chat_template_kwargs", Map::new())?;
    for name in ["messages", "tools", "chat_template", "tokenize", "return_tensors", "return_dict"] {
        if variables.contains_key(name) {
            return Err(Fault::field("chat_template_kwargs", format_args!("cannot set `{name}`")));
        }
    }
    for name in ["reasoning_effort", "documents"] {
        if let Some(value) = fields.take::<Value>(name)? {
            variables.insert(name.into(), value);
        }
    }
    let continues = fields.or("continue_final_message", false)?;
    Ok(Conversation {
        messages: messages(fields)?,
        tools: fields.list("tools")?,
        add_generation_prompt: fields.or("add_generation_prompt", !continues)?,
        continue_final_message: continues,
        variables,
    })
}

/// Takes `tool_choice`, and determines the tools that an answer may or must call.
fn tools(
    server: &Server,
    fields: &mut Fields,
    talk: &mut Conversation,
    params: &mut Params,
) -> Result<Tools, Fault> {
    most("tools", talk.tools.len(), server.settings.max_tools)?;
    let names = tools::names(&talk.tools);
    if names.len() != talk.tools.len() {
        return Err(Fault::field("tools", "has one without `function.name`"));
    }
    let single = !fields.or("parallel_tool_calls", true)?;
    let choice: Value = fields.or("tool_choice", "auto".into())?;
    let mut tools =
        Tools { format: server.settings.tools, names, forced: None, single, prompt: String::new() };
    let named = choice["function"]["name"].as_str().or(choice["name"].as_str());
    match (choice.as_str(), named) {
        (Some("auto"), _) => {}
        (Some("none"), _) => {
            talk.tools.clear();
            tools.names.clear();
        }
        (Some("required"), _) if !tools.names.is_empty() => {
            tools.format = ToolFormat::Llama3;
            params.set_structure(schema::by_schema(&tools::schema(&talk.tools)))?;
        }
        (None, Some(name)) => {
            let Some(at) = tools.names.iter().position(|other| other == name) else {
                return Err(Fault::field(
                    "tool_choice",
                    format_args!("names `{name}`, which is none of the tools"),
                ));
            };
            let parameters = &talk.tools[at]["function"]["parameters"];
            let any = json!({"type": "object"});
            params.set_structure(schema::by_schema(if parameters.is_object() {
                parameters
            } else {
                &any
            }))?;
            tools.forced = Some(name.to_string());
        }
        _ => {
            return Err(Fault::field(
                "tool_choice",
                "has to be auto, none, required (with tools), or name a tool",
            ));
        }
    }
    Ok(tools)
}

impl Talk {
    /// Submits a conversation to a model; `logprobs` is the number of alternatives per token if log-probabilities are
    /// requested.
    ///
    /// # Errors
    /// An invalid request, or too much load.
    pub fn ask(
        server: &Server,
        mut asked: AdmittedRequest,
        mut fields: Fields,
        prompt_logprobs: Option<usize>,
    ) -> Result<Talk, Fault> {
        let permit = asked.permit.take();
        let mut params = Params::take(server, &asked, &mut fields)?;
        let mut conversation = conversation(&mut fields)?;
        let mut tools = tools(server, &mut fields, &mut conversation, &mut params)?;
        let sources = search::ground(server, &mut fields, &mut conversation, &params.model)?;
        let top = fields.take::<usize>("top_logprobs")?;
        let logprobs = fields.or("logprobs", false)?.then(|| top.unwrap_or(0));
        if top.is_some_and(|top| top > 0) && logprobs.is_none() {
            return Err(Fault::field("top_logprobs", "needs `logprobs: true`"));
        }
        most("top_logprobs", top.unwrap_or(0), server.settings.max_logprobs)?;
        if fields.or("echo", false)? {
            return Err(Fault::field("echo", "is a field of /v1/completions"));
        }
        let unknown = fields.rest()?;
        let mut request = params.request(conversation.into(), server.settings.answer_tokens as usize)?;
        let ids = request.ids.as_deref().unwrap_or_default();
        let end = &ids[ids.len().saturating_sub(END_TOKENS)..];
        tools.prompt = params.model.service.decode(end).map_err(Fault::refused)?;
        (request.logprobs, request.prompt_logprobs) = (logprobs, prompt_logprobs);
        request.shown = tools.shown();
        if request.sampling.max_tokens == 0 {
            return Err(Fault::field("max_tokens", "has to be at least 1"));
        }
        let model = params.model.clone();
        let answering = ModelRequests::ask(server.clone(), model, vec![request], (asked.id, permit))?;
        Ok(Talk { answering, params, tools, prompt_logprobs, logprobs, sources, unknown })
    }

    /// Waits for all answers.
    ///
    /// # Errors
    /// Those of the request.
    pub async fn collect(&mut self) -> Result<RequestOutput, Fault> {
        let mut all = collect(&mut self.answering, 1).await?;
        all.pop().ok_or_else(|| Fault::ours("there is no answer"))
    }
}
