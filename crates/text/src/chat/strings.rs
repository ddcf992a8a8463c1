//! Methods of Python's strings and filters of Jinja that the engine lacks.

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind};
use minijinja_contrib::filters::{filesizeformat, striptags};

/// Widest padded text, in characters.
const MOST_WIDTH: usize = 1 << 16;

/// Adds the filters `center`, `filesizeformat`, `striptags`, `truncate` and `wordcount`.
pub fn register(environment: &mut Environment<'static>) {
    environment.add_filter("center", |text: &str, width: Option<usize>| {
        padded(text, width.unwrap_or(80), ' ', Side::Both)
    });
    environment.add_filter("filesizeformat", filesizeformat);
    environment.add_filter("striptags", striptags);
    environment.add_filter("truncate", truncate);
    environment.add_filter("wordcount", |text: &str| {
        text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty()).count()
    });
}

/// Calls a method of a text; `None` if it is none of those that are here.
///
/// # Errors
/// Missing arguments, or those of another kind; a width beyond the limit.
pub fn call(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let argument = |at: usize| args.get(at).and_then(Value::as_str);
    let width = || args.first().and_then(|width| usize::try_from(width.clone()).ok()).unwrap_or(0);
    let fill = || argument(1).and_then(|fill| fill.chars().next()).unwrap_or(' ');
    let needs = || {
        let message = format!("{method}: an argument is missing, or is no text");
        Error::new(ErrorKind::InvalidOperation, message)
    };
    let found: Result<Value, Error> = match method {
        "title" => Ok(title(text).into()),
        "swapcase" => Ok(text.chars().map(swapped).collect::<String>().into()),
        "removeprefix" => {
            argument(0).map(|part| text.strip_prefix(part).unwrap_or(text).into()).ok_or_else(needs)
        }
        "removesuffix" => {
            argument(0).map(|part| text.strip_suffix(part).unwrap_or(text).into()).ok_or_else(needs)
        }
        "partition" => argument(0).map(|part| cut(text, text.split_once(part), part, true)).ok_or_else(needs),
        "rpartition" => {
            argument(0).map(|part| cut(text, text.rsplit_once(part), part, false)).ok_or_else(needs)
        }
        "rsplit" => {
            let most = args.get(1).and_then(|most| usize::try_from(most.clone()).ok());
            Ok(split_from_the_end(text, argument(0), most.unwrap_or(usize::MAX)))
        }
        "center" => padded(text, width(), fill(), Side::Both).map(Value::from),
        "ljust" => padded(text, width(), fill(), Side::Right).map(Value::from),
        "rjust" => padded(text, width(), fill(), Side::Left).map(Value::from),
        "zfill" => {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['-', '+'])));
            padded(digits, width().saturating_sub(sign.len()), '0', Side::Left)
                .map(|padded| format!("{sign}{padded}").into())
        }
        _ => return None,
    };
    Some(found)
}

/// Jinja's `truncate(length=255, killwords=False, end='...', leeway=5)`, in characters.
fn truncate(
    text: &str,
    length: Option<usize>,
    kills: Option<bool>,
    end: Option<String>,
    named: Kwargs,
) -> Result<String, Error> {
    let length = named.get::<Option<usize>>("length")?.or(length).unwrap_or(255);
    let kills = named.get::<Option<bool>>("killwords")?.or(kills).unwrap_or(false);
    let end = named.get::<Option<String>>("end")?.or(end).unwrap_or_else(|| "...".into());
    let leeway = named.get::<Option<usize>>("leeway")?.unwrap_or(5);
    named.assert_all_used()?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.into());
    }
    let kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let kept = if kills { &kept[..] } else { kept.rsplit_once(' ').map_or(&kept[..], |(kept, _)| kept) };
    Ok(format!("{kept}{end}"))
}

/// Python's `str.title`: a letter is large after anything that is none.
fn title(text: &str) -> String {
    let mut within = false;
    let mut all = String::with_capacity(text.len());
    for c in text.chars() {
        if within {
            all.extend(c.to_lowercase());
        } else {
            all.extend(c.to_uppercase());
        }
        within = c.is_alphabetic();
    }
    all
}

fn swapped(c: char) -> String {
    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
}

/// The part before a separator, the separator, and the part after it.
fn cut(text: &str, parts: Option<(&str, &str)>, separator: &str, first: bool) -> Value {
    let all = match parts {
        Some((before, after)) => [before, separator, after],
        None if first => [text, "", ""],
        None => ["", "", text],
    };
    all.map(Value::from).into_iter().collect()
}

/// Python's `str.rsplit`: at most `most` cuts, from the end; without a separator at white space.
fn split_from_the_end(text: &str, separator: Option<&str>, most: usize) -> Value {
    let mut parts: Vec<&str> = match separator {
        Some(separator) => text.rsplitn(most.saturating_add(1), separator).collect(),
        None => {
            let (mut rest, mut parts) = (text.trim_end(), Vec::new());
            while parts.len() < most && !rest.is_empty() {
                let at = rest
                    .rfind(char::is_whitespace)
                    .map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
                parts.push(&rest[at..]);
                rest = rest[..at].trim_end();
            }
            parts.extend((!rest.is_empty()).then_some(rest));
            parts
        }
    };
    parts.reverse();
    parts.into_iter().map(Value::from).collect()
}

/// The sides of a text that are filled.
#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
    Both,
}

fn padded(text: &str, width: usize, fill: char, side: Side) -> Result<String, Error> {
    if width > MOST_WIDTH {
        let message = format!("a text is padded to at most {MOST_WIDTH} characters");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let length = text.chars().count();
    let room = width.saturating_sub(length);
    let left = match side {
        Side::Left => room,
        Side::Right => 0,
        // CPython rounds so.
        Side::Both => room / 2 + (room & width & 1),
    };
    let fill = |count: usize| std::iter::repeat_n(fill, count);
    Ok(fill(left).chain(text.chars()).chain(fill(room - left)).collect())
}
