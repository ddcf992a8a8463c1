//! Personal data in text: detected by pattern, checksum, context and gazetteer; redacted, replaced or hashed.
//!
//! [`Pii`] is compiled once from [`PiiOptions`] and shared by threads. Every detector is linear in the text. Numbers
//! without a checksum (passports, licences, plain digits of a phone number) count only near a word that names their
//! kind. Of overlapping detections the longest is kept, then the one of the more certain kind.

mod action;
mod addresses;
mod dates;
mod detection;
mod digits;
mod gazetteer;
mod ids;
mod names;
mod national;
mod net;
mod numbers;
mod open;
mod options;
mod phones;
mod places;
mod plans;

use std::borrow::Cow;

pub use detection::Detection;
pub use options::{Action, Entity, PiiOptions};

use crate::Error;

/// Compiled detectors.
#[derive(Clone, Debug)]
pub struct Pii {
    options: PiiOptions,
    net: net::Net,
    numbers: numbers::Numbers,
    ids: ids::Ids,
    national: national::NationalNumbers,
    addresses: addresses::Addresses,
    names: names::Names,
    places: places::Places,
    dates: dates::Dates,
    plans: plans::Plans,
    key: [u8; 32],
}

impl Pii {
    /// Compiles `options`.
    ///
    /// # Errors
    /// [`Error::Option`] if no entity is requested, if values are to be hashed without a salt (hashes of phone
    /// numbers or names can be guessed by trying all), if the salt is [`PiiOptions::HIDDEN_SALT`], or if a country is
    /// unknown.
    pub fn new(options: &PiiOptions) -> Result<Pii, Error> {
        let refused = |key: &str, found: &str, advice: &str| Error::Option {
            piece: "pii",
            key: key.to_string(),
            found: found.to_string(),
            advice: advice.to_string(),
        };
        if options.entities.is_empty() {
            return Err(refused("entities", "empty", "name at least one kind, or leave the stage out"));
        }
        if options.action == Action::Hash && options.salt.is_empty() {
            return Err(refused(
                "salt",
                "empty",
                "give a secret text; hashes without one are guessed by trying all values",
            ));
        }
        if options.salt == PiiOptions::HIDDEN_SALT {
            return Err(refused(
                "salt",
                "hidden",
                "give the same text again behind the file, as stage.NAME.salt=...",
            ));
        }
        let plans = match plans::Plans::new(&options.phone_countries) {
            Ok(plans) => plans,
            Err(code) => {
                let advice = "give two letters of ISO 3166, as [\"FR\", \"JP\"]";
                return Err(refused("phone_countries", &format!("`{code}`"), advice));
            }
        };
        Ok(Pii {
            plans,
            key: blake3::derive_key("fathom curate pii", options.salt.as_bytes()),
            options: options.clone(),
            net: net::Net::new(options.without_context),
            numbers: numbers::Numbers::new(),
            ids: ids::Ids::new(options.without_context),
            national: national::NationalNumbers::new(&options.entities, options.without_context),
            addresses: addresses::Addresses::new(),
            names: names::Names::new(),
            places: places::Places::new(),
            dates: dates::Dates::new(options.without_context),
        })
    }

    /// All detections in `text`, in ascending order, without overlaps.
    pub fn find(&self, text: &str) -> Vec<Detection> {
        let wanted = |entity: Entity| self.options.entities.contains(&entity);
        let mut found = Vec::new();
        self.net.find(text, &wanted, &mut found);
        let groups = digits::groups(text);
        if !groups.is_empty() {
            self.numbers.find(text, &groups, &wanted, &mut found);
            if wanted(Entity::Phone) {
                phones::find(text, &groups, &self.plans, &mut found);
            }
            self.ids.find(text, &groups, &wanted, &mut found);
            self.dates.find(text, &wanted, &mut found);
            if wanted(Entity::Address) {
                self.addresses.find(text, &groups, &mut found);
            }
        }
        self.national.find(text, &mut found);
        self.names.find(text, &wanted, &mut found);
        self.places.find(text, &wanted, &mut found);
        without_overlaps(found)
    }

    /// Redacts, replaces or hashes the detections in `text`; returns the result, borrowed if there are none, and
    /// their number.
    pub fn apply<'a>(&self, text: &'a str) -> (Cow<'a, str>, usize) {
        let found = self.find(text);
        (self.rewrite(text, &found), found.len())
    }

    /// Redacts, replaces or hashes the detections returned by [`Pii::find`]; borrowed if there are none.
    pub fn rewrite<'a>(&self, text: &'a str, found: &[Detection]) -> Cow<'a, str> {
        if found.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len());
        let mut done = 0;
        for f in found {
            out.push_str(&text[done..f.start]);
            action::write(self.options.action, f.entity, &text[f.start..f.end], &self.key, &mut out);
            done = f.end;
        }
        out.push_str(&text[done..]);
        Cow::Owned(out)
    }
}

fn without_overlaps(mut found: Vec<Detection>) -> Vec<Detection> {
    found.sort_by_key(|f| (std::cmp::Reverse(f.end - f.start), f.entity, f.start));
    let mut kept: Vec<Detection> = Vec::with_capacity(found.len());
    let mut taken = std::collections::BTreeMap::new();
    for f in found {
        let before = taken.range(..f.end).next_back().map(|(_, &end)| end);
        if before.is_none_or(|end| end <= f.start) {
            taken.insert(f.start, f.end);
            kept.push(f);
        }
    }
    kept.sort_by_key(|f| f.start);
    kept
}
