//! The text of an HTML page: tags out, entities decoded, white space as a browser would show it.
//!
//! A tokenizer is enough for this, there is no tree: depth costs nothing and hostile nesting is just more tags.
//! Finding the *main* content of a page is another job than this one.

use std::convert::Infallible;

use html5gum::Tokenizer;
use html5gum::emitters::callback::{CallbackEmitter, CallbackEvent};

/// The readable text of a page: blocks on lines of their own, paragraphs apart by an empty line, list items
/// with a dash, `pre` as it is; scripts, styles and comments are left out. Any input is a page to HTML, so this
/// cannot fail.
pub fn html_to_text(page: &str) -> String {
    let mut writer = Writer::default();
    let mut emitter = CallbackEmitter::<_, Infallible>::new(|event: CallbackEvent<'_>, _span| {
        match event {
            CallbackEvent::OpenStartTag { name } => writer.start(name),
            CallbackEvent::EndTag { name } => writer.end(name),
            CallbackEvent::String { value } => writer.text(&String::from_utf8_lossy(value)),
            _ => {}
        }
        None
    });
    emitter.naively_switch_states(true);
    match Tokenizer::new_with_emitter(page, emitter).finish() {
        Ok(()) => writer.out,
        Err(never) => match never {},
    }
}

/// Collects text; breaks and spaces wait until the next word needs them.
#[derive(Default)]
struct Writer {
    out: String,
    /// Line ends to write before the next word: 0, 1 or 2.
    breaks: usize,
    space: bool,
    bullet: bool,
    /// Depth of `pre`.
    verbatim: usize,
    /// The element whose content is being left out.
    skipped: Option<Vec<u8>>,
}

impl Writer {
    fn start(&mut self, name: &[u8]) {
        if self.skipped.is_some() {
            return;
        }
        match name {
            b"script" | b"style" | b"iframe" | b"noscript" | b"noembed" => self.skipped = Some(name.to_vec()),
            b"br" => {
                self.breaks = (self.breaks + 1).min(2);
                self.space = false;
            }
            b"td" | b"th" => self.space = true,
            b"li" => {
                self.block(1);
                self.bullet = true;
            }
            b"pre" => {
                self.block(2);
                self.verbatim += 1;
            }
            _ => self.block(breaks_around(name)),
        }
    }

    fn end(&mut self, name: &[u8]) {
        if let Some(skipped) = &self.skipped {
            if skipped.as_slice() == name {
                self.skipped = None;
            }
            return;
        }
        if name == b"pre" {
            self.verbatim = self.verbatim.saturating_sub(1);
        }
        if name == b"li" {
            self.bullet = false;
        }
        self.block(breaks_around(name));
    }

    fn block(&mut self, breaks: usize) {
        if breaks > 0 {
            self.breaks = self.breaks.max(breaks);
            self.space = false;
        }
    }

    fn text(&mut self, text: &str) {
        if self.skipped.is_some() {
            return;
        }
        if self.verbatim > 0 {
            // The tokenizer leaves the line end behind `<pre>` in, which HTML does not show.
            let text = if self.breaks > 0 { text.strip_prefix('\n').unwrap_or(text) } else { text };
            if !text.is_empty() {
                self.separate();
                self.out.push_str(text);
            }
            return;
        }
        let blank = |c: char| matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0c');
        for piece in text.split_inclusive(blank) {
            let word = piece.trim_end_matches(blank);
            if !word.is_empty() {
                self.separate();
                self.out.push_str(word);
            }
            self.space |= word.len() < piece.len();
        }
    }

    /// Writes what has to stand between the last word and the next.
    fn separate(&mut self) {
        if !self.out.is_empty() {
            match self.breaks {
                0 if self.space => self.out.push(' '),
                0 => {}
                1 => self.out.push('\n'),
                _ => self.out.push_str("\n\n"),
            }
        }
        if self.bullet {
            self.out.push_str("- ");
        }
        (self.breaks, self.space, self.bullet) = (0, false, false);
    }
}

/// Line ends before and after an element: 2 for what stands apart, 1 for what stands on its own line.
fn breaks_around(name: &[u8]) -> usize {
    match name {
        b"p" | b"h1" | b"h2" | b"h3" | b"h4" | b"h5" | b"h6" | b"ul" | b"ol" | b"dl" | b"pre" | b"table"
        | b"blockquote" | b"article" | b"section" | b"figure" | b"hr" | b"title" | b"form" => 2,
        b"div" | b"li" | b"tr" | b"dt" | b"dd" | b"option" | b"summary" | b"details" | b"figcaption"
        | b"header" | b"footer" | b"main" | b"nav" | b"aside" | b"address" | b"body" | b"caption"
        | b"fieldset" | b"legend" | b"center" => 1,
        _ => 0,
    }
}
