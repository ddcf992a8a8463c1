//! Guarded use of the crates `trafilatura` and `justext`.

use std::collections::{BTreeMap, HashSet};

use fathom_base::guard;

use super::dense::all_text;
use super::dom::{Dom, LINE_START, with_kept_spaces};
use super::language::is_certain;
use super::options::{HtmlOptions, Method};
use super::text::SOFT_HYPHEN;
use crate::error::Error;
use crate::extract::refusal::Refusal;
use crate::language::Language;

/// Prepared settings of the crates.
pub(super) struct Crates {
    trafilatura: trafilatura::Options,
    justext: justext::Config,
    /// Stop words by the crate's language name.
    stop_words: BTreeMap<String, HashSet<String>>,
    /// Language used if none is known.
    usual: String,
}

impl std::fmt::Debug for Crates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Crates({})", self.usual)
    }
}

/// ISO 639-1 codes of the languages with stop words.
const LANGUAGES: [(&str, &str); 37] = [
    ("af", "Afrikaans"),
    ("ar", "Arabic"),
    ("bg", "Bulgarian"),
    ("bn", "Bengali"),
    ("ca", "Catalan"),
    ("cs", "Czech"),
    ("da", "Danish"),
    ("de", "German"),
    ("el", "Greek"),
    ("en", "English"),
    ("eo", "Esperanto"),
    ("es", "Spanish"),
    ("et", "Estonian"),
    ("fa", "Persian"),
    ("fi", "Finnish"),
    ("fr", "French"),
    ("he", "Hebrew"),
    ("hi", "Hindi"),
    ("hr", "Croatian"),
    ("hu", "Hungarian"),
    ("id", "Indonesian"),
    ("it", "Italian"),
    ("lt", "Lithuanian"),
    ("lv", "Latvian"),
    ("nb", "Norwegian_Bokmal"),
    ("nl", "Dutch"),
    ("no", "Norwegian_Bokmal"),
    ("pl", "Polish"),
    ("pt", "Portuguese"),
    ("ro", "Romanian"),
    ("ru", "Russian"),
    ("sk", "Slovak"),
    ("sl", "Slovenian"),
    ("sv", "Swedish"),
    ("tr", "Turkish"),
    ("uk", "Ukrainian"),
    ("vi", "Vietnamese"),
];

/// Languages without spaces between words, in which stop words cannot be counted.
const WITHOUT_SPACES: [&str; 4] = ["zh", "ja", "th", "ko"];

/// Stop words for a page.
enum Words<'a> {
    Of(&'a HashSet<String>),
    /// Stop words cannot be counted, and the rule does not apply.
    Uncountable,
}

impl Crates {
    /// Loads the stop words if the options require them.
    pub(super) fn new(options: &HtmlOptions) -> Result<Crates, Error> {
        let mut crates = Crates::without_words(options);
        if options.method != Method::Justext && options.min_stop_words <= 0.0 {
            return Ok(crates);
        }
        let names = LANGUAGES.iter().map(|(_, name)| *name).chain([options.stop_words.as_str()]);
        for name in names {
            if let Ok(words) = justext::get_stoplist(name) {
                crates.stop_words.insert(name.to_string(), words);
            }
        }
        if !crates.stop_words.contains_key(&options.stop_words) {
            return Err(Error::Option {
                piece: "extract",
                key: "html.stop_words".to_string(),
                found: format!("`{}`", options.stop_words),
                advice: format!("languages with stop words: {}", justext::available_languages().join(", ")),
            });
        }
        Ok(crates)
    }

    /// Creates settings for extraction without stop words.
    pub(super) fn without_words(options: &HtmlOptions) -> Crates {
        let trafilatura = trafilatura::Options::default()
            .with_fallback(options.fallback)
            .with_exclude_comments(!options.comments)
            .with_html_date_mode(trafilatura::HtmlDateMode::Disabled);
        let justext = justext::Config::default()
            .with_length_low(options.length_low)
            .with_length_high(options.length_high)
            .with_stopwords_low(options.stopwords_low)
            .with_stopwords_high(options.stopwords_high)
            .with_max_link_density(options.max_link_density)
            .with_max_heading_distance(options.max_heading_distance);
        Crates { trafilatura, justext, stop_words: BTreeMap::new(), usual: options.stop_words.clone() }
    }

    /// Stop words of a page's language, or of the default language if the former is a mere guess and has none.
    fn words(&self, language: Option<&Language>) -> Result<Words<'_>, Refusal> {
        let code = language.map_or("", |language| language.code.as_str());
        if WITHOUT_SPACES.contains(&code) {
            return Ok(Words::Uncountable);
        }
        let own = LANGUAGES.iter().find(|(known, _)| *known == code).map(|(_, name)| *name);
        let name = match own {
            Some(name) => name,
            None if language.is_some_and(is_certain) => return Err(Refusal::NoStopWords),
            None => &self.usual,
        };
        self.stop_words.get(name).map(Words::Of).ok_or(Refusal::NoStopWords)
    }

    pub(super) fn trafilatura(&self, page: &str, options: &HtmlOptions) -> Result<String, Refusal> {
        let html = Dom::parse(page, options.max_elements / 10)?.to_html_with_lines();
        let result = guarded(|| trafilatura::extract(&html, &self.trafilatura))?;
        let mut result = result.map_err(|_| Refusal::NoContent)?;
        if options.comments && !result.comments_html.is_empty() {
            result.content_html.push_str(&result.comments_html);
        }
        // In its last fallback the crate writes an article's blocks and lines without separators.
        let lines =
            result.content_html.replace(&format!("{LINE_START} "), "<br>").replace(LINE_START, "<br>");
        let text = all_text(&lines, options.max_elements)?;
        Ok(with_kept_spaces(text))
    }

    pub(super) fn justext(
        &self,
        page: &str,
        options: &HtmlOptions,
        language: Option<&Language>,
    ) -> Result<String, Refusal> {
        let html = Dom::parse(page, options.max_elements / 10)?.to_html();
        let none = HashSet::new();
        // Like Curator, keeps every paragraph if words cannot be counted.
        let (words, every) = match self.words(language)? {
            Words::Of(words) => (words, false),
            Words::Uncountable => (&none, true),
        };
        let paragraphs = guarded(|| justext::justext(&html, words, &self.justext))?;
        let good: Vec<String> = paragraphs
            .into_iter()
            .filter(|p| every || !p.is_boilerplate())
            .map(|p| p.text.replace(SOFT_HYPHEN, ""))
            .collect();
        Ok(good.join("\n"))
    }

    /// Lines of `text` with at least a share `share` of stop words; all lines in languages without spaces.
    pub(super) fn lines_with_stop_words(
        &self,
        text: String,
        share: f64,
        language: Option<&Language>,
    ) -> Result<String, Refusal> {
        let Words::Of(words) = self.words(language)? else { return Ok(text) };
        let dense = |line: &&str| {
            let (mut all, mut stops) = (0usize, 0usize);
            for word in line.split_whitespace() {
                all += 1;
                stops += usize::from(words.contains(&word.to_lowercase()));
            }
            all > 0 && stops as f64 >= share * all as f64
        };
        Ok(text.lines().filter(dense).collect::<Vec<_>>().join("\n"))
    }
}

/// Runs third-party code; its panic is a refusal.
fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, Refusal> {
    guard::guarded(call).map_err(|_| Refusal::ExtractorFailed)
}
