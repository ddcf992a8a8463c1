//! Where TeX reads letters and no syntax: code, addresses, and the comments outside of them.

/// Bytes of the longest code or address in a line.
const LONGEST: usize = 4096;

/// Environments whose content is kept letter for letter.
pub(super) const VERBATIM: [&str; 7] =
    ["verbatim", "Verbatim", "BVerbatim", "LVerbatim", "lstlisting", "minted", "alltt"];

/// The verbatim environment that a `\begin` at the start of `text` opens, by its name with a star.
pub(super) fn begins_verbatim(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("\\begin{")?;
    // The longest name has 14 letters; a page of braces that do not close is looked at once.
    let close = inner.bytes().take(16).position(|b| b == b'}')?;
    let name = &inner[..close];
    VERBATIM.contains(&name.trim_end_matches('*')).then_some(name)
}

/// Cuts `%` comments. A comment takes its line end along, as in TeX, so that it joins lines; a line that is only a
/// comment goes as a whole.
pub(super) fn without_comments(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    // The end of the environment around a line, where one is verbatim.
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

/// How far `line` is free of comments: up to its first `%` that starts one, up to the content of a verbatim environment
/// with its name, or all of it.
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
            // A backslash takes the next character along, so that `\%` is no comment.
            Command::Other("") => 1 + line[at + 1..].chars().next().map_or(0, char::len_utf8),
            Command::Other(name) => 1 + name.len(),
        };
    }
    (line.len(), None)
}

/// What is at a backslash.
pub(super) enum Command<'a> {
    /// A command with what it reads as letters, by the bytes of both.
    Literal(usize),
    /// Another, by its name of letters.
    Other(&'a str),
}

/// The command at the start of `text`, which is a backslash.
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

/// Bytes of `rest`, which follows command `name`, that the command reads as letters.
fn literal(name: &str, rest: &str) -> Option<usize> {
    let options = |from: usize| from + bracketed(&rest[from..], '[', ']').unwrap_or(0);
    let quoted = |from: usize| {
        let mark = rest[from..].chars().next()?;
        let behind = from + mark.len_utf8();
        Some(behind + rest[behind..].find(mark)? + mark.len_utf8())
    };
    let braced = |from: usize| bracketed(&rest[from..], '{', '}').map(|length| from + length);
    // A brace that nothing closes in this line is no mark.
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

/// Bytes of the group at the start of `text` with its brackets.
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

/// An address as it is shown: signs that papers escape in it stand for themselves.
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
