//! Texts that a template makes of values with `~`, `join` and `str.join`: as Python prints them, and no longer than a text may be.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};

use super::items::MOST_JOINED;
use super::scan::{is_word, outside};
use super::{python, values};

/// The function that what stands at a `~` goes through.
pub const TEXT: &str = "_text";

/// Words that no operand of `~` goes across.
const WORDS: [&str; 13] =
    ["and", "or", "not", "in", "if", "else", "elif", "set", "for", "recursive", "call", "do", "filter"];

/// Gives an environment the filters and the function of this module.
pub fn register(environment: &mut Environment<'_>) {
    environment.add_filter("string", |value: &Value| string(value));
    environment.add_filter("join", join);
    environment.add_function(TEXT, |value: &Value| text(value));
}

/// A value as it is printed next to others: numbers, lists and objects as texts.
///
/// # Errors
/// A list or an object that is too long or nested too deep.
fn text(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Number => Ok(python::number(value).into()),
        ValueKind::Seq | ValueKind::Map => Ok(python::repr(value)?.into()),
        _ => Ok(value.clone()),
    }
}

/// The filter `string`.
fn string(value: &Value) -> Result<Value, Error> {
    let text = text(value)?;
    Ok(if text.kind() == ValueKind::String { text } else { text.to_string().into() })
}

/// The filter `join(d='', attribute=none)`.
///
/// # Errors
/// A value without items, and those of [`text`].
fn join(
    value: &Value,
    between: Option<&Value>,
    attribute: Option<String>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let between = match between {
        Some(between) => between.clone(),
        None => kwargs.get::<Option<Value>>("d")?.unwrap_or_else(|| "".into()),
    };
    let between = string(&between)?.to_string();
    let attribute = match attribute {
        Some(attribute) => Some(attribute),
        None => kwargs.get::<Option<String>>("attribute")?,
    };
    kwargs.assert_all_used()?;
    let items = super::items::looped(value)?.try_iter().map_err(|_| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("join: a value that is {} has no items", value.kind()),
        )
    })?;
    let mut out = String::new();
    for (at, item) in items.enumerate() {
        let found = match &attribute {
            Some(path) => path.split('.').try_fold(item, |item, name| match name.parse::<usize>() {
                Ok(index) => item.get_item(&index.into()),
                Err(_) => item.get_attr(name),
            })?,
            None => item,
        };
        out.push_str(if at > 0 { &between } else { "" });
        out.push_str(&string(&found)?.to_string());
        if out.len() > MOST_JOINED {
            let message = format!("join: the text has more than {MOST_JOINED} bytes");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    }
    Ok(out)
}

/// The arguments of `str.format`, in which lists and objects, and numbers that Python prints with an exponent, are texts.
///
/// # Errors
/// Those of [`text`].
pub fn formatted(args: &[Value]) -> Result<Vec<Value>, Error> {
    let is_text = |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map) && !value.is_kwargs()
            || values::exponent(value).is_some()
    };
    args.iter().map(|value| if is_text(value) { text(value) } else { Ok(value.clone()) }).collect()
}

/// A tag in which what stands at a `~` goes through [`TEXT`].
pub fn asking(tag: &str) -> String {
    if !outside(tag).any(|(_, c)| c == '~') {
        return tag.to_string();
    }
    // Signs at the marks of a tag are of white space.
    let inner = &tag[2..tag.len() - 2];
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let start = tag.len() - 2 - inner.len();
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner);
    let (open, close) = (&tag[..start], &tag[start + inner.len()..]);
    let mut reader = Reader { source: inner, chars: outside(inner).collect(), next: 0, copied: 0 };
    format!("{open}{}{close}", reader.group())
}

/// A tag that is read bracket by bracket.
struct Reader<'s> {
    source: &'s str,
    /// The characters in no string, with their places.
    chars: Vec<(usize, char)>,
    next: usize,
    /// Up to where the source has been copied.
    copied: usize,
}

