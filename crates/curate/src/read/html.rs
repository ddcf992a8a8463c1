//! Text of an HTML page: tags removed, entities decoded, white space as a browser shows it.
//!
//! A tokenizer suffices, no tree is built: depth costs nothing, and hostile nesting is just more tags. Finding the
//! *main* content of a page is not done here.

use std::convert::Infallible;

use fathom_prose::extract::Flow;
use html5gum::Tokenizer;
use html5gum::emitters::callback::{CallbackEmitter, CallbackEvent};

/// Readable text of a page: blocks on separate lines, paragraphs separated by an empty line, list items with a dash,
/// `pre` verbatim; scripts, styles and comments are left out. HTML accepts any input as a page, so this cannot fail.
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
        Ok(()) => writer.flow.finish(),
        Err(never) => match never {},
    }
}

/// Writes the text of elements.
#[derive(Default)]
struct Writer {
    flow: Flow,
    /// Nesting depth of `pre`.
    verbatim: usize,
    /// Element whose content is being skipped.
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
                self.flow.line(self.flow.breaks() + 1);
                self.flow.close_up();
            }
            b"td" | b"th" => self.flow.space(),
            b"li" => {
                self.block(1);
                self.flow.mark("- ");
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
            self.flow.mark("");
        }
        self.block(breaks_around(name));
    }

    fn block(&mut self, breaks: usize) {
        if breaks > 0 {
            self.flow.line(breaks);
            self.flow.close_up();
        }
    }

    fn text(&mut self, text: &str) {
        if self.skipped.is_some() {
            return;
        }
        if self.verbatim > 0 {
            // The tokenizer keeps the line end after `<pre>`, which HTML does not display.
            let text = if self.flow.breaks() > 0 { text.strip_prefix('\n').unwrap_or(text) } else { text };
            return self.flow.verbatim(text);
        }
        self.flow.text(text, |c| matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0c'));
    }
}

/// Line breaks before and after an element: 2 for paragraph-like elements, 1 for those on a line of their own.
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
