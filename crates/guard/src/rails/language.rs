//! `language`: texts in languages that are not allowed, or blocked.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use crate::config::Setting;
use crate::needs::{Languages, Needs};
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::registry::{OptionError, RailKind};
use crate::verdict::{Direction, Reason};

/// Codes (ISO 639-1) of the known languages, each with its English name.
const LANGUAGES: &str = "\
    af afrikaans ak akan am amharic ar arabic az azerbaijani be belarusian bg bulgarian bn bengali ca catalan \
    cs czech cy welsh da danish de german el greek en english eo esperanto es spanish et estonian fa persian \
    fi finnish fr french gu gujarati he hebrew hi hindi hr croatian hu hungarian hy armenian id indonesian it \
    italian ja japanese jv javanese ka georgian km khmer kn kannada ko korean la latin lt lithuanian lv \
    latvian mk macedonian ml malayalam mr marathi my burmese nb norwegian ne nepali nl dutch or oriya pa \
    punjabi pl polish pt portuguese ro romanian ru russian si sinhalese sk slovak sl slovene sn shona sr \
    serbian sv swedish ta tamil te telugu th thai tk turkmen tl tagalog tr turkish uk ukrainian ur urdu uz \
    uzbek vi vietnamese yi yiddish zh chinese zu zulu";

/// Options, with the names of NeMo Guardrails 0.25.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Languages that pass, by ISO 639-1 codes; `["en"]` if neither list is given.
    #[serde(default)]
    #[serde(deserialize_with = "crate::registry::list")]
    allowed_languages: Vec<String>,
    /// Languages that do not pass.
    #[serde(default)]
    #[serde(deserialize_with = "crate::registry::list")]
    blocked_languages: Vec<String>,
    /// Lets texts pass whose language is unknown or uncertain.
    #[serde(default = "yes")]
    fail_open: bool,
    /// Characters at the beginning of a text that decide; all by default.
    num_characters_for_prediction: Option<usize>,
    /// Score of a language below which it is uncertain.
    #[serde(default = "min_score")]
    min_score: f64,
    /// Refusals by language.
    #[serde(default)]
    refusal_messages: BTreeMap<String, String>,
}

fn yes() -> bool {
    true
}

fn min_score() -> f64 {
    0.5
}

/// A code as it is written in [`LANGUAGES`]; case does not matter.
///
/// # Errors
/// An unknown code, with the code that is meant or the nearest names.
fn known(key: &'static str, written: &str) -> Result<String, OptionError> {
    let words: Vec<&str> = LANGUAGES.split_whitespace().collect();
    let lower = written.to_lowercase();
    let code = |name: &str| words.chunks(2).find(|it| it.contains(&name)).map(|it| it[0]);
    if code(&lower) == Some(&*lower) {
        return Ok(lower);
    }
    let hint = match code(&lower).or_else(|| code(lower.split(['-', '_']).next()?)) {
        Some(code) => format!("did you mean `{code}`?"),
        None => fathom_base::recipe::suggest_name(&lower, &words, "languages are"),
    };
    Err(OptionError::new(key, format!("`{written}` is no code of a known language; {hint}")))
}

/// The rail.
pub struct Language {
    options: Options,
    languages: Arc<dyn Languages>,
}

impl RailKind for Language {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "language",
        summary: "texts in languages that are not allowed",
        directions: &[Direction::Input, Direction::Output],
        actions: &[Action::Block, Action::Flag],
        cost: Cost::Text,
    };

    fn build(mut options: Options, _: &Setting, needs: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        if !options.allowed_languages.is_empty() && !options.blocked_languages.is_empty() {
            let message = "contradicts `allowed_languages`; give one of the two lists";
            return Err(OptionError::new("blocked_languages", message));
        }
        if !(0.0..=1.0).contains(&options.min_score) {
            return Err(OptionError::new("min_score", "should be from 0 to 1"));
        }
        if options.num_characters_for_prediction == Some(0) {
            return Err(OptionError::new("num_characters_for_prediction", "should be at least 1"));
        }
        if options.allowed_languages.is_empty() && options.blocked_languages.is_empty() {
            options.allowed_languages.push("en".into());
        }
        let Some(languages) = needs.languages.clone() else {
            return Err(OptionError::new("allowed_languages", "this program does not identify languages"));
        };
        for (key, written) in [
            ("allowed_languages", &mut options.allowed_languages),
            ("blocked_languages", &mut options.blocked_languages),
        ] {
            for code in written {
                *code = known(key, code)?;
            }
        }
        let messages = std::mem::take(&mut options.refusal_messages).into_iter();
        options.refusal_messages = messages
            .map(|(code, text)| Ok((known("refusal_messages", &code)?, text)))
            .collect::<Result<_, OptionError>>()?;
        Ok(Box::new(Language { options, languages }))
    }
}

impl Rail for Language {
    fn judge(&self, judged: &RailInput<'_>, _: &Until) -> Result<Opinion, Failure> {
        let options = &self.options;
        let most = options.num_characters_for_prediction.unwrap_or(usize::MAX);
        let end = judged.text.char_indices().nth(most).map_or(judged.text.len(), |(at, _)| at);
        let found =
            self.languages.identify(&judged.text[..end]).filter(|(_, score)| *score >= options.min_score);
        let Some((language, score)) = found else {
            let has_letters = judged.text.chars().any(char::is_alphabetic);
            let passes = options.fail_open || !has_letters;
            return Ok(if passes {
                Opinion::clean()
            } else {
                Opinion::whole(judged, Reason::Language, "unknown")
            });
        };
        let passes = if options.allowed_languages.is_empty() {
            !options.blocked_languages.contains(&language)
        } else {
            options.allowed_languages.contains(&language)
        };
        if passes {
            return Ok(Opinion::clean().scored(score));
        }
        let message = options.refusal_messages.get(&language).cloned();
        Ok(Opinion { message, ..Opinion::whole(judged, Reason::Language, language).scored(score) })
    }

    fn horizon(&self) -> Horizon {
        Horizon::Whole
    }
}
