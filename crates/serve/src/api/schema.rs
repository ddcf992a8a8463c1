//! What an answer has to be: OpenAI's `response_format`, vLLM's `guided_*` and `structured_outputs`.

use fathom_base::Structure;
use serde_json::{Map, Value};

use crate::fault::Fault;
use crate::fields::Fields;
use crate::settings::Settings;

/// The structure that a request asks for, if any.
///
/// # Errors
/// More than one, none that is known, or one that is too large or too deep.
pub fn structure(fields: &mut Fields, settings: &Settings) -> Result<Option<Structure>, Fault> {
    let mut found: Vec<(&str, Structure)> = Vec::new();
    if let Some(format) = fields.take::<Map<String, Value>>("response_format")?
        && let Some(structure) = response_format(format)?
    {
        found.push(("response_format", structure));
    }
    let mut nested = fields.part("structured_outputs")?;
    guided("", &mut nested, &mut found)?;
    fields.rest_of("structured_outputs", nested)?;
    guided("guided_", fields, &mut found)?;
    if found.len() > 1 {
        let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        return Err(Fault::bad(format!("an answer has one structure; {} say one each", names.join(" and "))));
    }
    let Some((name, structure)) = found.pop() else { return Ok(None) };
    check(name, &structure, settings)?;
    Ok(Some(structure))
}

/// The structure of JSON by a schema.
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
                // A schema may come as its own text.
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

/// How deep brackets are nested, outside strings.
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
    fn brackets_in_strings_are_text() {
        assert_eq!(depth(br#"{"a": "[[[\"{{{", "b": [1]}"#), 2);
    }
}
