//! Chat templates: Jinja as Transformers runs it, with limits.

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error as Fault, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value as Json, json};

use super::conversation::Conversation;
use super::known::{self, Known};
use super::{concat, loops, python, values};
use crate::Tokenizer;
use crate::error::{Error, OrIo, Result};
use crate::gguf::side_file;

/// Instructions that rendering takes at most, of which a conversation of a hundred thousand messages needs half; 64 bytes of what a
/// template makes count as one.
const FUEL: u64 = 10_000_000;
/// Stack of rendering: a value that a template has nested once for every eight instructions is taken apart level by level.
const STACK: usize = 1 << 30;
/// Bytes of the rendered text, at most.
const MOST_BYTES: usize = 256 << 20;
/// Bytes of a template's source from which on it may nest values deep without a namespace.
const MOST_FLAT: usize = 16 << 10;
/// Bytes of a template, at most.
const MOST_SOURCE: u64 = 4 << 20;
/// What marks where the model's words begin and end. No text has these, which are no characters.
const MARKS: [char; 2] = ['\u{FDD0}', '\u{FDD1}'];
/// The template's name inside the environment.
const NAME: &str = "chat_template";
/// What a template for conversations with tools is called.
const TOOLS: &str = "tool_use";

/// A model's chat template.
pub struct Template {
    environment: Environment<'static>,
    /// As it was given.
    source: String,
    /// BLAKE3 of its source, with our marks if it has any.
    hash: String,
    shows: Shows,
    special: Map<String, Json>,
    /// It asks whether a message's content is none.
    asks_for_none: bool,
    /// It may nest values as deep as it likes.
    nests: bool,
    /// The one of conversations with tools, where a model has one of its own for them.
    for_tools: Option<Box<Template>>,
}

/// How a template shows which words are the model's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shows {
    /// It marks them itself (`{% generation %}`).
    Marks,
    /// It is known by its hash, under this name, and has marks of ours.
    Known(String),
    /// By what an answer adds to the text before it.
    Difference,
}

/// A conversation as a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Where the template says that the model speaks, in bytes, or our marks in it do.
    pub marked: Vec<Range<usize>>,
}

impl Template {
    /// The template of a model's folder: `chat_template.jinja`, or in `tokenizer_config.json` or `chat_template.json`; none if it has none.
    /// Conversations with tools are rendered by the one called `tool_use`, if there is one, as Transformers does.
    ///
    /// # Errors
    /// A file that cannot be read, or a template that is none.
    pub fn from_dir(folder: &Path, tokenizer: &Tokenizer) -> Result<Option<Template>> {
        let alone = folder.join("chat_template.jinja");
        if alone.is_file() {
            let template = Template::from_file(&alone, tokenizer)?;
            let tools = folder.join("additional_chat_templates").join(format!("{TOOLS}.jinja"));
            let tools = tools.is_file().then(|| Template::from_file(&tools, tokenizer)).transpose()?;
            return Ok(Some(template.with_tools(tools)));
        }
        let Some((path, Chosen { source, tools })) = configured(folder)? else { return Ok(None) };
        let made = |source: &String| {
            let fault = |reason| Error::Template { path: path.clone(), reason };
            Template::new(source, tokenizer).map_err(fault)
        };
        Ok(Some(made(&source)?.with_tools(tools.as_ref().map(made).transpose()?)))
    }

    /// The same with another one for conversations with tools.
    fn with_tools(mut self, tools: Option<Template>) -> Template {
        if let Some(tools) = &tools {
            let both = [self.hash.as_bytes(), tools.hash.as_bytes()].concat();
            self.hash = blake3::hash(&both).to_hex().to_string();
        }
        Template { for_tools: tools.map(Box::new), ..self }
    }

    /// The template by which a conversation with these tools is rendered.
    pub(super) fn of(&self, tools: &[Json]) -> &Template {
        self.for_tools.as_deref().filter(|_| !tools.is_empty()).unwrap_or(self)
    }

