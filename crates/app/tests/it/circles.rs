//! The files of this crate use each other in one direction.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A file by its module's path, such as `train/first`.
type Module = String;

/// Files of `folder` and below, by module, without comments and tests.
fn modules(folder: &Path, within: &str, found: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().to_str().unwrap().to_owned();
        if entry.path().is_dir() {
            modules(&entry.path(), &format!("{within}{name}/"), found);
        } else if let Some(stem) = name.strip_suffix(".rs").filter(|stem| *stem != "lib") {
            let module = if stem == "mod" {
                within.trim_end_matches('/').to_owned()
            } else {
                format!("{within}{stem}")
            };
            let text = fs::read_to_string(entry.path()).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            let code = text.lines().map(|line| line.split("//").next().unwrap());
            found.insert(module, code.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// The paths that follow a word: of `a::{b, c::d}` both.
fn paths(text: &str) -> Vec<String> {
    let end = text.find(|c: char| !(c.is_alphanumeric() || "_:".contains(c))).unwrap_or(text.len());
    let (path, rest) = text.split_at(end);
    let Some(inner) = rest.strip_prefix('{').filter(|_| path.is_empty() || path.ends_with("::")) else {
        return vec![path.to_owned()];
    };
    let (mut depth, mut start, mut all) = (0, 0, Vec::new());
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            ',' if depth == 0 => {
                all.extend(paths(inner[start..at].trim()));
                start = at + 1;
            }
            '}' if depth == 0 => {
                all.extend(paths(inner[start..at].trim()));
                break;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    all.into_iter().map(|inside| format!("{path}{inside}")).collect()
}

/// The modules that a file names, by `crate::`, by `super::`, and, of a folder's own file, by the names of its children.
fn uses(module: &str, code: &str, all: &BTreeMap<Module, String>) -> BTreeSet<Module> {
    let parent = module.rsplit_once('/').map_or("", |(parent, _)| parent);
    let children = all.keys().filter(|other| other.rsplit_once('/').is_some_and(|(of, _)| of == module));
    let mut named: Vec<(String, String)> = children
        .map(|child| (format!("{}::", &child[module.len() + 1..]), child.clone()))
        .filter(|(word, _)| code.contains(word.as_str()))
        .map(|(_, child)| (child, String::new()))
        .collect();
    for (word, base) in [("crate::", ""), ("super::", parent)] {
        for (at, _) in code.match_indices(word) {
            named.extend(paths(&code[at + word.len()..]).into_iter().map(|path| (base.to_owned(), path)));
        }
    }
    let module_of = |(base, path): (String, String)| {
        let whole = format!("{base}/{}", path.replace("::", "/"));
        let mut whole = whole.trim_matches('/');
        while !all.contains_key(whole) {
            whole = whole.rsplit_once('/')?.0;
        }
        Some(whole.to_owned())
    };
    named.into_iter().filter_map(module_of).filter(|other| other != module).collect()
}

#[test]
fn files_use_each_other_without_a_circle() {
    let mut all = BTreeMap::new();
    modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut all);
    let mut left: BTreeMap<Module, BTreeSet<Module>> =
        all.iter().map(|(module, code)| (module.clone(), uses(module, code, &all))).collect();
    assert!(left["train"].contains("train/first") && left["train/first"].contains("train/rank"), "{left:?}");
    assert!(left["job"].contains("machine") && left["crew/run"].contains("crew/members"), "{left:?}");
    // Files that use none that is left are removed, again and again.
    while let Some(free) = left.iter().find(|(_, uses)| uses.is_empty()).map(|(module, _)| module.clone()) {
        left.remove(&free);
        left.values_mut().for_each(|uses| {
            uses.remove(&free);
        });
    }
    assert!(left.is_empty(), "in a circle, or using one: {left:#?}");
}
