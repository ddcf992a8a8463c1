//! Tests that a manifest disables (`test = false`, `doctest = false`): there must be none, since they would be skipped
//! silently.

use serde_json::Value;

use super::source::Source;
use super::violation::Violation;

/// Checks the libraries of the workspace.
pub fn check(metadata: &Value, sources: &[Source<'_>]) -> Vec<Violation> {
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    let mut found = Vec::new();
    for target in all(metadata, "packages").flat_map(|package| all(package, "targets")) {
        let kinds: Vec<&str> = all(target, "kind").filter_map(Value::as_str).collect();
        if !kinds.iter().any(|kind| kind.ends_with("lib")) {
            continue;
        }
        let path = target["src_path"].as_str().unwrap_or_default();
        let path = path.strip_prefix(root).unwrap_or(path).trim_start_matches('/');
        let Some((folder, _)) = path.rsplit_once('/') else { continue };
        for source in sources.iter().filter(|source| within(source.path, folder)) {
            let test = source.text.lines().position(|line| line.trim() == "#[test]");
            for (flag, at) in [("test", test), ("doctest", example(source.text))] {
                let at = at.filter(|_| target[flag] == false);
                let message = format!("is not run: the manifest has `{flag} = false`");
                found.extend(at.map(|at| Violation::new(source.path, at + 1, message)));
            }
        }
    }
    found
}

fn all<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn within(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// The first line of a code block in documentation that rustdoc runs.
fn example(text: &str) -> Option<usize> {
    let mut open = false;
    text.lines().position(|line| {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or(line.strip_prefix("//!"));
        let Some(mark) = doc.and_then(|doc| doc.trim_start().strip_prefix("```")) else { return false };
        open = !open;
        let runs =
            |word: &str| matches!(word.trim(), "" | "rust" | "no_run" | "should_panic" | "compile_fail");
        open && mark.split(',').any(runs)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names(flags: [bool; 2], text: &str) -> Vec<usize> {
        let target = json!({ "kind": ["lib"], "src_path": "/r/crates/x/src/lib.rs", "test": flags[0], "doctest": flags[1] });
        let metadata = json!({ "workspace_root": "/r", "packages": [{ "targets": [target] }] });
        let sources = ["crates/x/src/a/b.rs", "crates/xy/src/lib.rs"].map(|path| Source::new(path, text));
        let found = check(&metadata, &sources);
        assert!(found.iter().all(|violation| violation.path == "crates/x/src/a/b.rs"));
        found.into_iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn tests_that_nothing_runs_are_named() {
        let text = "//! ```text\n//! a\n//! ```\n\n/// ```\n/// b();\n/// ```\nfn b() {}\n    #[test]\n";
        assert_eq!(names([true, true], text), [0; 0]);
        assert_eq!(names([false, true], text), [9]);
        assert_eq!(names([true, false], text), [5]);
        assert_eq!(names([true, false], "/// ```text\n/// a\n/// ```\n"), [0; 0]);
    }
}
