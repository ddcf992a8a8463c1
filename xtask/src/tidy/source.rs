//! The facts about a Rust file that the rules use: which parts are tests, and which functions it has.

use std::ops::Range;

use super::lex::{Kind, Token, lex};

/// A Rust file.
pub struct Source<'a> {
    /// Path from the root of the repository, with `/`.
    pub path: &'a str,
    pub text: &'a str,
    /// Tokens, without comments.
    pub code: Vec<Token<'a>>,
    /// Parts of `code` that are compiled only for tests.
    tests: Vec<Range<usize>>,
    /// Path prefixes, without `.rs`, of modules that this file declares only for tests.
    pub test_modules: Vec<String>,
}

/// A function with a body.
#[derive(Debug, PartialEq)]
pub struct Function {
    pub name: String,
    pub line: usize,
    /// Number of lines from `fn` to the closing brace.
    pub lines: usize,
    /// Number of arguments, without `self`.
    pub arguments: usize,
}

impl<'a> Source<'a> {
    /// Parses a file's text.
    pub fn new(path: &'a str, text: &'a str) -> Self {
        let code = lex(text).into_iter().filter(|token| token.kind != Kind::Comment).collect();
        let mut source = Source { path, text, code, tests: Vec::new(), test_modules: Vec::new() };
        source.find_tests();
        source
    }

    /// True if the whole file is tests, judging by its name or folder.
    pub fn is_test_file(&self) -> bool {
        let (folders, name) = self.path.rsplit_once('/').unwrap_or(("", self.path));
        name == "tests.rs"
            || folders.split('/').any(|folder| matches!(folder, "tests" | "benches" | "examples"))
    }

    /// True if `code[index]` is inside a test item.
    pub fn in_test(&self, index: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&index))
    }

    /// Number of lines with code outside test items. Blank lines and comments do not count: otherwise a budget could be
    /// met by explaining less.
    pub fn code_lines(&self) -> usize {
        let (mut lines, mut last) = (0, 0);
        for (_, token) in self.code.iter().enumerate().filter(|&(at, _)| !self.in_test(at)) {
            let end = token.line + token.text.matches('\n').count();
            lines += (token.line.max(last + 1)..=end).count();
            last = end;
        }
        lines
    }

    /// All functions with a body, including nested ones and those in macros.
    pub fn functions(&self) -> Vec<Function> {
        let starts = (0..self.code.len()).filter(|&at| self.code[at].is("fn"));
        starts.filter_map(|at| self.function(at)).collect()
    }

    fn function(&self, at: usize) -> Option<Function> {
        let code = &self.code;
        let name = code.get(at + 1).filter(|token| token.kind == Kind::Word)?;
        let open = past_angles(code, at + 2);
        code.get(open).filter(|token| token.is("("))?;
        let close = close(code, open)?;
        let end = item_end(code, close + 1);
        code.get(end - 1).filter(|token| token.is("}"))?;
        let line = code[at].line;
        let lines = code[end - 1].line + 1 - line;
        Some(Function { name: name.text.into(), line, lines, arguments: arguments(&code[open + 1..close]) })
    }

    fn find_tests(&mut self) {
        let code = &self.code;
        let mut at = 0;
        while at < code.len() {
            let Some((inner, attribute, mut end)) = attribute(code, at) else {
                at += 1;
                continue;
            };
            if is_test(attribute) {
                while let Some((_, _, next)) = self::attribute(code, end) {
                    end = next;
                }
                end = if inner { code.len() } else { item_end(code, end) };
                self.tests.push(at..end);
                if let [.., word, name, semicolon] = &code[at..end]
                    && word.is("mod")
                    && semicolon.is(";")
                {
                    self.test_modules.push(format!("{}/{}", module_folder(self.path), name.text));
                }
            }
            at = end;
        }
    }
}

