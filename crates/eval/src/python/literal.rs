//! Python's literals (`ast.literal_eval`) as JSON: texts, numbers, `True`, `False`, `None`, lists, tuples, dictionaries.

use serde_json::{Map, Value};

/// Nesting of lists, at most.
const MOST_DEPTH: usize = 64;

/// Reads a literal.
///
/// # Errors
/// A message if the text is none.
pub fn parse(text: &str) -> Result<Value, String> {
    let mut reader = Reader { rest: text.trim(), depth: 0 };
    let value = reader.value()?;
    reader.space();
    if reader.rest.is_empty() { Ok(value) } else { Err(reader.unexpected()) }
}

struct Reader<'t> {
    rest: &'t str,
    depth: usize,
}

impl Reader<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn unexpected(&self) -> String {
        let shown: String = self.rest.chars().take(20).collect();
        if shown.is_empty() { "the literal is not complete".into() } else { format!("no literal: `{shown}`") }
    }

    fn takes(&mut self, sign: char) -> bool {
        self.space();
        let rest = self.rest.strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self) -> Result<Value, String> {
        self.space();
        if self.depth > MOST_DEPTH {
            return Err(format!("a literal is nested deeper than {MOST_DEPTH}"));
        }
        self.depth += 1;
        let value = match self.rest.chars().next() {
            Some('[') => self.items(']').map(|(items, _)| Value::Array(items)),
            Some('(') => self.items(')').map(|(mut items, commas)| match (items.len(), commas) {
                (1, false) => items.remove(0),
                _ => Value::Array(items),
            }),
            Some('{') => self.members(),
            Some('\'' | '"') => self.text(),
            Some(c) if c.is_ascii_digit() || "+-.".contains(c) => self.number(),
            Some(c) if c.is_alphabetic() => self.word(),
            _ => Err(self.unexpected()),
        };
        self.depth -= 1;
        value
    }

    /// Items up to a closing bracket, and whether there was a comma.
    fn items(&mut self, close: char) -> Result<(Vec<Value>, bool), String> {
        self.rest = &self.rest[1..];
        let (mut items, mut commas) = (Vec::new(), false);
        while !self.takes(close) {
            items.push(self.value()?);
            if self.takes(',') {
                commas = true;
            } else if !self.rest.starts_with(close) {
                return Err(self.unexpected());
            }
        }
        Ok((items, commas))
    }

    fn members(&mut self) -> Result<Value, String> {
        self.rest = &self.rest[1..];
        let mut members = Map::new();
        while !self.takes('}') {
            let key = match self.value()? {
                Value::String(key) => key,
                other => super::printed::text(&other),
            };
            if !self.takes(':') {
                return Err(self.unexpected());
            }
            members.insert(key, self.value()?);
            if !self.takes(',') && !self.rest.starts_with('}') {
                return Err(self.unexpected());
            }
        }
        Ok(Value::Object(members))
    }

    fn number(&mut self) -> Result<Value, String> {
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || "+-._".contains(c)));
        let word = &self.rest[..end.unwrap_or(self.rest.len())];
        let digits = word.trim_start_matches(['+', '-']);
        let leading_zero =
            digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit());
        let plain = word.replace('_', "");
        let number = match plain.trim_start_matches('+') {
            _ if leading_zero && digits.bytes().any(|b| b != b'0') => None,
            whole if whole.parse::<i64>().is_ok() => whole.parse::<i64>().ok().map(Value::from),
            whole if whole.parse::<u64>().is_ok() => whole.parse::<u64>().ok().map(Value::from),
            float => float.parse::<f64>().ok().filter(|x| x.is_finite()).map(Value::from),
        };
        let number = number.ok_or_else(|| self.unexpected())?;
        self.rest = &self.rest[word.len()..];
        Ok(number)
    }

    fn word(&mut self) -> Result<Value, String> {
        for (word, value) in
            [("True", Value::Bool(true)), ("False", Value::Bool(false)), ("None", Value::Null)]
        {
            if let Some(rest) = self.rest.strip_prefix(word)
                && !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')
            {
                self.rest = rest;
                return Ok(value);
            }
        }
        let quote = self.rest.find(['\'', '"']).filter(|at| *at <= 2).unwrap_or(0);
        match self.rest[..quote].to_lowercase().as_str() {
            "u" | "r" => self.text(),
            _ => Err(self.unexpected()),
        }
    }

    /// A text, joined with texts that follow it.
    fn text(&mut self) -> Result<Value, String> {
        let mut all = String::new();
        loop {
            self.space();
            let raw = self.rest.starts_with(['r', 'R']) && self.rest[1..].starts_with(['\'', '"']);
            let prefixed =
                raw || (self.rest.starts_with(['u', 'U']) && self.rest[1..].starts_with(['\'', '"']));
            let rest = if prefixed { &self.rest[1..] } else { self.rest };
            let Some(quote) = rest.chars().next().filter(|c| "'\"".contains(*c)) else { break };
            let triple = String::from(quote).repeat(3);
            let close = if rest.starts_with(&triple) { triple } else { quote.to_string() };
            let mut rest = &rest[close.len()..];
            loop {
                if let Some(after) = rest.strip_prefix(close.as_str()) {
                    self.rest = after;
                    break;
                }
                let Some(c) = rest.chars().next() else { return Err("a text does not end".into()) };
                if c == '\n' && close.len() == 1 {
                    return Err("a text does not end on its line".into());
                }
                rest = &rest[c.len_utf8()..];
                if c != '\\' {
                    all.push(c);
                } else if raw {
                    let next = rest.chars().next().ok_or("a text does not end")?;
                    all.extend(['\\', next]);
                    rest = &rest[next.len_utf8()..];
                } else {
                    rest = escape(rest, &mut all)?;
                }
            }
        }
        Ok(Value::String(all))
    }
}

