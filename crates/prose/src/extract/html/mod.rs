//! The main content of a web page.
//!
//! There are three methods: [`Method::Dense`], a linear pass over a flat tree; [`Method::Trafilatura`] and
//! [`Method::Justext`], the crates of these names. Since they face pages of any origin, the crates are guarded: they
//! receive the page rebuilt with bounded depth and size, and a panic of theirs rejects the page.

mod blocks;
mod dense;
mod dom;
mod edges;
mod endings;
mod followers;
mod language;
mod marks;
mod phrases;
mod prune;
mod scan;
mod tag;
mod text;
mod third_party;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Refusal;
use crate::error::Error;
use crate::language::Language;

/// Which algorithm finds the main content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Structure and density in one linear pass. An article's title is no part of its text.
    #[default]
    Dense,
    /// The crate `trafilatura`, a port of the Python package.
    Trafilatura,
    /// The crate `justext`: paragraphs by stop words, length and links.
    Justext,
}

/// How pages become text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HtmlOptions {
    /// Which algorithm finds the main content.
    pub method: Method,
    /// Keeps readers' comments below the main content; with `dense` and `trafilatura`.
    pub comments: bool,
    /// With `trafilatura`: compares with other algorithms where it finds little; better and slower.
    pub fallback: bool,
    /// Pages of more bytes of decoded text are refused as `page_too_large`.
    pub max_page_bytes: usize,
    /// Pages with more elements and runs of text are refused; attributes beyond the first 128 of an element count too.
    /// `trafilatura` and `justext` are not linear and get a tenth of it.
    pub max_elements: usize,
    /// Pages whose text has fewer characters are refused as `too_short`; 0 keeps all (NeMo Curator: 250 with `dense` and
    /// `trafilatura`).
    pub min_chars: usize,
    /// Finds each page's language, for the column of that name; it is found anyway where stop words are counted.
    pub language: bool,
    /// Lines with a smaller share of stop words among their words go; 0 keeps all (NeMo Curator: 0.32 with `dense` and
    /// `trafilatura`). It is off for Chinese, Japanese, Korean and Thai; pages in a language without a list are refused as
    /// `no_stop_words`.
    #[schemars(range(min = 0, max = 1))]
    pub min_stop_words: f64,
    /// Language of the stop words where that of the page is not certain, as the crate `justext` names it: `English`.
    pub stop_words: String,
    /// With `justext`: paragraphs of fewer characters are short (jusText: 70); not above `length_high`.
    pub length_low: usize,
    /// With `justext`: paragraphs of more characters can be good by themselves (jusText: 200).
    pub length_high: usize,
    /// With `justext`: share of stop words from which a paragraph is near good (jusText: 0.30); not above `stopwords_high`.
    #[schemars(range(min = 0, max = 1))]
    pub stopwords_low: f64,
    /// With `justext`: share of stop words from which a paragraph is good (jusText: 0.32).
    #[schemars(range(min = 0, max = 1))]
    pub stopwords_high: f64,
    /// With `justext`: paragraphs with a larger share of characters in links are bad (jusText: 0.2).
    #[schemars(range(min = 0, max = 1))]
    pub max_link_density: f64,
    /// With `justext`: a heading stays if good text begins within this many characters (jusText: 200).
    pub max_heading_distance: usize,
}

impl Default for HtmlOptions {
    fn default() -> Self {
        HtmlOptions {
            method: Method::Dense,
            comments: false,
            fallback: true,
            max_page_bytes: 16 << 20,
            max_elements: 1 << 20,
            min_chars: 0,
            language: false,
            min_stop_words: 0.0,
            stop_words: "English".to_string(),
            length_low: 70,
            length_high: 200,
            stopwords_low: 0.30,
            stopwords_high: 0.32,
            max_link_density: 0.2,
            max_heading_distance: 200,
        }
    }
}

impl HtmlOptions {
    /// The limits of NeMo Curator: jusText with its published values, or 250 characters and lines with 32 % stop words.
    pub fn curator(method: Method) -> HtmlOptions {
        let options = HtmlOptions { method, ..HtmlOptions::default() };
        match method {
            Method::Justext => options,
            Method::Dense | Method::Trafilatura => {
                HtmlOptions { min_chars: 250, min_stop_words: 0.32, ..options }
            }
        }
    }
}

