//! Chat templates: Jinja as run by Transformers, with limits.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error as Fault, ErrorKind};
use serde_json::{Map, Value as Json, json};

use super::conversation::Conversation;
use super::known::{self, KnownTemplate};
use super::{loops, python, values};
use crate::Tokenizer;
use crate::error::{Error, OrIo, Result};
use crate::gguf::side_file;

/// Maximum number of rendering instructions; a conversation of a hundred thousand messages needs half of them. 64
/// bytes of output count as one instruction.
const FUEL: u64 = 10_000_000;
/// Stack size for rendering: a value that a template has nested once per eight instructions is processed recursively.
const STACK: usize = 1 << 30;
/// Maximum bytes of the rendered text.
const MOST_BYTES: usize = 256 << 20;
/// Template size in bytes above which deeply nested values are possible without a namespace.
const MOST_FLAT: usize = 16 << 10;
/// Maximum bytes of a template.
const MOST_SOURCE: u64 = 4 << 20;
/// Marks around the model's text. Texts do not contain them, since they are noncharacters.
const MARKS: [char; 2] = ['\u{FDD0}', '\u{FDD1}'];
/// Name of the template inside the environment.
const NAME: &str = "chat_template";
/// Name of the template for conversations with tools.
const TOOLS: &str = "tool_use";

/// A model's chat template.
pub struct Template {
    environment: Environment<'static>,
    source: String,
    /// BLAKE3 of its source, including inserted marks.
    hash: String,
    shows: Shows,
    special: Map<String, Json>,
    /// True if it tests whether a message's content is none.
    asks_for_none: bool,
    /// True if it may nest values arbitrarily deep.
    nests: bool,
    /// Separate template for conversations with tools, if the model has one.
    for_tools: Option<Box<Template>>,
}

/// Method for locating the model's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shows {
    /// The template marks it itself (`{% generation %}`).
    Marks,
    /// The template is known by its hash under this name, and marks are inserted.
    Known(String),
    /// By the text that an answer adds.
    Difference,
}

/// A rendered conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenderedConversation {
    /// The text.
    pub text: String,
    /// Byte ranges of the model's text, according to the template's own or inserted marks.
    pub marked: Vec<Range<usize>>,
}

impl Template {
    /// Loads the template from a model's folder: `chat_template.jinja`, or from `tokenizer_config.json` or
    /// `chat_template.json`; `None` if there is none. Conversations with tools use the one named `tool_use`, if
    /// present, as in Transformers.
    ///
    /// # Errors
    /// A file cannot be read, or the template is invalid.
    pub fn from_dir(folder: &Path, tokenizer: &Tokenizer) -> Result<Option<Template>> {
        let alone = folder.join("chat_template.jinja");
        if alone.is_file() {
            let template = Template::from_file(&alone, tokenizer)?;
            let tools = folder.join("additional_chat_templates").join(format!("{TOOLS}.jinja"));
            let tools = tools.is_file().then(|| Template::from_file(&tools, tokenizer)).transpose()?;
            return Ok(Some(template.with_tools(tools)));
        }
        let Some((path, ConfigTemplates { source, tools })) = configured(folder)? else { return Ok(None) };
        let made = |source: &String| {
            let fault = |reason| Error::Template { path: path.clone(), reason };
            Template::new(source, tokenizer).map_err(fault)
        };
        Ok(Some(made(&source)?.with_tools(tools.as_ref().map(made).transpose()?)))
    }

    /// Adds a separate template for conversations with tools.
    fn with_tools(mut self, tools: Option<Template>) -> Template {
        if let Some(tools) = &tools {
            let both = [self.hash.as_bytes(), tools.hash.as_bytes()].concat();
            self.hash = blake3::hash(&both).to_hex().to_string();
        }
        Template { for_tools: tools.map(Box::new), ..self }
    }

    /// Template for a conversation with these tools.
    pub(super) fn of(&self, tools: &[Json]) -> &Template {
        self.for_tools.as_deref().filter(|_| !tools.is_empty()).unwrap_or(self)
    }

