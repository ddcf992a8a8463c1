//! Loading: applies the layers in order, resolves `extends` and reads the typed result.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use toml::Value;

use super::form::Form;
use super::raw::{Raw, RawValue};
use super::resolved::{Row, rows, text};
use super::schema::{Table, TableSchema, keys};
use super::source::{Origin, Source};
use super::suggest;
use super::tree::{Node, Walk, defaults, join, reset, to_table};
use crate::error::{Error, Result};
use crate::secrets::redacted;

/// Recipes embedded in a binary: pairs of name and TOML text, and rows of a table filled into a template.
#[derive(Clone, Copy, Debug, Default)]
pub struct Library<'a> {
    entries: &'a [(&'a str, &'a str)],
    form: Option<Form<'a>>,
}

impl<'a> Library<'a> {
    /// Creates a library of (name, text) pairs.
    pub const fn new(entries: &'a [(&'a str, &'a str)]) -> Library<'a> {
        Library { entries, form: None }
    }

    /// Adds a template whose rows are recipes.
    pub const fn with_form(self, form: Form<'a>) -> Library<'a> {
        Library { form: Some(form), ..self }
    }

    /// Returns the text of a recipe, or `None` if there is no recipe of this name.
    ///
    /// # Errors
    /// Fails if a row does not fit its template.
    pub fn text(&self, name: &str) -> Result<Option<Cow<'a, str>>> {
        if let Some((_, text)) = self.entries.iter().find(|(known, _)| *known == name) {
            return Ok(Some(Cow::Borrowed(text)));
        }
        let row = self.form.map_or(Ok(None), |form| form.recipe(name))?;
        Ok(row.map(Cow::Owned))
    }

    /// Returns all names in the given order, those of rows last.
    ///
    /// # Errors
    /// Fails if the table of runs cannot be read.
    pub fn names(&self) -> Result<Vec<String>> {
        let rows = self.form.map_or(Ok(Vec::new()), |form| form.groups())?;
        let entries = self.entries.iter().map(|(name, _)| name.to_string());
        Ok(entries.chain(rows.into_iter().flat_map(|group| group.names)).collect())
    }
}

/// Layers of a recipe, applied to the defaults in the order in which they are added.
#[derive(Clone, Debug, Default)]
pub struct Layers<'a> {
    library: Library<'a>,
    layers: Vec<Layer>,
    displaced: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
enum Layer {
    Recipe(String),
    File(PathBuf),
    Text { name: String, text: String },
    Setting(String),
    Flag { flag: String, path: String, value: String },
}

impl<'a> Layers<'a> {
    /// Starts with the defaults only.
    pub fn new() -> Layers<'static> {
        Layers::default()
    }

    /// Starts with the defaults only, with shipped recipes available by name and for `extends`.
    pub fn with_library(library: Library<'a>) -> Layers<'a> {
        Layers { library, ..Layers::default() }
    }

    /// Adds a shipped recipe by name, or a file: text that contains a `/` or ends in `.toml` is a path.
    pub fn recipe(self, name_or_path: &str) -> Layers<'a> {
        if is_path(name_or_path) {
            return self.file(name_or_path);
        }
        self.push(Layer::Recipe(name_or_path.to_string()))
    }

    /// Adds a file.
    pub fn file(self, path: impl AsRef<Path>) -> Layers<'a> {
        self.push(Layer::File(path.as_ref().to_path_buf()))
    }

    /// Adds a TOML text under a name, like a shipped recipe.
    pub fn text(self, name: &str, text: &str) -> Layers<'a> {
        self.push(Layer::Text { name: name.to_string(), text: text.to_string() })
    }

    /// Adds a setting `a.b=v` as typed.
    pub fn set(self, setting: &str) -> Layers<'a> {
        self.push(Layer::Setting(setting.to_string()))
    }

    /// Adds several settings `a.b=v`.
    pub fn sets<S: AsRef<str>>(self, settings: &[S]) -> Layers<'a> {
        settings.iter().fold(self, |layers, setting| layers.set(setting.as_ref()))
    }

    /// Adds the value set by a flag such as `--minutes 5`; the flag is the value's source.
    pub fn flag(self, flag: &str, path: &str, value: &str) -> Layers<'a> {
        self.push(Layer::Flag { flag: flag.to_string(), path: path.to_string(), value: value.to_string() })
    }

    /// Puts the default back at a path if a later layer sets the key `by`, with which the path's value makes no
    /// sense.
    pub fn displaced(mut self, path: &str, by: &str) -> Layers<'a> {
        self.displaced.push((path.to_string(), by.to_string()));
        self
    }

    fn push(mut self, layer: Layer) -> Layers<'a> {
        self.layers.push(layer);
        self
    }
}

/// A loaded recipe: the typed value, and the source of every key.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// The typed value.
    pub value: T,
    rows: Vec<Row>,
    sources: Vec<(String, Source)>,
    text: String,
    /// Paths of the settings, as typed.
    typed: Vec<String>,
    /// The layered texts, in order.
    order: Vec<Source>,
}

