//! The schema of a recipe type: the traits that [`crate::recipe!`] implements, and the tree they build.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::{DeserializeOwned, Error as _};

use super::allowed::AllowedRange;

/// Kind of a TOML value.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number, or text such as `16k`.
    Integer,
    /// A real number; a whole number is accepted too.
    Float,
    /// Text.
    Text,
    /// One of these names.
    Choice(&'static [&'static str]),
    /// A list of one kind.
    List(Box<Kind>),
    /// Any TOML value. On the command line, text that is not TOML is a string.
    Any,
}

impl Kind {
    /// Describes the kind in words, for messages and key lists.
    pub fn describe(&self) -> String {
        match self {
            Kind::Bool => "true or false".into(),
            Kind::Integer => "a whole number".into(),
            Kind::Float => "a number".into(),
            Kind::Text => "text".into(),
            Kind::Choice(names) => format!("one of {}", names.join(", ")),
            Kind::List(of) => match &**of {
                Kind::Integer => "a list of whole numbers".into(),
                Kind::Float => "a list of numbers".into(),
                Kind::Text => "a list of texts".into(),
                other => format!("a list, each {}", other.describe()),
            },
            Kind::Any => "any value".into(),
        }
    }
}

/// A key that holds a value.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Kind of the value.
    pub kind: Kind,
    /// True if the text `none` unsets the key.
    pub optional: bool,
    /// Returns an error if the key's own type does not accept the value.
    pub check: fn(&toml::Value) -> Result<(), String>,
}

/// Content of a key.
#[derive(Clone, Debug)]
pub enum Shape {
    /// A value.
    Leaf(Leaf),
    /// A table. An optional one is absent until one of its keys is set.
    Table {
        /// Its keys.
        schema: TableSchema,
        /// True if the table may be absent.
        optional: bool,
    },
    /// An array of tables.
    Tables(TableSchema),
    /// A table with free key names.
    Map(Leaf),
}

/// One key of a table.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Documentation, with the line breaks of its source.
    pub doc: &'static str,
    /// Content of the key.
    pub shape: Shape,
    /// Allowed range of its number, if declared.
    pub allowed: Option<AllowedRange>,
}

/// Keys of a table with their default values.
#[derive(Clone, Debug)]
pub struct TableSchema {
    /// Keys in the order of declaration.
    pub keys: Vec<Key>,
    /// Default values; unset optional keys are missing.
    pub defaults: toml::Table,
    /// Name of the key, a map, that takes all names that are not keys; see [`Table::rest`].
    pub rest: Option<&'static str>,
}

/// A type that may be used for a recipe key.
pub trait Field: Serialize + DeserializeOwned {
    /// Shape of the key.
    fn shape() -> Shape;

    /// Reads the value of the key from TOML.
    ///
    /// # Errors
    /// Names the expected kind if the value does not fit.
    fn read(value: toml::Value) -> Result<Self, toml::de::Error> {
        Self::deserialize(value)
    }

    /// Value of a key that is missing from its table; `None` if the key is required.
    fn absent() -> Option<Self> {
        None
    }
}

/// A recipe table. Implemented by [`crate::recipe!`].
pub trait Table: Serialize + DeserializeOwned + Default {
    /// The keys, in the order of declaration.
    fn keys() -> Vec<Key>;

    /// Name of the key, a map of values, that takes all names that are not keys: for tables whose keys depend on the
    /// value of another key, such as the options of a stage. The owner of the recipe checks those names.
    fn rest() -> Option<&'static str> {
        None
    }

    /// Returns the defaults as TOML. [`crate::recipe!`] implements this and [`Table::from_toml`] for each of its
    /// types, without serde's visitors and in the crate of the type: as generic functions they were compiled in every
    /// crate that loads a recipe.
    ///
    /// # Errors
    /// Fails if a default cannot be written as TOML, such as an integer above `i64::MAX`.
    fn defaults() -> Result<toml::Table, toml::ser::Error> {
        toml::Table::try_from(Self::default())
    }

    /// Reads the table from TOML. The TOML must contain every key except unset options, and no others.
    ///
    /// # Errors
    /// Fails if a key is missing or unknown, or does not accept its value.
    fn from_toml(value: toml::Value) -> Result<Self, toml::de::Error> {
        Self::deserialize(value)
    }
}