    /// The template in a file.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn from_file(path: &Path, tokenizer: &Tokenizer) -> Result<Template> {
        let fault = |reason| Error::Template { path: path.to_owned(), reason };
        let source = String::from_utf8(read(path)?).map_err(|_| fault("is not UTF-8".to_string()))?;
        Template::new(&source, tokenizer).map_err(fault)
    }

    /// A template from its source.
    ///
    /// # Errors
    /// In words: what is wrong with it.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> std::result::Result<Template, String> {
        Template::with(source, tokenizer, &known::all())
    }

    /// The same, where these are the known ones.
    pub(super) fn with(
        given: &str,
        tokenizer: &Tokenizer,
        known: &[Known],
    ) -> std::result::Result<Template, String> {
        // As Jinja reads a template.
        let source = given.replace("\r\n", "\n").replace('\r', "\n");
        let (mut source, tags) = marked(&source);
        let (mut shows, mut hashed) =
            (if tags { Shows::Marks } else { Shows::Difference }, given.to_string());
        let ours = if tags { None } else { known::marked(&source, known, MARKS) };
        if let Some((name, with)) = ours {
            // What is learned depends on the marks, and so do stores of lessons.
            (shows, hashed, source) = (Shows::Known(name.to_string()), with.clone(), with);
        }
        // Each round of a loop may nest what the one before left in a namespace; another level takes a few characters of the source.
        let nests = source.contains("namespace") || source.len() > MOST_FLAT;
        let asks_for_none = asks_for_none(given);
        let hash = blake3::hash(hashed.as_bytes()).to_hex().to_string();
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| error.to_string())?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(|state, value, method, args| {
            if method == "format" {
                python::check_widths(value.as_str().unwrap_or_default())?;
                return unknown_method_callback(state, value, method, &concat::formatted(args)?);
            }
            if let ("join", Some(items)) = (method, args.first()) {
                concat::check_joined(items)?;
            }
            unknown_method_callback(state, value, method, args)
        });
        environment.add_filter("tojson", |value: &Value, kwargs| python::to_json(value, kwargs));
        environment.set_formatter(|out, _, value| {
            // Numbers, lists and objects as Python prints them; all else as by default, of which nothing is escaped.
            let printed = match value.kind() {
                ValueKind::Number => out.write_str(&python::number(value)),
                ValueKind::Seq | ValueKind::Map => out.write_str(&python::repr(value)?),
                _ => write!(out, "{value}"),
            };
            printed.map_err(|_| Fault::new(ErrorKind::WriteFailure, "the text is too long"))
        });
        // In Python none is not iterable; what is undefined is iterable and a sequence.
        environment.add_test("iterable", |value: &Value| {
            use ValueKind::{Iterable, Map, Seq, String, Undefined};
            matches!(value.kind(), Undefined | Seq | Map | Iterable | String)
        });
        environment.add_test("sequence", |value: &Value| {
            use ValueKind::{Map, Seq, String, Undefined};
            matches!(value.kind(), Undefined | Seq | Map | String)
        });
        environment.add_test("number", values::is_number);
        environment.add_test("float", values::is_float);
        environment.add_function(loops::LOOPED, |value: &Value| loops::looped(value));
        concat::register(&mut environment);
        environment.add_function("strftime_now", |format: &str| python::strftime_now(format));
        environment.add_function("raise_exception", |message: &str| -> std::result::Result<Value, Fault> {
            Err(Fault::new(ErrorKind::InvalidOperation, message.to_string()))
        });
        environment.add_template_owned(NAME, loops::asking(&source)).map_err(|error| error.to_string())?;
        // Transformers leaves out what the tokenizer does not have, which a template then writes as nothing.
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

    /// Its source, as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// BLAKE3 of its source and of our marks in it, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Whether it asks if a message's content is none, where a conversation has these tools. Most templates do not, and print it.
    pub fn asks_for_none(&self, tools: &[Json]) -> bool {
        self.of(tools).asks_for_none
    }

    /// How it shows which words are the model's.
    pub fn shows(&self) -> &Shows {
        &self.shows
    }

    /// The text of the first `count` messages; with `prompt` up to where the model's next answer begins.
    ///
    /// # Errors
    /// In words: what the template refuses, or that it takes too long.
    pub fn render(
        &self,
        conversation: &Conversation,
        count: usize,
        prompt: bool,
    ) -> std::result::Result<Rendered, String> {
        let messages: Vec<&Json> =
            conversation.messages[..count].iter().map(|message| &message.said).collect();
        self.render_with(&messages, &conversation.tools, prompt, &Map::new())
    }

    /// The text of some messages, with further variables of the template.
    ///
    /// # Errors
    /// As [`Template::render`].
    pub fn render_with(
        &self,
        messages: &[&Json],
        tools: &[Json],
        prompt: bool,
        variables: &Map<String, Json>,
    ) -> std::result::Result<Rendered, String> {
        let mut context = self.special.clone();
        context.extend(variables.clone());
        let asks = self.of(tools).asks_for_none;
        context.insert("messages".into(), messages.iter().map(|message| normalised(message, asks)).collect());
        // A template asks whether there are tools, and an empty list would be some.
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

/// Renders on a thread with stack enough for values as deep as a template can make them.
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

/// A message as Transformers gives it to a template: without what is null, and its thoughts under the names that templates read,
/// `reasoning_content` whatever the row calls them, and `thinking` if it is not there. Content that is null stays so for a template that
/// asks whether it is.
fn normalised(message: &Json, asks_for_none: bool) -> Json {
    let Json::Object(said) = message else { return message.clone() };
    let mut said = said.clone();
    // Programs send `"content": null` with the calls of tools, and most templates would print it.
    said.retain(|key, value| !value.is_null() || (asks_for_none && key == "content"));
    let thoughts = ["reasoning_content", "thinking", "reasoning"].into_iter().find_map(|key| said.get(key));
    if let Some(thoughts) = thoughts.cloned() {
        said.entry("thinking").or_insert_with(|| thoughts.clone());
        said.insert("reasoning_content".into(), thoughts);
    }
    Json::Object(said)
}

/// Whether a template asks if a message's content is none.
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

/// What a template reports, without the traces of the engine.
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

/// The template's source of a model's folder or GGUF file, as [`Template::from_dir`] finds it.
///
/// # Errors
/// A file that cannot be read.
pub fn template_source(model: &Path) -> Result<Option<String>> {
    let alone = model.join("chat_template.jinja");
    if alone.is_file() {
        return Ok(Some(String::from_utf8_lossy(&read(&alone)?).into_owned()));
    }
    Ok(configured(model)?.map(|(_, chosen)| chosen.source))
}

/// The template that a configuration has, and which.
fn configured(model: &Path) -> Result<Option<(PathBuf, Chosen)>> {
    for name in ["tokenizer_config.json", "chat_template.json"] {
        let path = model.join(name);
        // A large file is refused by `read`.
        let bytes = if path.is_file() { Some(read(&path)?) } else { side_file(model, name)? };
        let Some(bytes) = bytes else { continue };
        let config: Json = serde_json::from_slice(&bytes)
            .map_err(|error| Error::Template { path: path.clone(), reason: error.to_string() })?;
        if let Some(chosen) = Chosen::of(&config["chat_template"]) {
            return Ok(Some((path, chosen)));
        }
    }
    Ok(None)
}

/// The templates of a configuration that are used.
struct Chosen {
    /// A text, or the one called `default` of several.
    source: String,
    /// The one called `tool_use`.
    tools: Option<String>,
}

impl Chosen {
    fn of(config: &Json) -> Option<Chosen> {
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
        Some(Chosen { source, tools: find(TOOLS) })
    }
}

/// A template whose `generation` tags write marks, and whether it had any. The tags keep what they do to the white space around them.
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

/// The text without its marks, and where they were.
fn unmarked(text: &str) -> std::result::Result<Rendered, String> {
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
        None => Ok(Rendered { text: out, marked }),
        Some(_) => Err("the chat template's generation marks do not end".to_string()),
    }
}
