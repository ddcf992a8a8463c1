//! Literal TeX text: code, URLs, and removal of comments outside of them.

/// Maximum bytes of inline code or of a URL.
const LONGEST: usize = 4096;

/// Environments whose content is kept verbatim.
pub(super) const VERBATIM: [&str; 7] =
    ["verbatim", "Verbatim", "BVerbatim", "LVerbatim", "lstlisting", "minted", "alltt"];

/// Name, including a star, of the verbatim environment that a `\begin` at the start of `text` opens.
pub(super) fn begins_verbatim(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("\\begin{")?;
    // The longest name has 14 letters; the limit keeps a page of unclosed braces linear.
    let close = inner.bytes().take(16).position(|b| b == b'}')?;
    let name = &inner[..close];
    VERBATIM.contains(&name.trim_end_matches('*')).then_some(name)
}

/// Removes `%` comments. As in TeX, a comment includes its line end and thus joins lines; a line that consists only
/// of a comment is removed.
pub(super) fn without_comments(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    // End tag of the current verbatim environment, if any.
    let mut end: Option<String> = None;
    for line in source.lines() {
        let line = line.trim_end_matches('\r');
        let mut at = 0;
        loop {
            if let Some(closing) = &end {
                match line[at..].find(closing.as_str()) {
                    Some(found) => at += found + closing.len(),
                    None => break,
                }
                end = None;
            }
            let (stop, opened) = syntax(&line[at..]);
            at += stop;
            let Some(name) = opened else { break };
            end = Some(format!("\\end{{{name}}}"));
        }
        if end.is_some() || at == line.len() {
            out.push_str(line);
            out.push('\n');
        } else {
            out.push_str(&line[..at]);
        }
    }
    out
}

/// Length of the part of `line` that is free of comments: up to the first `%` that starts one, up to the content of a
/// verbatim environment (returned with its name), or all of it.
fn syntax(line: &str) -> (usize, Option<&str>) {
    let bytes = line.as_bytes();
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'%', b'\\', &bytes[at..]) {
        at += found;
        if bytes[at] == b'%' {
            return (at, None);
        }
        if let Some(name) = begins_verbatim(&line[at..]) {
            return (at + "\\begin{}".len() + name.len(), Some(name));
        }
        at += match command(&line[at..]) {
            Command::Literal(length) => length,
            // A backslash escapes the next character, so that `\%` is not a comment.
            Command::Other("") => 1 + line[at + 1..].chars().next().map_or(0, char::len_utf8),
            Command::Other(name) => 1 + name.len(),
        };
    }
    (line.len(), None)
}

/// Kind of command at a backslash.
pub(super) enum Command<'a> {
    /// A command with a literal argument; the total length in bytes.
    Literal(usize),
    /// Another command, with its name of letters.
    Other(&'a str),
}

/// Command at the start of `text`, which must be a backslash.
pub(super) fn command(text: &str) -> Command<'_> {
    let letters = text.bytes().skip(1).take_while(u8::is_ascii_alphabetic).count();
    let (name, rest) = (&text[1..1 + letters], &text[1 + letters..]);
    let near = &rest[..rest.floor_char_boundary(LONGEST.min(rest.len()))];
    let line = memchr::memchr(b'\n', near.as_bytes()).map_or(near, |end| &near[..end]);
    match literal(name, line) {
        Some(length) => Command::Literal(1 + letters + length),
        None => Command::Other(name),
    }
}

/// Length of the literal argument in `rest`, which follows command `name`.
fn literal(name: &str, rest: &str) -> Option<usize> {
    let options = |from: usize| from + bracketed(&rest[from..], '[', ']').unwrap_or(0);
    let quoted = |from: usize| {
        let mark = rest[from..].chars().next()?;
        let behind = from + mark.len_utf8();
        Some(behind + rest[behind..].find(mark)? + mark.len_utf8())
    };
    let braced = |from: usize| bracketed(&rest[from..], '{', '}').map(|length| from + length);
    // A brace that is not closed in this line is not a delimiter.
    let either = |from: usize| {
        braced(from).or_else(|| if rest[from..].starts_with(['{', '}', '\\']) { None } else { quoted(from) })
    };
    match name {
        "verb" => quoted(usize::from(rest.starts_with('*'))),
        "lstinline" => either(options(0)),
        "mintinline" => either(braced(options(0))?),
        "url" | "path" | "nolinkurl" | "href" => {
            let from = options(0);
            let from = from + rest[from..].len() - rest[from..].trim_start().len();
            if name == "href" { braced(from) } else { either(from) }
        }
        _ => None,
    }
}

/// Length of the group at the start of `text`, including its brackets.
fn bracketed(text: &str, open: char, close: char) -> Option<usize> {
    let mut depth = 0usize;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            c if c == open => depth += 1,
            c if c == close && depth <= 1 => return (depth == 1).then_some(at + c.len_utf8()),
            c if c == close => depth -= 1,
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Display form of a URL: characters that papers escape are unescaped.
pub(super) fn address(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    let mut chars = raw.chars().peekable();
    while let Some(c) = chars.next() {
        let escapes =
            c == '\\' && chars.peek().is_some_and(|c| matches!(c, '%' | '#' | '&' | '_' | '~' | '$'));
        if !escapes {
            out.push(c);
        }
    }
    out
}
