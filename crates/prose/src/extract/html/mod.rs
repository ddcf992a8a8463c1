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
mod entities;
mod followers;
mod language;
mod marks;
mod options;
mod phrases;
mod prune;
mod scan;
mod tag;
mod text;
mod third_party;

use super::refusal::Refusal;
use crate::error::Error;
use crate::language::Language;
use dense::all_text;
pub(crate) use entities::decode_entities;
pub use options::{HtmlOptions, Method};

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
