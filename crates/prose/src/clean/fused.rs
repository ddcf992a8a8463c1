//! All modifiers in one pass.

use super::lines::{LineRemover, UrlRemover, markdown_line, normalize_newlines, remove_markdown};
use super::unicode::{UnicodeFixer, UnicodeOptions};
use super::whole::{BoilerplateRemover, SliceOptions, remove_quotation, slice};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Which modifiers run. By default text is repaired and runs of newlines are shortened; the rest changes what a text
/// says and is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CleanOptions {
    /// Repairs Unicode as ftfy does, see `unicode_options`.
    pub unicode: bool,
    /// Repairs that are made; the defaults are those of NeMo Curator's reformatter.
    pub unicode_options: UnicodeOptions,
    /// Removes quotation marks around the whole text.
    pub quotation: bool,
    /// Removes paragraphs with policy phrases ("terms of use", "uses cookies") at the top or bottom; texts with "lorem
    /// ipsum" become empty.
    pub boilerplate: bool,
    /// With `boilerplate`: such paragraphs go only where they stand together at the top or the bottom; if false, one of
    /// them anywhere empties the text.
    pub boilerplate_only_at_ends: bool,
    /// Removes URLs: what begins with `http://`, `https://` or `www.`, up to white space.
    pub urls: bool,
    /// Removes the marks of bold and italic in Markdown; of links their address stays.
    pub markdown: bool,
    /// Removes lines that are exactly one of these.
    pub remove_lines: Vec<String>,
    /// Shortens runs of three or more newlines to two.
    pub newlines: bool,
    /// Keeps only a part of each text.
    pub slice: Option<SliceOptions>,
}

impl Default for CleanOptions {
    fn default() -> Self {
        CleanOptions {
            unicode: true,
            unicode_options: UnicodeOptions::default(),
            quotation: false,
            boilerplate: false,
            boilerplate_only_at_ends: true,
            urls: false,
            markdown: false,
            remove_lines: Vec::new(),
            newlines: true,
            slice: None,
        }
    }
}

/// Compiled modifiers; shared by threads.
#[derive(Clone, Debug)]
pub struct Cleaner {
    options: CleanOptions,
    unicode: Option<UnicodeFixer>,
    boilerplate: Option<BoilerplateRemover>,
    urls: Option<UrlRemover>,
    lines: LineRemover,
}

impl Cleaner {
    /// Compiles `options`.
    pub fn new(options: &CleanOptions) -> Cleaner {
        Cleaner {
            unicode: options.unicode.then(|| UnicodeFixer::new(&options.unicode_options)),
            boilerplate: options
                .boilerplate
                .then(|| BoilerplateRemover::new(options.boilerplate_only_at_ends)),
            urls: options.urls.then(UrlRemover::new),
            lines: LineRemover::new(options.remove_lines.clone()),
            options: options.clone(),
        }
    }

    /// Returns the cleaned text; borrowed if nothing changed.
    pub fn clean<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = self.before_lines(text);
        if self.options.urls || self.options.markdown || !self.lines.is_empty() {
            text = match text {
                Cow::Borrowed(text) => self.walk(text),
                Cow::Owned(text) => match self.walk(&text) {
                    Cow::Borrowed(_) => Cow::Owned(text),
                    Cow::Owned(new) => Cow::Owned(new),
                },
            };
        } else if self.options.newlines {
            text = keep(text, normalize_newlines);
        }
        self.after_lines(text)
    }

    /// Like [`clean`](Cleaner::clean), but one modifier after another over the whole text. For tests and benchmarks.
    pub fn clean_in_steps<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = self.before_lines(text);
        if let Some(urls) = &self.urls {
            text = keep(text, |t| urls.apply(t));
        }
        if self.options.markdown {
            text = keep(text, remove_markdown);
        }
        text = keep(text, |t| self.lines.apply(t));
        if self.options.newlines {
            text = keep(text, normalize_newlines);
        }
        self.after_lines(text)
    }

    fn before_lines<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        if let Some(unicode) = &self.unicode {
            text = keep(text, |t| unicode.fix(t));
        }
        if self.options.quotation {
            text = keep(text, remove_quotation);
        }
        if let Some(boilerplate) = &self.boilerplate {
            text = keep(text, |t| boilerplate.apply(t));
        }
        text
    }

    fn after_lines<'a>(&self, text: Cow<'a, str>) -> Cow<'a, str> {
        match &self.options.slice {
            Some(options) => keep(text, |t| slice(t, options)),
            None => text,
        }
    }

    /// Handles URLs, Markdown, unwanted lines and runs of newlines in a single pass.
    fn walk<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut out = String::with_capacity(text.len());
        let mut first = true;
        for line in text.split('\n') {
            let line = match &self.urls {
                Some(urls) => urls.apply(line),
                None => Cow::Borrowed(line),
            };
            let line = if self.options.markdown { keep(line, markdown_line) } else { line };
            if self.lines.removes(&line) {
                continue;
            }
            if !first {
                self.newline(&mut out);
            }
            out.push_str(&line);
            first = false;
        }
        if out == text { Cow::Borrowed(text) } else { Cow::Owned(out) }
    }

    fn newline(&self, out: &mut String) {
        if self.options.newlines {
            if out.ends_with("\n\n") {
                return;
            }
            if out.ends_with("\r\n\r\n\r") {
                out.pop();
                return;
            }
        }
        out.push('\n');
    }
}

/// Applies `change` to `text`; a borrowed result for an owned text is copied only if it is shorter.
fn keep<'a>(text: Cow<'a, str>, change: impl for<'b> Fn(&'b str) -> Cow<'b, str>) -> Cow<'a, str> {
    match text {
        Cow::Borrowed(text) => change(text),
        Cow::Owned(text) => match change(&text) {
            Cow::Borrowed(part) if part.len() == text.len() => Cow::Owned(text),
            Cow::Borrowed(part) => Cow::Owned(part.to_string()),
            Cow::Owned(new) => Cow::Owned(new),
        },
    }
}