/// Text extracted from a page.
#[derive(Clone, Debug, PartialEq)]
pub struct PageText {
    /// Main text, with each block on a separate line.
    pub text: String,
    /// Language, if the options require it directly or for stop words, and it can be determined.
    pub language: Option<Language>,
}

/// Extractor with validated options, for any number of pages.
#[derive(Debug)]
pub struct Html {
    options: HtmlOptions,
    crates: third_party::Crates,
}

impl Default for Html {
    /// Creates an extractor with the default options.
    fn default() -> Self {
        let options = HtmlOptions::default();
        let crates = third_party::Crates::without_words(&options);
        Html { options, crates }
    }
}

impl Html {
    /// Validates the options and loads the stop words.
    ///
    /// # Errors
    /// [`Error::Option`] for a language without stop words, and for empty ranges.
    pub fn new(options: &HtmlOptions) -> Result<Html, Error> {
        let refused = |key: &str, found: String, advice: &str| {
            let (key, advice) = (format!("html.{key}"), advice.to_string());
            Err(Error::Option { piece: "extract", key, found, advice })
        };
        for (key, share) in [
            ("min_stop_words", options.min_stop_words),
            ("stopwords_low", options.stopwords_low),
            ("stopwords_high", options.stopwords_high),
            ("max_link_density", options.max_link_density),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return refused(key, share.to_string(), "it is a share, give a number from 0 to 1");
            }
        }
        if options.length_low > options.length_high {
            return refused("length_low", options.length_low.to_string(), "it is above `length_high`");
        }
        if options.stopwords_low > options.stopwords_high {
            return refused(
                "stopwords_low",
                options.stopwords_low.to_string(),
                "it is above `stopwords_high`",
            );
        }
        let crates = third_party::Crates::new(options)?;
        Ok(Html { options: options.clone(), crates })
    }

    /// Returns true if the extractor determines languages.
    pub fn finds_language(&self) -> bool {
        let o = &self.options;
        o.language || o.method == Method::Justext || o.min_stop_words > 0.0
    }

    /// Extracts the main text of a page, with each block on a separate line.
    ///
    /// # Errors
    /// The reason why the page yields no text.
    pub fn extract(&self, page: &str) -> Result<String, Refusal> {
        self.page(page).map(|found| found.text)
    }

    /// Extracts the main text of a page and, if [`Html::finds_language`], its language, which selects the stop words.
    ///
    /// # Errors
    /// The reason why the page yields no text.
    pub fn page(&self, page: &str) -> Result<PageText, Refusal> {
        let options = &self.options;
        if page.len() > options.max_page_bytes.min(u32::MAX as usize) {
            return Err(Refusal::PageTooLarge);
        }
        let find = |text: &str| if self.finds_language() { language::of_page(page, text) } else { None };
        let (text, language) = match options.method {
            Method::Dense => {
                let text = dense::main_text(page, options.comments, options.max_elements)?;
                let language = find(&text);
                (text, language)
            }
            Method::Trafilatura => {
                let text = self.crates.trafilatura(page, options)?;
                let language = find(&text);
                (text, language)
            }
            Method::Justext => {
                let language = find(&all_text(page, options.max_elements)?);
                (self.crates.justext(page, options, language.as_ref())?, language)
            }
        };
        let text = match options.min_stop_words {
            share if share > 0.0 => self.crates.lines_with_stop_words(text, share, language.as_ref())?,
            _ => text,
        };
        if text.trim().is_empty() {
            return Err(Refusal::NoContent);
        }
        if text.chars().count() < options.min_chars {
            return Err(Refusal::TooShort);
        }
        Ok(PageText { text, language })
    }
}

/// Plain text of everything a page shows, for HTML returned by the crates.
fn all_text(page: &str, limit: usize) -> Result<String, Refusal> {
    dense::whole_text(page, limit)
}

/// Appends `raw` with its character references decoded and white space unchanged.
pub(crate) fn decode_entities(out: &mut String, raw: &str) {
    text::append(out, raw, true);
}
