//! Chunks of source code: whole functions and types while they fit, together with the comments in front of them. The
//! structure is read off indentation, so that one splitter serves every language.

use std::ops::Range;

use super::plain::split;
use super::{Chunk, heading};

/// First words of lines that declare a function or a type.
const DECLARES: [&str; 24] = [
    "fn",
    "pub",
    "def",
    "class",
    "func",
    "function",
    "struct",
    "enum",
    "trait",
    "impl",
    "interface",
    "type",
    "mod",
    "module",
    "namespace",
    "async",
    "export",
    "static",
    "const",
    "public",
    "private",
    "protected",
    "template",
    "object",
];

/// A line of code.
struct Line {
    range: Range<usize>,
    /// Width of its indentation; `None` for a blank line.
    indent: Option<usize>,
}

/// Chunks of source code.
pub fn code(text: &str, most: usize) -> Vec<Chunk> {
    let mut at = 0;
    let line = |line: &str| {
        let range = at..at + line.len();
        at = range.end;
        let body = line.trim_start_matches([' ', '\t']);
        let indent =
            line[..line.len() - body.len()].bytes().map(|byte| if byte == b'\t' { 4 } else { 1 }).sum();
        Line { range, indent: (!body.trim().is_empty()).then_some(indent) }
    };
    let lines: Vec<Line> = text.split_inclusive('\n').map(line).collect();
    let mut chunks = Vec::new();
    pack(text, &lines, most, &[], &mut chunks);
    chunks
}

/// Joins items to chunks, and splits those that are too large by their inner items.
fn pack(text: &str, lines: &[Line], most: usize, path: &[String], chunks: &mut Vec<Chunk>) {
    let mut open: Option<Chunk> = None;
    for item in items(text, lines) {
        let (Some(first), Some(last)) = (item.first(), item.last()) else { continue };
        let range = first.range.start..last.range.end;
        let name = name(text, item);
        if let Some(before) = &mut open
            && range.end - before.range.start <= most
        {
            before.range.end = range.end;
            before.name(path.len(), name);
            continue;
        }
        chunks.extend(open.take());
        let own: Vec<String> = path.iter().cloned().chain(name).collect();
        if range.len() <= most {
            open = Some(Chunk::of(range, &own));
        } else if let (true, [first, inner @ ..]) = (deeper(item), item) {
            // The declaration's own line begins its first part.
            let at = chunks.len();
            pack(text, inner, most, &own, chunks);
            match chunks.get_mut(at) {
                Some(chunk) if chunk.range.end - first.range.start <= most => {
                    chunk.range.start = first.range.start
                }
                _ => chunks.insert(at, Chunk::of(first.range.clone(), &own)),
            }
        } else {
            chunks.extend(split(text, range, most).into_iter().map(|range| Chunk::of(range, &own)));
        }
    }
    chunks.extend(open);
    for chunk in chunks.iter_mut() {
        let end = text[..chunk.range.end].trim_end().len();
        chunk.range.end = end.max(chunk.range.start);
    }
    chunks.retain(|chunk| !chunk.range.is_empty());
}

impl Chunk {
    /// Adds the name of a further item; the chunk stands under `depth` headings.
    fn name(&mut self, depth: usize, name: Option<String>) {
        match (self.headings.get_mut(depth), name) {
            (Some(own), Some(name)) => *own = heading(&format!("{own}; {name}")),
            (None, Some(name)) => self.headings.push(name),
            (_, None) => {}
        }
    }
}

/// Returns whether an item has lines that are indented more than its first one.
fn deeper(item: &[Line]) -> bool {
    let first = item.iter().find_map(|line| line.indent);
    item.len() > 1 && item.iter().any(|line| line.indent > first)
}

/// Items of the outermost level: each begins at a line with the smallest indentation that is neither the end of the
/// item before it nor preceded by a comment or an attribute of its own.
fn items<'a>(text: &str, lines: &'a [Line]) -> Vec<&'a [Line]> {
    let body = |line: &Line| text[line.range.clone()].trim();
    let ends = |line: &Line| {
        let body = body(line);
        let words = ["end", "else", "elif", "except", "finally", "catch"];
        body.starts_with(['}', ')', ']', '{']) || words.iter().any(|word| body.starts_with(word))
    };
    let Some(level) = lines.iter().filter(|line| !ends(line)).filter_map(|line| line.indent).min() else {
        return vec![lines];
    };
    let leads = |line: &Line| {
        let body = body(line);
        let marks = ["//", "#", "/*", "*", "@", "--", "\"\"\""];
        line.indent == Some(level) && marks.iter().any(|mark| body.starts_with(mark))
    };
    let mut starts = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if line.indent != Some(level) || ends(line) {
            continue;
        }
        if at == 0 || !leads(&lines[at - 1]) {
            starts.push(at);
        }
    }
    if starts.first() != Some(&0) {
        starts.insert(0, 0);
    }
    starts.push(lines.len());
    starts.windows(2).map(|pair| &lines[pair[0]..pair[1]]).collect()
}

/// The line that declares an item's function or type, if there is one.
fn name(text: &str, item: &[Line]) -> Option<String> {
    let declares = |line: &&str| {
        let word = line.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        DECLARES.contains(&word)
    };
    let lines = item.iter().take(40).map(|line| text[line.range.clone()].trim());
    let line = lines.into_iter().find(declares)?;
    Some(heading(line.trim_end_matches(['{', ':', ' '])))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUST: &str = "use a;\n\n/// Adds.\nfn add(a: u8) -> u8 {\n    a + 1\n}\n\nimpl Foo {\n    /// One.\n    fn one(&self) {\n        self.1();\n    }\n\n    fn two(&self) {}\n}\n";

    fn check(text: &str, most: usize, expected: &[(&str, &str)]) {
        let chunks = code(text, most);
        let found: Vec<(String, &str)> =
            chunks.iter().map(|chunk| (chunk.headings.join(" > "), &text[chunk.range.clone()])).collect();
        let found: Vec<(&str, &str)> = found.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn functions_stay_whole_with_their_comments() {
        check(
            RUST,
            70,
            &[
                ("fn add(a: u8) -> u8", "use a;\n\n/// Adds.\nfn add(a: u8) -> u8 {\n    a + 1\n}"),
                (
                    "impl Foo > fn one(&self)",
                    "impl Foo {\n    /// One.\n    fn one(&self) {\n        self.1();\n    }",
                ),
                ("impl Foo > fn two(&self) {}", "    fn two(&self) {}\n}"),
            ],
        );
        check(
            "def a():\n    x\n\n@b\ndef c():\n    y\n",
            20,
            &[("def a()", "def a():\n    x"), ("def c()", "@b\ndef c():\n    y")],
        );
    }

    #[test]
    fn a_line_longer_than_a_chunk_is_split() {
        let text = format!("let a = {};\n", "x + ".repeat(100));
        assert!(code(&text, 50).iter().all(|chunk| chunk.range.len() <= 50));
        assert!(code("\n\n", 50).is_empty());
    }
}
