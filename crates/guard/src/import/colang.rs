//! Colang 1.0 as far as it is used: definitions of messages and flows. Everything else is refused with its line; what
//! follows is still read.

use super::expression::{self, Expression};

/// A file's definitions, and the lines that are not read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Definitions, in order.
    pub definitions: Vec<Definition>,
    /// Lines outside the grammar, with the reasons.
    pub refused: Vec<(usize, String)>,
}

/// A definition.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// Line, from 1.
    pub line: usize,
    /// Kind with its contents.
    pub kind: DefinitionKind,
    /// Name; empty for a flow without one.
    pub name: String,
}

/// Kind of a definition.
#[derive(Clone, Debug, PartialEq)]
pub enum DefinitionKind {
    /// A canonical form of users' messages with examples.
    User(Vec<String>),
    /// A canonical form of the bot's messages with its texts.
    Bot(Vec<String>),
    /// A flow: steps, and whether it is a subflow, runs in parallel, or extends others.
    Flow {
        /// Steps in order.
        steps: Vec<Step>,
        /// Called by other flows only.
        sub: bool,
        /// Runs next to other flows.
        parallel: bool,
    },
}

/// A step with its line.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Line, from 1.
    pub line: usize,
    /// Operation.
    pub kind: StepKind,
}

/// A message in a flow.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// A canonical form.
    Named(String),
    /// Any message.
    Any,
    /// A text.
    Text(String),
    /// The value of a variable.
    Variable(String),
}

/// An event with its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Name.
    pub name: String,
    /// Arguments by name.
    pub arguments: Vec<(String, Expression)>,
}

/// Operation of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum StepKind {
    /// Waits for a user's message.
    User(Form),
    /// Sends a message, with texts that are given in place.
    Bot(Form, Vec<String>),
    /// Waits for an event.
    Wait(Event),
    /// Creates an event.
    Create(Event),
    /// Calls an action; its result goes to a variable.
    Execute(Option<String>, Event),
    /// Calls a flow by its name or by a value.
    Do(String, Option<Expression>),
    /// Sets a variable.
    Set(String, Expression),
    /// Lets the model extract a value from the conversation.
    Extract(String),
    /// Conditions with their steps; the last without a condition is `else`.
    If(Vec<(Option<Expression>, Vec<Step>)>),
    /// Repeats steps.
    While(Expression, Vec<Step>),
    /// Waits for one of several events, with the steps after each.
    When(Vec<(Step, Vec<Step>)>),
    /// Ends the whole interaction.
    Stop,
    /// Priority of the flow.
    Priority(f64),
}

/// Longest file, in bytes.
const MOST_BYTES: usize = 1 << 22;
/// Deepest nesting of steps.
const MOST_DEPTH: usize = 32;

impl Program {
    /// Reads a file.
    pub fn read(text: &str) -> Program {
        let mut program = Program::default();
        if text.len() > MOST_BYTES {
            program
                .refused
                .push((1, format!("the file has {} bytes; {MOST_BYTES} are the most", text.len())));
            return program;
        }
        let lines = lines(text);
        let mut reader = Reader { lines: &lines, at: 0, refused: Vec::new() };
        while let Some(line) = reader.peek() {
            if line.indent > 0 || !line.text.starts_with("define ") {
                let why = if line.text.starts_with(['"', '\'']) {
                    "text outside a definition".to_string()
                } else {
                    format!("`{}` is no definition: write `define`", first_words(&line.text))
                };
                reader.refuse(why);
                reader.skip_block(line.indent);
                continue;
            }
            let definition = reader.definition();
            program.definitions.extend(definition);
        }
        program.refused = reader.refused;
        program.refused.sort();
        program
    }

    /// The flow or subflow with this name.
    pub fn flow(&self, name: &str) -> Option<&Definition> {
        let is_flow = |it: &&Definition| matches!(it.kind, DefinitionKind::Flow { .. }) && it.name == name;
        self.definitions.iter().find(is_flow)
    }

