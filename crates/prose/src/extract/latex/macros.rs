//! Macros defined by a paper: `\newcommand` and its family, `\def`, `\let`, environments.

use std::collections::HashMap;

use super::input::Input;
use crate::extract::refusal::Refusal;

/// Maximum number of definitions; more are a program, not a paper.
const MOST_MACROS: usize = 20_000;
/// Maximum bytes of one expansion.
const LARGEST_BODY: usize = 1 << 20;

/// One element of a macro's parameter text.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Argument,
    /// An argument delimited by this text.
    Until(String),
    /// Text that must follow.
    Exactly(String),
    /// An argument in brackets, with its default.
    Optional(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Macro {
    pieces: Vec<Piece>,
    body: String,
}

/// All macros of a paper, by name.
#[derive(Default)]
pub(super) struct Macros {
    commands: HashMap<String, Macro>,
    /// Beginnings and ends of environments.
    environments: HashMap<String, (Macro, String)>,
}

impl Macros {
    /// Returns true if the paper defines `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.commands.contains_key(name)
    }

    /// Returns true if the paper defines environment `name`.
    pub(super) fn has_environment(&self, name: &str) -> bool {
        self.environments.contains_key(name)
    }

    /// Reads the arguments of macro `name` and pushes its expansion onto the input.
    pub(super) fn expand(&self, name: &str, input: &mut Input) -> Result<(), Refusal> {
        match self.commands.get(name) {
            Some(found) => found.expand(input),
            None => Ok(()),
        }
    }

    /// Pushes the beginning of a paper's environment onto the input.
    pub(super) fn begin(&self, name: &str, input: &mut Input) -> Result<(), Refusal> {
        match self.environments.get(name) {
            Some((begin, _)) => begin.expand(input),
            None => Ok(()),
        }
    }

    /// Pushes its end onto the input.
    pub(super) fn end(&self, name: &str, input: &mut Input) -> Result<(), Refusal> {
        match self.environments.get(name) {
            Some((_, end)) => input.push(end.clone()),
            None => Ok(()),
        }
    }

    /// Processes control sequence `name` if it is a definition, which is read from the input. Names for which `kept`
    /// is true have a meaning for extraction; papers redefine them only to change their appearance.
    pub(super) fn define(
        &mut self,
        name: &str,
        input: &mut Input,
        kept: fn(&str) -> bool,
    ) -> Result<bool, Refusal> {
        match name {
            "newcommand" | "renewcommand" | "providecommand" | "DeclareRobustCommand" => {
                input.take("*");
                let name = name_of(&input.argument()?);
                let pieces = parameters(input)?;
                let body = input.argument()?;
                self.put(name, Macro { pieces, body }, kept);
            }
            "newenvironment" | "renewenvironment" => {
                input.take("*");
                let name = input.argument()?;
                let pieces = parameters(input)?;
                let (body, end) = (input.argument()?, input.argument()?);
                // Expanding to itself is a common way to wrap an existing environment.
                let wraps = body.contains(&format!("\\begin{{{name}}}"));
                if !wraps && self.environments.len() < MOST_MACROS {
                    self.environments.insert(name, (Macro { pieces, body }, end));
                }
            }
            "DeclareMathOperator" => {
                input.take("*");
                let name = name_of(&input.argument()?);
                let body = format!("\\operatorname{{{}}}", input.argument()?);
                self.put(name, Macro { pieces: Vec::new(), body }, kept);
            }
            "def" | "gdef" | "edef" | "xdef" => {
                input.skip_spaces();
                if !input.take("\\") {
                    return Ok(true);
                }
                let name = input.name();
                let pattern = input.run(|b| b == b'{').to_string();
                let body = input.argument()?;
                self.put(name, Macro { pieces: pieces_of(&pattern), body }, kept);
            }
            "let" => {
                let name = name_of(&input.argument()?);
                input.skip_spaces();
                input.take("=");
                let target = input.argument()?;
                let known = self.commands.get(name_of(&target).as_str()).cloned();
                let other = Macro { pieces: Vec::new(), body: target.clone() };
                if name_of(&target) != name {
                    self.put(name, known.unwrap_or(other), kept);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn put(&mut self, name: String, found: Macro, kept: fn(&str) -> bool) {
        if !name.is_empty() && !kept(&name) && self.commands.len() < MOST_MACROS {
            self.commands.insert(name, found);
        }
    }
}

impl Macro {
    fn expand(&self, input: &mut Input) -> Result<(), Refusal> {
        let mut arguments: Vec<String> = Vec::new();
        for piece in &self.pieces {
            match piece {
                Piece::Argument => arguments.push(input.argument()?),
                Piece::Until(mark) => arguments.push(input.delimited(mark)?),
                Piece::Optional(default) => {
                    arguments.push(input.optional()?.unwrap_or_else(|| default.clone()));
                }
                Piece::Exactly(text) => {
                    input.take(text);
                }
            }
        }
        input.push(fill(&self.body, &arguments)?)
    }
}

/// Replaces `#1` to `#9` in the body; `##` becomes `#` for nested definitions.
fn fill(body: &str, arguments: &[String]) -> Result<String, Refusal> {
    let mut out = String::with_capacity(body.len());
    let mut chars = body.chars().peekable();
    while let Some(c) = chars.next() {
        if out.len() > LARGEST_BODY {
            return Err(Refusal::ExpansionTooLarge);
        }
        if c != '#' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('#') => out.push('#'),
            Some(digit @ '1'..='9') => {
                if let Some(argument) = arguments.get(digit as usize - '1' as usize) {
                    out.push_str(argument);
                }
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    Ok(out)
}

/// Normalizes `\name ` or `name` to `name`.
fn name_of(text: &str) -> String {
    text.trim().trim_start_matches('\\').to_string()
}

/// Parameters `[2][default]` after the name of a `\newcommand`.
fn parameters(input: &mut Input) -> Result<Vec<Piece>, Refusal> {
    input.skip_spaces();
    let count = input.optional()?.and_then(|n| n.trim().parse::<usize>().ok()).unwrap_or(0).min(9);
    input.skip_spaces();
    let mut pieces = vec![Piece::Argument; count];
    if count > 0
        && let Some(default) = input.optional()?
    {
        pieces[0] = Piece::Optional(default);
    }
    Ok(pieces)
}

/// Parses the parameter text of a `\def`, such as `#1[#2]`.
fn pieces_of(pattern: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut parts = pattern.split('#');
    let lead = parts.next().unwrap_or("").trim_start();
    if !lead.is_empty() {
        pieces.push(Piece::Exactly(lead.to_string()));
    }
    for part in parts.take(9) {
        let mark = part.strip_prefix(|c: char| c.is_ascii_digit()).unwrap_or(part);
        pieces.push(if mark.is_empty() { Piece::Argument } else { Piece::Until(mark.to_string()) });
    }
    pieces
}
