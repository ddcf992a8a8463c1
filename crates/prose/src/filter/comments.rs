//! Comments of source code: how many characters of a file speak to people.
//!
//! A lexer walks strings and comments of one language family; it parses nothing, so a file with a fault of grammar
//! still counts. Text that ends inside a string or a block comment is damaged.

use serde::{Deserialize, Serialize};

/// How comments and strings are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommentStyle {
    /// `#` and docstrings.
    Python,
    /// `//` and `/* */`: C, C++, Java, Go, JavaScript, Rust.
    C,
    /// `#`: shell, Ruby, Perl, TOML.
    Hash,
    /// `<!-- -->`: HTML, XML.
    Markup,
}

impl CommentStyle {
    /// The style of a mime type as Curator's filter names languages.
    pub fn from_mime(mime: &str) -> Option<CommentStyle> {
        Some(match mime {
            "text/x-python" => CommentStyle::Python,
            "text/x-c"
            | "text/x-c++"
            | "text/x-go"
            | "text/x-java"
            | "text/x-java-source"
            | "text/x-javascript"
            | "application/javascript"
            | "text/x-rust" => CommentStyle::C,
            "text/x-ruby" | "text/x-shellscript" | "text/x-perl" => CommentStyle::Hash,
            "text/html" | "text/xml" => CommentStyle::Markup,
            _ => return None,
        })
    }

    /// Characters of comments in `source`; `None` when the text ends inside a string or comment.
    ///
    /// Python: comments with their `#`, docstrings with their indentation removed, a character between two docstrings.
    /// Others: without the marks, a character between two comments.
    pub fn comment_chars(self, source: &str) -> Option<usize> {
        match self {
            CommentStyle::Python => python(source),
            CommentStyle::C => marked(source, &["//"], Some(("/*", "*/")), b"\"'`"),
            CommentStyle::Hash => marked(source, &["#"], None, b"\"'"),
            CommentStyle::Markup => marked(source, &[], Some(("<!--", "-->")), b""),
        }
    }
}

fn chars(text: &str) -> usize {
    super::unicode::count_chars(text.as_bytes())
}

fn marked(source: &str, line: &[&str], block: Option<(&str, &str)>, quotes: &[u8]) -> Option<usize> {
    let bytes = source.as_bytes();
    let (mut at, mut total, mut comments) = (0, 0, 0usize);
    while at < bytes.len() {
        let rest = &source.as_bytes()[at..];
        if let Some(mark) = line.iter().find(|m| rest.starts_with(m.as_bytes())) {
            let end = memchr::memchr(b'\n', rest).map_or(bytes.len(), |n| at + n);
            total += chars(&source[at + mark.len()..end]);
            comments += 1;
            at = end;
        } else if let Some((open, close)) = block.filter(|(open, _)| rest.starts_with(open.as_bytes())) {
            let from = at + open.len();
            let len = memchr::memmem::find(&bytes[from..], close.as_bytes())?;
            total += chars(&source[from..from + len]);
            comments += 1;
            at = from + len + close.len();
        } else if quotes.contains(&rest[0]) {
            at = string_end(bytes, at, rest[0]);
        } else {
            at += 1;
        }
    }
    Some(total + comments.saturating_sub(1))
}

/// The end of a string that opens at `at`: its closing quote, or the end of the line where a quote was only an
/// apostrophe (lifetimes, shell text).
fn string_end(bytes: &[u8], at: usize, quote: u8) -> usize {
    let mut i = at + 1;
    while i < bytes.len() {
        match bytes[i] {
            b'\\' => i += 1,
            b'\n' if quote != b'`' => return i,
            b if b == quote => return i + 1,
            _ => {}
        }
        i += 1;
    }
    bytes.len()
}

/// Where a Python string ends and its contents, from its opening quote; `None` when it does not end.
fn python_string(source: &str, at: usize) -> Option<(usize, &str)> {
    let bytes = source.as_bytes();
    let quote = bytes[at];
    let triple = bytes[at..].starts_with(&[quote; 3]);
    let open = if triple { 3 } else { 1 };
    let mut i = at + open;
    while i < bytes.len() {
        match bytes[i] {
            b'\\' => i += 1,
            b'\n' if !triple => return None,
            b if b == quote && (!triple || bytes[i..].starts_with(&[quote; 3])) => {
                return Some((i + open, &source[at + open..i]));
            }
            _ => {}
        }
        i += 1;
    }
    None
}