    /// Loads a template from a file.
    ///
    /// # Errors
    /// The file cannot be read, or the template is invalid.
    pub fn from_file(path: &Path, tokenizer: &Tokenizer) -> Result<Template> {
        let fault = |reason| Error::Template { path: path.to_owned(), reason };
        let source = String::from_utf8(read(path)?).map_err(|_| fault("is not UTF-8".to_string()))?;
        Template::new(&source, tokenizer).map_err(fault)
    }

    /// Compiles a template from its source.
    ///
    /// # Errors
    /// A message that describes the problem.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> std::result::Result<Template, String> {
        Template::with(source, tokenizer, &known::all())
    }

    /// Like [`new`](Template::new), with the given known templates.
    pub(super) fn with(
        given: &str,
        tokenizer: &Tokenizer,
        known: &[KnownTemplate],
    ) -> std::result::Result<Template, String> {
        // Normalize line ends as Jinja does.
        let source = given.replace("\r\n", "\n").replace('\r', "\n");
        let (mut source, tags) = marked(&source);
        let (mut shows, mut hashed) =
            (if tags { Shows::Marks } else { Shows::Difference }, given.to_string());
        let ours = if tags { None } else { known::marked(&source, known, MARKS) };
        if let Some((name, with)) = ours {
            // Target spans, and hence stores of lessons, depend on the marks.
            (shows, hashed, source) = (Shows::Known(name.to_string()), with.clone(), with);
        }
        // Each round of a loop may nest the result of the previous one in a namespace; otherwise a level takes a few
        // characters of the source.
        let nests = source.contains("namespace") || source.len() > MOST_FLAT;
        let asks_for_none = asks_for_none(given);
        let hash = blake3::hash(hashed.as_bytes()).to_hex().to_string();
        let mut environment = super::engine::environment();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| error.to_string())?);
        environment.set_fuel(Some(FUEL));
        environment.add_filter("tojson", |value: &Value, kwargs| python::to_json(value, kwargs));
        environment.add_function("strftime_now", |format: &str| python::strftime_now(format));
        environment.add_function("raise_exception", |message: &str| -> std::result::Result<Value, Fault> {
            Err(Fault::new(ErrorKind::InvalidOperation, message.to_string()))
        });
        environment.add_template_owned(NAME, loops::asking(&source)).map_err(|error| error.to_string())?;
        // Transformers omits special tokens that the tokenizer lacks, so templates write nothing for them.
        let others = tokenizer.named().map(|(key, token)| (key.to_string(), Json::String(token.into())));
        let mut special: Map<String, Json> = others.collect();
        for (key, id) in [("bos_token", tokenizer.own_bos()), ("eos_token", tokenizer.eos())] {
            let token = id.and_then(|id| tokenizer.token(id));
            special.extend(token.map(|token| (key.to_string(), Json::String(token))));
        }
        Ok(Template {
            environment,
            source: given.to_string(),
            hash,
            shows,
            special,
            nests,
            asks_for_none,
            for_tools: None,
        })
    }

    /// Source as given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// BLAKE3 of its source and of inserted marks, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns true if the template used with these tools tests whether a message's content is none. Most do not, and
    /// print it.
    pub fn asks_for_none(&self, tools: &[Json]) -> bool {
        self.of(tools).asks_for_none
    }

    /// Method for locating the model's text.
    pub fn shows(&self) -> &Shows {
        &self.shows
    }

    /// Renders the first `count` messages; with `prompt` up to the beginning of the model's next answer.
    ///
    /// # Errors
    /// A message if the template fails or takes too long.
    pub fn render(
        &self,
        conversation: &Conversation,
        count: usize,
        prompt: bool,
    ) -> std::result::Result<RenderedConversation, String> {
        let messages: Vec<&Json> =
            conversation.messages[..count].iter().map(|message| &message.said).collect();
        self.render_with(&messages, &conversation.tools, prompt, &Map::new())
    }

    /// Renders messages with additional template variables.
    ///
    /// # Errors
    /// Same as [`Template::render`].
    pub fn render_with(
        &self,
        messages: &[&Json],
        tools: &[Json],
        prompt: bool,
        variables: &Map<String, Json>,
    ) -> std::result::Result<RenderedConversation, String> {
        let mut context = self.special.clone();
        context.extend(variables.clone());
        let asks = self.of(tools).asks_for_none;
        context.insert("messages".into(), messages.iter().map(|message| normalised(message, asks)).collect());
        // Templates test whether there are tools; an empty list would count as some.
        context.insert("tools".into(), if tools.is_empty() { Json::Null } else { json!(tools) });
        context.entry("documents").or_insert(Json::Null);
        context.insert("add_generation_prompt".into(), json!(prompt));
        let template = self.of(tools).environment.get_template(NAME).map_err(|error| error.to_string())?;
        let context = Json::Object(context);
        let render = || template.render(values::value(&context)).map_err(|error| said(&error));
        let text = if self.of(tools).nests { with_stack(render)? } else { render()? };
        if text.len() > MOST_BYTES {
            return Err(format!(
                "the chat template makes a text of {} bytes; {MOST_BYTES} are the most",
                text.len()
            ));
        }
        unmarked(&text)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").field("hash", &self.hash).field("shows", &self.shows).finish()
    }
}