    /// The texts of a bot's message.
    pub fn bot(&self, name: &str) -> Option<&[String]> {
        self.definitions.iter().find_map(|it| match &it.kind {
            DefinitionKind::Bot(texts) if it.name == name => Some(&texts[..]),
            _ => None,
        })
    }
}

/// A line without its comment, or several that one pair of parentheses or quotes joins.
#[derive(Clone, Debug)]
struct Line {
    number: usize,
    indent: usize,
    text: String,
}

/// The lines with contents. Texts in three quotes are comments.
fn lines(text: &str) -> Vec<Line> {
    let mut all: Vec<Line> = Vec::new();
    let mut documented = false;
    let mut open = false;
    for (at, raw) in text.lines().enumerate() {
        let marks = raw.matches("\"\"\"").count();
        if documented {
            documented = marks % 2 == 0;
            continue;
        }
        if raw.trim_start().starts_with("\"\"\"") {
            documented = marks % 2 == 1;
            continue;
        }
        let code = without_comment(raw);
        if code.trim().is_empty() {
            continue;
        }
        let indent =
            code.chars().take_while(|c| c.is_whitespace()).map(|c| if c == '\t' { 2 } else { 1 }).sum();
        match all.last_mut().filter(|_| open) {
            Some(last) => last.text = format!("{} {}", last.text, code.trim()),
            None => all.push(Line { number: at + 1, indent, text: code.trim().to_string() }),
        }
        open = all.last().is_some_and(|line| is_open(&line.text));
    }
    all
}

/// Returns whether parentheses that a line opens are not closed in it.
fn is_open(line: &str) -> bool {
    let (mut depth, mut quote) = (0i32, None);
    for c in line.chars() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            _ => {}
        }
    }
    depth > 0 && quote.is_none()
}

/// A line up to its comment.
fn without_comment(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '#') if before.is_whitespace() => return &line[..at],
            // An apostrophe in a word is no quote.
            (None, '"') => quote = Some(c),
            (None, '\'') if !before.is_alphanumeric() => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            _ => {}
        }
        before = c;
    }
    line
}

fn first_words(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().take(3).collect();
    words.join(" ").chars().take(60).collect()
}

/// The text of a line in quotes.
fn quoted(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
    Some(inner.replace("\\\"", "\"").replace("\\n", "\n"))
}

