//! Circles between the files of a crate: a file uses another if a path in it leads to something that the other declares. Paths
//! through a re-export lead to the file that declares the name, so a folder's own file may gather its children's names.

use std::collections::{BTreeMap, BTreeSet};

use super::lex::{Kind, Token};
use super::source::Source;
use super::violation::Violation;

/// A path from a module on, as it stands in a file.
type Path = (String, Vec<String>);

/// A file as a module of its crate: `train/first`; the crate's own file is the empty name.
#[derive(Default)]
struct Module {
    path: String,
    uses: Vec<Path>,
    /// Names that it hands on, and where they lead.
    exports: BTreeMap<String, Path>,
}

type Modules = BTreeMap<String, Module>;

/// Checks all crates: a file that uses another is used by none of those that the other uses.
pub fn check(sources: &[&Source]) -> Vec<Violation> {
    let mut crates: BTreeMap<&str, Modules> = BTreeMap::new();
    for source in sources {
        let Some((name, module)) = place(source.path) else { continue };
        crates
            .entry(name)
            .or_default()
            .insert(module, Module { path: source.path.into(), ..Module::default() });
    }
    for source in sources {
        let Some((name, module)) = place(source.path) else { continue };
        let Some(modules) = crates.get_mut(name) else { continue };
        let (uses, exports) = read(source, &module, modules);
        if let Some(own) = modules.get_mut(&module) {
            (own.uses, own.exports) = (uses, exports);
        }
    }
    let mut found = Vec::new();
    for (name, modules) in &crates {
        let mut circles = circles(&edges(modules));
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        let all: Vec<String> = circles.iter().map(|circle| circle.join(" ")).collect();
        let Some(first) = circles.first().and_then(|circle| modules.get(&circle[0])) else { continue };
        let message = format!("files of {name} use each other in circles: {}", all.join("; "));
        found.push(Violation::new(&first.path, 1, message));
    }
    found
}

/// The crate and the module of a path from the root.
fn place(path: &str) -> Option<(&str, String)> {
    let (name, rest) = match path.strip_prefix("crates/") {
        Some(rest) => rest.split_once('/')?,
        None => ("xtask", path.strip_prefix("xtask/")?),
    };
    let module = rest.strip_prefix("src/")?.strip_suffix(".rs")?;
    let module = if module == "lib" { "" } else { module.strip_suffix("/mod").unwrap_or(module) };
    (module != "main").then(|| (name, module.to_owned()))
}

fn join(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}/{name}") }
}

fn parent(module: &str) -> String {
    module.rsplit_once('/').map_or(String::new(), |(parent, _)| parent.to_owned())
}

/// The paths that a file uses, and the names that it hands on.
fn read(source: &Source, module: &str, all: &Modules) -> (Vec<Path>, BTreeMap<String, Path>) {
    let code = &source.code;
    let (mut uses, mut exports, mut at) = (Vec::new(), BTreeMap::new(), 0);
    while at < code.len() {
        let start = at;
        at += 1;
        if source.in_test(start) || code[start].kind != Kind::Word {
            continue;
        }
        let after = start.checked_sub(1).map(|before| &code[before]);
        let goes_on = start > 1 && code[start - 1].is(":") && code[start - 2].is(":");
        let limits = start > 1 && code[start - 1].is("in") && code[start - 2].is("(");
        if code[start].is("use") {
            let mut leaves = Vec::new();
            at = tree(code, start + 1, &mut Vec::new(), &mut leaves);
            let public = after.is_some_and(|token| token.is("pub") || token.is(")"));
            for (path, name) in leaves {
                let Some(path) = absolute(module, &path, all) else { continue };
                if public {
                    exports.insert(name, path);
                } else {
                    uses.push(path);
                }
            }
        } else if !limits && !goes_on && !after.is_some_and(|token| token.is(".")) {
            let (path, end) = plain(code, start);
            if path.len() > 1 {
                at = end;
                uses.extend(absolute(module, &path, all));
            }
        }
    }
    (uses, exports)
}

