//! The resolved recipe as rows and as text, and the difference between two recipes.

use serde::{Deserialize, Serialize};
use toml::Value;

use super::schema::{Shape, TableSchema};
use super::source::Source;
use super::tree::{Node, join};

/// One key of a resolved recipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Dotted path.
    pub path: String,
    /// Value as TOML; `none` if unset.
    pub value: String,
    /// Source of the value, in words.
    pub source: String,
}

/// A key in which two resolved recipes differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Dotted path.
    pub path: String,
    /// Left row, if the key exists there.
    pub left: Option<Row>,
    /// Right row, if the key exists there.
    pub right: Option<Row>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = |row: &Option<Row>| match row {
            Some(row) => format!("{} ({})", row.value, row.source),
            None => "no such key".to_string(),
        };
        write!(f, "{}: {} -> {}", self.path, side(&self.left), side(&self.right))
    }
}

/// Returns the keys whose values differ, in the left recipe's order, followed by those that only the right one has. A
/// different source with the same value is not a difference.
pub fn diff(left: &[Row], right: &[Row]) -> Vec<Difference> {
    let find = |rows: &[Row], path: &str| rows.iter().find(|row| row.path == path).cloned();
    let mut out = Vec::new();
    for row in left {
        let other = find(right, &row.path);
        if other.as_ref().is_none_or(|other| other.value != row.value) {
            out.push(Difference { path: row.path.clone(), left: Some(row.clone()), right: other });
        }
    }
    for row in right.iter().filter(|row| find(left, &row.path).is_none()) {
        out.push(Difference { path: row.path.clone(), left: None, right: Some(row.clone()) });
    }
    out
}

/// Returns every key with its value, and the typed sources.
pub(crate) fn rows(schema: &TableSchema, nodes: &[Node]) -> (Vec<Row>, Vec<(String, Source)>) {
    let (mut rows, mut sources) = (Vec::new(), Vec::new());
    walk(schema, nodes, "", &mut |path, value, source| {
        rows.push(Row { path: path.clone(), value, source: source.to_string() });
        sources.push((path, source.clone()));
    });
    (rows, sources)
}

fn walk(schema: &TableSchema, nodes: &[Node], prefix: &str, push: &mut dyn FnMut(String, String, &Source)) {
    for (key, node) in schema.keys.iter().zip(nodes) {
        let path = join(prefix, key.name);
        match (node, &key.shape) {
            (Node::Leaf(value, source), _) => push(path, shown(value.as_ref()), source),
            (Node::Absent(source), _) => push(path, shown(None), source),
            (Node::Table(inner), Shape::Table { schema, .. }) => walk(schema, inner, &path, push),
            (Node::Tables(items, source), Shape::Tables(schema)) => {
                if items.is_empty() {
                    push(path.clone(), "[]".into(), source);
                }
                for (i, item) in items.iter().enumerate() {
                    walk(schema, item, &format!("{path}.{i}"), push);
                }
            }
            (Node::Map(entries), _) => {
                let path = if schema.rest == Some(key.name) { prefix } else { &path };
                for (name, (value, source)) in entries {
                    push(join(path, name), value.to_string(), source);
                }
            }
            _ => unreachable!("schema and tree agree"),
        }
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or("none".to_string(), |value| value.to_string())
}

/// Returns the recipe as TOML with each value's source as a comment. Unset keys are written `"none"`, so that the
/// text does not depend on the defaults of a later version.
pub(crate) fn text(schema: &TableSchema, nodes: &[Node]) -> String {
    let mut out = String::new();
    write_table(schema, nodes, "", &mut out);
    out
}

fn write_table(schema: &TableSchema, nodes: &[Node], prefix: &str, out: &mut String) {
    // Values come first: after the header of a sub-table they would belong to it.
    let mut lines: Vec<(String, String)> = Vec::new();
    for (key, node) in schema.keys.iter().zip(nodes) {
        let (value, source) = match node {
            Node::Leaf(Some(value), source) => (value.to_string(), source),
            Node::Leaf(None, source) | Node::Absent(source) => ("\"none\"".to_string(), source),
            Node::Tables(items, source) if items.is_empty() => ("[]".to_string(), source),
            Node::Map(entries) if schema.rest == Some(key.name) => {
                for (name, (value, source)) in entries {
                    // A dotted name is a path, as on the command line.
                    let name = name.split('.').map(quoted).collect::<Vec<_>>().join(".");
                    lines.push((format!("{name} = {value}"), comment(source)));
                }
                continue;
            }
            _ => continue,
        };
        lines.push((format!("{} = {value}", key.name), comment(source)));
    }
    write_lines(&lines, out);
    for (key, node) in schema.keys.iter().zip(nodes) {
        let path = join(prefix, key.name);
        match (node, &key.shape) {
            (Node::Table(inner), Shape::Table { schema, .. }) => {
                out.push_str(&format!("\n[{path}]\n"));
                write_table(schema, inner, &path, out);
            }
            (Node::Tables(items, _), Shape::Tables(schema)) => {
                for item in items {
                    out.push_str(&format!("\n[[{path}]]\n"));
                    write_table(schema, item, &path, out);
                }
            }
            (Node::Map(entries), _) if !entries.is_empty() && schema.rest != Some(key.name) => {
                out.push_str(&format!("\n[{path}]\n"));
                let line = |(name, (value, source)): (&String, &(Value, Source))| {
                    (format!("{} = {value}", quoted(name)), comment(source))
                };
                write_lines(&entries.iter().map(line).collect::<Vec<_>>(), out);
            }
            _ => {}
        }
    }
}

/// Makes a source safe for a TOML comment, which a line break or another control character in a path would end.
fn comment(source: &Source) -> String {
    source.to_string().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn write_lines(lines: &[(String, String)], out: &mut String) {
    let width = lines.iter().map(|(line, _)| line.chars().count()).filter(|w| *w <= 48).max().unwrap_or(0);
    for (line, source) in lines {
        out.push_str(&format!("{line:width$}  # {source}\n"));
    }
}

/// Quotes a free name as a TOML key if necessary.
fn quoted(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(bare) {
        return name.to_string();
    }
    let mut out = String::from("\"");
    for c in name.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
