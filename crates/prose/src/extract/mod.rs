//! From raw records to text: web pages, LaTeX, wikitext.
//!
//! Everything here is a pure function of its input and options, bounded in depth, size and time. What gives no text is
//! refused with a reason that reports count by.

pub mod charset;
mod content;
mod html;
pub mod labelled;
mod latex;
mod wikitext;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Error;

pub use content::{Content, LatexFile};
pub(crate) use html::decode_entities;
pub use html::{Html, HtmlOptions, Method, PageText};
pub use latex::{Latex, LatexOptions};
pub use wikitext::{Wikitext, WikitextOptions};

/// Why a record gave no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// The bytes are no text.
    Binary,
    /// No charset fits the bytes.
    UnknownCharset,
    /// Larger than the limit.
    PageTooLarge,
    /// More elements than the limit.
    TooManyElements,
    /// Nothing was found.
    NoContent,
    /// Less was found than the options ask for.
    TooShort,
    /// The extractor of another crate gave up with a panic.
    ExtractorFailed,
    /// A wiki page that points to another.
    Redirect,
    /// Macros that expand without end or measure.
    ExpansionTooLarge,
    /// The page is in a language without a list of stop words, and stop words decide.
    NoStopWords,
    /// No document: no section and no `\begin{document}`.
    NoDocument,
}

impl Refusal {
    /// A stable name for reports.
    pub fn reason(self) -> &'static str {
        match self {
            Refusal::Binary => "binary",
            Refusal::UnknownCharset => "unknown_charset",
            Refusal::PageTooLarge => "page_too_large",
            Refusal::TooManyElements => "too_many_elements",
            Refusal::NoContent => "no_content",
            Refusal::TooShort => "too_short",
            Refusal::ExtractorFailed => "extractor_failed",
            Refusal::Redirect => "redirect",
            Refusal::ExpansionTooLarge => "expansion_too_large",
            Refusal::NoStopWords => "no_stop_words",
            Refusal::NoDocument => "no_document",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

/// How each kind of record becomes text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExtractOptions {
    /// How web pages become text.
    pub html: HtmlOptions,
    /// How papers become text.
    pub latex: LatexOptions,
    /// How wiki pages become text.
    pub wikitext: WikitextOptions,
}

/// The text of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extracted {
    /// Plain text, blocks on lines of their own.
    pub text: String,
    /// The charset that a page was decoded with.
    pub charset: Option<&'static str>,
    /// The language and script of a page, as `en_Latn`, where [`Extraction::finds_language`] and something indicates it.
    pub language: Option<String>,
}

/// [`ExtractOptions`] made ready once, for any number of records.
#[derive(Debug)]
pub struct Extraction {
    html: Html,
    latex: Latex,
    wikitext: Wikitext,
}

impl Default for Extraction {
    /// With the default options.
    fn default() -> Self {
        Extraction { html: Html::default(), latex: Latex::default(), wikitext: Wikitext::default() }
    }
}

impl Extraction {
    /// Checks the options.
    ///
    /// # Errors
    /// [`Error::Option`] for options that cannot be.
    pub fn new(options: &ExtractOptions) -> Result<Extraction, Error> {
        Ok(Extraction {
            html: Html::new(&options.html)?,
            latex: Latex::new(&options.latex),
            wikitext: Wikitext::new(&options.wikitext),
        })
    }

    /// Whether it finds the languages of web pages.
    pub fn finds_language(&self) -> bool {
        self.html.finds_language()
    }

    /// The text of a record.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn text(&self, content: Content) -> Result<Extracted, Refusal> {
        let plain = |text| Extracted { text, charset: None, language: None };
        match content {
            Content::Text(text) => Ok(plain(text)),
            Content::Page { bytes, content_type } => {
                let (page, charset) = charset::decode(&bytes, content_type.as_deref())?;
                let found = self.html.page(&page)?;
                let language = found.language.map(|language| language.label());
                Ok(Extracted { text: found.text, charset: Some(charset), language })
            }
            Content::Wikitext(source) => self.wikitext.extract(&source).map(plain),
            Content::Latex(files) => self.latex.extract(&files).map(plain),
        }
    }
}