/// The words of a path that begins at a token, and where it ends.
fn plain(code: &[Token<'_>], start: usize) -> (Vec<String>, usize) {
    let (mut path, mut at) = (vec![code[start].text.to_owned()], start + 1);
    let is = |at: usize, text: &str| code.get(at).is_some_and(|token: &Token<'_>| token.is(text));
    while is(at, ":") && is(at + 1, ":") && code.get(at + 2).is_some_and(|token| token.kind == Kind::Word) {
        path.push(code[at + 2].text.to_owned());
        at += 3;
    }
    (path, at)
}

/// The leaves of a tree of imports, each with the name that it gets; returns where the tree ends.
fn tree(
    code: &[Token<'_>],
    mut at: usize,
    before: &mut Vec<String>,
    leaves: &mut Vec<(Vec<String>, String)>,
) -> usize {
    let depth = before.len();
    while let Some(token) = code.get(at) {
        if token.is("{") {
            at += 1;
            while code.get(at).is_some_and(|token| !token.is("}")) {
                at = tree(code, at, before, leaves);
                at += usize::from(code.get(at).is_some_and(|token| token.is(",")));
            }
            at += 1;
            before.truncate(depth);
            return at;
        }
        if token.is("as") {
            let name = code.get(at + 1).map_or("", |token| token.text);
            leaves.push((before.clone(), name.to_owned()));
            before.truncate(depth);
            return at + 2;
        }
        if token.kind == Kind::Word || token.is("*") {
            before.push(token.text.to_owned());
        } else if !token.is(":") {
            break;
        }
        at += 1;
    }
    if let Some(name) = before.last().filter(|_| before.len() > depth) {
        leaves.push((before.clone(), name.clone()));
    }
    before.truncate(depth);
    at
}

/// A path from a module of this crate on; `None` if it leads elsewhere.
fn absolute(module: &str, path: &[String], all: &Modules) -> Option<Path> {
    let mut from = module.to_owned();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => (from, rest) = (String::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|word| word == "super") {
                (from, rest) = (parent(&from), &rest[1..]);
            }
        }
        word if all.contains_key(&join(module, word)) => {}
        _ => return None,
    }
    Some((from, rest.to_vec()))
}

/// The file that declares what a path leads to.
fn resolve(all: &Modules, (from, path): &Path, hops: usize) -> String {
    let (mut module, mut rest) = (from.clone(), path.as_slice());
    while let Some(next) = rest.first().map(|word| join(&module, word)).filter(|next| all.contains_key(next))
    {
        (module, rest) = (next, &rest[1..]);
    }
    let export = rest.first().and_then(|name| all.get(&module)?.exports.get(name));
    match export.filter(|_| hops > 0) {
        Some(export) => resolve(all, export, hops - 1),
        None => module,
    }
}

fn edges(all: &Modules) -> BTreeMap<&str, BTreeSet<String>> {
    let of = |name: &str, module: &Module| {
        let found = module.uses.iter().map(|path| resolve(all, path, 8));
        found.filter(|other| other != name && all.contains_key(other)).collect()
    };
    all.iter().map(|(name, module)| (name.as_str(), of(name, module))).collect()
}

/// Files that use each other, in groups: two are of one group if each leads to the other.
fn circles(edges: &BTreeMap<&str, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reach = |from: &str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(next) = open.pop() {
            for other in &edges[next.as_str()] {
                if seen.insert(other.clone()) {
                    open.push(other.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<String>> = edges.keys().map(|name| (*name, reach(name))).collect();
    let mut groups: Vec<Vec<String>> = Vec::new();
    for name in edges.keys().filter(|name| reached[**name].contains(**name)) {
        if groups.iter().any(|group| group.iter().any(|other| other == name)) {
            continue;
        }
        let with = |other: &&String| reached[other.as_str()].contains(*name);
        groups.push(reached[name].iter().filter(with).cloned().collect());
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn expect(files: &[(&str, &str)], circles: &[&str]) {
        let files: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("crates/x/src/{path}.rs"), *text)).collect();
        let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        let found = check(&sources.iter().collect::<Vec<_>>());
        let found: Vec<&str> =
            found.iter().map(|v| v.message.rsplit_once(": ").map_or("", |(_, files)| files)).collect();
        assert_eq!(found, circles, "{files:?}");
    }

    #[test]
    fn files_that_use_each_other_are_named() {
        expect(&[("a", "use crate::b::B;"), ("b", "fn f(a: super::a::A) {}")], &["a b"]);
        expect(&[("a", "use crate::b::{self, B};"), ("b", "fn f() {}")], &[]);
        expect(&[("a", "use super::{b::B, c::{C, D}};"), ("b", ""), ("c", "use crate::a;")], &["a c"]);
    }

    #[test]
    fn a_name_that_is_handed_on_leads_to_its_file() {
        let folder = ("a/mod", "mod b; mod c; pub use b::B; pub(crate) use c::C as D;");
        expect(&[folder, ("a/b", "use super::D;"), ("a/c", "")], &[]);
        expect(&[folder, ("a/b", "use super::D;"), ("a/c", "use crate::a::B;")], &["a/b a/c"]);
        expect(&[("a/mod", "mod b; fn f() { b::g() } struct A;"), ("a/b", "use super::A;")], &["a a/b"]);
    }

    #[test]
    fn tests_and_visibilities_are_no_use() {
        expect(&[("a", "use crate::b::B;"), ("b", "#[cfg(test)]\nmod tests { use crate::a::A; }")], &[]);
        expect(&[("a", "use crate::b::B;"), ("b", "pub(in crate::a) struct B;")], &[]);
    }
}
