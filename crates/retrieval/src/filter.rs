//! Filters over facts of documents: `KEY=VALUE`, `!=`, `<`, `<=`, `>`, `>=`. `path`, `kind`, `id` and `title` are of
//! every document; other keys are fields of its rows. A value with `*` matches any text there.

use std::cmp::Ordering;
use std::str::FromStr;

use serde_json::Value;

use crate::error::Error;
use crate::segment::DocumentFacts;

/// How a field is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

/// Notations of comparisons; longer ones first.
const COMPARISONS: [(&str, Comparison); 6] = [
    ("!=", Comparison::NotEqual),
    ("<=", Comparison::AtMost),
    (">=", Comparison::AtLeast),
    ("=", Comparison::Equal),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

/// A condition on a document.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    pub(crate) key: String,
    pub(crate) comparison: Comparison,
    pub(crate) value: String,
}

impl FromStr for Condition {
    type Err = Error;

    fn from_str(text: &str) -> Result<Condition, Error> {
        let at = text.find(['=', '<', '>', '!']);
        let found = at.and_then(|at| {
            let rest = &text[at..];
            let (mark, comparison) = COMPARISONS.into_iter().find(|(mark, _)| rest.starts_with(mark))?;
            Some((&text[..at], comparison, &rest[mark.len()..]))
        });
        match found {
            Some((key, comparison, value)) if !key.trim().is_empty() => {
                Ok(Condition { key: key.trim().into(), comparison, value: value.trim().into() })
            }
            _ => Err(Error::Refused(format!(
                "`{text}` is no condition; write KEY=VALUE, or with one of != < <= > >="
            ))),
        }
    }
}

impl Condition {
    /// Returns whether a document fulfils it; a document without the field fulfils `!=` alone.
    pub fn holds(&self, document: &DocumentFacts) -> bool {
        let Some(field) = field(document, &self.key) else { return self.comparison == Comparison::NotEqual };
        let text = field.as_str().map_or_else(|| field.to_string(), str::to_string);
        let numbers = field.as_f64().zip(self.value.parse::<f64>().ok());
        let order = match numbers {
            Some((own, asked)) => own.partial_cmp(&asked),
            None => Some(text.as_str().cmp(&self.value)),
        };
        let equal = match numbers {
            Some(_) => order == Some(Ordering::Equal),
            None => matches(&self.value, &text),
        };
        match self.comparison {
            Comparison::Equal => equal,
            Comparison::NotEqual => !equal,
            Comparison::Less => order.is_some_and(Ordering::is_lt),
            Comparison::AtMost => order.is_some_and(Ordering::is_le),
            Comparison::Greater => order.is_some_and(Ordering::is_gt),
            Comparison::AtLeast => order.is_some_and(Ordering::is_ge),
        }
    }
}

/// A field of a document.
pub(crate) fn field(document: &DocumentFacts, key: &str) -> Option<Value> {
    match key {
        "path" => Some(document.path.as_str().into()),
        "kind" => serde_json::to_value(document.kind).ok(),
        "id" => Some(document.id.as_str().into()),
        "title" => Some(document.title.as_str().into()),
        key => document.metadata.get(key).cloned(),
    }
}

/// Returns whether a text has the form of a pattern, in which `*` is any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, inner)) = parts.split_last() else { return rest.is_empty() };
    for part in inner {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::Kind;

    fn check(condition: &str, expected: bool) {
        let metadata =
            [("year".to_string(), Value::from(1999)), ("tag".into(), "a b".into())].into_iter().collect();
        let document = DocumentFacts {
            path: "docs/a.md".into(),
            kind: Kind::Markdown,
            id: "7".into(),
            title: String::new(),
            metadata,
        };
        let condition: Condition = condition.parse().unwrap();
        assert_eq!(condition.holds(&document), expected, "{condition:?}");
    }

    #[test]
    fn conditions_compare_numbers_texts_and_patterns() {
        for (condition, expected) in [
            ("path=docs/*", true),
            ("path=*.md", true),
            ("path=d*s/*.md", true),
            ("path=docs", false),
            ("kind=markdown", true),
            ("kind != markdown", false),
            ("year>=1999", true),
            ("year<1999", false),
            ("year > 200", true),
            ("tag=a b", true),
            ("missing=1", false),
            ("missing!=1", true),
            ("id=7", true),
        ] {
            check(condition, expected);
        }
        assert!("year".parse::<Condition>().is_err());
        assert!("=3".parse::<Condition>().is_err());
    }
}
