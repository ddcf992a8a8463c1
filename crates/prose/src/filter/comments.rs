//! Comments of source code: number of characters in comments and docstrings.
//!
//! A lexer recognizes the strings and comments of a language family without parsing, so files with syntax errors can
//! be measured. Text that ends inside a string or a block comment is damaged.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How comments and strings are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommentStyle {
    /// The language that each file's extension names; files of other extensions are not measured.
    Auto,
    /// `#` and docstrings.
    Python,
    /// `//` and `/* */`: C, C++, Java, Go, JavaScript, Rust.
    C,
    /// `#`: shell, Ruby, Perl, Julia.
    Hash,
    /// `<!-- -->`: HTML, XML.
    Markup,
    /// `//`, `#` and `/* */`: PHP.
    Php,
    /// `--` and `/* */`.
    Sql,
    /// `--` and `--[[ ]]`.
    Lua,
    /// `--` and `{- -}`: Haskell, Elm.
    Haskell,
    /// `;` and `#| |#`: Lisp, Scheme, Clojure; assemblers.
    Lisp,
    /// `%`: TeX, Erlang.
    Tex,
}

/// Comment and string delimiters of a style.
struct Marks {
    line: &'static [&'static str],
    block: Option<(&'static str, &'static str)>,
    quotes: &'static [u8],
    /// True if a backslash outside of strings escapes the next character.
    escapes: bool,
}

/// Extensions or complete names of programs, in lower case, by style. Markup, styles and settings are legitimately
/// written without comments, so `auto` excludes them.
const FILES: &[(CommentStyle, &[&str])] = &[
    (CommentStyle::Python, &["py", "pyi", "pyw", "pyx", "pxd", "bzl", "sconstruct"]),
    (
        CommentStyle::C,
        &[
            "c", "h", "cc", "cpp", "cxx", "c++", "hh", "hpp", "hxx", "inl", "cu", "cuh", "mm", "java", "kt",
            "kts", "scala", "groovy", "gradle", "go", "rs", "swift", "dart", "zig", "sv", "d", "cs", "js",
            "mjs", "cjs", "jsx", "ts", "mts", "cts", "tsx", "glsl", "vert", "frag", "hlsl", "metal", "wgsl",
            "sol",
        ],
    ),
    (
        CommentStyle::Hash,
        &[
            "sh",
            "bash",
            "zsh",
            "fish",
            "ksh",
            "rb",
            "rake",
            "gemspec",
            "pl",
            "pm",
            "tcl",
            "r",
            "jl",
            "ex",
            "exs",
            "nim",
            "cr",
            "coffee",
            "awk",
            "sed",
            "mk",
            "cmake",
            "ps1",
            "makefile",
            "dockerfile",
            "rakefile",
            "gemfile",
        ],
    ),
    (CommentStyle::Php, &["php", "phtml"]),
    (CommentStyle::Sql, &["sql", "ddl"]),
    (CommentStyle::Lua, &["lua"]),
    (CommentStyle::Haskell, &["hs", "elm", "purs", "agda", "idr"]),
    (CommentStyle::Lisp, &["lisp", "lsp", "el", "scm", "rkt", "clj", "cljs", "cljc", "asm"]),
];

impl CommentStyle {
    /// Style of a file by its extension, or by its complete name if it has no extension (`Makefile`). `path` may be a
    /// bare extension. `None` for data, prose, markup and unknown languages.
    pub fn of_file(path: &str) -> Option<CommentStyle> {
        let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
        let extension = extension(&name);
        let find =
            |wanted: &str| FILES.iter().find(|(_, names)| names.contains(&wanted)).map(|(style, _)| *style);
        find(&name).or_else(|| find(extension))
    }

    /// Style for reading `path`; `None` if `auto` does not know it.
    pub(super) fn for_file(self, path: &str) -> Option<CommentStyle> {
        match self {
            CommentStyle::Auto => CommentStyle::of_file(path),
            style => Some(style),
        }
    }

