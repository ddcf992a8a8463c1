//! What keys a recipe type has: the traits that [`crate::recipe!`] implements, and the tree they build.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::{DeserializeOwned, Error as _};

use super::allowed::Allowed;

/// What a value looks like in TOML.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number, or text such as `16k`.
    Integer,
    /// A real number; whole numbers are taken too.
    Float,
    /// Text.
    Text,
    /// One of these names.
    Choice(&'static [&'static str]),
    /// A list of one kind.
    List(Box<Kind>),
    /// Any TOML value; on the command line, text that is not TOML is taken as text.
    Any,
}

impl Kind {
    /// In words, for messages and key lists.
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
    /// What it looks like.
    pub kind: Kind,
    /// Whether the text `none` unsets it.
    pub optional: bool,
    /// Asks the key's own type whether it takes the value.
    pub check: fn(&toml::Value) -> Result<(), String>,
}

/// What a key holds.
#[derive(Clone, Debug)]
pub enum Shape {
    /// A value.
    Leaf(Leaf),
    /// A table; an optional one is absent until something in it is set.
    Table {
        /// Its keys.
        schema: TableSchema,
        /// Whether it may be absent.
        optional: bool,
    },
    /// An array of tables.
    Tables(TableSchema),
    /// A table whose keys are free.
    Map(Leaf),
}

/// One key of a table.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its documentation, one line per line.
    pub doc: &'static str,
    /// What it holds.
    pub shape: Shape,
    /// What its number may be, where its declaration says so.
    pub allowed: Option<Allowed>,
}

/// The keys of a table and the values they have when nothing is said.
#[derive(Clone, Debug)]
pub struct TableSchema {
    /// Keys in the order of declaration.
    pub keys: Vec<Key>,
    /// Their defaults; unset optional keys are missing.
    pub defaults: toml::Table,
    /// The key, a map, that takes every name which no key has; see [`Table::rest`].
    pub rest: Option<&'static str>,
}

/// A type that may stand behind a recipe key.
pub trait Field: Serialize + DeserializeOwned {
    /// What the key holds.
    fn shape() -> Shape;

    /// The value of the key from its TOML.
    ///
    /// # Errors
    /// What kind of value the key takes, where this is none.
    fn read(value: toml::Value) -> Result<Self, toml::de::Error> {
        Self::deserialize(value)
    }

    /// What a key that is not in its table holds; none where it has to be there.
    fn absent() -> Option<Self> {
        None
    }
}

/// A recipe table. Implemented by [`crate::recipe!`].
pub trait Table: Serialize + DeserializeOwned + Default {
    /// The keys, in the order of declaration.
    fn keys() -> Vec<Key>;

    /// The key, a map of values, that takes every name which no key has: for tables whose keys depend on the value
    /// of another key, such as the options of a stage. Whoever owns the recipe checks those names.
    fn rest() -> Option<&'static str> {
        None
    }

    /// The defaults as TOML. [`crate::recipe!`] defines this and [`Table::from_toml`] for each type of its own, without serde's
    /// visitors and in the crate of the type: as generic functions they were compiled in every crate that loads a recipe.
    ///
    /// # Errors
    /// A default that cannot be written as TOML, such as an integer above `i64::MAX`.
    fn defaults() -> Result<toml::Table, toml::ser::Error> {
        toml::Table::try_from(Self::default())
    }

    /// The table from its TOML, which has every key that is not an unset option, and no other.
    ///
    /// # Errors
    /// A key that is missing, that the table does not have, or whose value it does not take.
    fn from_toml(value: toml::Value) -> Result<Self, toml::de::Error> {
        Self::deserialize(value)
    }
}

impl TableSchema {
    /// The schema of a recipe type.
    ///
    /// # Panics
    /// When a default cannot be written as TOML, such as an integer above `i64::MAX`.
    pub fn of<T: Table>() -> TableSchema {
        let defaults = match T::defaults() {
            Ok(defaults) => defaults,
            Err(error) => panic!("recipe {}: a default is not TOML: {error}", std::any::type_name::<T>()),
        };
        TableSchema { keys: T::keys(), defaults, rest: T::rest() }
    }

    /// Position and key of a name.
    pub(crate) fn find(&self, name: &str) -> Option<(usize, &Key)> {
        self.keys.iter().enumerate().find(|(_, key)| key.name == name)
    }

    /// Position and shape of the map that takes names without a key.
    pub(crate) fn find_rest(&self) -> Option<(usize, &Leaf)> {
        match self.find(self.rest?)? {
            (index, Key { shape: Shape::Map(leaf), .. }) => Some((index, leaf)),
            _ => None,
        }
    }
}

impl Key {
    /// A key of a given type; a raw identifier (`r#type`) loses its mark.
    pub fn of<T: Field>(name: &'static str, doc: &'static str) -> Key {
        Key { name: name.strip_prefix("r#").unwrap_or(name), doc, shape: T::shape(), allowed: None }
    }

    /// The same, its number being within what is allowed.
    pub fn allowing(self, allowed: Allowed) -> Key {
        Key { allowed: Some(allowed), ..self }
    }
}

impl Shape {
    /// The shape of a type that holds a value.
    pub fn leaf<T: DeserializeOwned>(kind: Kind) -> Shape {
        Shape::Leaf(Leaf { kind, optional: false, check: takes::<T> })
    }

    /// The shape of a recipe table.
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

/// The keys of a table that is being read, of which each is taken once.
pub struct Keys(toml::Table);

impl Keys {
    /// All of a table.
    ///
    /// # Errors
    /// It is no table.
    pub fn of(value: toml::Value) -> Result<Keys, toml::de::Error> {
        match value {
            toml::Value::Table(all) => Ok(Keys(all)),
            other => Err(unlike("a table", &other)),
        }
    }

    /// The value of a key; a raw identifier (`r#type`) loses its mark.
    ///
    /// # Errors
    /// It is missing, or not what the key takes.
    pub fn take<T: Field>(&mut self, name: &str) -> Result<T, toml::de::Error> {
        let name = name.strip_prefix("r#").unwrap_or(name);
        match self.0.remove(name) {
            Some(value) => T::read(value),
            None => T::absent().ok_or_else(|| toml::de::Error::custom(format!("missing field `{name}`"))),
        }
    }

    /// Every key was taken.
    ///
    /// # Errors
    /// A key that was not.
    pub fn end(self) -> Result<(), toml::de::Error> {
        match self.0.keys().next() {
            Some(name) => Err(toml::de::Error::custom(format!("unknown field `{name}`"))),
            None => Ok(()),
        }
    }
}

/// One line of a recipe type's key list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyDoc {
    /// Dotted path; `*` stands for an index or a free name.
    pub path: String,
    /// What it takes, in words.
    pub expected: String,
    /// Its default as TOML; `none` when unset.
    pub default: String,
    /// What its number may be, where its declaration says so.
    #[serde(skip)]
    pub allowed: Option<Allowed>,
    /// Its documentation in one line.
    pub doc: String,
}

/// Every key of a recipe type, in the order of declaration. For documentation, and for counting keys.
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
