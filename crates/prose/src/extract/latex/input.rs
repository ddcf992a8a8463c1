//! TeX input: a stack of texts, of which the topmost is read first, and parsing of macro arguments.

use crate::extract::refusal::Refusal;

/// Maximum nesting of expansions and files.
const MAX_DEPTH: usize = 200;
/// Longest argument, in bytes.
const MAX_ARGUMENT: usize = 256 << 10;

/// A text being read.
struct Frame {
    text: String,
    at: usize,
}

/// Remaining input.
pub(super) struct Input {
    frames: Vec<Frame>,
    /// Number of bytes that may still be pushed or scanned for arguments.
    budget: usize,
}

impl Input {
    pub(super) fn new(text: String, budget: usize) -> Input {
        Input { frames: vec![Frame { text, at: 0 }], budget }
    }

    /// Deducts `cost` from the budget.
    ///
    /// # Errors
    /// [`Refusal::ExpansionTooLarge`] when the budget is exhausted.
    pub(super) fn spend(&mut self, cost: usize) -> Result<(), Refusal> {
        self.budget = self.budget.checked_sub(cost).ok_or(Refusal::ExpansionTooLarge)?;
        Ok(())
    }

    /// Pushes `text` to be read next; a text nested too deeply is skipped.
    pub(super) fn push(&mut self, text: String) -> Result<(), Refusal> {
        // Includes a constant per text, since empty expansions take time too.
        self.spend(text.len() + 16)?;
        while self.frames.last().is_some_and(|f| f.at >= f.text.len()) {
            self.frames.pop();
        }
        if self.frames.len() < MAX_DEPTH {
            self.frames.push(Frame { text, at: 0 });
        }
        Ok(())
    }

    fn top(&mut self) -> Option<&mut Frame> {
        while self.frames.last().is_some_and(|f| f.at >= f.text.len()) {
            self.frames.pop();
        }
        self.frames.last_mut()
    }

    /// Next character, without consuming it.
    pub(super) fn peek(&mut self) -> Option<char> {
        self.top().and_then(|f| f.text[f.at..].chars().next())
    }

    pub(super) fn next(&mut self) -> Option<char> {
        let frame = self.top()?;
        let c = frame.text[frame.at..].chars().next()?;
        frame.at += c.len_utf8();
        Some(c)
    }

    /// Characters before the next one that `stop` selects, within the current text.
    pub(super) fn run(&mut self, stop: fn(u8) -> bool) -> &str {
        let Some(frame) = self.top() else { return "" };
        let start = frame.at;
        let rest = &frame.text.as_bytes()[start..];
        // Only ASCII characters stop, so the cut is at a character boundary.
        let length = rest.iter().position(|&b| b < 0x80 && stop(b)).unwrap_or(rest.len());
        frame.at += length;
        &frame.text[start..start + length]
    }

    /// Consumes `text` if it comes next.
    pub(super) fn take(&mut self, text: &str) -> bool {
        match self.top() {
            Some(frame) if frame.text[frame.at..].starts_with(text) => {
                frame.at += text.len();
                true
            }
            _ => false,
        }
    }

    /// Consumes everything up to and including `text` from the current text and returns what precedes it; `None` if
    /// it does not occur.
    pub(super) fn take_through(&mut self, text: &str) -> Option<String> {
        let frame = self.top()?;
        let length = frame.text[frame.at..].find(text)?;
        let taken = frame.text[frame.at..frame.at + length].to_string();
        frame.at += length + text.len();
        Some(taken)
    }

    pub(super) fn skip_spaces(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.next();
        }
    }

    /// Rest of a control sequence after its backslash: letters (with the spaces after them) or one character.
    pub(super) fn name(&mut self) -> String {
        let mut name = String::new();
        match self.next() {
            Some(c) if c.is_ascii_alphabetic() || c == '@' => {
                name.push(c);
                while let Some(c) = self.peek().filter(|c| c.is_ascii_alphabetic() || *c == '@') {
                    name.push(c);
                    self.next();
                }
                // A single line end counts as a space; an empty line ends a paragraph and is kept.
                let mut lines = 0;
                while let Some(c) = self.peek().filter(|c| matches!(c, ' ' | '\t' | '\n')) {
                    if c == '\n' && lines == 1 {
                        break;
                    }
                    lines += usize::from(c == '\n');
                    self.next();
                }
            }
            Some(c) => name.push(c),
            None => {}
        }
        name
    }

    /// Text between `open`, which was already read, and its matching `close`.
    fn group(&mut self, open: char, close: char) -> Result<String, Refusal> {
        let (mut out, mut depth, mut braces) = (String::new(), 1usize, 0usize);
        while let Some(c) = self.next() {
            match c {
                '\\' => {
                    out.push(c);
                    out.extend(self.next());
                    continue;
                }
                '{' if open != '{' => braces += 1,
                '}' if open != '{' => {
                    if braces == 0 {
                        break;
                    }
                    braces -= 1;
                }
                c if c == open && braces == 0 => depth += 1,
                c if c == close && braces == 0 => {
                    depth -= 1;
                    if depth == 0 {
                        break;
                    }
                }
                _ => {}
            }
            out.push(c);
            if out.len() > MAX_ARGUMENT {
                break;
            }
        }
        self.spend(out.len() + 1)?;
        Ok(out)
    }

    /// An argument: a group in braces, a control sequence, or one character.
    pub(super) fn argument(&mut self) -> Result<String, Refusal> {
        self.skip_spaces();
        match self.peek() {
            Some('{') => {
                self.next();
                self.group('{', '}')
            }
            Some('\\') => {
                self.next();
                let name = self.name();
                Ok(format!("\\{name} "))
            }
            // The end of the enclosing group is not an argument.
            Some('}') | None => Ok(String::new()),
            Some(c) => {
                self.next();
                Ok(c.to_string())
            }
        }
    }

    /// An argument in square brackets, if present.
    pub(super) fn optional(&mut self) -> Result<Option<String>, Refusal> {
        let mut spaces = 0;
        while self.top().is_some_and(|f| f.text[f.at..].starts_with(' ')) {
            self.next();
            spaces += 1;
        }
        if self.take("[") {
            return self.group('[', ']').map(Some);
        }
        if spaces > 0 {
            self.push(" ".to_string())?;
        }
        Ok(None)
    }

    /// Everything up to `mark` outside of braces; empty if it does not follow soon.
    pub(super) fn delimited(&mut self, mark: &str) -> Result<String, Refusal> {
        const SOON: usize = 16 << 10;
        let mut out = String::new();
        while out.len() < SOON {
            if self.take(mark) {
                break;
            }
            match self.next() {
                Some('{') => {
                    out.push('{');
                    out.push_str(&self.group('{', '}')?);
                    out.push('}');
                }
                Some('\\') => {
                    out.push('\\');
                    out.extend(self.next());
                }
                Some(c) => out.push(c),
                None => break,
            }
        }
        self.spend(out.len() + 1)?;
        Ok(out)
    }
}