/// Appends the character of an escape, whose text after the backslash is given; returns what follows it.
fn escape<'t>(rest: &'t str, all: &mut String) -> Result<&'t str, String> {
    let c = rest.chars().next().ok_or("a text does not end")?;
    let after = &rest[c.len_utf8()..];
    let plain = match c {
        '\n' => return Ok(after),
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'v' => '\u{b}',
        '\\' | '\'' | '"' => c,
        'x' | 'u' | 'U' => {
            let digits =
                [('x', 2), ('u', 4), ('U', 8)].iter().find(|(sign, _)| *sign == c).map_or(2, |it| it.1);
            let code = after.get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
            all.push(code.and_then(char::from_u32).ok_or("an escape is no character")?);
            return Ok(&after[digits..]);
        }
        '0'..='7' => {
            let digits = rest.bytes().take(3).take_while(|b| (b'0'..=b'7').contains(b)).count();
            let code = u32::from_str_radix(&rest[..digits], 8).ok();
            all.push(code.and_then(char::from_u32).ok_or("an escape is no character")?);
            return Ok(&rest[digits..]);
        }
        other => {
            all.extend(['\\', other]);
            return Ok(after);
        }
    };
    all.push(plain);
    Ok(after)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn literals_are_read_as_python_reads_them() {
        for (text, value) in [
            ("['a', \"b's\", 'c\\'\\n\\u00e9']", json!(["a", "b's", "c'\né"])),
            ("(1, -2.5, 1e3, True, None,)", json!([1, -2.5, 1000.0, true, null])),
            ("{'a': [1], 'b': {}}", json!({"a": [1], "b": {}})),
            ("('a' 'b')", json!("ab")),
            ("r'\\d'", json!("\\d")),
            (" 7 ", json!(7)),
            ("'''x\ny'''", json!("x\ny")),
        ] {
            assert_eq!(parse(text).as_ref(), Ok(&value), "{text}");
        }
        for wrong in ["", "[1", "a", "['a' 1]", "007", "'a", "1 2", &"[".repeat(999)] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
