//! `cargo xtask tidy`: checks the size budgets and dependency rules of the design. Reads the work tree as it is.

mod arrows;
mod budget;
mod circles;
mod idle;
mod lex;
mod rules;
mod source;
mod violation;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use budget::Budget;
use source::Source;
use violation::Violation;

/// Runs every check. Returns the violations, each `file:line: message`, ordered by file and line.
///
/// # Errors
/// A message when the repository cannot be read or `cargo metadata` fails.
pub fn run() -> Result<Vec<String>, String> {
    let metadata = arrows::metadata()?;
    let root = metadata["workspace_root"].as_str().ok_or("cargo metadata names no workspace_root")?;
    let root = PathBuf::from(root);
    let budget = Budget::parse(&read(&root.join("xtask/budget.toml"))?)?;
    let mut paths = Vec::new();
    walk(&root, &root, &mut paths)?;
    paths.sort();
    let mut found = check(&root, &paths, &budget, &metadata)?;
    let target = metadata["target_directory"].as_str().ok_or("cargo metadata names no target_directory")?;
    let built = fs::metadata(Path::new(target).join("release/fathom")).ok().map(|file| file.len());
    found.extend(budget::check_binary("target/release/fathom", built, budget.binary_mib));
    found.sort();
    Ok(found.into_iter().map(|v| format!("{}:{}: {}", v.path, v.line, v.message)).collect())
}

fn check(root: &Path, paths: &[String], budget: &Budget, metadata: &Value) -> Result<Vec<Violation>, String> {
    let mut found = arrows::check(metadata, &|path| read(&root.join(path)))?;
    let mut rust = Vec::new();
    for path in paths {
        // Files that are not UTF-8 are data.
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        found.extend(rules::check_text(path, &text));
        if path.ends_with(".rs") {
            rust.push((path.as_str(), text));
        }
    }
    let sources: Vec<Source> = rust.iter().map(|(path, text)| Source::new(path, text)).collect();
    found.extend(idle::check(metadata, &sources));
    let test_modules: Vec<&String> = sources.iter().flat_map(|source| &source.test_modules).collect();
    let is_test = |source: &Source| {
        let declared = |module: &&String| {
            let rest = source.path.strip_prefix(module.as_str());
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        source.is_test_file() || test_modules.iter().any(declared)
    };
    let page = read(&root.join(words::PAGE))?;
    let refused = words::listed(&page)?;
    for source in &sources {
        found.extend(rules::check_rust(source, is_test(source)));
        found.extend(words::check(source, is_test(source), &refused));
        found.extend(budget.check_rust(source));
    }
    let code: Vec<&Source> = sources.iter().filter(|source| !is_test(source)).collect();
    found.extend(budget.check_crates(&code));
    found.extend(circles::check(&code));
    found.extend(rules::check_ops(paths));
    for (page, &most) in &budget.pages {
        found.extend(budget::check_page(page, read(&root.join(page)).ok().as_deref(), most));
    }
    Ok(found)
}

/// Collects the files below `folder` as paths from `root`. Skips hidden folders, which hold state of tools, except for
/// our two; the other named folders are build results, which git ignores too.
fn walk(root: &Path, folder: &Path, paths: &mut Vec<String>) -> Result<(), String> {
    let wrong = |error| format!("cannot list {}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let ignored = name.starts_with("target") || name == "__pycache__" || name == "out" && folder == root;
        let hidden = name.starts_with('.') && name != ".ci" && name != ".cargo";
        let kind = entry.file_type().map_err(wrong)?;
        if kind.is_dir() && !ignored && !hidden {
            walk(root, &entry.path(), paths)?;
        } else if kind.is_file() {
            let path = entry.path();
            let path = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            paths.push(path);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}
