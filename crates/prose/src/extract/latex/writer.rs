//! Text output: collapses spaces and separates paragraphs by an empty line.

/// Collects text; pending line ends are written only before the next word.
#[derive(Default)]
pub(super) struct Writer {
    out: String,
    breaks: usize,
    space: bool,
}

impl Writer {
    /// Writes inline text; white space at its ends is merged with adjacent white space.
    pub(super) fn text(&mut self, text: &str) {
        for piece in text.split_inclusive(char::is_whitespace) {
            let word = piece.trim_end();
            if !word.is_empty() {
                self.separate();
                self.out.push_str(word);
            }
            self.space |= word.len() < piece.len();
        }
    }

    /// Writes text whose spaces and lines are significant.
    pub(super) fn verbatim(&mut self, text: &str) {
        if !text.is_empty() {
            self.separate();
            self.out.push_str(text);
        }
    }

    /// Makes the next word start a line (1) or a paragraph (2).
    pub(super) fn line(&mut self, breaks: usize) {
        self.breaks = self.breaks.max(breaks);
    }

    fn separate(&mut self) {
        if !self.out.is_empty() {
            match self.breaks {
                0 if self.space => self.out.push(' '),
                0 => {}
                1 => self.out.push('\n'),
                _ => self.out.push_str("\n\n"),
            }
        }
        (self.breaks, self.space) = (0, false);
    }

    /// Drops a pending space before something that is left out, such as a citation before a full stop.
    pub(super) fn close_up(&mut self) {
        self.space = false;
    }

    /// Returns the collected text.
    pub(super) fn finish(self) -> String {
        self.out
    }
}
