//! The recipe while layers are applied: the schema's tree with a value and a source per key.

use std::collections::BTreeMap;

use toml::Value;

use super::raw::{Raw, RawValue, shorten};
use super::schema::{Key, Leaf, Shape, TableSchema};
use super::source::{Origin, Source};
use super::{suggest, value};
use crate::error::{Error, Result};

/// Current state of one key.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// A value, or unset.
    Leaf(Option<Value>, Source),
    /// A table: one node per key of its schema, in the same order.
    Table(Vec<Node>),
    /// An optional table that is absent.
    Absent(Source),
    /// An array of tables.
    Tables(Vec<Vec<Node>>, Source),
    /// A map with free names.
    Map(BTreeMap<String, (Value, Source)>),
}

/// Context of a walk through the tree, for error messages.
pub(crate) struct Walk<'a> {
    pub origin: &'a Origin,
    /// All paths of the recipe, for suggestions.
    pub paths: &'a [String],
}

pub(crate) fn defaults(schema: &TableSchema, table: &toml::Table) -> Vec<Node> {
    let node = |key: &Key| {
        let value = table.get(key.name);
        match &key.shape {
            Shape::Leaf(_) => Node::Leaf(value.cloned(), Source::Default),
            Shape::Table { schema, optional } => match value.and_then(Value::as_table) {
                Some(inner) => Node::Table(defaults(schema, inner)),
                None if *optional => Node::Absent(Source::Default),
                None => Node::Table(defaults(schema, &schema.defaults)),
            },
            Shape::Tables(schema) => {
                let items = value.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let items = items.iter().filter_map(Value::as_table).map(|t| defaults(schema, t)).collect();
                Node::Tables(items, Source::Default)
            }
            Shape::Map(_) => {
                let entries = value.and_then(Value::as_table).into_iter().flatten();
                Node::Map(entries.map(|(k, v)| (k.clone(), (v.clone(), Source::Default))).collect())
            }
        }
    };
    schema.keys.iter().map(node).collect()
}

/// Restores the default at the path of a value. Does nothing if the path does not exist.
pub(crate) fn reset(schema: &TableSchema, nodes: &mut [Node], path: &str, by: &str) {
    let (name, rest) = path.split_once('.').unwrap_or((path, ""));
    let Some((index, key)) = schema.find(name) else { return };
    match (&mut nodes[index], &key.shape) {
        (Node::Leaf(value, source), Shape::Leaf(_)) => {
            let shown = value.as_ref().map_or("none".to_string(), Value::to_string);
            let was = format!("{shown} ({source})");
            *source = Source::Displaced { value: was, by: by.to_string() };
            *value = schema.defaults.get(name).cloned();
        }
        (Node::Table(inner), Shape::Table { schema, .. }) => reset(schema, inner, rest, by),
        (Node::Tables(items, _), Shape::Tables(schema)) => {
            let (index, rest) = rest.split_once('.').unwrap_or((rest, ""));
            if let Some(item) = index.parse().ok().and_then(|index: usize| items.get_mut(index)) {
                reset(schema, item, rest, by);
            }
        }
        _ => {}
    }
}

/// Converts the nodes to a TOML table.
pub(crate) fn to_table(schema: &TableSchema, nodes: &[Node]) -> toml::Table {
    let mut out = toml::Table::new();
    for (key, node) in schema.keys.iter().zip(nodes) {
        let value = match (node, &key.shape) {
            (Node::Leaf(value, _), _) => value.clone(),
            (Node::Table(inner), Shape::Table { schema, .. }) => Some(to_table(schema, inner).into()),
            (Node::Tables(items, _), Shape::Tables(schema)) => {
                Some(Value::Array(items.iter().map(|item| to_table(schema, item).into()).collect()))
            }
            (Node::Map(entries), _) => {
                Some(Value::Table(entries.iter().map(|(k, (v, _))| (k.clone(), v.clone())).collect()))
            }
            _ => None,
        };
        if let Some(value) = value {
            out.insert(key.name.to_string(), value);
        }
    }
    out
}