impl TableSchema {
    /// Returns the schema of a recipe type.
    ///
    /// # Panics
    /// Panics if a default cannot be written as TOML, such as an integer above `i64::MAX`.
    pub fn of<T: Table>() -> TableSchema {
        let defaults = match T::defaults() {
            Ok(defaults) => defaults,
            Err(error) => panic!("recipe {}: a default is not TOML: {error}", std::any::type_name::<T>()),
        };
        TableSchema { keys: T::keys(), defaults, rest: T::rest() }
    }

    /// Index and key of a name.
    pub(crate) fn find(&self, name: &str) -> Option<(usize, &Key)> {
        self.keys.iter().enumerate().find(|(_, key)| key.name == name)
    }

    /// Index and shape of the map that takes unknown names.
    pub(crate) fn find_rest(&self) -> Option<(usize, &Leaf)> {
        match self.find(self.rest?)? {
            (index, Key { shape: Shape::Map(leaf), .. }) => Some((index, leaf)),
            _ => None,
        }
    }
}

impl Key {
    /// Creates a key from its type; the prefix of a raw identifier (`r#type`) is removed.
    pub fn of<T: Field>(name: &'static str, doc: &'static str) -> Key {
        Key { name: name.strip_prefix("r#").unwrap_or(name), doc, shape: T::shape(), allowed: None }
    }

    /// Restricts the key's number to a range.
    pub fn allowing(self, allowed: AllowedRange) -> Key {
        Key { allowed: Some(allowed), ..self }
    }
}

impl Shape {
    /// Returns the shape of a type that holds a value.
    pub fn leaf<T: DeserializeOwned>(kind: Kind) -> Shape {
        Shape::Leaf(Leaf { kind, optional: false, check: takes::<T> })
    }

    /// Returns the shape of a recipe table.
    pub fn table<T: Table>() -> Shape {
        Shape::Table { schema: TableSchema::of::<T>(), optional: false }
    }
}

fn takes<T: DeserializeOwned>(value: &toml::Value) -> Result<(), String> {
    T::deserialize(value.clone()).map(drop).map_err(|error| error.message().to_string())
}

macro_rules! leaves {
    ($($type:ty => $kind:expr;)*) => { $(
        impl Field for $type {
            fn shape() -> Shape {
                Shape::leaf::<$type>($kind)
            }
        }
    )* };
}

leaves! {
    bool => Kind::Bool;
    u8 => Kind::Integer;
    u16 => Kind::Integer;
    u32 => Kind::Integer;
    u64 => Kind::Integer;
    usize => Kind::Integer;
    i32 => Kind::Integer;
    i64 => Kind::Integer;
    f64 => Kind::Float;
    String => Kind::Text;
    PathBuf => Kind::Text;
    toml::Value => Kind::Any;
    [f64; 2] => Kind::List(Box::new(Kind::Float));
    [u64; 2] => Kind::List(Box::new(Kind::Integer));
}

impl<T: Field> Field for Option<T> {
    fn shape() -> Shape {
        match T::shape() {
            Shape::Leaf(leaf) => Shape::Leaf(Leaf { optional: true, ..leaf }),
            Shape::Table { schema, .. } => Shape::Table { schema, optional: true },
            shape => shape,
        }
    }