/// Renders on a thread whose stack suffices for the deepest values that a template can make.
fn with_stack(
    render: impl FnOnce() -> std::result::Result<String, String> + Send,
) -> std::result::Result<String, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, render);
        let thread =
            thread.map_err(|error| format!("no thread can be started for the chat template: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("the chat template's engine failed".to_string()))
    })
}

/// Normalizes a message like Transformers: without null values, and with its reasoning under the names that templates
/// read, `reasoning_content` and `thinking`, whatever the row's name for it. Null content is kept if the template
/// tests for it.
fn normalised(message: &Json, asks_for_none: bool) -> Json {
    let Json::Object(said) = message else { return message.clone() };
    let mut said = said.clone();
    // Programs send `"content": null` with tool calls, and most templates would print it.
    said.retain(|key, value| !value.is_null() || (asks_for_none && key == "content"));
    let thoughts = ["reasoning_content", "thinking", "reasoning"].into_iter().find_map(|key| said.get(key));
    if let Some(thoughts) = thoughts.cloned() {
        said.entry("thinking").or_insert_with(|| thoughts.clone());
        said.insert("reasoning_content".into(), thoughts);
    }
    Json::Object(said)
}

/// Returns true if a template tests whether a message's content is none.
fn asks_for_none(source: &str) -> bool {
    let plain = source.replace(['\'', '"', '[', ']'], "").to_lowercase();
    let asks = |rest: &str| {
        let mut words =
            rest.split(|c: char| !(c.is_alphanumeric() || "=!_".contains(c))).filter(|word| !word.is_empty());
        match words.next() {
            Some("is") => {
                matches!((words.next(), words.next()), (Some("none"), _) | (Some("not"), Some("none")))
            }
            Some("==" | "!=") => words.next() == Some("none"),
            _ => false,
        }
    };
    plain.match_indices("content ").any(|(at, word)| asks(&plain[at + word.len()..]))
}

