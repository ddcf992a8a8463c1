//! Size limits: the contents of `xtask/budget.toml`, and the counts compared with it.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::source::Source;
use super::violation::Violation;

/// The file `xtask/budget.toml`; its comments explain each entry.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    file_lines: usize,
    function_lines: usize,
    function_arguments: usize,
    argument_exceptions: Vec<Exception>,
    /// Maximum number of lines by page.
    pub pages: BTreeMap<String, usize>,
    crate_lines: BTreeMap<String, usize>,
    /// Maximum size of the binary in MiB.
    pub binary_mib: u64,
}

/// Functions by patterns in which `*` matches any text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    file: String,
    function: String,
}

impl Budget {
    /// Parses the text of the file.
    ///
    /// # Errors
    /// A message with the line of the mistake.
    pub fn parse(text: &str) -> Result<Budget, String> {
        toml::from_str(text).map_err(|error| format!("xtask/budget.toml: {error}"))
    }

    /// Checks the length of a file and the lengths and signatures of its functions, including tests.
    pub fn check_rust(&self, source: &Source) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut violation = |line, message| found.push(Violation::new(source.path, line, message));
        let lines = source.text.lines().count();
        if lines > self.file_lines {
            violation(lines, format!("file of {lines} lines, the budget is {}", self.file_lines));
        }
        for function in source.functions() {
            let (name, line) = (&function.name, function.line);
            if function.lines > self.function_lines {
                let (has, most) = (function.lines, self.function_lines);
                violation(line, format!("function {name} of {has} lines, the budget is {most}"));
            }
            let excepted = self
                .argument_exceptions
                .iter()
                .any(|exception| matches(&exception.file, source.path) && matches(&exception.function, name));
            if function.arguments > self.function_arguments && !excepted {
                let (has, most) = (function.arguments, self.function_arguments);
                violation(line, format!("function {name} of {has} arguments, the budget is {most}"));
            }
        }
        found
    }

    /// Checks the size of every crate, counted over its non-test files.
    pub fn check_crates(&self, sources: &[&Source]) -> Vec<Violation> {
        let mut sizes = BTreeMap::<&str, usize>::new();
        for source in sources {
            let path = source.path.strip_prefix("crates/").unwrap_or(source.path);
            if let Some((name, rest)) = path.split_once('/')
                && rest.starts_with("src/")
            {
                *sizes.entry(name).or_default() += source.code_lines();
            }
        }
        let gone = |name: &&String| !sizes.contains_key(name.as_str());
        let gone = self
            .crate_lines
            .keys()
            .filter(gone)
            .map(|name| format!("crate {name} is none, and has a budget"));
        let gone: Vec<String> = gone.collect();
        let over = |(name, lines): (&str, usize)| match self.crate_lines.get(name) {
            Some(&most) if lines <= most => None,
            Some(most) => Some(format!("crate {name} of {lines} lines of code, the budget is {most}")),
            None => Some(format!("crate {name} has no line budget")),
        };
        let over = sizes.into_iter().filter_map(over);
        over.chain(gone).map(|message| Violation::new("xtask/budget.toml", 1, message)).collect()
    }
}

/// Checks the length of a required page of the repository.
pub fn check_page(path: &str, text: Option<&str>, most: usize) -> Option<Violation> {
    let lines = text.map(|text| text.lines().count());
    match lines {
        None => Some(Violation::new(path, 1, "page is missing")),
        Some(lines) if lines > most => {
            Some(Violation::new(path, lines, format!("page of {lines} lines, the budget is {most}")))
        }
        Some(_) => None,
    }
}

/// Checks the size of the binary, if it has been built.
pub fn check_binary(path: &str, bytes: Option<u64>, most_mib: u64) -> Option<Violation> {
    let bytes = bytes.filter(|bytes| *bytes > most_mib << 20)?;
    let mib = bytes as f64 / (1u64 << 20) as f64;
    Some(Violation::new(path, 1, format!("binary of {mib:.1} MiB, the budget is {most_mib}")))
}

/// True if `text` matches `pattern`, in which each `*` matches any text.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|tail| {
            let mut ends = (0..=tail.len()).filter(|&at| tail.is_char_boundary(at));
            ends.any(|at| matches(rest, &tail[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> Budget {
        let text = r#"
            file_lines = 5
            function_lines = 2
            function_arguments = 1
            binary_mib = 150
            argument_exceptions = [{ file = "crates/cpu/*.rs", function = "tile_*" }]
            [pages]
            [crate_lines]
            cpu = 3
        "#;
        Budget::parse(text).unwrap()
    }

    fn check(path: &str, text: &str, expected: &[&str]) {
        let source = Source::new(path, text);
        let mut found = budget().check_rust(&source);
        found.extend(budget().check_crates(&[&source]));
        let found: Vec<String> = found.iter().map(|v| format!("{}: {}", v.line, v.message)).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn sizes_are_held() {
        let cpu = "crates/cpu/src/k/a.rs";
        check(cpu, "fn tile_a(x: u8, y: u8) {}", &[]);
        check(cpu, "fn a(x: u8, y: u8) {}", &["1: function a of 2 arguments, the budget is 1"]);
        check(cpu, "\nfn a() {\n\n}", &["2: function a of 3 lines, the budget is 2"]);
        check(cpu, "\n\n\n\n\n\n", &["6: file of 6 lines, the budget is 5"]);
        check(cpu, "a\nb\nc\nd", &["1: crate cpu of 4 lines of code, the budget is 3"]);
        check(cpu, "a\n\nb\n#[cfg(test)]\nmod t {}", &[]);
        let gone = "1: crate cpu is none, and has a budget";
        check("crates/new/src/lib.rs", "a", &["1: crate new has no line budget", gone]);
        check("crates/new/tests/it.rs", "a", &[gone]);
    }

    #[test]
    fn pages_are_held() {
        assert_eq!(check_page("A.md", Some("a\nb\n"), 2), None);
        assert_eq!(check_page("A.md", Some("a\nb\nc"), 2).unwrap().line, 3);
        assert_eq!(check_page("A.md", None, 2).unwrap().message, "page is missing");
    }

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, text, expected) in [
            ("a*c*", "abcd", true),
            ("a*c", "abcd", false),
            ("*", "", true),
            ("a", "ab", false),
            ("*.rs", "é.rs", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_binary_has_a_size() {
        let check = |bytes| check_binary("target/release/fathom", bytes, 150).map(|found| found.message);
        assert_eq!([check(None), check(Some(150 << 20))], [None, None]);
        let found = check(Some(293_000_000)).unwrap_or_default();
        assert_eq!(found, "binary of 279.4 MiB, the budget is 150");
    }
}