struct Reader<'a> {
    lines: &'a [Line],
    at: usize,
    refused: Vec<(usize, String)>,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&'a Line> {
        self.lines.get(self.at)
    }

    /// Refuses the line and passes it.
    fn refuse(&mut self, why: impl Into<String>) {
        if let Some(line) = self.peek() {
            self.refused.push((line.number, why.into()));
            self.at += 1;
        }
    }

    /// Passes the lines that are indented further, each refused with the line above it.
    fn skip_block(&mut self, indent: usize) {
        while let Some(line) = self.peek().filter(|line| line.indent > indent) {
            self.refused.push((line.number, "belongs to a line that is not read".into()));
            self.at += 1;
        }
    }

    fn definition(&mut self) -> Option<Definition> {
        let line = self.peek()?;
        let words: Vec<&str> = line.text.split_whitespace().skip(1).collect();
        let flags = words.iter().take_while(|word| matches!(**word, "parallel" | "extension")).count();
        let (flags, rest) = words.split_at(flags);
        let (Some(kind), name) = (rest.first(), rest.get(1..).unwrap_or_default().join(" ")) else {
            self.refuse("a definition has a kind: user, bot, flow or subflow");
            return None;
        };
        let name = name.trim_end_matches(':').to_string();
        let number = line.number;
        if *kind != "flow" && (!flags.is_empty() || name.is_empty()) {
            self.refuse(format!("`{}` is no definition of this grammar", first_words(&line.text)));
            self.skip_block(line.indent);
            return None;
        }
        let kind = match *kind {
            "user" | "bot" => {
                self.at += 1;
                let texts = self.texts(line.indent);
                if *kind == "user" { DefinitionKind::User(texts) } else { DefinitionKind::Bot(texts) }
            }
            "flow" | "subflow" => {
                self.at += 1;
                let steps = self.steps(line.indent, 0);
                let parallel = flags.contains(&"parallel");
                DefinitionKind::Flow { steps, sub: *kind == "subflow", parallel }
            }
            other => {
                self.refuse(format!("definitions of `{other}` are not of this grammar"));
                self.skip_block(line.indent);
                return None;
            }
        };
        Some(Definition { line: number, kind, name })
    }

    /// Texts in quotes below a line.
    fn texts(&mut self, indent: usize) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some(line) = self.peek().filter(|line| line.indent > indent) {
            match quoted(&line.text) {
                Some(text) => {
                    texts.push(text);
                    self.at += 1;
                }
                None => self.refuse(format!("`{}` is no text in quotes", first_words(&line.text))),
            }
        }
        texts
    }

    /// Steps below a line.
    fn steps(&mut self, indent: usize, depth: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        let Some(own) = self.peek().map(|line| line.indent).filter(|own| *own > indent) else { return steps };
        if depth > MOST_DEPTH {
            self.refuse("steps are nested too deep");
            self.skip_block(indent);
            return steps;
        }
        while let Some(line) = self.peek().filter(|line| line.indent > indent) {
            if line.indent != own {
                self.refuse("is indented further than the step above allows");
                continue;
            }
            match self.step(line, depth) {
                Ok(step) => steps.push(step),
                Err(why) => {
                    self.at = self.lines.partition_point(|other| other.number < line.number);
                    self.refuse(why);
                    self.skip_block(line.indent);
                }
            }
        }
        steps
    }

    fn step(&mut self, line: &'a Line, depth: usize) -> Result<Step, String> {
        let (word, rest) = line.text.split_once(char::is_whitespace).unwrap_or((&line.text, ""));
        let rest = rest.trim();
        let kind = match word.trim_end_matches(':') {
            "if" => return self.branches(line, depth),
            "when" => return self.whens(line, depth),
            "while" => {
                let condition = expression::read(rest.trim_end_matches(':'))?;
                self.at += 1;
                let kind = StepKind::While(condition, self.steps(line.indent, depth + 1));
                return Ok(Step { line: line.number, kind });
            }
            "user" => StepKind::User(form(rest)?),
            "bot" => {
                let form = form(rest)?;
                self.at += 1;
                let kind = StepKind::Bot(form, self.texts(line.indent));
                return Ok(Step { line: line.number, kind });
            }
            "stop" if rest.is_empty() => StepKind::Stop,
            "priority" => StepKind::Priority(rest.parse().map_err(|_| format!("`{rest}` is no priority"))?),
            "event" => StepKind::Wait(event(rest)?),
            "create" => {
                StepKind::Create(event(rest.strip_prefix("event").ok_or("only events are created")?)?)
            }
            "execute" => StepKind::Execute(None, event(rest)?),
            "do" => called(rest)?,
            variable if variable.starts_with('$') => assignment(&line.text)?,
            "else" => return Err("`else` without its `if`".into()),
            other => return Err(format!("`{other}` is no step of this grammar")),
        };
        self.at += 1;
        Ok(Step { line: line.number, kind })
    }

    fn branches(&mut self, line: &'a Line, depth: usize) -> Result<Step, String> {
        let condition = |text: &str| expression::read(text.trim().trim_end_matches(':').trim());
        let first = condition(&line.text["if".len()..])?;
        self.at += 1;
        let mut branches = vec![(Some(first), self.steps(line.indent, depth + 1))];
        while let Some(next) = self.peek().filter(|next| next.indent == line.indent) {
            let rest = match next.text.strip_prefix("else") {
                Some(rest) if rest.trim_start().starts_with("when ") => break,
                Some(rest) => rest.trim(),
                None => break,
            };
            let own = match rest.strip_prefix("if ") {
                Some(text) => Some(condition(text)?),
                None if rest.is_empty() || rest == ":" => None,
                None => return Err(format!("`{}` is no branch", first_words(&next.text))),
            };
            self.at += 1;
            let last = own.is_none();
            branches.push((own, self.steps(line.indent, depth + 1)));
            if last {
                break;
            }
        }
        Ok(Step { line: line.number, kind: StepKind::If(branches) })
    }

    fn whens(&mut self, line: &'a Line, depth: usize) -> Result<Step, String> {
        let mut branches = Vec::new();
        let mut text = line.text["when".len()..].trim();
        let mut number = line.number;
        loop {
            let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
            let kind = match word {
                "user" => StepKind::User(form(rest)?),
                "bot" => StepKind::Bot(form(rest)?, Vec::new()),
                "event" => StepKind::Wait(event(rest)?),
                _ => {
                    return Err(format!(
                        "`when` waits for user, bot or event, not for `{}`",
                        first_words(text)
                    ));
                }
            };
            self.at += 1;
            branches.push((Step { line: number, kind }, self.steps(line.indent, depth + 1)));
            let next = self.peek().filter(|next| next.indent == line.indent);
            let Some(next) = next.and_then(|next| Some((next, next.text.strip_prefix("else when ")?))) else {
                return Ok(Step { line: line.number, kind: StepKind::When(branches) });
            };
            (number, text) = (next.0.number, next.1.trim());
        }
    }
}

