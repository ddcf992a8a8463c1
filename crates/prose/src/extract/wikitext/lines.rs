//! Line-level processing of a page: headings, lists, quotes, skipped sections.

/// Prefix of verbatim code lines.
pub(super) const VERBATIM: char = '\u{f8fd}';

/// Renders lines as plain text. Headings become `## text`, items `- text`; paragraphs are separated by an empty line.
pub(super) fn render(flat: &str, cut: &[String]) -> String {
    let mut out = String::with_capacity(flat.len());
    // Headings are held back until their section has text.
    let mut waiting: Vec<(usize, String)> = Vec::new();
    let mut skipping: Option<usize> = None;
    let mut gap = false;
    for line in flat.lines() {
        if let Some(code) = line.strip_prefix(VERBATIM) {
            if skipping.is_none() {
                open_section(&mut out, &mut waiting);
                out.push_str(code);
                out.push('\n');
            }
            continue;
        }
        let line = line.trim();
        if let Some((level, title)) = heading(line) {
            if skipping.is_some_and(|at| level > at) {
                continue;
            }
            let lower = title.to_lowercase();
            skipping = cut.contains(&lower).then_some(level);
            while waiting.last().is_some_and(|(above, _)| *above >= level) {
                waiting.pop();
            }
            if skipping.is_none() {
                waiting.push((level, title));
            }
            continue;
        }
        if skipping.is_some() {
            continue;
        }
        let text = plain(line);
        if text.is_empty() {
            gap = true;
            continue;
        }
        let had_heading = !waiting.is_empty();
        open_section(&mut out, &mut waiting);
        if gap && !had_heading && !out.is_empty() {
            out.push('\n');
        }
        gap = false;
        out.push_str(&text);
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out
}

fn open_section(out: &mut String, waiting: &mut Vec<(usize, String)>) {
    for (level, title) in waiting.drain(..) {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&"#".repeat(level));
        out.push(' ');
        out.push_str(&title);
        out.push_str("\n\n");
    }
}

/// `== title ==`.
fn heading(line: &str) -> Option<(usize, String)> {
    let level = line.bytes().take_while(|b| *b == b'=').count().min(6);
    let end = line.bytes().rev().take_while(|b| *b == b'=').count().min(6);
    let level = level.min(end);
    if level == 0 || line.len() <= 2 * level {
        return None;
    }
    let title = plain(line[level..line.len() - level].trim());
    (!title.is_empty()).then_some((level, title))
}

/// Removes list marks, quotes and magic words from a line, and collapses white space.
fn plain(line: &str) -> String {
    let marks = line.bytes().take_while(|b| matches!(b, b'*' | b'#' | b':' | b';')).count();
    let (marks, text) = line.split_at(marks);
    if text.starts_with("----") {
        return String::new();
    }
    let text = text.replace("'''''", "").replace("'''", "").replace("''", "");
    let text = without_magic_words(&text);
    let words: Vec<&str> = text.split_whitespace().collect();
    let joined = words.join(" ");
    // Removes leftovers of templates: empty brackets, and spaces before punctuation.
    let joined = joined.replace("( )", "").replace("()", "").replace("(, ", "(").replace("(; ", "(");
    let joined = joined.replace(" ,", ",").replace(" .", ".").replace("  ", " ");
    let joined = joined.trim();
    if joined.is_empty() || !joined.chars().any(char::is_alphanumeric) {
        return String::new();
    }
    if marks.ends_with(['*', '#']) { format!("- {joined}") } else { joined.to_string() }
}

/// Removes `__NOTOC__` and similar words.
fn without_magic_words(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("__") {
        let word = rest[at + 2..].bytes().take_while(u8::is_ascii_uppercase).count();
        if word > 1 && rest[at + 2 + word..].starts_with("__") {
            out.push_str(&rest[..at]);
            rest = &rest[at + 4 + word..];
        } else {
            out.push_str(&rest[..at + 2]);
            rest = &rest[at + 2..];
        }
    }
    out.push_str(rest);
    out
}
