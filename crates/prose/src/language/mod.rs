//! Language detection, and fastText models for languages and quality: prediction and training.
//!
//! [`LanguageDetector`] uses the built-in detector (trigrams and scripts of 69 languages) or a user-supplied fastText
//! model; [`QualityModel`] scores text with a fastText classifier of good and other text, [`train_quality`] trains
//! one, and [`ParetoKeep`] is the stochastic rule that turns a score into a verdict.
//!
//! Codes are ISO 639-1 if available, otherwise 639-3, as in fastText's `lid.176`; labels add the script (`en_Latn`).

mod codes;
mod detect;
mod known;
mod layout;
mod model;
mod quality;
mod quantised;

pub use codes::{script_of, two_letters};
pub(crate) use detect::built_in;
pub use detect::{Language, LanguageDetector, LanguageOptions};
pub use quality::{ParetoKeep, QualityModel, QualityOptions, QualityReport, QualityTraining, train_quality};
