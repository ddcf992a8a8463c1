//! Personal data and languages for rails, as `prose` finds them.

use fathom_base::{Error, Result};
use fathom_guard::Finding;
use fathom_guard::needs::{Languages, PersonalData, PersonalDataFinder};
use fathom_prose::language::{LanguageDetector, LanguageOptions};
use fathom_prose::pii::{Action, Entity, Pii, PiiOptions};

/// Personal data of the kinds of `prose`.
pub struct Detectors;

/// Name of a kind, as recipes of curations have it.
fn kind(entity: Entity) -> &'static str {
    match entity {
        Entity::Email => "email",
        Entity::Iban => "iban",
        Entity::CreditCard => "credit_card",
        Entity::UsSsn => "us_ssn",
        Entity::Ip => "ip",
        Entity::Phone => "phone",
        Entity::UsPassport => "us_passport",
        Entity::UsDriverLicense => "us_driver_license",
        Entity::Address => "address",
        Entity::Url => "url",
        Entity::DateTime => "date_time",
        Entity::Person => "person",
        Entity::Location => "location",
    }
}

impl PersonalData for Detectors {
    fn kinds(&self) -> Vec<&'static str> {
        Entity::ALL.map(kind).to_vec()
    }

    fn finder(&self, kinds: &[String], phone_countries: &[String]) -> Result<Box<dyn PersonalDataFinder>> {
        let entity = |name: &String| {
            let found = Entity::ALL.into_iter().find(|entity| kind(*entity) == name);
            found.ok_or_else(|| Error::product(format!("`{name}` is no kind of personal data")))
        };
        let options = PiiOptions {
            entities: kinds.iter().map(entity).collect::<Result<_>>()?,
            action: Action::Redact,
            phone_countries: phone_countries.to_vec(),
            ..PiiOptions::default()
        };
        Ok(Box::new(Finder(Pii::new(&options).map_err(Error::product)?)))
    }
}

struct Finder(Pii);

impl PersonalDataFinder for Finder {
    fn find(&self, text: &str) -> Vec<Finding> {
        let found = self.0.find(text).into_iter();
        found.map(|it| Finding::new(it.start..it.end, kind(it.entity))).collect()
    }
}

/// Languages of the built-in detector, which reads whole texts.
pub struct Detector(LanguageDetector);

impl Default for Detector {
    /// A detector that keeps every language, however uncertain.
    fn default() -> Detector {
        let options = LanguageOptions { min_score: 0.0, max_bytes: 0, ..LanguageOptions::default() };
        // Only a model's file and a list of languages can be refused, and there is neither.
        Detector(LanguageDetector::new(&options).unwrap_or_else(|error| unreachable!("{error}")))
    }
}

impl Languages for Detector {
    fn identify(&self, text: &str) -> Option<(String, f64)> {
        self.0.detect(text).map(|found| (found.code, f64::from(found.score)))
    }
}