/// The attribute that begins at `code[at]`: whether it is an inner attribute, the tokens in its brackets, and its end.
pub fn attribute<'c, 'a>(code: &'c [Token<'a>], at: usize) -> Option<(bool, &'c [Token<'a>], usize)> {
    code.get(at).filter(|token| token.is("#"))?;
    let inner = code.get(at + 1)?.is("!");
    let open = at + 1 + usize::from(inner);
    code.get(open).filter(|token| token.is("["))?;
    let close = close(code, open)?;
    Some((inner, &code[open + 1..close], close + 1))
}

/// True if an attribute restricts its item to test builds: `test`, `tokio::test`, `cfg(test)`, `cfg(all(test, ..))`.
fn is_test(attribute: &[Token]) -> bool {
    let has = |text: &str| attribute.iter().any(|token| token.is(text));
    match attribute {
        [first, ..] if first.is("cfg") => has("test") && !has("not") && !has("any"),
        [.., last] => last.is("test"),
        [] => false,
    }
}

/// The folder with the child modules of the module in a file.
fn module_folder(path: &str) -> &str {
    let (folder, name) = path.rsplit_once('/').unwrap_or((".", path));
    if matches!(name, "mod.rs" | "lib.rs" | "main.rs") { folder } else { path.trim_end_matches(".rs") }
}

/// Index of the bracket that closes the one at `open`.
fn close(code: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, token) in code.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// By how much a token of a type changes the depth in angle brackets; the `>` of `->` does not.
fn angle(code: &[Token], at: usize) -> isize {
    if code[at].is("<") {
        return 1;
    }
    -isize::from(code[at].is(">") && !(at > 0 && code[at - 1].is("-")))
}

/// Index after the generic parameters that begin at `at`, or `at` if there are none.
fn past_angles(code: &[Token], at: usize) -> usize {
    let mut depth = 0;
    for index in at..code.len() {
        depth += angle(code, index);
        if depth == 0 {
            return if index == at { at } else { index + 1 };
        }
    }
    at
}

/// Index after the item that `code[at]` belongs to: after its `;`, or after the braces of its body.
fn item_end(code: &[Token], mut at: usize) -> usize {
    let mut depth = 0;
    while at < code.len() {
        match code[at].text {
            ";" => return at + 1,
            "{" if depth <= 0 => return close(code, at).map_or(code.len(), |end| end + 1),
            "(" | "[" | "{" => at = close(code, at).unwrap_or(code.len()),
            _ => depth += angle(code, at),
        }
        at += 1;
    }
    code.len()
}

/// Number of arguments between a function's parentheses, without `self`; those in a tuple count each.
fn arguments(code: &[Token]) -> usize {
    parts(code).map(leaves).sum()
}

/// Splits tokens at the commas between them.
fn parts<'a, 't>(code: &'a [Token<'t>]) -> impl Iterator<Item = &'a [Token<'t>]> {
    let (mut at, mut depth, mut from, mut ends) = (0, 0, 0, Vec::new());
    while at < code.len() {
        match code[at].text {
            "(" | "[" | "{" => at = close(code, at).unwrap_or(code.len()),
            "," if depth == 0 => {
                ends.push((from, at));
                from = at + 1;
            }
            _ => depth += angle(code, at),
        }
        at += 1;
    }
    ends.push((from, code.len()));
    ends.into_iter().map(|(from, to)| &code[from..to]).filter(|part| !part.is_empty())
}

