//! Python behavior that templates expect: its library's JSON format, and dates by `strftime`.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::numbers::float;
use super::values;

/// Rejects format strings with a width or precision of six or more digits, since memory is allocated for them before
/// any limit is checked.
pub fn check_widths(format: &str) -> Result<(), Error> {
    if format.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 5) {
        let message = "format: a width or a precision has at most five digits";
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    Ok(())
}

/// Maximum indent in spaces.
const MOST_INDENT: usize = 64;
/// Maximum nesting depth, roughly Python's own recursion limit.
const MOST_DEPTH: usize = 500;
/// Maximum bytes of JSON or of a printed list. A list may contain another list many times, each written separately.
const MOST_JSON: usize = 16 << 20;

/// `tojson` as Transformers defines it: `json.dumps(x, ensure_ascii=False, indent=.., separators=.., sort_keys=..)`.
pub fn to_json(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let ascii: bool = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let indent: Option<usize> = kwargs.get("indent")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let sorted = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    if indent.is_some_and(|indent| indent > MOST_INDENT) {
        let message = format!("tojson: an indent is at most {MOST_INDENT}");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let usual = if indent.is_some() { [",", ": "] } else { [", ", ": "] }.map(str::to_string);
    let separators = match separators {
        Some(given) if given.len() == 2 => [given[0].clone(), given[1].clone()],
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators are two strings")),
        None => usual,
    };
    let mut out = String::new();
    Json { indent, separators, sorted, ascii, out: &mut out }.write(value, 0)?;
    Ok(out)
}

/// `tojson` as Jinja defines it: sorted keys, ASCII, and nothing that HTML would read as its own.
pub fn to_html_json(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    let separators = [", ", ": "].map(str::to_string);
    Json { indent: None, separators, sorted: true, ascii: true, out: &mut out }.write(value, 0)?;
    let escapes = [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026"), ('\'', "\\u0027")];
    Ok(escapes.iter().fold(out, |text, (from, to)| text.replace(*from, to)))
}

struct Json<'o> {
    indent: Option<usize>,
    /// Separators between items and after keys.
    separators: [String; 2],
    sorted: bool,
    ascii: bool,
    out: &'o mut String,
}

impl Json<'_> {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MOST_DEPTH {
            let message = format!("tojson: a value is nested deeper than {MOST_DEPTH}");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        if self.out.len() > MOST_JSON {
            let message = format!("tojson: a value has more than {MOST_JSON} bytes");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        match value.kind() {
            ValueKind::Plain if values::exponent(value).is_some() => self.out.push_str(&number(value)),
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Undefined => {
                // Python's message, with advice.
                let message = "tojson: Object of type Undefined is not JSON serializable: the template writes what the \
                               conversation does not have; give the message that key, or another template";
                return Err(Error::new(ErrorKind::UndefinedError, message));
            }
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map => self.map(value, depth)?,
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            kind => {
                let message = format!("tojson: a value that is {kind} is no JSON");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        // The list may be larger than memory, so it is generated while being written.
        for (at, item) in value.try_iter()?.enumerate() {
            empty = false;
            self.item(at, depth + 1);
            self.write(&item, depth + 1)?;
        }
        self.end(empty, depth);
        self.out.push(']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sorted {
            keys.sort();
        }
        self.out.push('{');
        for (at, key) in keys.iter().enumerate() {
            self.item(at, depth + 1);
            self.string(&name(key)?);
            self.out.push_str(&self.separators[1]);
            self.write(&value.get_item(key)?, depth + 1)?;
        }
        self.end(keys.is_empty(), depth);
        self.out.push('}');
        Ok(())
    }

    /// Writes the separator and line break before an item.
    fn item(&mut self, at: usize, depth: usize) {
        if at > 0 {
            self.out.push_str(&self.separators[0]);
        }
        self.line(depth);
    }

    fn end(&mut self, empty: bool, depth: usize) {
        if !empty {
            self.line(depth);
        }
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ascii && !c.is_ascii()) => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// Python's `repr` of a list or an object.
pub fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    print(value, 0, &mut out)?;
    Ok(out)
}

fn print(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MOST_DEPTH || out.len() > MOST_JSON {
        let message =
            format!("a list is nested deeper than {MOST_DEPTH}, or has more than {MOST_JSON} bytes");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    match value.kind() {
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::Seq => {
            let [open, close] = if value.is_tuple() { ["(", ")"] } else { ["[", "]"] };
            out.push_str(open);
            for (at, item) in value.try_iter()?.enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                print(&item, depth + 1, out)?;
            }
            out.push_str(if value.is_tuple() && value.len() == Some(1) { "," } else { "" });
            out.push_str(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (at, key) in value.try_iter()?.enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                print(&key, depth + 1, out)?;
                out.push_str(": ");
                print(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&format!("{value:?}")),
    }
    Ok(())
}

/// Key of a map as text.
fn name(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_string()),
        ValueKind::Number => Ok(number(key)),
        ValueKind::Plain if values::exponent(key).is_some() => Ok(number(key)),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_string()),
        ValueKind::None => Ok("null".to_string()),
        kind => {
            let message =
                format!("tojson: keys must be strings, numbers, true, false or none, and one is {kind}");
            Err(Error::new(ErrorKind::InvalidOperation, message))
        }
    }
}

/// Python's text form of a number.
pub fn number(value: &Value) -> String {
    match values::exponent(value).or(f64::try_from(value.clone()).ok()) {
        Some(number) if !value.is_integer() => float(number),
        _ => value.to_string(),
    }
}

/// Current UTC date by Python's `strftime`; unsupported directives are kept verbatim.
pub fn strftime_now(format: &str) -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    strftime(format, seconds)
}

/// Formats a time given in seconds since 1970.
pub fn strftime(format: &str, seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let days = seconds / 86_400;
    let (year, month, day) = date(days);
    let [hour, minute, second] = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
    let (month_name, day_name) = (fathom_base::human::MONTHS[month as usize - 1], DAYS[(days % 7) as usize]);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&format!("{:02}", year % 100)),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('H') => out.push_str(&format!("{hour:02}")),
            Some('I') => out.push_str(&format!("{:02}", (hour + 11) % 12 + 1)),
            Some('M') => out.push_str(&format!("{minute:02}")),
            Some('S') => out.push_str(&format!("{second:02}")),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month and day from days since 1970 (Hinnant, "chrono-compatible low-level date algorithms",
/// civil_from_days).
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}
