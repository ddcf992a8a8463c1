//! Options of the extraction from HTML.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