/// Error message of a template, without the engine's traces.
fn said(error: &Fault) -> String {
    match error.kind() {
        ErrorKind::OutOfFuel => "the chat template does not end within its limit of steps".to_string(),
        _ => {
            let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_string);
            let line = error.line().map_or(String::new(), |line| format!(" (line {line} of the template)"));
            format!("the chat template refuses the conversation: {detail}{line}")
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let length = fs::metadata(path).or_io("read", path)?.len();
    if length > MOST_SOURCE.max(64 << 20) {
        let reason = format!("has {length} bytes, which no template has");
        return Err(Error::Template { path: path.to_owned(), reason });
    }
    fs::read(path).or_io("read", path)
}

/// Template source of a model's folder or GGUF file, located like [`Template::from_dir`].
///
/// # Errors
/// A file cannot be read.
pub fn template_source(model: &Path) -> Result<Option<String>> {
    let alone = model.join("chat_template.jinja");
    if alone.is_file() {
        return Ok(Some(String::from_utf8_lossy(&read(&alone)?).into_owned()));
    }
    Ok(configured(model)?.map(|(_, chosen)| chosen.source))
}

/// Template in a configuration file, with the file's path.
fn configured(model: &Path) -> Result<Option<(PathBuf, ConfigTemplates)>> {
    for name in ["tokenizer_config.json", "chat_template.json"] {
        let path = model.join(name);
        // `read` rejects oversized files.
        let bytes = if path.is_file() { Some(read(&path)?) } else { side_file(model, name)? };
        let Some(bytes) = bytes else { continue };
        let config: Json = serde_json::from_slice(&bytes)
            .map_err(|error| Error::Template { path: path.clone(), reason: error.to_string() })?;
        if let Some(chosen) = ConfigTemplates::of(&config["chat_template"]) {
            return Ok(Some((path, chosen)));
        }
    }
    Ok(None)
}

/// Selected templates of a configuration.
struct ConfigTemplates {
    /// The only template, or the one named `default`.
    source: String,
    /// The one named `tool_use`.
    tools: Option<String>,
}

impl ConfigTemplates {
    fn of(config: &Json) -> Option<ConfigTemplates> {
        let named: Vec<(&str, &str)> = match config {
            Json::String(source) => vec![("default", source)],
            Json::Array(all) => {
                all.iter().filter_map(|it| it["name"].as_str().zip(it["template"].as_str())).collect()
            }
            Json::Object(all) => {
                all.iter().filter_map(|(name, it)| it.as_str().map(|it| (name.as_str(), it))).collect()
            }
            _ => return None,
        };
        let find =
            |wanted: &str| named.iter().find(|(name, _)| *name == wanted).map(|(_, it)| it.to_string());
        let source = find("default").or(named.first().map(|(_, it)| it.to_string()))?;
        Some(ConfigTemplates { source, tools: find(TOOLS) })
    }
}

/// Replaces the `generation` tags of a template by marks, keeping their white-space control; the flag tells if there
/// were any.
fn marked(source: &str) -> (String, bool) {
    let (mut out, mut rest, mut found) = (String::with_capacity(source.len()), source, false);
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start..].find("%}").map(|end| start + end + 2) else { break };
        let tag = &rest[start + 2..end - 2];
        let left = tag.chars().next().filter(|c| "-+".contains(*c));
        let right = tag.chars().last().filter(|c| "-+".contains(*c) && tag.len() > 1);
        let word = tag.trim_matches(['-', '+']).trim();
        out.push_str(&rest[..start]);
        let mark = ["generation", "endgeneration"].iter().position(|name| *name == word).map(|at| MARKS[at]);
        match mark {
            Some(mark) => {
                let sign = |sign: Option<char>| sign.map_or(String::new(), String::from);
                out.push_str(&format!("{{%{} if true %}}{mark}{{% endif {}%}}", sign(left), sign(right)));
                found = true;
            }
            None => out.push_str(&rest[start..end]),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    (out, found)
}

/// Removes the marks from a text and returns their ranges.
fn unmarked(text: &str) -> std::result::Result<RenderedConversation, String> {
    let (mut out, mut marked, mut open) = (String::with_capacity(text.len()), Vec::new(), None);
    let mut rest = text;
    while let Some(at) = rest.find(MARKS) {
        out.push_str(&rest[..at]);
        let mark = rest[at..].chars().next();
        match (mark == Some(MARKS[0]), open) {
            (true, None) => open = Some(out.len()),
            (false, Some(start)) => {
                marked.push(start..out.len());
                open = None;
            }
            _ => return Err("the chat template's generation marks do not fit together".to_string()),
        }
        rest = &rest[at + MARKS[0].len_utf8()..];
    }
    out.push_str(rest);
    match open {
        None => Ok(RenderedConversation { text: out, marked }),
        Some(_) => Err("the chat template's generation marks do not end".to_string()),
    }
}
