//! YAML of task files as PyYAML reads it (version 1.1), with their `!function` tags.

use saphyr::{ScalarStyle, YamlLoader, YamlOwned};
use saphyr_parser::Parser;
use serde_json::{Map, Value};

/// Member under which a `!function` keeps the name of its Python function.
pub const FUNCTION: &str = "!function";
/// Nesting of a file, at most.
const MOST_DEPTH: usize = 64;

/// Reads a file's mapping. A `!function module.name` becomes an object with the member [`FUNCTION`].
///
/// # Errors
/// A message if the text is no YAML mapping, or is nested too deep.
pub fn read(text: &str) -> Result<Map<String, Value>, String> {
    shallow(text)?;
    let mut loader: YamlLoader<'_, YamlOwned> = YamlLoader::default();
    loader.early_parse(false);
    loader.allow_duplicate_keys(true);
    Parser::new_from_str(text).load(&mut loader, true).map_err(|error| error.to_string())?;
    if let Some(error) = loader.error() {
        return Err(error.to_string());
    }
    match loader.into_documents().into_iter().next().map(value).transpose()? {
        Some(Value::Object(members)) => Ok(members),
        _ => Err("holds no mapping".into()),
    }
}

/// Refuses text whose nesting would take the parser too long.
fn shallow(text: &str) -> Result<(), String> {
    let mut brackets = 0usize;
    for (at, line) in text.lines().enumerate() {
        let marks = line.trim_start().chars().take_while(|c| "-?[{ ".contains(*c)).count();
        for c in line.chars() {
            match c {
                '[' | '{' => brackets += 1,
                ']' | '}' => brackets = brackets.saturating_sub(1),
                _ => {}
            }
        }
        if brackets > MOST_DEPTH || marks > 2 * MOST_DEPTH {
            return Err(format!("line {} is nested too deep to be read", at + 1));
        }
        if line.trim().is_empty() {
            brackets = 0;
        }
    }
    Ok(())
}

fn value(node: YamlOwned) -> Result<Value, String> {
    Ok(match node {
        YamlOwned::Representation(text, style, tag) => {
            let tag = tag.map(|tag| tag.suffix);
            match (tag.as_deref(), style) {
                (Some("function"), _) => {
                    Value::Object([(FUNCTION.to_string(), text.into())].into_iter().collect())
                }
                (Some("str"), _) => text.into(),
                (_, ScalarStyle::Plain) => plain(&text),
                _ => text.into(),
            }
        }
        YamlOwned::Sequence(items) => items.into_iter().map(value).collect::<Result<_, _>>()?,
        YamlOwned::Mapping(members) => {
            let (mut own, mut merged) = (Map::new(), Map::new());
            for (key, member) in members {
                let (key, member) = (crate::python::printed::text(&value(key)?), value(member)?);
                match (key.as_str(), member) {
                    ("<<", Value::Object(other)) => merged.extend(other),
                    (_, member) => _ = own.insert(key, member),
                }
            }
            merged.extend(own);
            Value::Object(merged)
        }
        YamlOwned::Tagged(_, inner) => value(*inner)?,
        YamlOwned::BadValue => return Err("an alias is not defined".into()),
        _ => Value::Null,
    })
}

/// A plain scalar by the rules of YAML 1.1.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return true.into(),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => return false.into(),
        _ => {}
    }
    let (sign, digits) = match text.as_bytes()[0] {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    let plain = digits.replace('_', "");
    let whole =
        |radix: u32, digits: &str| i64::from_str_radix(digits, radix).ok().map(|n| Value::from(sign * n));
    let starts = plain.as_bytes().first().is_some_and(u8::is_ascii_digit);
    let number = match () {
        () if !(starts || plain.starts_with('.') && plain.len() > 1) => None,
        () if plain.starts_with("0x") => whole(16, &plain[2..]),
        () if plain.starts_with("0b") => whole(2, &plain[2..]),
        () if plain.len() > 1 && plain.starts_with('0') && !plain.contains('.') => whole(8, &plain[1..]),
        () if plain.bytes().all(|b| b.is_ascii_digit()) => whole(10, &plain),
        // Floats have a point, and a sign in their exponent.
        () if plain.contains('.') && (!plain.contains(['e', 'E']) || plain.contains(['+', '-'])) => plain
            .parse::<f64>()
            .ok()
            .filter(|x| x.is_finite())
            .map(|x| Value::from(f64::from(sign as i32) * x)),
        () => None,
    };
    number.unwrap_or_else(|| text.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn scalars_are_those_of_pyyaml() {
        let text = "a: [no, 'no', \"yes\", yes, 1, 1.0, 1e3, 1.5e-3, 010, ~, -2, .5, 1.0.0]\nb: !function utils.f\nc: |\n  x\n  y\n\
                    d: &base {x: 1, y: 2}\ne:\n  <<: *base\n  y: 3\n";
        let expected = json!({
            "a": [false, "no", "yes", true, 1, 1.0, "1e3", 0.0015, 8, null, -2, 0.5, "1.0.0"],
            "b": {"!function": "utils.f"}, "c": "x\ny\n", "d": {"x": 1, "y": 2}, "e": {"x": 1, "y": 3},
        });
        assert_eq!(Value::Object(read(text).unwrap()), expected);
        for wrong in ["- a", "a: [", "a: *b", &"[".repeat(9999)] {
            assert!(read(wrong).is_err(), "{wrong:.9}");
        }
    }
}