impl<T: Table> Loaded<T> {
    /// Applies the layers and reads the result.
    ///
    /// # Errors
    /// Returns the first mistake with its place: an unknown key or recipe, a value of the wrong kind, an unreadable
    /// file, text that is not TOML, or recipes that extend each other in a circle.
    pub fn load(layers: Layers<'_>) -> Result<Loaded<T>> {
        let schema = TableSchema::of::<T>();
        let paths: Vec<String> = keys::<T>().into_iter().map(|key| key.path).collect();
        let nodes = defaults(&schema, &schema.defaults);
        let mut loader =
            Loader { library: layers.library, schema: &schema, paths: &paths, nodes, order: Vec::new() };
        for layer in &layers.layers {
            loader.apply(layer)?;
        }
        for (path, by) in &layers.displaced {
            reset(&schema, &mut loader.nodes, path, by);
        }
        let Loader { nodes, order, .. } = loader;
        let value = T::from_toml(toml::Value::Table(to_table(&schema, &nodes))).map_err(|error| {
            let key = "the recipe as a whole".to_string();
            Error::Refused { place: "recipe".into(), key, message: error.message().to_string() }
        })?;
        let (rows, sources) = rows(&schema, &nodes);
        let typed = layers.layers.iter().filter_map(|layer| match layer {
            Layer::Setting(text) => Some(text.split_once('=')?.0.trim().to_string()),
            _ => None,
        });
        Ok(Loaded { value, rows, sources, text: text(&schema, &nodes), typed: typed.collect(), order })
    }
}

impl<T> Loaded<T> {
    /// Returns every key with its value and source, in declaration order.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the whole recipe as TOML, with the source of each value in a comment. The text loads to the same
    /// values.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the source of the value at a path, or `None` if the path does not exist.
    pub fn source(&self, path: &str) -> Option<&Source> {
        self.sources.iter().find(|(p, _)| p == path).map(|(_, source)| source)
    }

    /// Returns whether any layer sets a path, or a path below it.
    pub fn is_set(&self, path: &str) -> bool {
        let below = |p: &str| p == path || p.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        self.sources.iter().any(|(p, source)| below(p) && !source.is_default())
    }

    /// Index of the layer that sets a path: 0 for the default, the highest for the command line. `None` if the path
    /// does not exist.
    fn layer(&self, path: &str) -> Option<usize> {
        let source = self.source(path)?;
        Some(match source {
            Source::Default | Source::Displaced { .. } => 0,
            Source::CommandLine | Source::Flag(_) => usize::MAX,
            text => 1 + self.order.iter().position(|layer| layer.is_same_text(text))?,
        })
    }

    /// Orders two conflicting keys: the one set by the earlier layer first. Keeps the given order if the same layer
    /// sets both.
    pub fn earlier_first<'k>(&self, keys: [&'k str; 2]) -> [&'k str; 2] {
        let [one, other] = keys;
        if self.layer(other) < self.layer(one) { [other, one] } else { keys }
    }

    /// Returns whether a layer sets the first path and a later one sets the second.
    pub fn is_earlier(&self, path: &str, other: &str) -> bool {
        self.layer(path).is_some_and(|layer| layer > 0 && Some(layer) < self.layer(other))
    }

    /// Like [`Loaded::refuse`], for a value that conflicts with that of another key. If a later layer sets the other
    /// key, the error is [`Error::Outdated`].
    pub fn refuse_with(&self, path: &str, other: &str, message: impl Into<String>) -> Error {
        match self.refuse(path, message) {
            Error::Refused { place, key, message } if self.is_earlier(path, other) => {
                Error::Outdated { place, key, message, path: path.into(), by: other.into() }
            }
            error => error,
        }
    }

    /// Returns the path as typed on the command line, where an element of a list may be given by name. `None` if the
    /// value does not come from a setting.
    pub fn typed(&self, path: &str) -> Option<&str> {
        let is_path = |typed: &&String| {
            let (mut walked, mut theirs) = (String::new(), typed.split('.'));
            let same = path.split('.').all(|name| {
                let typed = theirs.next();
                walked = join(&walked, name);
                typed == Some(name) || typed.is_some_and(|typed| self.is_named(&walked, typed))
            });
            same && theirs.next().is_none()
        };
        let typed = || self.typed.iter().rev().find(is_path).map(String::as_str);
        self.source(path).filter(|source| **source == Source::CommandLine).and_then(|_| typed())
    }

    /// Returns whether an element of an array of tables has this name under the rule of [`Walk::set`]: as the value
    /// of its first or second key.
    fn is_named(&self, element: &str, name: &str) -> bool {
        let below = |row: &&Row| row.path.strip_prefix(element).is_some_and(|rest| rest.starts_with('.'));
        let name = Value::from(name).to_string();
        self.rows.iter().filter(below).take(2).any(|row| row.value == name)
    }

    /// Creates the error of a check that only the recipe's owner can make, with the place of the value.
    pub fn refuse(&self, path: &str, message: impl Into<String>) -> Error {
        let place = self.source(path).map_or("recipe".to_string(), Source::to_string);
        let key = self.typed(path).unwrap_or(path).to_string();
        Error::Refused { place, key, message: message.into() }
    }
}