    fn read(value: toml::Value) -> Result<Self, toml::de::Error> {
        T::read(value).map(Some)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl<T: Field> Field for Vec<T> {
    fn shape() -> Shape {
        match T::shape() {
            Shape::Leaf(leaf) => Shape::leaf::<Vec<T>>(Kind::List(Box::new(leaf.kind))),
            Shape::Table { schema, .. } => Shape::Tables(schema),
            _ => panic!("a recipe key cannot be a list of lists of tables"),
        }
    }

    fn read(value: toml::Value) -> Result<Self, toml::de::Error> {
        match value {
            toml::Value::Array(items) => items.into_iter().map(T::read).collect(),
            other => Err(unlike("a list", &other)),
        }
    }
}

impl<T: Field> Field for BTreeMap<String, T> {
    fn shape() -> Shape {
        match T::shape() {
            Shape::Leaf(leaf) => Shape::Map(leaf),
            _ => panic!("a recipe map holds values, not tables"),
        }
    }

    fn read(value: toml::Value) -> Result<Self, toml::de::Error> {
        match value {
            toml::Value::Table(all) => {
                all.into_iter().map(|(name, value)| Ok((name, T::read(value)?))).collect()
            }
            other => Err(unlike("a table", &other)),
        }
    }
}

fn unlike(expected: &str, value: &toml::Value) -> toml::de::Error {
    toml::de::Error::custom(format!("expected {expected}, found {}", value.type_str()))
}

/// The keys of a table that is being read; each is taken once.
pub struct Keys(toml::Table);

impl Keys {
    /// Starts reading a table.
    ///
    /// # Errors
    /// Fails if the value is not a table.
    pub fn of(value: toml::Value) -> Result<Keys, toml::de::Error> {
        match value {
            toml::Value::Table(all) => Ok(Keys(all)),
            other => Err(unlike("a table", &other)),
        }
    }

    /// Takes the value of a key; the prefix of a raw identifier (`r#type`) is removed.
    ///
    /// # Errors
    /// Fails if the key is missing or does not accept the value.
    pub fn take<T: Field>(&mut self, name: &str) -> Result<T, toml::de::Error> {
        let name = name.strip_prefix("r#").unwrap_or(name);
        match self.0.remove(name) {
            Some(value) => T::read(value),
            None => T::absent().ok_or_else(|| toml::de::Error::custom(format!("missing field `{name}`"))),
        }
    }

    /// Checks that every key was taken.
    ///
    /// # Errors
    /// Fails if a key is left.
    pub fn end(self) -> Result<(), toml::de::Error> {
        match self.0.keys().next() {
            Some(name) => Err(toml::de::Error::custom(format!("unknown field `{name}`"))),
            None => Ok(()),
        }
    }
}

/// Entry in the key list of a recipe type.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyDoc {
    /// Dotted path; `*` stands for an index or a free name.
    pub path: String,
    /// Expected value, in words.
    pub expected: String,
    /// Default as TOML; `none` if unset.
    pub default: String,
    /// Allowed range of its number, if declared.
    #[serde(skip)]
    pub allowed: Option<AllowedRange>,
    /// Documentation on one line.
    pub doc: String,
}

/// Returns all keys of a recipe type in declaration order, for documentation and for counting.
pub fn keys<T: Table>() -> Vec<KeyDoc> {
    let mut out = Vec::new();
    let schema = TableSchema::of::<T>();
    list_keys(&schema, &schema.defaults, "", &mut out);
    out
}

fn list_keys(schema: &TableSchema, defaults: &toml::Table, prefix: &str, out: &mut Vec<KeyDoc>) {
    for key in &schema.keys {
        let path = format!("{prefix}{}", key.name);
        let mut push = |path: String, kind: &Kind, optional: bool, default: Option<&toml::Value>| {
            let expected = format!("{}{}", kind.describe(), if optional { ", or none" } else { "" });
            let default = default.map_or("none".to_string(), |value| value.to_string());
            let doc = key.doc.split_whitespace().collect::<Vec<_>>().join(" ");
            out.push(KeyDoc { path, expected, default, allowed: key.allowed, doc });
        };
        match &key.shape {
            Shape::Leaf(leaf) => push(path, &leaf.kind, leaf.optional, defaults.get(key.name)),
            Shape::Map(leaf) if schema.rest == Some(key.name) => {
                push(format!("{prefix}*"), &leaf.kind, leaf.optional, None);
            }
            Shape::Map(leaf) => push(format!("{path}.*"), &leaf.kind, leaf.optional, None),
            Shape::Table { schema, .. } => {
                let inner = defaults.get(key.name).and_then(|v| v.as_table()).unwrap_or(&schema.defaults);
                list_keys(schema, inner, &format!("{path}."), out);
            }
            Shape::Tables(schema) => list_keys(schema, &schema.defaults, &format!("{path}.*."), out),
        }
    }
}
