//! Which language a text is in, and fastText models: languages and quality, read and trained.
//!
//! [`LanguageDetector`] asks the built-in detector (trigrams and scripts of 69 languages) or a fastText model that the
//! user supplies; [`QualityModel`] scores text by a fastText model of good and other text, [`train_quality`] makes one,
//! and [`ParetoKeep`] is the stochastic rule by which a score becomes a verdict.
//!
//! Codes are ISO 639-1 where they exist, else 639-3, as in fastText's `lid.176`; labels add the script (`en_Latn`).

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