struct Loader<'a> {
    library: Library<'a>,
    schema: &'a TableSchema,
    paths: &'a [String],
    nodes: Vec<Node>,
    order: Vec<Source>,
}

impl Loader<'_> {
    fn apply(&mut self, layer: &Layer) -> Result<()> {
        match layer {
            Layer::Recipe(name) => self.named(name, "command line", &mut Vec::new()),
            Layer::File(path) => self.file(path, &mut Vec::new()),
            Layer::Text { name, text } => {
                self.layer(text, Origin::Recipe { name: name.clone() }, &mut Vec::new())
            }
            Layer::Setting(text) => {
                let Some((path, value)) = text.split_once('=').filter(|(path, _)| !path.trim().is_empty())
                else {
                    return Err(Error::NotASetting { text: redacted(text).into_owned() });
                };
                self.set(Origin::CommandLine { text: text.clone() }, path.trim(), value.trim())
            }
            Layer::Flag { flag, path, value } => self.set(Origin::Flag { flag: flag.clone() }, path, value),
        }
    }

    fn set(&mut self, origin: Origin, path: &str, value: &str) -> Result<()> {
        Walk { origin: &origin, paths: self.paths }.set(self.schema, &mut self.nodes, path, value)
    }

    fn named(&mut self, name: &str, place: &str, chain: &mut Vec<String>) -> Result<()> {
        let Some(text) = self.library.text(name)? else {
            let names = self.library.names()?;
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let hint = suggest::name(name, &names, "there are");
            let hint = format!("{hint} (a file's name ends in .toml)");
            return Err(Error::UnknownRecipe { place: place.to_string(), name: name.to_string(), hint });
        };
        self.layer(&text, Origin::Recipe { name: name.to_string() }, chain)
    }

    fn file(&mut self, path: &Path, chain: &mut Vec<String>) -> Result<()> {
        let bytes = read(path).map_err(|error| Error::io("read", path, error))?;
        let shown = path.display().to_string();
        let text = String::from_utf8(bytes).map_err(|error| {
            let place = format!("file {shown}, byte {}", error.utf8_error().valid_up_to());
            Error::Toml { place, message: "the file is not UTF-8 text".into(), snippet: String::new() }
        })?;
        self.layer(&text, Origin::File { path: shown }, chain)
    }

    /// Applies one text: first the recipes it extends, then its own values.
    fn layer(&mut self, text: &str, origin: Origin, chain: &mut Vec<String>) -> Result<()> {
        let id = match &origin {
            Origin::File { path } => {
                fs::canonicalize(path).map_or(path.clone(), |path| path.display().to_string())
            }
            Origin::Recipe { name } => name.clone(),
            Origin::CommandLine { text } | Origin::Flag { flag: text } => text.clone(),
        };
        if chain.contains(&id) {
            chain.push(id);
            return Err(Error::ExtendsCircle { chain: chain.join(" -> ") });
        }
        chain.push(id);
        let mut entries = Vec::new();
        for (name, raw) in Raw::parse(text, &origin)? {
            match name.as_str() {
                // `about` is free text for lists of recipes.
                "about" if self.schema.find("about").is_none() => {}
                "extends" => self.extend(&raw, &origin, chain)?,
                _ => entries.push((name, raw)),
            }
        }
        chain.pop();
        debug_assert!(!origin.is_typed());
        self.order.push(origin.source(0));
        Walk { origin: &origin, paths: self.paths }.merge(self.schema, &mut self.nodes, &entries, "")
    }

    fn extend(&mut self, raw: &Raw, origin: &Origin, chain: &mut Vec<String>) -> Result<()> {
        let place = origin.place(raw.line);
        let RawValue::Scalar(toml::Value::String(base)) = &raw.value else {
            let (key, expected, found) = ("extends".into(), "the name of a recipe".into(), raw.describe());
            return Err(Error::WrongType { place, key, expected, found, hint: String::new() });
        };
        if !is_path(base) {
            return self.named(base, &place, chain);
        }
        match origin {
            Origin::File { path } => {
                let folder = Path::new(path).parent().unwrap_or(Path::new(""));
                self.file(&folder.join(base), chain)
            }
            _ => self.file(Path::new(base), chain),
        }
    }
}

/// Largest size of a recipe in bytes, about a thousand times that of a long one.
const MOST_BYTES: u64 = 16 << 20;

/// Reads a regular file of at most [`MOST_BYTES`] bytes. Other files, such as devices, may never end.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let found = fs::metadata(path)?;
    if !found.is_file() && !found.is_dir() {
        let message = "not a regular file; a recipe is read from a file that has an end";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    fs::File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        let message = format!("longer than {}, which no recipe is", crate::human::bytes(MOST_BYTES));
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(bytes)
}

fn is_path(name: &str) -> bool {
    name.contains(['/', '\\']) || name.ends_with(".toml")
}
