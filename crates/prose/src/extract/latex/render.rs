//! Renders the source of a paper to text.

use super::input::Input;
use super::literal;
use super::macros::Macros;
use super::options::LatexOptions;
use super::symbols::{EnvironmentRule, Use, accent, accented, command, environment, symbol};
use crate::extract::flow::Flow;
use crate::extract::refusal::Refusal;

/// A paper being rendered.
pub(super) struct Render<'a> {
    options: &'a LatexOptions,
    input: Input,
    macros: Macros,
    out: Flow,
    title: Option<String>,
    /// True after `\begin{document}`.
    started: bool,
    /// Nesting depth of floats, of which only captions and tables are kept.
    floats: usize,
    /// Nesting depth of tables.
    tables: usize,
    /// Nesting depth of captions.
    captions: usize,
    ended: bool,
}

/// Internal marker after a caption.
const CAPTION_END: &str = "fathom@caption@end";

/// Delimiter that ends an equation.
enum MathEnd {
    Dollar,
    TwoDollars,
    Command(&'static str),
    Environment(String),
}

impl<'a> Render<'a> {
    /// Creates a renderer; `preamble` is true if a `\begin{document}` follows.
    pub(super) fn new(options: &'a LatexOptions, source: String, preamble: bool) -> Render<'a> {
        let budget = source.len().saturating_mul(options.max_expansion.max(1)).saturating_add(1 << 20);
        Render {
            options,
            input: Input::new(source, budget),
            macros: Macros::default(),
            out: Flow::default(),
            title: None,
            started: !preamble,
            floats: 0,
            tables: 0,
            captions: 0,
            ended: false,
        }
    }

    pub(super) fn run(mut self) -> Result<String, Refusal> {
        while !self.ended {
            let Some(c) = self.input.peek() else { break };
            if !u8::try_from(c).is_ok_and(is_special) {
                let run = self.input.run(is_special);
                if self.started && (self.floats == 0 || self.tables > 0 || self.captions > 0) {
                    self.out.text(run, char::is_whitespace);
                }
                continue;
            }
            self.input.next();
            self.special(c)?;
        }
        Ok(self.out.finish())
    }

    /// Returns true if the current input is part of the text.
    fn shown(&self) -> bool {
        self.started && (self.floats == 0 || self.tables > 0 || self.captions > 0)
    }

    fn put(&mut self, text: &str) {
        if self.shown() {
            self.out.text(text, char::is_whitespace);
        }
    }

    fn special(&mut self, c: char) -> Result<(), Refusal> {
        match c {
            '\\' => self.control()?,
            '$' => {
                let end = if self.input.take("$") { MathEnd::TwoDollars } else { MathEnd::Dollar };
                self.math(end)?;
            }
            '~' => self.put(" "),
            '&' if self.tables > 0 => self.put(" | "),
            '&' => self.put("&"),
            '`' => {
                let quote = if self.input.take("`") { "“" } else { "‘" };
                self.put(quote);
            }
            '?' | '!' if self.input.take("`") => self.put(if c == '?' { "¿" } else { "¡" }),
            '?' => self.put("?"),
            '!' => self.put("!"),
            '\'' => {
                let quote = if self.input.take("'") { "”" } else { "’" };
                self.put(quote);
            }
            '-' => {
                let dash = if self.input.take("--") {
                    "—"
                } else if self.input.take("-") {
                    "–"
                } else {
                    "-"
                };
                self.put(dash);
            }
            '\n' => {
                let mut lines = 1;
                while let Some(c) = self.input.peek().filter(|c| c.is_whitespace()) {
                    lines += usize::from(c == '\n');
                    self.input.next();
                }
                self.put(" ");
                if lines > 1 && self.tables == 0 {
                    self.out.line(2);
                }
            }
            // Group delimiters have no further effect once arguments have been read.
            _ => {}
        }
        Ok(())
    }

    fn control(&mut self) -> Result<(), Refusal> {
        let name = self.input.name();
        if self.macros.has(&name) {
            return self.macros.expand(&name, &mut self.input);
        }
        if self.macros.define(&name, &mut self.input, is_kept)? {
            return Ok(());
        }
        if let Some(mark) = accent(&name) {
            let letter = self.input.argument()?;
            self.put(&accented(&letter, mark));
            return Ok(());
        }
        match name.as_str() {
            "begin" => {
                let name = self.input.argument()?;
                self.begin(name.trim())
            }
            "end" => {
                let name = self.input.argument()?;
                self.end(name.trim())
            }
            "(" => self.math(MathEnd::Command(")")),
            "[" => self.math(MathEnd::Command("]")),
            "\\" | "newline" | "tabularnewline" | "cr" | "par" => {
                self.input.take("*");
                if name == "\\" {
                    self.input.optional()?;
                }
                self.out.line(if name == "par" { 2 } else { 1 });
                Ok(())
            }
            "item" => {
                self.out.line(1);
                self.put("- ");
                match self.input.optional()? {
                    Some(label) => self.input.push(format!("{label} ")),
                    None => Ok(()),
                }
            }
            "title" => {
                self.input.optional()?;
                self.title = Some(self.input.argument()?);
                if self.started { self.make_title() } else { Ok(()) }
            }
            "maketitle" => self.make_title(),
            "caption" => self.caption(),
            CAPTION_END => {
                self.captions = self.captions.saturating_sub(1);
                Ok(())
            }
            "verb" | "lstinline" | "mintinline" | "url" | "path" | "nolinkurl" => self.literal(&name),
            "iffalse" => {
                self.input.take_through("\\fi");
                while self.input.take(" ") {}
                Ok(())
            }
            _ => self.by_table(&name),
        }
    }

    /// Inline code and URLs: between braces, or between two occurrences of the same character.
    fn literal(&mut self, name: &str) -> Result<(), Refusal> {
        if name == "verb" {
            self.input.take("*");
        } else {
            self.input.optional()?;
        }
        if name == "mintinline" {
            self.input.argument()?;
        }
        let text = match self.input.peek() {
            Some('{' | '\\') if name != "verb" => self.input.argument()?,
            Some('}') | None => return Ok(()),
            Some(_) => {
                let mark = self.input.next().unwrap_or('|').to_string();
                self.input.take_through(&mark).unwrap_or_default()
            }
        };
        let is_code = matches!(name, "verb" | "lstinline" | "mintinline");
        let text = if is_code { text } else { literal::address(&text) };
        if self.shown() {
            self.out.verbatim(&text);
        }
        Ok(())
    }

    fn by_table(&mut self, name: &str) -> Result<(), Refusal> {
        if let Some(text) = symbol(name) {
            self.put(text);
            return Ok(());
        }
        self.input.take("*");
        let found = command(name);
        if !matches!(found, Some(Use::Stop)) {
            // `\name[options]` of any command: the options are never text.
            while self.input.optional()?.is_some() {}
        }
        match found {
            Some(Use::Drop(count)) => {
                for _ in 0..count {
                    self.input.argument()?;
                }
                if name.contains("cite") || name.ends_with("ref") {
                    self.out.close_up();
                }
            }
            Some(Use::DropThenKeep(count)) => {
                for _ in 0..count {
                    self.input.argument()?;
                    self.input.optional()?;
                }
            }
            Some(Use::Heading(level)) => self.heading(level)?,
            Some(Use::Aside) => {
                let text = self.input.argument()?;
                self.input.push(format!(" ({})", text.trim()))?;
            }
            Some(Use::Stop) if self.started && self.options.cut_appendix => self.ended = true,
            Some(Use::Stop) => {}
            // An unknown command is dropped, the content of its braces is kept.
            None => {}
        }
        Ok(())
    }

    fn heading(&mut self, level: u8) -> Result<(), Refusal> {
        let text = self.input.argument()?;
        if !self.started {
            return Ok(());
        }
        self.out.line(2);
        if level < 5 {
            let marks = "#".repeat(level as usize);
            self.put(&format!("{marks} "));
            self.input.push(format!("{}\n\n", text.trim()))
        } else {
            let text = text.trim();
            let stop = if text.ends_with(['.', '?', '!', ':']) { "" } else { "." };
            self.input.push(format!("{text}{stop} "))
        }
    }

    fn make_title(&mut self) -> Result<(), Refusal> {
        self.started = true;
        let Some(title) = self.title.take() else { return Ok(()) };
        self.out.line(2);
        self.put("# ");
        // A line end inside a title would end the heading.
        let title = title.replace("\\\\", " ").replace('\n', " ");
        self.input.push(format!("{}\n\n", title.trim()))
    }

    fn caption(&mut self) -> Result<(), Refusal> {
        self.input.take("*");
        self.input.optional()?;
        let text = self.input.argument()?;
        if !self.started {
            return Ok(());
        }
        // Captions are text although the surrounding float is not.
        self.out.line(2);
        self.captions += 1;
        self.input.push(format!("{text}\n\n\\{CAPTION_END} "))
    }

    fn begin(&mut self, name: &str) -> Result<(), Refusal> {
        if name == "document" {
            self.started = true;
            return Ok(());
        }
        if self.macros.has_environment(name) {
            return self.macros.begin(name, &mut self.input);
        }
        match environment(name) {
            Some(EnvironmentRule::Equation) => self.math(MathEnd::Environment(name.to_string()))?,
            Some(EnvironmentRule::Verbatim) => {
                if !matches!(name, "verbatim" | "verbatim*" | "alltt") {
                    self.input.optional()?;
                }
                if name == "minted" {
                    self.input.argument()?;
                }
                let end = format!("\\end{{{name}}}");
                let text = self.input.take_through(&end).unwrap_or_default();
                if self.shown() {
                    self.out.line(2);
                    self.out.verbatim(text.trim_matches('\n'));
                    self.out.line(2);
                }
            }
            Some(EnvironmentRule::Drop) => {
                let end = format!("\\end{{{name}}}");
                self.input.take_through(&end);
            }
            Some(EnvironmentRule::Float) => {
                self.input.optional()?;
                self.floats += 1;
                self.out.line(2);
            }
            Some(EnvironmentRule::Table) => {
                self.input.optional()?;
                if name.starts_with("tabularx") || name.starts_with("tabulary") || name.ends_with('*') {
                    self.input.argument()?;
                }
                self.input.argument()?;
                self.tables += 1;
                self.out.line(2);
            }
            Some(EnvironmentRule::Stop) if self.options.cut_appendix => self.ended = self.started,
            Some(EnvironmentRule::Stop) => {}
            None => {
                // Theorems and similar environments have an optional name in brackets, which is text.
                if matches!(
                    name,
                    "itemize" | "enumerate" | "description" | "center" | "minipage" | "multicols"
                ) {
                    self.input.optional()?;
                    if matches!(name, "minipage" | "multicols") {
                        self.input.argument()?;
                    }
                }
                if name == "abstract" && self.started {
                    self.out.line(2);
                    self.put("## Abstract");
                }
                self.out.line(2);
            }
        }
        Ok(())
    }

    fn end(&mut self, name: &str) -> Result<(), Refusal> {
        if name == "document" {
            self.ended = self.started;
            return Ok(());
        }
        if self.macros.has_environment(name) {
            return self.macros.end(name, &mut self.input);
        }
        match environment(name) {
            Some(EnvironmentRule::Float) => self.floats = self.floats.saturating_sub(1),
            Some(EnvironmentRule::Table) => self.tables = self.tables.saturating_sub(1),
            _ => {}
        }
        self.out.line(2);
        Ok(())
    }

    /// Copies an equation with the paper's macros expanded and labels left out.
    fn math(&mut self, end: MathEnd) -> Result<(), Refusal> {
        let mut body = String::new();
        let mut depth = 0usize;
        let longest = self.options.max_equation_bytes;
        while let Some(c) = self.input.next() {
            if body.len() > longest {
                break;
            }
            if c == '$' {
                match end {
                    MathEnd::Dollar => break,
                    MathEnd::TwoDollars if self.input.take("$") => break,
                    _ => body.push(c),
                }
                continue;
            }
            if c == '\n' && matches!(end, MathEnd::Dollar) && self.input.peek() == Some('\n') {
                // TeX forbids empty lines in equations: a missing dollar sign costs a paragraph, not the paper.
                break;
            }
            if c != '\\' {
                body.push(c);
                continue;
            }
            let name = self.input.name();
            if self.macros.has(&name) {
                self.macros.expand(&name, &mut self.input)?;
                continue;
            }
            match (name.as_str(), &end) {
                ("label", _) => {
                    self.input.argument()?;
                }
                (name, MathEnd::Command(wanted)) if name == *wanted => break,
                ("begin" | "end", MathEnd::Environment(wanted)) => {
                    let inner = self.input.argument()?;
                    if name == "end" && inner == *wanted {
                        if depth == 0 {
                            break;
                        }
                        depth -= 1;
                    } else if name == "begin" && inner == *wanted {
                        depth += 1;
                    }
                    body.push_str(&format!("\\{name}{{{inner}}}"));
                }
                _ => {
                    body.push('\\');
                    body.push_str(&name);
                    // Restores the space after a name if a letter follows.
                    let joins = self.input.peek().is_some_and(|c| c.is_ascii_alphabetic());
                    if joins && name.ends_with(|c: char| c.is_ascii_alphabetic()) {
                        body.push(' ');
                    }
                }
            }
        }
        self.input.spend(body.len())?;
        self.write_math(body.trim(), &end);
        Ok(())
    }

    fn write_math(&mut self, body: &str, end: &MathEnd) {
        if !self.shown() || body.is_empty() {
            return;
        }
        match end {
            MathEnd::Dollar | MathEnd::Command(")") => self.out.verbatim(&format!("${body}$")),
            MathEnd::TwoDollars | MathEnd::Command(_) => {
                self.out.line(2);
                self.out.verbatim(&format!("$$\n{body}\n$$"));
                self.out.line(2);
            }
            MathEnd::Environment(name) => {
                self.out.line(2);
                self.out.verbatim(&format!("\\begin{{{name}}}\n{body}\n\\end{{{name}}}"));
                self.out.line(2);
            }
        }
    }
}

/// Returns true for bytes with a special meaning.
fn is_special(byte: u8) -> bool {
    matches!(byte, b'\\' | b'$' | b'{' | b'}' | b'~' | b'&' | b'`' | b'\'' | b'-' | b'?' | b'!' | b'\n')
}

/// Returns true for commands whose meaning papers do not change, only their appearance.
fn is_kept(name: &str) -> bool {
    matches!(command(name), Some(Use::Heading(_) | Use::Stop))
        || symbol(name).is_some()
        || accent(name).is_some()
        || matches!(
            name,
            "begin"
                | "end"
                | "item"
                | "title"
                | "maketitle"
                | "caption"
                | "par"
                | "and"
                | "footnote"
                | "cite"
        )
}
