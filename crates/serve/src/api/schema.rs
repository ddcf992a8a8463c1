//! Structures of answers: OpenAI's `response_format`, vLLM's `guided_*` and `structured_outputs`.

use fathom_base::Structure;
use serde_json::{Map, Value, json};

use crate::fault::Fault;
use crate::fields::Fields;
use crate::settings::Settings;

/// The member of a schema with the compiler's options.
const OPTIONS: &str = "x-guidance";
/// Maximum length of a white space pattern, in bytes.
const MOST_PATTERN: usize = 1024;

/// The requested white space between JSON tokens, if any: a pattern, which may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spacing(Option<String>);

impl Spacing {
    /// Takes vLLM's fields for it.
    ///
    /// # Errors
    /// A pattern that is too long.
    fn take(prefix: &str, fields: &mut Fields) -> Result<Spacing, Fault> {
        let name = format!("{prefix}whitespace_pattern");
        let pattern: Option<String> = fields.take(&name)?;
        if let Some(bytes) = pattern.as_ref().map(String::len).filter(|bytes| *bytes > MOST_PATTERN) {
            return Err(Fault::field(&name, format_args!("has {bytes} bytes; {MOST_PATTERN} are the most")));
        }
        Ok(Spacing(pattern))
    }

    /// Applies the white space to a JSON structure; others are unchanged.
    pub fn on(&self, structure: Structure) -> Structure {
        let Some(pattern) = &self.0 else { return structure };
        let schema = match &structure {
            Structure::JsonObject => Ok(json!({"type": "object"})),
            Structure::JsonSchema(text) => serde_json::from_str(text),
            _ => return structure,
        };
        // Invalid schemas are refused when they are compiled.
        let Ok(mut schema) = schema else { return structure };
        if schema == true {
            schema = json!({});
        }
        let Some(members) = schema.as_object_mut() else { return structure };
        let how = match pattern.as_str() {
            "" => json!({"whitespace_flexible": false}),
            pattern => json!({"whitespace_pattern": pattern}),
        };
        match members.get_mut(OPTIONS).and_then(Value::as_object_mut) {
            Some(options) => options.extend(how.as_object().cloned().unwrap_or_default()),
            None => _ = members.insert(OPTIONS.into(), how),
        }
        by_schema(&schema)
    }
}

/// The requested structure, if any, and its white space.
///
/// # Errors
/// Several structures, an unknown one, or one that is too large or too deep.
pub fn structure(fields: &mut Fields, settings: &Settings) -> Result<(Option<Structure>, Spacing), Fault> {
    let mut found: Vec<(&str, Structure)> = Vec::new();
    if let Some(format) = fields.take::<Map<String, Value>>("response_format")?
        && let Some(structure) = response_format(format)?
    {
        found.push(("response_format", structure));
    }
    let mut nested = fields.part("structured_outputs")?;
    guided("", &mut nested, &mut found)?;
    let mut spacing = Spacing::take("", &mut nested)?;
    if nested.or("disable_any_whitespace", false)? {
        spacing = Spacing(Some(String::new()));
    }
    fields.rest_of("structured_outputs", nested)?;
    guided("guided_", fields, &mut found)?;
    let guided = Spacing::take("guided_", fields)?;
    let spacing = if guided.0.is_some() { guided } else { spacing };
    if found.len() > 1 {
        let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        return Err(Fault::bad(format!("an answer has one structure; {} say one each", names.join(" and "))));
    }
    let Some((name, structure)) = found.pop() else { return Ok((None, spacing)) };
    check(name, &structure, settings)?;
    Ok((Some(spacing.on(structure)), spacing))
}

/// The structure of JSON with a schema.
pub fn by_schema(schema: &Value) -> Structure {
    Structure::JsonSchema(schema.to_string())
}

fn response_format(mut format: Map<String, Value>) -> Result<Option<Structure>, Fault> {
    let kind = format.get("type").and_then(Value::as_str).unwrap_or_default().to_string();
    match kind.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(Structure::JsonObject)),
        "json_schema" => {
            let wrapped = format.remove("json_schema");
            let schema = wrapped.as_ref().and_then(|wrapped| wrapped.get("schema")).or(format.get("schema"));
            match schema {
                Some(schema) if schema.is_object() || schema.is_boolean() => Ok(Some(by_schema(schema))),
                _ => Err(Fault::field("response_format", "of type json_schema needs `json_schema.schema`")),
            }
        }
        _ => Err(Fault::field("response_format", "has to be of type text, json_object or json_schema")),
    }
}