    /// Number of characters of comments in `source`; `None` if the text ends inside a string or comment, and for
    /// `auto`, which must first be resolved by a file's name.
    ///
    /// Python: comments including their `#`, docstrings without their indentation, plus one character between two
    /// docstrings. Others: without the delimiters, plus one character between two comments.
    pub fn comment_chars(self, source: &str) -> Option<usize> {
        let of = |line, block, quotes, escapes| marked(source, &Marks { line, block, quotes, escapes });
        let c_block = Some(("/*", "*/"));
        match self {
            CommentStyle::Auto => None,
            CommentStyle::Python => python(source),
            CommentStyle::C => of(&["//"], c_block, b"\"'`", false),
            CommentStyle::Hash => of(&["#"], None, b"\"'", true),
            CommentStyle::Markup => of(&[], Some(("<!--", "-->")), b"", false),
            CommentStyle::Php => of(&["//", "#"], c_block, b"\"'`", false),
            CommentStyle::Sql => of(&["--"], c_block, b"\"'", false),
            CommentStyle::Lua => of(&["--"], Some(("--[[", "]]")), b"\"'", false),
            CommentStyle::Haskell => of(&["--"], Some(("{-", "-}")), b"\"", false),
            CommentStyle::Lisp => of(&[";"], Some(("#|", "|#")), b"\"", true),
            CommentStyle::Tex => of(&["%"], None, b"", true),
        }
    }
}

/// Part of a path after the last dot of its last component, or the whole component.
pub(super) fn extension(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.rsplit('.').next().unwrap_or(name)
}

fn chars(text: &str) -> usize {
    super::unicode::count_chars(text.as_bytes())
}

fn marked(source: &str, marks: &Marks) -> Option<usize> {
    let bytes = source.as_bytes();
    let (mut at, mut total, mut comments) = (0, 0, 0usize);
    while at < bytes.len() {
        let rest = &bytes[at..];
        // Lua's block comment begins with its line comment mark.
        if let Some((open, close)) = marks.block.filter(|(open, _)| rest.starts_with(open.as_bytes())) {
            let from = at + open.len();
            let len = memchr::memmem::find(&bytes[from..], close.as_bytes())?;
            total += chars(&source[from..from + len]);
            comments += 1;
            at = from + len + close.len();
        } else if let Some(mark) = marks.line.iter().find(|m| rest.starts_with(m.as_bytes())) {
            let end = memchr::memchr(b'\n', rest).map_or(bytes.len(), |n| at + n);
            total += chars(&source[at + mark.len()..end]);
            comments += 1;
            at = end;
        } else if marks.quotes.contains(&rest[0]) {
            at = string_end(bytes, at, rest[0]);
        } else {
            at += if marks.escapes && rest[0] == b'\\' { 2 } else { 1 };
        }
    }
    Some(total + comments.saturating_sub(1))
}

/// End of a string that opens at `at`: its closing quote, or the end of the line if the quote was only an apostrophe
/// (lifetimes, shell text).
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

/// End and contents of a Python string, from its opening quote; `None` if it does not end.
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

/// Returns true if a string with a prefix (`r"`, `b'`, `Rb"`) opens here.
fn is_string_prefix(bytes: &[u8]) -> bool {
    let letters = bytes.iter().take(3).take_while(|b| b"rRbBuUfF".contains(b)).count();
    (1..3).contains(&letters) && matches!(bytes.get(letters), Some(b'"' | b'\''))
}

/// Number of characters of a docstring without its common indentation and blank ends (PEP 257).
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
        check(CommentStyle::Hash, "echo \\# no # yes\n", Some(4));
        check(CommentStyle::Sql, "select 1 -- one\n/* two */", Some(4 + 5 + 1));
        check(CommentStyle::Lua, "x = 1 -- one\n--[[ two\nmore ]]", Some(4 + 10 + 1));
        check(CommentStyle::Tex, "5\\% of it % yes", Some(4));
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
    #[test]
    fn styles_go_by_the_name_of_the_file() {
        for (path, style) in [
            ("src/a.PY", Some(CommentStyle::Python)),
            ("a.b/main.rs", Some(CommentStyle::C)),
            ("rs", Some(CommentStyle::C)),
            ("docker/Makefile", Some(CommentStyle::Hash)),
            ("Dockerfile", Some(CommentStyle::Hash)),
            ("index.html", None),
            ("notes.txt", None),
            ("data.json", None),
            ("", None),
        ] {
            assert_eq!(CommentStyle::of_file(path), style, "{path}");
        }
        let mut seen = std::collections::BTreeSet::new();
        assert!(FILES.iter().flat_map(|(_, names)| *names).all(|name| seen.insert(*name)));
    }
}
