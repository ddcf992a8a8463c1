//! Language detection.

use super::codes::{JAPANESE, iso_15924, script_of, two_letters};
use super::known;
use super::model::Model;
use crate::Error;
use crate::filter::{Refusal, strip};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use whatlang::Lang;

/// How languages are found and which stay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LanguageOptions {
    /// File of a fastText model (`.bin`, `.ftz`) such as `lid.176.bin`; with none the built-in detector, whatlang.
    pub model: Option<PathBuf>,
    /// Texts whose language has a lower score are dropped (NeMo Curator: 0.3); 0 keeps all.
    #[schemars(range(min = 0, max = 1))]
    pub min_score: f32,
    /// Languages that stay: `en`, `eng`, or with a script `en_Latn`; an empty list keeps all. One that the model never
    /// finds is refused.
    pub languages: Vec<String>,
    /// Only this many bytes at the beginning of a text are read; 0 for all of it.
    pub max_bytes: usize,
}

impl Default for LanguageOptions {
    fn default() -> Self {
        LanguageOptions { model: None, min_score: 0.3, languages: Vec::new(), max_bytes: 16 << 10 }
    }
}

/// Language and script of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Language {
    /// ISO 639-1 code if one exists, otherwise the detector's code.
    pub code: String,
    /// ISO 15924 code.
    pub script: String,
    /// 0 to 1; the built-in detector's confidence or the model's probability.
    pub score: f32,
}

impl Language {
    /// Language and script, such as `en_Latn`.
    pub fn label(&self) -> String {
        format!("{}_{}", self.code, self.script)
    }

    /// Returns true if `wanted` (`en`, `eng` or `en_Latn`, in any case) denotes this language.
    pub fn is(&self, wanted: &str) -> bool {
        let (language, script) = wanted.split_once('_').unwrap_or((wanted, ""));
        let language = language.to_ascii_lowercase();
        two_letters(&language) == self.code
            && (script.is_empty() || script.eq_ignore_ascii_case(&self.script))
    }
}

/// Language detector; shared by threads.
pub struct LanguageDetector {
    options: LanguageOptions,
    model: Option<Model>,
}

impl LanguageDetector {
    /// Loads the model named in `options`, if any.
    ///
    /// # Errors
    /// [`Error::Read`] or [`Error::BadFile`] for the model, [`Error::Option`] for a score outside 0..=1 and for a
    /// wanted language that is never detected.
    pub fn new(options: &LanguageOptions) -> Result<LanguageDetector, Error> {
        if !(0.0..=1.0).contains(&options.min_score) {
            return Err(Error::Option {
                piece: "language",
                key: "min_score".to_string(),
                found: options.min_score.to_string(),
                advice: "give a number from 0 to 1".to_string(),
            });
        }
        let model = options.model.as_deref().map(Model::open).transpose()?;
        match &model {
            None => known::check(&options.languages, &known::built_in(), "the built-in detector")?,
            Some(model) => known::check(&options.languages, &known::of_labels(&model.labels()), "the model")?,
        }
        Ok(LanguageDetector { options: options.clone(), model })
    }

    /// Detects the language of `text`; with the built-in detector `None` if there are no letters. A model classifies
    /// any text: one without known words by its end-of-line token.
    pub fn detect(&self, text: &str) -> Option<Language> {
        match &self.model {
            None => built_in(text, self.options.max_bytes),
            Some(model) => {
                let text = strip(head(text, self.options.max_bytes));
                let best = model.best(text)?;
                let (code, script) = known::parts_of(&best.label);
                let script = script.unwrap_or_else(|| script_of(text)).to_string();
                Some(Language { code: code.to_string(), script, score: best.prob })
            }
        }
    }

    /// Returns the language of `text`, or the reason to reject it: `language_unknown`, `language_score`, `language`.
    ///
    /// # Errors
    /// The [`Refusal`] with the score.
    pub fn check(&self, text: &str) -> Result<Language, Refusal> {
        let Some(language) = self.detect(text) else {
            return Err(Refusal { reason: "language_unknown", value: 0.0 });
        };
        let value = f64::from(language.score);
        if language.score < self.options.min_score {
            return Err(Refusal { reason: "language_score", value });
        }
        let wanted = &self.options.languages;
        if !wanted.is_empty() && !wanted.iter().any(|w| language.is(w)) {
            return Err(Refusal { reason: "language", value });
        }
        Ok(language)
    }
}

/// Detects the language of the first `max_bytes` of `text` with the built-in detector; `None` if there are no
/// letters.
pub(crate) fn built_in(text: &str, max_bytes: usize) -> Option<Language> {
    let info = whatlang::detect(strip(head(text, max_bytes)))?;
    let script = match info.lang() {
        Lang::Jpn => JAPANESE,
        _ => iso_15924(info.script()),
    };
    let code = two_letters(info.lang().code()).to_string();
    Some(Language { code, script: script.to_string(), score: info.confidence() as f32 })
}

/// Beginning of `text`, at most `bytes` bytes, cut at a character boundary; 0 for all.
fn head(text: &str, bytes: usize) -> &str {
    if bytes == 0 || text.len() <= bytes {
        return text;
    }
    &text[..text.floor_char_boundary(bytes)]
}
