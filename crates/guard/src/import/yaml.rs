//! YAML with the line of every key and value.

use saphyr::{LoadableYamlNode, MarkedYamlOwned, ScalarOwned, YamlDataOwned};

/// Limit on nesting, far above that of other tools' files, within which the parser needs little time and stack.
const MOST_DEPTH: usize = 64;
/// Limit on keys after a question mark; each one nested in another doubles the parser's work.
const MOST_COMPLEX: usize = 8;

/// A value with its line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    /// Line of the value, from 1.
    pub line: usize,
    /// The value.
    pub value: Yaml,
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// The key.
    pub key: String,
    /// Line of the key, from 1.
    pub line: usize,
    /// The value.
    pub node: Node,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Yaml {
    /// Nothing.
    Null,
    /// A boolean.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Keys with values, in order.
    Map(Vec<Entry>),
}

impl Node {
    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    /// Returns the value at a path of keys.
    pub fn at(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    /// Returns the entries of a map; none for another value.
    pub fn entries(&self) -> &[Entry] {
        match &self.value {
            Yaml::Map(entries) => entries,
            _ => &[],
        }
    }

    /// Returns the items of a list; none for another value.
    pub fn items(&self) -> &[Node] {
        match &self.value {
            Yaml::List(items) => items,
            _ => &[],
        }
    }

    /// Returns the text of a scalar.
    pub fn text(&self) -> Option<String> {
        match &self.value {
            Yaml::Text(text) => Some(text.clone()),
            Yaml::Number(number) => Some(number.to_string()),
            Yaml::Bool(value) => Some(value.to_string()),
            _ => None,
        }
    }

    /// Returns a number.
    pub fn number(&self) -> Option<f64> {
        match self.value {
            Yaml::Number(number) => Some(number),
            _ => None,
        }
    }

    /// Returns whether the value is `true`.
    pub fn is_true(&self) -> bool {
        self.value == Yaml::Bool(true)
    }

    /// Returns the texts of a list of texts.
    pub fn texts(&self) -> Vec<String> {
        self.items().iter().filter_map(Node::text).collect()
    }
}

/// Reads one document.
///
/// # Errors
/// The line and the problem.
pub(super) fn read(text: &str) -> Result<Node, (usize, String)> {
    check_yaml_depth(text)?;
    let documents = MarkedYamlOwned::load_from_str(text)
        .map_err(|error| (error.marker().line(), error.info().to_string()))?;
    match <[MarkedYamlOwned; 1]>::try_from(documents) {
        Ok([document]) => Ok(node(document)),
        Err(none) if none.is_empty() => Ok(Node { line: 1, value: Yaml::Null }),
        Err(documents) => Err((1, format!("it has {} documents", documents.len()))),
    }
}

/// Refuses YAML that is nested too deep to be parsed, counting list and key marks at the beginning of lines, and
/// brackets.
///
/// # Errors
/// The line and the problem.
pub fn check_yaml_depth(text: &str) -> Result<(), (usize, String)> {
    let (mut brackets, mut complex) = (0usize, 0);
    for (at, line) in text.lines().enumerate() {
        let (mut marks, mut rest) = (0, line.trim_start());
        while let Some(mark) = rest.chars().next().filter(|mark| "-?[{".contains(*mark)) {
            let after = &rest[1..];
            if "-?".contains(mark) && !after.is_empty() && !after.starts_with(char::is_whitespace) {
                break;
            }
            marks += 1;
            complex += usize::from(mark == '?');
            rest = after.trim_start();
        }
        // A parser is deepest within a line, not at its end.
        let mut deepest = brackets;
        for char in line.chars() {
            match char {
                '[' | '{' => brackets += 1,
                ']' | '}' => brackets = brackets.saturating_sub(1),
                _ => {}
            }
            deepest = deepest.max(brackets);
        }
        if deepest > MOST_DEPTH || marks > MOST_DEPTH || complex > MOST_COMPLEX {
            return Err((at + 1, "it is nested too deep to be read".into()));
        }
        if line.len() - line.trim_start().len() > 4 * MOST_DEPTH {
            return Err((at + 1, "it is indented too far to be read".into()));
        }
    }
    Ok(())
}

fn node(marked: MarkedYamlOwned) -> Node {
    let line = marked.span.start.line();
    let value = match marked.data {
        YamlDataOwned::Value(ScalarOwned::Boolean(value)) => Yaml::Bool(value),
        YamlDataOwned::Value(ScalarOwned::Integer(number)) => Yaml::Number(number as f64),
        YamlDataOwned::Value(ScalarOwned::FloatingPoint(number)) => Yaml::Number(number.into_inner()),
        // YAML 1.1, which Python reads, treats these words as booleans.
        YamlDataOwned::Value(ScalarOwned::String(text)) => match text.as_str() {
            "yes" | "on" | "True" | "Yes" | "On" => Yaml::Bool(true),
            "no" | "off" | "False" | "No" | "Off" => Yaml::Bool(false),
            _ => Yaml::Text(text),
        },
        YamlDataOwned::Sequence(items) => Yaml::List(items.into_iter().map(node).collect()),
        YamlDataOwned::Mapping(map) => {
            let entry = |(key, value): (MarkedYamlOwned, MarkedYamlOwned)| {
                let key = node(key);
                Entry { key: key.text().unwrap_or_default(), line: key.line, node: node(value) }
            };
            Yaml::Map(map.into_iter().map(entry).collect())
        }
        YamlDataOwned::Tagged(_, inner) => return node(*inner),
        _ => Yaml::Null,
    };
    Node { line, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_its_line() {
        let text = "models:\n  - type: main\n    engine: x\nrails:\n  input:\n    flows:\n      - self check input\non: 1\n";
        let read = read(text).unwrap();
        assert_eq!(read.at(&["rails", "input", "flows"]).unwrap().items()[0].line, 7);
        let lines: Vec<usize> = read.entries().iter().map(|entry| entry.line).collect();
        assert_eq!(lines, [1, 4, 8]);
        assert_eq!(read.get("models").unwrap().items()[0].get("type").unwrap().text().unwrap(), "main");
    }

    #[test]
    fn damaged_and_deep_text_is_refused_with_its_line() {
        assert_eq!(read("a: 1\nb: [1,\n").unwrap_err().0, 3);
        for text in ["? ".repeat(30), "- ".repeat(8000), "[".repeat(8000)] {
            assert_eq!(read(&text).unwrap_err().0, 1);
        }
        assert_eq!(read("").unwrap().value, Yaml::Null);
    }
}
