//! Functions of texts that SQLite lacks and other dialects have.

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::{Connection, Result};

/// Adds `character_length`, `char_length`, `starts_with`, `ends_with`, `contains`, `strpos` and `split_part`.
pub(crate) fn register(connection: &Connection) -> Result<()> {
    let flags =
        FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    for name in ["character_length", "char_length"] {
        connection.create_scalar_function(name, 1, flags, |context| {
            Ok(text(context, 0)?.map(|text| text.chars().count() as i64))
        })?;
    }
    type Holds = fn(&str, &str) -> bool;
    let holds: [(&str, Holds); 3] = [
        ("starts_with", |text, part| text.starts_with(part)),
        ("ends_with", |text, part| text.ends_with(part)),
        ("contains", |text, part| text.contains(part)),
    ];
    for (name, holds) in holds {
        connection.create_scalar_function(name, 2, flags, move |context| {
            Ok(text(context, 0)?.zip(text(context, 1)?).map(|(text, part)| holds(text, part)))
        })?;
    }
    connection.create_scalar_function("strpos", 2, flags, |context| {
        let place = |(text, part): (&str, &str)| {
            text.find(part).map_or(0, |byte| text[..byte].chars().count() as i64 + 1)
        };
        Ok(text(context, 0)?.zip(text(context, 1)?).map(place))
    })?;
    connection.create_scalar_function("split_part", 3, flags, |context| {
        let number: i64 = context.get(2)?;
        let part = |(text, by): (&str, &str)| {
            let parts: Vec<&str> = if by.is_empty() { vec![text] } else { text.split(by).collect() };
            let index = if number < 0 { parts.len() as i64 + number } else { number - 1 };
            usize::try_from(index).ok().and_then(|index| parts.get(index)).map_or("", |part| *part).to_owned()
        };
        Ok(text(context, 0)?.zip(text(context, 1)?).map(part))
    })
}

fn text<'a>(context: &'a Context<'_>, index: usize) -> Result<Option<&'a str>> {
    Ok(context.get_raw(index).as_str_or_null()?)
}