impl Walk<'_> {
    /// Applies the entries of a written table to the nodes of a table.
    pub fn merge(
        &self,
        schema: &TableSchema,
        nodes: &mut [Node],
        entries: &[(String, Raw)],
        path: &str,
    ) -> Result<()> {
        for (name, raw) in entries {
            let Some((index, key)) = schema.find(name) else {
                let Some((index, leaf)) = schema.find_rest() else {
                    return Err(self.unknown(schema, path, name, raw.line));
                };
                let value =
                    value::from_toml(raw, leaf).map_err(|m| self.misfit(leaf, raw, &join(path, name), m))?;
                self.set_entry(&mut nodes[index], name, value, raw.line);
                continue;
            };
            self.merge_key(key, &mut nodes[index], raw, &join(path, name))?;
        }
        Ok(())
    }

    fn merge_key(&self, key: &Key, node: &mut Node, raw: &Raw, path: &str) -> Result<()> {
        let source = self.origin.source(raw.line);
        match (&key.shape, &raw.value) {
            (Shape::Leaf(leaf), _) => {
                let value = value::from_toml(raw, leaf).map_err(|m| self.misfit(leaf, raw, path, m))?;
                *node = Node::Leaf(value, source);
            }
            (Shape::Table { schema, .. }, RawValue::Table(entries)) => {
                return self.merge(schema, present(node, schema), entries, path);
            }
            (Shape::Table { optional: true, .. }, RawValue::Scalar(Value::String(text)))
                if text == "none" =>
            {
                *node = Node::Absent(source);
            }
            (Shape::Tables(schema), RawValue::List(items)) => {
                let mut tables = Vec::with_capacity(items.len());
                for (i, item) in items.iter().enumerate() {
                    let path = format!("{path}.{i}");
                    let RawValue::Table(entries) = &item.value else {
                        return Err(self.wrong("a table", item, &path));
                    };
                    let mut nodes = defaults(schema, &schema.defaults);
                    self.merge(schema, &mut nodes, entries, &path)?;
                    tables.push(nodes);
                }
                *node = Node::Tables(tables, source);
            }
            (Shape::Map(leaf), RawValue::Table(entries)) => {
                for (name, raw) in entries {
                    let path = join(path, name);
                    let value = value::from_toml(raw, leaf).map_err(|m| self.misfit(leaf, raw, &path, m))?;
                    self.set_entry(node, name, value, raw.line);
                }
            }
            (Shape::Tables(_), _) => {
                return Err(self.wrong("an array of tables (write [[...]] headers)", raw, path));
            }
            _ => return Err(self.wrong("a table", raw, path)),
        }
        Ok(())
    }

    /// Sets one path from the command line.
    pub fn set(&self, schema: &TableSchema, nodes: &mut [Node], path: &str, text: &str) -> Result<()> {
        self.set_in(schema, nodes, ("", path), text)
    }

    /// Sets a value. `at` is the path walked so far and the remaining path.
    fn set_in(&self, schema: &TableSchema, nodes: &mut [Node], at: (&str, &str), text: &str) -> Result<()> {
        let (walked, rest) = at;
        let (name, rest) = rest.split_once('.').map_or((rest, None), |(name, rest)| (name, Some(rest)));
        let Some((index, key)) = schema.find(name) else {
            let name = dotted(name, rest);
            let Some((index, leaf)) = schema.find_rest() else {
                return Err(self.unknown(schema, walked, &name, 1));
            };
            let value = self.typed(leaf, &join(walked, &name), text)?;
            self.set_entry(&mut nodes[index], &name, value, 1);
            return Ok(());
        };
        let node = &mut nodes[index];
        let path = join(walked, name);
        match (&key.shape, rest) {
            (Shape::Leaf(leaf), None) => {
                *node = Node::Leaf(self.typed(leaf, &path, text)?, self.origin.source(1));
                Ok(())
            }
            (Shape::Table { schema, .. }, Some(rest)) => {
                self.set_in(schema, present(node, schema), (&path, rest), text)
            }
            (Shape::Map(leaf), Some(rest)) => {
                let value = self.typed(leaf, &join(&path, rest), text)?;
                self.set_entry(node, rest, value, 1);
                Ok(())
            }
            (Shape::Tables(schema), Some(rest)) => {
                let (number, rest) = rest.split_once('.').unwrap_or((rest, ""));
                let nodes = self.element(schema, node, (&path, number, rest))?;
                if rest.is_empty() {
                    let hint = format!("; name a key of it: {path}.{number}.KEY=VALUE");
                    return Err(self.wrong_text("a table", text, &path, hint));
                }
                self.set_in(schema, nodes, (&format!("{path}.{number}"), rest), text)
            }
            (Shape::Leaf(_), Some(rest)) => {
                let hint = format!("`{path}` holds a value; set it whole: {path}=VALUE");
                let key = join(&path, rest);
                Err(Error::UnknownKey { place: self.origin.place(1), key, hint })
            }
            (_, None) => match Raw::parse_value(text) {
                Some(raw) => self.merge_key(key, node, &raw, &path),
                None if text == "none" => {
                    let raw = Raw { line: 1, value: RawValue::Scalar(Value::String(text.into())) };
                    self.merge_key(key, node, &raw, &path)
                }
                None => {
                    let hint = format!("; name a key of it: {path}.KEY=VALUE");
                    Err(self.wrong_text("a table", text, &path, hint))
                }
            },
        }
    }

    /// Returns an element of an array of tables, given by index or by name. An index one past the end appends an
    /// element, but only if the key being set is one of the first two, which identify an element; any other key was
    /// meant for an element that does not exist. A name selects the one element whose first or second key has it as
    /// its value.
    fn element<'n>(
        &self,
        schema: &TableSchema,
        node: &'n mut Node,
        at: (&str, &str, &str),
    ) -> Result<&'n mut Vec<Node>> {
        let (path, number, key) = at;
        let Node::Tables(items, source) = node else { unreachable!("schema and tree agree") };
        let count = items.len();
        let named = |item: &[Node]| {
            let is = |node: &Node| matches!(node, Node::Leaf(Some(Value::String(text)), _) if text == number);
            item.iter().take(2).any(is)
        };
        let mut named = items.iter().enumerate().filter(|(_, item)| named(item)).map(|(i, _)| i);
        let index = match (number.parse::<usize>(), named.next(), named.next()) {
            (Ok(i), _, _) => Some(i),
            (Err(_), Some(i), None) => Some(i),
            _ => None,
        };
        let tells =
            |key: &str| schema.keys.iter().take(2).any(|first| key.split('.').next() == Some(first.name));
        match index {
            Some(i) if i < count || (i == count && (count == 0 || tells(key))) => {
                if i == count {
                    items.push(defaults(schema, &schema.defaults));
                    *source = self.origin.source(1);
                }
                Ok(&mut items[i])
            }
            _ => {
                let first = schema.keys.first().map_or("", |key| key.name);
                let hint = format!(
                    "`{path}` has {count} elements, numbered from 0; {path}.{count}.{first}=... adds one"
                );
                let key = join(path, number);
                Err(Error::UnknownKey { place: self.origin.place(1), key, hint })
            }
        }
    }

    fn typed(&self, leaf: &Leaf, path: &str, text: &str) -> Result<Option<Value>> {
        value::from_text(text, leaf).map_err(|misfit| self.wrong_text(&expected(leaf), text, path, misfit.0))
    }

    fn set_entry(&self, node: &mut Node, name: &str, value: Option<Value>, line: usize) {
        let Node::Map(entries) = node else { unreachable!("schema and tree agree") };
        match value {
            Some(value) => entries.insert(name.to_string(), (value, self.origin.source(line))),
            None => entries.remove(name),
        };
    }

    fn unknown(&self, schema: &TableSchema, table: &str, name: &str, line: usize) -> Error {
        let names: Vec<&str> = schema.keys.iter().map(|key| key.name).collect();
        let hint = suggest::key(table, name, &names, self.paths);
        Error::UnknownKey { place: self.origin.place(line), key: join(table, name), hint }
    }

    fn misfit(&self, leaf: &Leaf, raw: &Raw, path: &str, misfit: value::Misfit) -> Error {
        let Error::WrongType { place, key, expected, found, .. } = self.wrong(&expected(leaf), raw, path)
        else {
            unreachable!("wrong() makes WrongType")
        };
        Error::WrongType { place, key, expected, found, hint: misfit.0 }
    }

    fn wrong(&self, expected: &str, raw: &Raw, path: &str) -> Error {
        let (place, found) = (self.origin.place(raw.line), raw.describe());
        Error::WrongType { place, key: path.into(), expected: expected.into(), found, hint: String::new() }
    }

    fn wrong_text(&self, expected: &str, text: &str, path: &str, hint: String) -> Error {
        let (place, found) = (self.origin.place(1), format!("`{}`", shorten(text)));
        Error::WrongType { place, key: path.into(), expected: expected.into(), found, hint }
    }
}

/// Returns the nodes of a table, creating it if it was absent.
fn present<'n>(node: &'n mut Node, schema: &TableSchema) -> &'n mut Vec<Node> {
    if let Node::Absent(_) = node {
        *node = Node::Table(defaults(schema, &schema.defaults));
    }
    let Node::Table(nodes) = node else { unreachable!("schema and tree agree") };
    nodes
}

fn expected(leaf: &Leaf) -> String {
    format!("{}{}", leaf.kind.describe(), if leaf.optional { ", or none" } else { "" })
}

pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path}.{name}") }
}

fn dotted(name: &str, rest: Option<&str>) -> String {
    rest.map_or(name.to_string(), |rest| format!("{name}.{rest}"))
}