impl Reader<'_> {
    /// Reads up to a closing bracket, or to the end.
    fn group(&mut self) -> String {
        // The operand at hand, and whether a `~` is before it.
        let (mut out, mut operand, mut joined) = (String::new(), String::new(), false);
        while let Some((at, c)) = self.chars.get(self.next).copied() {
            if ")]}".contains(c) {
                break;
            }
            operand.push_str(&self.source[self.copied..at]);
            self.copied = at;
            let word = WORDS.into_iter().find(|word| self.begins(at, word));
            let mark = match word {
                Some("not") if operand.trim_end().ends_with(" is") => None,
                Some(word) => Some(word),
                None => self.mark(at, c, &operand),
            };
            let Some(mark) = mark else {
                self.take(c.len_utf8(), &mut operand);
                if "([{".contains(c) {
                    operand.push_str(&self.group());
                    if self.next < self.chars.len() {
                        self.take(1, &mut operand);
                    }
                }
                continue;
            };
            let is_tilde = mark == "~";
            out.push_str(&asked(&operand, joined || is_tilde));
            operand.clear();
            joined = is_tilde;
            self.take(mark.len(), &mut out);
        }
        let end = self.chars.get(self.next).map_or(self.source.len(), |(at, _)| *at);
        operand.push_str(&self.source[self.copied..end]);
        self.copied = end;
        out + &asked(&operand, joined)
    }

    /// Copies so many bytes.
    fn take(&mut self, bytes: usize, to: &mut String) {
        let end = self.copied + bytes;
        to.push_str(&self.source[self.copied..end]);
        self.copied = end;
        while self.chars.get(self.next).is_some_and(|(at, _)| *at < end) {
            self.next += 1;
        }
    }

    /// Whether a word begins at a place.
    fn begins(&self, at: usize, word: &str) -> bool {
        let before = self.source[..at].chars().next_back();
        let inside = before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '.');
        !inside && is_word(&self.source[at..], word)
    }

    /// The operator at a place that binds less than `~`, or is one. A sign, and that of an exponent, belong to their operand.
    fn mark(&self, at: usize, c: char, operand: &str) -> Option<&'static str> {
        let before = self.source[..at].strip_suffix(['e', 'E']);
        let is_exponent = before.is_some_and(|before| before.ends_with(|c: char| c.is_ascii_digit()));
        match c {
            '~' => Some("~"),
            '+' | '-' if !operand.trim().is_empty() && !is_exponent => Some("+"),
            ',' | ':' | '=' | '<' | '>' | '!' => Some(","),
            _ => None,
        }
    }
}

/// An operand, in which the function is asked if a `~` is next to it. A text alone stays.
fn asked(operand: &str, joined: bool) -> String {
    let inner = operand.trim();
    let signs = inner.chars().all(|c| c == '-' || c == '+');
    if !joined || signs || outside(inner).next().is_none() {
        return operand.to_string();
    }
    let start = operand.len() - operand.trim_start().len();
    let end = start + inner.len();
    format!("{}{TEXT}(({inner})){}", &operand[..start], &operand[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_of_a_tilde_are_asked_and_all_else_stays() {
        for (source, expected) in [
            ("{{ a ~ b }}", "{{ _text((a)) ~ _text((b)) }}"),
            ("{{- 'x ~ y' ~ b.c['~'] -}}", "{{- 'x ~ y' ~ _text((b.c['~'])) -}}"),
            (
                "{% set x = a + b * 2 ~ -c|f(1, d ~ 2) ~ 1e-7 %}",
                "{% set x = a + _text((b * 2)) ~ _text((-c|f(1, _text((d)) ~ _text((2))))) ~ _text((1e-7)) %}",
            ),
            (
                "{{ a ~ b if c not in d else f(x=e ~ g)[1:] ~ h }}",
                "{{ _text((a)) ~ _text((b)) if c not in d else _text((f(x=_text((e)) ~ _text((g)))[1:])) ~ _text((h)) }}",
            ),
            (
                "{% if a ~ b == c is not none ~ 'd' %}",
                "{% if _text((a)) ~ _text((b)) == _text((c is not none)) ~ 'd' %}",
            ),
            (
                "{{ {'k': a ~ b, 'in': notin ~ x.if} }}",
                "{{ {'k': _text((a)) ~ _text((b)), 'in': _text((notin)) ~ _text((x.if))} }}",
            ),
        ] {
            assert_eq!(asking(source), expected);
        }
        for same in ["{{ a + b }}", "{{ '~' }}", "{{ 'a' ~ 'b' }}", "{{ ~ }}", "{%- if a -%}"] {
            assert_eq!(asking(same), same);
        }
    }
}
