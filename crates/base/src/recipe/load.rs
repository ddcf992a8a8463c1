//! Loading: the layers in order, `extends` resolved, the result typed.

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

/// Recipes that a binary carries: pairs of name and TOML text, and rows of tables that are filled into a form.
#[derive(Clone, Copy, Debug, Default)]
pub struct Library<'a> {
    entries: &'a [(&'a str, &'a str)],
    form: Option<Form<'a>>,
}

impl<'a> Library<'a> {
    /// A library of (name, text) pairs.
    pub const fn new(entries: &'a [(&'a str, &'a str)]) -> Library<'a> {
        Library { entries, form: None }
    }

    /// The same, and a form whose rows are recipes.
    pub const fn with_form(self, form: Form<'a>) -> Library<'a> {
        Library { form: Some(form), ..self }
    }

    /// The text of a recipe; none where no recipe has this name.
    ///
    /// # Errors
    /// A row that does not fit its form.
    pub fn text(&self, name: &str) -> Result<Option<Cow<'a, str>>> {
        if let Some((_, text)) = self.entries.iter().find(|(known, _)| *known == name) {
            return Ok(Some(Cow::Borrowed(text)));
        }
        let row = self.form.map_or(Ok(None), |form| form.recipe(name))?;
        Ok(row.map(Cow::Owned))
    }

    /// Every name, in the order given; those of rows come last.
    ///
    /// # Errors
    /// A table of runs that cannot be read.
    pub fn names(&self) -> Result<Vec<String>> {
        let rows = self.form.map_or(Ok(Vec::new()), |form| form.groups())?;
        let entries = self.entries.iter().map(|(name, _)| name.to_string());
        Ok(entries.chain(rows.into_iter().flat_map(|group| group.names)).collect())
    }
}

/// The layers of a recipe, laid over the defaults in the order they are added here.
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
    /// Only the defaults.
    pub fn new() -> Layers<'static> {
        Layers::default()
    }

    /// Only the defaults, with shipped recipes to name and extend.
    pub fn with_library(library: Library<'a>) -> Layers<'a> {
        Layers { library, ..Layers::default() }
    }

    /// A shipped recipe by name, or a file: whatever has a `/` or ends in `.toml` is a file.
    pub fn recipe(self, name_or_path: &str) -> Layers<'a> {
        if is_path(name_or_path) {
            return self.file(name_or_path);
        }
        self.push(Layer::Recipe(name_or_path.to_string()))
    }

    /// A file.
    pub fn file(self, path: impl AsRef<Path>) -> Layers<'a> {
        self.push(Layer::File(path.as_ref().to_path_buf()))
    }

    /// A TOML text with a name, as if it were a shipped recipe.
    pub fn text(self, name: &str, text: &str) -> Layers<'a> {
        self.push(Layer::Text { name: name.to_string(), text: text.to_string() })
    }

    /// A setting `a.b=v` as typed.
    pub fn set(self, setting: &str) -> Layers<'a> {
        self.push(Layer::Setting(setting.to_string()))
    }

    /// Several settings `a.b=v`.
    pub fn sets<S: AsRef<str>>(self, settings: &[S]) -> Layers<'a> {
        settings.iter().fold(self, |layers, setting| layers.set(setting.as_ref()))
    }

    /// What a flag such as `--minutes 5` sets; the flag is the value's source.
    pub fn flag(self, flag: &str, path: &str, value: &str) -> Layers<'a> {
        self.push(Layer::Flag { flag: flag.to_string(), path: path.to_string(), value: value.to_string() })
    }

    /// With the default at a path, where a later layer sets the key `by` and the path's value makes no sense with it.
    pub fn displaced(mut self, path: &str, by: &str) -> Layers<'a> {
        self.displaced.push((path.to_string(), by.to_string()));
        self
    }

    fn push(mut self, layer: Layer) -> Layers<'a> {
        self.layers.push(layer);
        self
    }
}

/// A loaded recipe: the typed value, and every key with its source.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// The typed value.
    pub value: T,
    rows: Vec<Row>,
    sources: Vec<(String, Source)>,
    text: String,
    /// The paths of the settings, as typed.
    typed: Vec<String>,
    /// The texts, in the order in which they lie over each other.
    order: Vec<Source>,
}

impl<T: Table> Loaded<T> {
    /// Lays the layers over each other and reads the result.
    ///
    /// # Errors
    /// The first mistake, with its place: unknown key or recipe, wrong kind of value, unreadable file, text
    /// that is not TOML, recipes that extend each other in a circle.
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
    /// Every key with its value and source, in the order of declaration.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The whole recipe as TOML, the source of each value next to it. Loads to the same values.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where the value of a path came from; `None` for a path that does not exist.
    pub fn source(&self, path: &str) -> Option<&Source> {
        self.sources.iter().find(|(p, _)| p == path).map(|(_, source)| source)
    }

    /// Whether anything but the default set a path, or any path below it.
    pub fn is_set(&self, path: &str) -> bool {
        let below = |p: &str| p == path || p.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        self.sources.iter().any(|(p, source)| below(p) && !source.is_default())
    }

    /// The layer that a path's value is of: 0 for the default, the highest for the command line; none for a path that does not exist.
    fn layer(&self, path: &str) -> Option<usize> {
        let source = self.source(path)?;
        Some(match source {
            Source::Default | Source::Displaced { .. } => 0,
            Source::CommandLine | Source::Flag(_) => usize::MAX,
            text => 1 + self.order.iter().position(|layer| layer.is_same_text(text))?,
        })
    }

    /// Of two keys that do not go together the one that an earlier layer sets, then the other; as they are given if one layer sets both.
    pub fn earlier_first<'k>(&self, keys: [&'k str; 2]) -> [&'k str; 2] {
        let [one, other] = keys;
        if self.layer(other) < self.layer(one) { [other, one] } else { keys }
    }

    /// Whether a layer sets the first path, and a later one the second.
    pub fn is_earlier(&self, path: &str, other: &str) -> bool {
        self.layer(path).is_some_and(|layer| layer > 0 && Some(layer) < self.layer(other))
    }

    /// As [`Loaded::refuse`], of a value that makes no sense with that of another key. If a later layer sets the other, the error is
    /// [`Error::Outdated`].
    pub fn refuse_with(&self, path: &str, other: &str, message: impl Into<String>) -> Error {
        match self.refuse(path, message) {
            Error::Refused { place, key, message } if self.is_earlier(path, other) => {
                Error::Outdated { place, key, message, path: path.into(), by: other.into() }
            }
            error => error,
        }
    }

    /// The path as it was typed on the command line, where an element of a list may be called by its name; `None` for a value
    /// from elsewhere.
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

    /// Whether an element of an array of tables is called so, as [`Walk::set`] takes it: by its first or second key.
    fn is_named(&self, element: &str, name: &str) -> bool {
        let below = |row: &&Row| row.path.strip_prefix(element).is_some_and(|rest| rest.starts_with('.'));
        let name = Value::from(name).to_string();
        self.rows.iter().filter(below).take(2).any(|row| row.value == name)
    }

    /// The error of a check that only the recipe's owner can make, with the place of the value.
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

    /// One text: first what it extends, then its own values.
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
                // Free text for lists of recipes.
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

/// Most bytes of a recipe: some thousand times those of a long one.
const MOST_BYTES: u64 = 16 << 20;

/// A regular file of no more than [`MOST_BYTES`] bytes. What is none may have no end.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let found = fs::metadata(path)?;
    if !found.is_file() && !found.is_dir() {
        let message = "not a regular file; a recipe is read from a file that has an end";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut bytes = Vec::new();
    // It may grow while it is read.
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
