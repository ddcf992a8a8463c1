//! All kinds of rails by name. A kind is one file in `rails/` with its options as a serde struct, and one line here.

use std::marker::PhantomData;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Deserializer, de};

use crate::config::Setting;
use crate::needs::Needs;
use crate::rail::{Manifest, Rail};
use crate::rails;

/// A kind of rail: its options, its manifest, and how one is built.
pub trait RailKind {
    /// Options besides those of every rail ([`Setting`]); `#[serde(deny_unknown_fields)]`.
    type Options: DeserializeOwned;

    /// Static facts.
    const MANIFEST: &'static Manifest;

    /// Builds a rail.
    ///
    /// # Errors
    /// An option that is impossible, or a need that is missing.
    fn build(options: Self::Options, setting: &Setting, needs: &Needs) -> Result<Box<dyn Rail>, OptionError>;
}

/// An option that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    /// Name of the option.
    pub key: &'static str,
    /// Problem and remedy.
    pub message: String,
}

impl OptionError {
    /// Refuses an option.
    pub fn new(key: &'static str, message: impl Into<String>) -> OptionError {
        OptionError { key, message: message.into() }
    }
}

/// Error of a rail's table: its options are malformed, or refused.
pub enum BuildError {
    /// The options are malformed.
    Options(toml::de::Error),
    /// An option is impossible.
    Refused(OptionError),
}

/// A table of options with the places of its keys and values.
pub type OptionTable<'i> = toml::Spanned<toml::de::DeTable<'i>>;

/// Builds a rail from a table.
pub type Build = fn(OptionTable<'_>, &Setting, &Needs) -> Result<Box<dyn Rail>, BuildError>;

/// A kind of rail in the registry.
pub struct Entry {
    /// Static facts.
    pub manifest: &'static Manifest,
    /// Names of its options.
    pub options: fn() -> &'static [&'static str],
    /// Builds a rail from a table.
    pub build: Build,
}

/// The entry of a kind.
pub const fn entry<K: RailKind>() -> Entry {
    Entry { manifest: K::MANIFEST, options: fields::<K::Options>, build: build::<K> }
}

fn build<K: RailKind>(
    table: OptionTable<'_>,
    setting: &Setting,
    needs: &Needs,
) -> Result<Box<dyn Rail>, BuildError> {
    let options = K::Options::deserialize(toml::Deserializer::from(table));
    K::build(options.map_err(BuildError::Options)?, setting, needs).map_err(BuildError::Refused)
}

/// Names of the fields of a struct, in the order of its declaration.
pub fn fields<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &[&str] = &[];
    // The struct hands its names to the deserializer, which then refuses.
    _ = T::deserialize(Names(&mut names));
    names
}

/// A list of a configuration; one text stands for a list of one.
pub struct List<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<List<T>, D::Error> {
        list(from).map(List)
    }
}

/// Reads a [`List`].
///
/// # Errors
/// Neither a text nor a list; an element that cannot be read.
pub fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    from.deserialize_any(Elements(PhantomData))
}

struct Elements<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Elements<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a text or a list")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
        Ok(vec![T::deserialize(text.into_deserializer())?])
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, elements: A) -> Result<Vec<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(elements))
    }
}

/// A deserializer that only records the names of a struct's fields.
struct Names<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = de::value::Error;

    fn deserialize_any<V: de::Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("only structs have fields"))
    }

    fn deserialize_struct<V: de::Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        Err(de::Error::custom("recorded"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Every kind of rail.
pub static RAILS: &[Entry] = &[
    entry::<rails::regex::Regex>(),
    entry::<rails::self_check::SelfCheck>(),
    entry::<rails::facts::Facts>(),
    entry::<rails::hallucination::Hallucination>(),
    entry::<rails::content_safety::ContentSafety>(),
    entry::<rails::topic::Topic>(),
    entry::<rails::jailbreak::Jailbreak>(),
    entry::<rails::classifier::Classifier>(),
    entry::<rails::dialog::Dialog>(),
    entry::<rails::personal_data::PersonalData>(),
    entry::<rails::secrets::Secrets>(),
    entry::<rails::hidden_text::HiddenText>(),
    entry::<rails::injection::Injection>(),
    entry::<rails::encodings::Encodings>(),
    entry::<rails::length::Length>(),
    entry::<rails::language::Language>(),
    entry::<rails::rate::Rate>(),
    entry::<rails::tools::Tools>(),
];

/// The kind with this name.
pub fn find(name: &str) -> Option<&'static Entry> {
    RAILS.iter().find(|entry| entry.manifest.name == name)
}