/// Number of arguments in one: several if its pattern or its type is a tuple.
fn leaves(argument: &[Token]) -> usize {
    let first = argument.iter().find(|token| token.kind == Kind::Word && token.text != "mut");
    if first.is_some_and(|token| token.is("self")) {
        return 0;
    }
    let colon = |at: &usize| argument[*at].is(":");
    let typed = (0..argument.len()).find(colon).map_or(0, |at| at + 1);
    let inner = |from: usize| {
        let open = argument.get(from).filter(|token| token.is("("))?;
        close(argument, from).filter(|_| open.is("(")).map(|end| arguments(&argument[from + 1..end]))
    };
    inner(0).or_else(|| inner(typed)).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function's name, number of lines and number of arguments.
    type Measure<'a> = (&'a str, usize, usize);

    fn measure(text: &str, expected: &[Measure]) {
        let functions = Source::new("crates/a/src/b.rs", text).functions();
        let found: Vec<Measure> = functions.iter().map(|f| (f.name.as_str(), f.lines, f.arguments)).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn functions_are_measured_from_signature_to_brace() {
        let cases: [(&str, &[Measure]); 9] = [
            ("fn a() {}", &[("a", 1, 0)]),
            ("pub(crate) fn a(\n  x: u8,\n  y: u8,\n) {\n}", &[("a", 5, 2)]),
            (
                "fn a<F: Fn(u8, u8) -> u8, const N: usize>(f: F, m: Map<K, V>) -> R<{ N }> where F: X {}",
                &[("a", 1, 2)],
            ),
            (
                "impl T { fn a(&'a mut self, (x, y): (u8, u8)) {\n fn b(s: [u8; 2]) {\n} } }",
                &[("a", 3, 2), ("b", 2, 1)],
            ),
            ("trait T { fn a(&self, x: u8); fn b(self: Arc<Self>) {} }", &[("b", 1, 0)]),
            ("type F = fn(u8); extern \"C\" { fn c(x: u8); } struct S { f: unsafe fn(u8) }", &[]),
            ("macro_rules! m { ($n:ident) => { fn $n(x: u8) {} fn d(#[cfg(x)] y: u8) {} } }", &[("d", 1, 1)]),
            ("fn a(x: (u8, &[u8]), ((y, z), w): B, f: impl Fn((u8, u8)), _: ()) {}", &[("a", 1, 7)]),
            ("fn a(f: &dyn Fn(u8) -> Vec<u8>, x: &mut [u8],) -> [u8; 3] { \"}\" }", &[("a", 1, 2)]),
        ];
        for (text, expected) in cases {
            measure(text, expected);
        }
    }

    #[test]
    fn test_items_are_found() {
        let text = "fn a() { x }\n#[cfg(test)]\nmod cases;\n#[cfg(not(test))] fn b() { x }\n#[test]\n\
                    #[should_panic]\nfn c() -> R<{ 1 }> {\n x\n}\n\nfn d() { x }\n#[cfg(all(test, unix))] use x::{y};\n";
        let source = Source::new("crates/a/src/b.rs", text);
        let lines = |test| {
            let found =
                (0..source.code.len()).filter(|&at| source.code[at].is("x") && source.in_test(at) == test);
            found.map(|at| source.code[at].line).collect::<Vec<_>>()
        };
        assert_eq!(lines(true), [8, 12]);
        assert_eq!(lines(false), [1, 4, 11]);
        assert_eq!(source.test_modules, ["crates/a/src/b/cases"]);
        assert!(Source::new("a.rs", "#![cfg(test)] fn f() { x }").in_test(9));
    }

    #[test]
    fn lines_of_code_are_neither_blank_nor_comment_nor_test() {
        let cases = [
            ("", 0),
            ("//! A.\n\nfn a() { // x\n    /* y\n */\n}\n", 2),
            ("a \"1\n\n3\" b\nc", 4),
            ("a\n#[test]\nfn b() {\n}\nc", 2),
        ];
        for (text, expected) in cases {
            assert_eq!(Source::new("a.rs", text).code_lines(), expected, "{text}");
        }
    }

    #[test]
    fn broken_text_ends() {
        for text in
            ["fn", "fn a", "fn a<", "fn a(", "fn a()", "fn a() {", "#", "#[", "#[test]", "#[test", ")", ""]
        {
            let source = Source::new("a.rs", text);
            source.functions();
            source.code_lines();
        }
    }
}
