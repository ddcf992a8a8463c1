//! Where text goes: spaces joined, paragraphs apart by an empty line.

/// Collects text; line ends wait until the next word needs them.
#[derive(Default)]
pub(super) struct Writer {
    out: String,
    breaks: usize,
    space: bool,
}

impl Writer {
    /// Text of a line; white space at its ends is joined with what is there.
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

    /// Text whose spaces and lines matter.
    pub(super) fn verbatim(&mut self, text: &str) {
        if !text.is_empty() {
            self.separate();
            self.out.push_str(text);
        }
    }

    /// The next word starts a line (1) or a paragraph (2).
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

    /// Forgets a space in front of something that is left out, such as a citation in front of a full stop.
    pub(super) fn close_up(&mut self) {
        self.space = false;
    }

    /// The collected text.
    pub(super) fn finish(self) -> String {
        self.out
    }
}
