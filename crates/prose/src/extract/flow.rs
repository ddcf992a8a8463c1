//! Text output: merges white space, and separates paragraphs by an empty line.

/// Collects text; pending separators are written only before the next word.
#[derive(Debug, Default)]
pub struct Flow {
    out: String,
    breaks: usize,
    space: bool,
    /// Written before the next word.
    mark: &'static str,
}

impl Flow {
    /// Writes inline text; white space at its ends is merged with adjacent white space.
    pub fn text(&mut self, text: &str, blank: impl Fn(char) -> bool + Copy) {
        for piece in text.split_inclusive(blank) {
            let word = piece.trim_end_matches(blank);
            self.verbatim(word);
            self.space |= word.len() < piece.len();
        }
    }

    /// Writes text whose spaces and lines are significant.
    pub fn verbatim(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if !self.out.is_empty() {
            match self.breaks {
                0 if self.space => self.out.push(' '),
                0 => {}
                1 => self.out.push('\n'),
                _ => self.out.push_str("\n\n"),
            }
        }
        self.out.push_str(self.mark);
        self.out.push_str(text);
        (self.breaks, self.space, self.mark) = (0, false, "");
    }

    /// Line ends before the next word: none, one, or two for a paragraph.
    pub fn breaks(&self) -> usize {
        self.breaks
    }

    /// Makes the next word start a line (1) or a paragraph (2).
    pub fn line(&mut self, breaks: usize) {
        self.breaks = self.breaks.max(breaks);
    }

    /// Separates the next word by a space.
    pub fn space(&mut self) {
        self.space = true;
    }

    /// Drops a pending space before something that is left out, such as a citation before a full stop.
    pub fn close_up(&mut self) {
        self.space = false;
    }

    /// Sets a mark before the next word, such as that of a list's item; empty for none.
    pub fn mark(&mut self, mark: &'static str) {
        self.mark = mark;
    }

    /// Returns the collected text.
    pub fn finish(self) -> String {
        self.out
    }
}