/// A message in a flow.
fn form(text: &str) -> Result<Form, String> {
    let text = text.trim();
    if text == "..." {
        return Ok(Form::Any);
    }
    if let Some(text) = quoted(text) {
        return Ok(Form::Text(text));
    }
    if let Some(name) = text.strip_prefix('$') {
        let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_') && !name.is_empty();
        let variable = is_name.then(|| Form::Variable(name.to_string()));
        return variable.ok_or_else(|| format!("`{text}` is no variable"));
    }
    let plain = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_' | '\'' | ',' | '.' | '/' | '?');
    let named = (!text.is_empty() && text.chars().all(plain)).then(|| Form::Named(text.to_string()));
    named.ok_or_else(|| format!("`{}` is no name of a message", first_words(text)))
}

/// An event or action with arguments in parentheses.
fn event(text: &str) -> Result<Event, String> {
    let text = text.trim();
    let (name, arguments) = match text.split_once('(') {
        None => (text, Vec::new()),
        Some((name, rest)) => {
            let inner = rest.trim().strip_suffix(')').ok_or("parentheses are not closed")?;
            (name.trim(), expression::arguments(inner)?)
        }
    };
    let plain = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '_' | '-');
    if name.is_empty() || !name.chars().all(plain) {
        return Err(format!("`{}` is no name of an event or action", first_words(name)));
    }
    Ok(Event { name: name.to_string(), arguments })
}

/// A call of a flow by its name or by a value.
fn called(text: &str) -> Result<StepKind, String> {
    if text.starts_with('$') {
        return Ok(StepKind::Do(String::new(), Some(expression::read(text)?)));
    }
    match form(text)? {
        Form::Named(name) => Ok(StepKind::Do(name, None)),
        _ => Err("`do` calls a flow by its name".into()),
    }
}

/// A variable and its new value.
fn assignment(text: &str) -> Result<StepKind, String> {
    let (name, value) = text.split_once('=').ok_or("a variable is set with `=`")?;
    let (name, value) = (name.trim().trim_start_matches('$'), value.trim());
    if name.is_empty() || !name.chars().all(|c| c.is_alphanumeric() || c == '_') {
        return Err(format!("`${name}` is no variable"));
    }
    Ok(match value.strip_prefix("execute ") {
        Some(action) => StepKind::Execute(Some(name.to_string()), event(action)?),
        None if value == "..." => StepKind::Extract(name.to_string()),
        None => StepKind::Set(name.to_string(), expression::read(value)?),
    })
}