fn python(source: &str) -> Option<usize> {
    let bytes = source.as_bytes();
    let (mut at, mut depth, mut comments) = (0usize, 0usize, 0);
    let mut docstrings: Vec<usize> = Vec::new();
    // A docstring is the first statement of the file, or the one after a line `class ..:` or `def ..:`.
    let (mut expects_doc, mut line_start, mut heads, mut last) = (true, true, false, b'\n');
    while at < bytes.len() {
        match bytes[at] {
            b'#' => {
                let end = memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |n| at + n);
                comments += chars(&source[at..end]);
                at = end;
                continue;
            }
            b'\n' if depth == 0 => {
                if !line_start {
                    expects_doc = heads && last == b':';
                }
                (line_start, heads) = (true, if line_start { heads } else { false });
            }
            b'\\' => at += 1,
            b' ' | b'\t' | b'\r' | 0x0c | b'\n' => {}
            b'"' | b'\'' => {
                let (end, inside) = python_string(source, at)?;
                if expects_doc && line_start && depth == 0 {
                    docstrings.push(clean_indent(inside));
                    expects_doc = false;
                }
                (line_start, last, at) = (false, b'"', end);
                continue;
            }
            b => {
                if line_start {
                    let word = source[at..].trim_start_matches("async ");
                    heads = ["def ", "class "].iter().any(|k| word.starts_with(k));
                    let prefix = is_string_prefix(&bytes[at..]);
                    expects_doc &= prefix;
                    line_start = prefix;
                }
                match b {
                    b'(' | b'[' | b'{' => depth += 1,
                    b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
                    _ => {}
                }
                last = b;
            }
        }
        at += 1;
    }
    let between = docstrings.len().saturating_sub(1);
    (depth == 0).then_some(comments + docstrings.iter().sum::<usize>() + between)
}

/// Whether a string with a prefix (`r"`, `b'`, `Rb"`) opens here.
fn is_string_prefix(bytes: &[u8]) -> bool {
    let letters = bytes.iter().take(3).take_while(|b| b"rRbBuUfF".contains(b)).count();
    (1..3).contains(&letters) && matches!(bytes.get(letters), Some(b'"' | b'\''))
}

/// Characters of a docstring when its common indentation and blank ends are removed (PEP 257).
fn clean_indent(doc: &str) -> usize {
    let lines: Vec<&str> = doc.split('\n').collect();
    let indent = |l: &str| l.len() - l.trim_start().len();
    let margin = lines.iter().skip(1).filter(|l| !l.trim().is_empty()).map(|l| indent(l)).min().unwrap_or(0);
    let cut: Vec<&str> = lines
        .iter()
        .enumerate()
        .map(|(i, l)| if i == 0 { l.trim_start() } else { l.get(margin..).unwrap_or("") })
        .collect();
    let first = cut.iter().position(|l| !l.trim().is_empty()).unwrap_or(cut.len());
    let last = cut.iter().rposition(|l| !l.trim().is_empty()).map_or(first, |i| i + 1);
    let kept = &cut[first..last];
    kept.iter().map(|l| chars(l)).sum::<usize>() + kept.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_of_each_style() {
        let check = |style: CommentStyle, source: &str, expected: Option<usize>| {
            assert_eq!(style.comment_chars(source), expected, "{source}");
        };
        check(CommentStyle::C, "int a; // two\n/* four */ \"// not\"", Some(4 + 6 + 1));
        check(CommentStyle::C, "/* never closed", None);
        check(CommentStyle::Hash, "echo '#no' # yes\n", Some(4));
        check(CommentStyle::Markup, "<p><!-- hi --></p>", Some(4));
        check(CommentStyle::Python, "\"\"\"Module.\"\"\"\nx = 1  # one\n", Some(7 + 5));
        check(
            CommentStyle::Python,
            "def f(a,\n      b):\n    '''Two\n    lines.'''\n    return '# no'\n",
            Some(10),
        );
        check(CommentStyle::Python, "x = 'not a doc'\n", Some(0));
        check(CommentStyle::Python, "x = \"\"\"open", None);
        check(CommentStyle::Python, "x = (1", None);
    }
}
