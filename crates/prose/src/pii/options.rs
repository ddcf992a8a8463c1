//! Options for the detection and treatment of personal data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A kind of personal data, the more certain first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Entity {
    /// A mail address.
    Email,
    /// A bank account, by country, length and check digits (mod 97).
    Iban,
    /// A payment card, by issuer, length and check digit (Luhn).
    CreditCard,
    /// A US social security number.
    UsSsn,
    /// An address of IP version 4 or 6.
    Ip,
    /// A telephone number.
    Phone,
    /// A number near the word passport.
    UsPassport,
    /// A number near the words of a driver's licence.
    UsDriverLicense,
    /// A postal address.
    Address,
    /// A URL.
    Url,
    /// A date or a time of day.
    DateTime,
    /// A name of a person.
    Person,
    /// A country or a large city.
    Location,
}

impl Entity {
    /// All kinds of personal data.
    pub const ALL: [Entity; 13] = [
        Entity::Email,
        Entity::Iban,
        Entity::CreditCard,
        Entity::UsSsn,
        Entity::Ip,
        Entity::Phone,
        Entity::UsPassport,
        Entity::UsDriverLicense,
        Entity::Address,
        Entity::Url,
        Entity::DateTime,
        Entity::Person,
        Entity::Location,
    ];

    /// Mark written by a redaction.
    pub fn mark(self) -> &'static str {
        match self {
            Entity::Email => "EMAIL_ADDRESS",
            Entity::Iban => "IBAN_CODE",
            Entity::CreditCard => "CREDIT_CARD",
            Entity::UsSsn => "US_SSN",
            Entity::Ip => "IP_ADDRESS",
            Entity::Phone => "PHONE_NUMBER",
            Entity::UsPassport => "US_PASSPORT",
            Entity::UsDriverLicense => "US_DRIVER_LICENSE",
            Entity::Address => "ADDRESS",
            Entity::Url => "URL",
            Entity::DateTime => "DATE_TIME",
            Entity::Person => "PERSON",
            Entity::Location => "LOCATION",
        }
    }
}

/// Treatment of a detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A mark of its kind stands in its place, `<EMAIL_ADDRESS>`.
    #[default]
    Redact,
    /// An invented value of the same kind stands in its place, the same one wherever the value occurs.
    Replace,
    /// A mark with a keyed hash of the value stands in its place, `<EMAIL_ADDRESS:6f1c..>`.
    Hash,
}

/// Which kinds are looked for and what becomes of them. By default all kinds but dates, URLs and places, which text
/// is full of without their being personal; NeMo Curator 0.x took these too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PiiOptions {
    /// Kinds that are looked for. NeMo Curator 0.x also took dates, URLs and places, of which text is full without their being
    /// personal.
    pub entities: Vec<Entity>,
    /// Treatment of detections.
    pub action: Action,
    /// Secret text that decides invented values and hashes: the same salt gives the same values. `hash` needs one.
    pub salt: String,
    /// Countries (ISO 3166, two letters) whose phones are found as they are written there, by libphonenumber's tables,
    /// without a word such as "phone" before them: `["FR", "JP"]`. With a word, phones of all countries are found.
    pub phone_countries: Vec<String>,
}

impl PiiOptions {
    /// Placeholder for the salt in a recipe that others may read; it is never used as a salt.
    pub const HIDDEN_SALT: &str = "hidden; give it again";
}

impl Default for PiiOptions {
    fn default() -> Self {
        let quiet = |e: &Entity| !matches!(e, Entity::Url | Entity::DateTime | Entity::Location);
        let entities = Entity::ALL.into_iter().filter(quiet).collect();
        PiiOptions { entities, action: Action::Redact, salt: String::new(), phone_countries: Vec::new() }
    }
}
