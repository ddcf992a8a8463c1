//! From raw records to text: web pages, LaTeX, wikitext.
//!
//! All functions are pure functions of their input and options, bounded in depth, size and time. Input without text
//! is refused with a reason, by which reports count it.

pub mod charset;
mod content;
mod flow;
mod html;
pub mod labelled;
mod latex;
mod refusal;
mod wikitext;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Error;

pub use content::{Content, LatexFile};
pub use flow::Flow;
pub(crate) use html::decode_entities;
pub use html::{Html, HtmlOptions, Method, PageText};
pub use latex::{Latex, LatexOptions};
pub use refusal::Refusal;
pub use wikitext::{Wikitext, WikitextOptions};

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

/// Extracted text of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtractedText {
    /// Plain text, with each block on a separate line.
    pub text: String,
    /// Charset that a page was decoded with.
    pub charset: Option<&'static str>,
    /// Language and script of a page, such as `en_Latn`, if [`Extraction::finds_language`] and they can be
    /// determined.
    pub language: Option<String>,
}

/// Extractor for [`ExtractOptions`], for any number of records.
#[derive(Debug)]
pub struct Extraction {
    html: Html,
    latex: Latex,
    wikitext: Wikitext,
}

impl Default for Extraction {
    /// Creates an extractor with the default options.
    fn default() -> Self {
        Extraction { html: Html::default(), latex: Latex::default(), wikitext: Wikitext::default() }
    }
}

impl Extraction {
    /// Validates the options.
    ///
    /// # Errors
    /// [`Error::Option`] for invalid options.
    pub fn new(options: &ExtractOptions) -> Result<Extraction, Error> {
        Ok(Extraction {
            html: Html::new(&options.html)?,
            latex: Latex::new(&options.latex),
            wikitext: Wikitext::new(&options.wikitext),
        })
    }

    /// Returns true if the extractor determines the languages of web pages.
    pub fn finds_language(&self) -> bool {
        self.html.finds_language()
    }

    /// Extracts the text of a record.
    ///
    /// # Errors
    /// The reason why the record has no text.
    pub fn text(&self, content: Content) -> Result<ExtractedText, Refusal> {
        let plain = |text| ExtractedText { text, charset: None, language: None };
        match content {
            Content::Text(text) => Ok(plain(text)),
            Content::Page { bytes, content_type } => {
                let (page, charset) = charset::decode(&bytes, content_type.as_deref())?;
                let found = self.html.page(&page)?;
                let language = found.language.map(|language| language.label());
                Ok(ExtractedText { text: found.text, charset: Some(charset), language })
            }
            Content::Wikitext(source) => self.wikitext.extract(&source).map(plain),
            Content::Latex(files) => self.latex.extract(&files).map(plain),
        }
    }
}