fn guided(
    prefix: &str,
    fields: &mut Fields,
    found: &mut Vec<(&'static str, Structure)>,
) -> Result<(), Fault> {
    let name = |name: &str| format!("{prefix}{name}");
    if let Some(schema) = fields.take::<Value>(&name("json"))? {
        found.push((
            "json",
            match schema {
                // A schema may be given as a string.
                Value::String(text) => Structure::JsonSchema(text),
                schema => by_schema(&schema),
            },
        ));
    }
    if fields.or(&name("json_object"), false)? {
        found.push(("json_object", Structure::JsonObject));
    }
    if let Some(regex) = fields.take(&name("regex"))? {
        found.push(("regex", Structure::Regex(regex)));
    }
    if let Some(choice) = fields.take(&name("choice"))? {
        found.push(("choice", Structure::Choice(choice)));
    }
    if let Some(grammar) = fields.take(&name("grammar"))? {
        found.push(("grammar", Structure::Grammar(grammar)));
    }
    Ok(())
}

/// Checks the size and depth of a structure.
///
/// # Errors
/// Too large, or too deep.
pub fn check(name: &str, structure: &Structure, settings: &Settings) -> Result<(), Fault> {
    let bytes = match structure {
        Structure::JsonObject => 0,
        Structure::JsonSchema(text) | Structure::Regex(text) | Structure::Grammar(text) => text.len(),
        Structure::Choice(texts) => texts.iter().map(String::len).sum(),
    };
    if bytes as u64 > settings.schema_bytes {
        let most = settings.schema_bytes;
        return Err(Fault::field(
            name,
            format_args!("has {bytes} bytes; {most} are the most (serve.schema_bytes)"),
        ));
    }
    if let Structure::JsonSchema(text) = structure {
        let deep = depth(text.as_bytes());
        if deep as u64 > settings.schema_depth {
            let most = settings.schema_depth;
            return Err(Fault::field(
                name,
                format_args!("is nested {deep} deep; {most} is the most (serve.schema_depth)"),
            ));
        }
    }
    Ok(())
}

/// Maximum nesting depth of brackets, outside strings.
fn depth(json: &[u8]) -> usize {
    let (mut now, mut most, mut inside, mut escaped) = (0usize, 0, false, false);
    for byte in json {
        match (inside, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => inside = !inside,
            (false, b'{' | b'[') => (now, most) = (now + 1, most.max(now + 1)),
            (false, b'}' | b']') => now = now.saturating_sub(1),
            _ => {}
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, expected: Result<Option<Structure>, &str>) {
        let found = structure(&mut Fields::parse(body.as_bytes()).unwrap(), &Settings::default());
        let found = found.map(|(structure, _)| structure);
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{body}"),
            (Err(fault), Err(part)) => assert!(fault.message.contains(part), "{body}: {}", fault.message),
            (found, expected) => panic!("{body}: {found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn structures_are_read_in_all_their_spellings() {
        let schema = || Ok(Some(Structure::JsonSchema(r#"{"type":"object"}"#.into())));
        check(r#"{"response_format": {"type": "text"}}"#, Ok(None));
        check(r#"{"response_format": {"type": "json_object"}}"#, Ok(Some(Structure::JsonObject)));
        check(
            r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}}"#,
            schema(),
        );
        check(r#"{"guided_json": {"type": "object"}}"#, schema());
        check(r#"{"structured_outputs": {"json": "{\"type\":\"object\"}"}}"#, schema());
        check(r#"{"guided_regex": "a+"}"#, Ok(Some(Structure::Regex("a+".into()))));
        check(
            r#"{"structured_outputs": {"choice": ["a", "b"]}}"#,
            Ok(Some(Structure::Choice(vec!["a".into(), "b".into()]))),
        );
        check(
            r#"{"structured_outputs": {"structural_tag": "{}"}}"#,
            Err("`structural_tag` is not supported"),
        );
        check(r#"{"guided_regex": "a", "guided_choice": ["a"]}"#, Err("one structure"));
        check(r#"{"response_format": {"type": "json_schema"}}"#, Err("schema"));
        check(r#"{"response_format": {"type": "xml"}}"#, Err("json_object"));
        let deep = format!(r#"{{"guided_json": {}{}}}"#, "[".repeat(40), "]".repeat(40));
        check(&deep, Err("nested 40 deep"));
        check(&format!(r#"{{"guided_regex": "{}"}}"#, "a".repeat(70_000)), Err("70000 bytes"));
    }

    #[test]
    fn the_white_space_that_is_asked_for_is_the_schemas() {
        let with =
            |how: &str| Ok(Some(Structure::JsonSchema(format!(r#"{{"type":"object","x-guidance":{how}}}"#))));
        let one = r#"{"whitespace_pattern":" ?"}"#;
        check(r#"{"guided_json": {"type": "object"}, "guided_whitespace_pattern": " ?"}"#, with(one));
        check(
            r#"{"response_format": {"type": "json_object"}, "guided_whitespace_pattern": " ?"}"#,
            with(one),
        );
        check(
            r#"{"structured_outputs": {"json": {"type": "object"}, "whitespace_pattern": " ?"}}"#,
            with(one),
        );
        let none = r#"{"whitespace_flexible":false}"#;
        check(
            r#"{"structured_outputs": {"json": {"type": "object"}, "disable_any_whitespace": true}}"#,
            with(none),
        );
        check(r#"{"guided_json": {"type": "object"}, "guided_whitespace_pattern": ""}"#, with(none));
        let both = r#"{"lenient":true,"whitespace_pattern":" ?"}"#;
        let body = r#"{"guided_json": {"type": "object", "x-guidance": {"lenient": true}}, "guided_whitespace_pattern": " ?"}"#;
        check(body, with(both));
        check(
            r#"{"guided_regex": "a", "guided_whitespace_pattern": " ?"}"#,
            Ok(Some(Structure::Regex("a".into()))),
        );
        check(r#"{"guided_whitespace_pattern": " ?"}"#, Ok(None));
        let long = format!(r#"{{"guided_whitespace_pattern": "{}"}}"#, " ".repeat(2000));
        check(&long, Err("has 2000 bytes"));
    }

    #[test]
    fn brackets_in_strings_are_text() {
        assert_eq!(depth(br#"{"a": "[[[\"{{{", "b": [1]}"#), 2);
    }
}
