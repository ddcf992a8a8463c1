//! Rules without a number: what a file must begin with and what it must not contain.

use std::collections::BTreeSet;

use super::lex::Kind;
use super::source::{Source, attribute};
use super::violation::Violation;

/// Extensions of text files, which are searched for machine-specific paths.
const TEXT: [&str; 11] = ["rs", "toml", "py", "sh", "md", "yml", "yaml", "html", "css", "js", "cu"];
/// Extensions of code files, which must not contain markers of unfinished work.
const CODE: [&str; 8] = ["rs", "toml", "py", "sh", "yml", "yaml", "js", "cu"];
const CHORES: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
/// Identifiers of ranks, and the files of the model crate that may use them.
const RANKS: [&str; 9] = ["Axis", "Mesh", "Grid", "tp", "tp_index", "ep", "ep_index", "etp", "etp_index"];
const KNOW_RANKS: [&str; 4] = ["portion.rs", "model.rs", "loaded.rs", "narrow.rs"];
/// Macros that print. Programs may print, and a build script communicates with cargo this way.
const PRINTS: [&str; 5] = ["println", "print", "eprintln", "eprint", "dbg"];
const PROGRAMS: [&str; 4] = ["crates/cli/", "crates/rehearsal/", "fuzz/", "xtask/"];
/// Types that make a `static` mutable while the program runs, besides atomics.
const CELLS: [&str; 9] =
    ["OnceLock", "LazyLock", "Once", "OnceCell", "LazyCell", "Mutex", "RwLock", "Cell", "RefCell"];
/// Files that may keep process-wide state: the allocator's counts, the panic hook of guarded calls, CUDA libraries,
/// which stay open, with the addresses of their functions and a thread's context, file names that are unique across
/// threads, the threads behind requests, and tables of characters and words.
const KEEPERS: [&str; 14] = [
    "crates/base/src/guard.rs",
    "crates/cpu/src/counting.rs",
    "crates/cuda/src/calls/mod.rs",
    "crates/cuda/src/driver/real.rs",
    "crates/cuda/src/libs/open.rs",
    "crates/curate/src/dedup/engine.rs",
    "crates/curate/src/read/remote.rs",
    "crates/guard/src/rails/injection.rs",
    "crates/guard/src/rails/secrets.rs",
    "crates/prose/src/filter/segments.rs",
    "crates/python/src/edge.rs",
    "crates/python/src/events.rs",
    "crates/text/src/tokenizer/fast/classes.rs",
    "crates/text/src/tokenizer/fast/mod.rs",
];
const HOMES: [&str; 3] = [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];

/// Rules for all text files: no machine-specific paths, no markers of unfinished work.
pub fn check_text(path: &str, text: &str) -> Vec<Violation> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    // Scripts in .ci have no extension.
    let is_one_of = |list: &[&str]| extension.map_or(path.starts_with(".ci/"), |name| list.contains(&name));
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|_| is_one_of(&TEXT)) {
        if let Some(home) = HOMES.iter().find(|home| names_path(line, home)) {
            found.push(Violation::new(path, index + 1, format!("a path of one machine: {home}")));
        }
        let chore = CHORES
            .iter()
            .find(|chore| line.split(|c: char| !c.is_alphanumeric()).any(|word| word == **chore));
        if let Some(chore) = chore.filter(|_| is_one_of(&CODE)) {
            found.push(Violation::new(path, index + 1, format!("{chore}: do it, or say so in an issue")));
        }
    }
    found
}

/// True if a line contains an absolute path that begins with `home`, not as part of another path or address.
fn names_path(line: &str, home: &str) -> bool {
    line.match_indices(home).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !(c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '}')))
    })
}

/// Rules for a Rust file. `is_test` is true if only tests compile it.
pub fn check_rust(source: &Source, is_test: bool) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut violation = |line, message| found.push(Violation::new(source.path, line, message));
    if !source.text.starts_with("//!") {
        violation(1, "a module opens with //! and what it is");
    }
    let code = &source.code;
    let is = |at: usize, text: &str| code.get(at).is_some_and(|token| token.is(text));
    for (at, token) in
        code.iter().enumerate().filter(|(_, token)| matches!(token.kind, Kind::Word | Kind::Mark))
    {
        let in_test = is_test || source.in_test(at);
        let called = at > 0 && is(at - 1, ".") && is(at + 1, "(");
        match token.text {
            "unwrap" if called && is(at + 2, ")") && !in_test => {
                violation(token.line, "unwrap() outside tests")
            }
            "expect" if called && takes_text(source, at + 2) && !in_test => {
                violation(token.line, "expect() outside tests");
            }
            "unsafe" if !may_be_unsafe(source.path) => {
                violation(
                    token.line,
                    "unsafe outside cpu, cuda, mpi, rehearsal, tensor::spill and query::folder",
                );
            }
            word if RANKS.contains(&word) && !in_test && !may_know_ranks(source.path) => {
                violation(
                    token.line,
                    "ranks in the model, outside portion.rs, model.rs, loaded.rs and narrow.rs",
                );
            }
            word if PRINTS.contains(&word) && is(at + 1, "!") && !in_test && !may_print(source.path) => {
                violation(token.line, "printing below cli: return it, report it to Events, or log it");
            }
            "process" if ends_process(source, at) && !in_test && !is_program(source.path) => {
                violation(token.line, "process::exit below cli: return an error");
            }
            "static" if keeps(source, at) && !in_test && !may_keep(source.path) => {
                violation(token.line, "state of the whole process below cli");
            }
            "todo" | "unimplemented" if is(at + 1, "!") => violation(token.line, "a stub"),
            "#" if attribute(code, at).is_some_and(|(_, inside, _)| ignores(inside)) => {
                violation(token.line, "an ignored test");
            }
            _ => {}
        }
    }
    found
}

/// True if the argument at `code[at]` is a message: parsers have an `expect` of their own, for tokens.
fn takes_text(source: &Source, at: usize) -> bool {
    source.code[at..].iter().find(|token| !token.is("&")).is_some_and(|token| {
        token.kind == Kind::Text && !token.text.starts_with(['\'', 'b']) || token.is("format")
    })
}

fn may_be_unsafe(path: &str) -> bool {
    let crates = ["crates/cpu/", "crates/cuda/", "crates/mpi/", "crates/rehearsal/"];
    crates.iter().any(|folder| path.starts_with(folder))
        || path.starts_with("crates/tensor/src/spill/")
        // SQLite reads the first field of a virtual table, which the type system cannot see.
        || path == "crates/query/src/folder.rs"
}

fn is_program(path: &str) -> bool {
    PROGRAMS.iter().any(|folder| path.starts_with(folder))
}

/// The sources of `fathom` may print only through its console, which detects a closed output.
fn may_print(path: &str) -> bool {
    path.ends_with("/build.rs") || is_program(path) && !path.starts_with("crates/cli/src/")
}

/// True if `exit` is used from the module `process` at `code[at]`, by its path or in a braced list.
fn ends_process(source: &Source, at: usize) -> bool {
    let mut rest = source.code[at + 1..].iter().skip_while(|token| token.is(":") || token.is("::"));
    match rest.next() {
        Some(next) if next.is("{") => rest.take_while(|token| !token.is("}")).any(|token| token.is("exit")),
        next => next.is_some_and(|token| token.is("exit")),
    }
}

/// True if the `static` at `code[at]` is mutable: its type contains a cell, a lock or an atomic.
fn keeps(source: &Source, at: usize) -> bool {
    let mut kind = source.code[at + 1..].iter().take_while(|token| !token.is("=") && !token.is(";"));
    kind.any(|token| CELLS.contains(&token.text) || token.text.starts_with("Atomic"))
}

fn may_keep(path: &str) -> bool {
    is_program(path) || KEEPERS.contains(&path)
}

/// Blocks and families must be the same on every rank.
fn may_know_ranks(path: &str) -> bool {
    path.strip_prefix("crates/model/src/").is_none_or(|file| KNOW_RANKS.contains(&file))
}

/// True if an attribute disables a test.
fn ignores(attribute: &[super::lex::Token]) -> bool {
    match attribute {
        [first, rest @ ..] => {
            first.is("ignore") || first.is("cfg_attr") && rest.iter().any(|token| token.is("ignore"))
        }
        [] => false,
    }
}

/// Every op has its own contract, slow reference and tests.
pub fn check_ops(paths: &[String]) -> Vec<Violation> {
    let ops = "crates/grad/src/ops/";
    let folder = |path: &String| Some(path.strip_prefix(ops)?.split_once('/')?.0.to_string());
    let folders: BTreeSet<String> = paths.iter().filter_map(folder).collect();
    let needed = folders.iter().flat_map(|op| {
        ["mod.rs", "reference.rs", "tests.rs"]
            .map(|file| (format!("{ops}{op}/mod.rs"), format!("{ops}{op}/{file}"), file))
    });
    let missing = needed.filter(|(_, path, _)| !paths.contains(path));
    missing.map(|(shown, _, file)| Violation::new(&shown, 1, format!("the op has no {file}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str, expected: &[&str]) {
        let source = Source::new(path, text);
        let mut found = check_rust(&source, source.is_test_file());
        found.extend(check_text(path, text));
        let found: Vec<String> = found.iter().map(|v| format!("{}: {}", v.line, v.message)).collect();
        assert_eq!(found, expected, "{path}: {text}");
    }

    #[test]
    fn unwraps_belong_in_tests() {
        let path = "crates/base/src/a.rs";
        check(
            path,
            "//! A.\nfn f() { a.unwrap(); b.unwrap_or(1); \".unwrap()\"; }",
            &["2: unwrap() outside tests"],
        );
        check(path, "//! A.\nfn f() { a.expect(\"x\") }", &["2: expect() outside tests"]);
        check(path, "//! A.\nfn f() { a.expect(&format!(\"x\")) }", &["2: expect() outside tests"]);
        check(path, "//! A.\nfn f() { self.expect(b'x'); self.expect('x'); self.expect(Token::End) }", &[]);
        check(path, "//! A.\n/// `a.unwrap()`\n#[cfg(test)]\nmod t { fn f() { a.unwrap() } }", &[]);
        check("crates/base/src/a/tests.rs", "//! A.\nfn f() { a.unwrap() }", &[]);
        check("crates/base/tests/it/a.rs", "//! A.\nfn f() { a.unwrap() }", &[]);
    }

    #[test]
    fn unsafe_is_walled_in() {
        let text = "//! A.\n#![allow(unsafe_code)]\nunsafe impl Send for X {}";
        for path in ["crates/cpu/src/a.rs", "crates/tensor/src/spill/a.rs", "crates/query/src/folder.rs"] {
            check(path, text, &[]);
        }
        for path in ["crates/tensor/src/pool.rs", "crates/base/src/a.rs", "crates/query/src/lib.rs"] {
            check(
                path,
                text,
                &["3: unsafe outside cpu, cuda, mpi, rehearsal, tensor::spill and query::folder"],
            );
        }
    }

    #[test]
    fn the_block_knows_no_ranks() {
        let text = "//! A.\nfn f(tp_index: usize) {}";
        check("crates/model/src/portion.rs", text, &[]);
        check("crates/train/src/portion.rs", text, &[]);
        let message = "2: ranks in the model, outside portion.rs, model.rs, loaded.rs and narrow.rs";
        for path in ["crates/model/src/block.rs", "crates/model/src/family/llama.rs"] {
            check(path, text, &[message]);
        }
    }

    #[test]
    fn libraries_neither_print_nor_exit_nor_remember() {
        let print = "2: printing below cli: return it, report it to Events, or log it";
        check("crates/app/src/a.rs", "//! A.\nfn f() { eprintln!(\"x\") }", &[print]);
        check("crates/cli/src/a.rs", "//! A.\nfn f() { println!(\"x\") }", &[print]);
        check("crates/cli/build.rs", "//! A.\nfn f() { println!(\"x\") }", &[]);
        check("crates/app/src/a.rs", "//! A.\n#[test]\nfn f() { println!(\"x\") }", &[]);
        let exit = "2: process::exit below cli: return an error";
        for text in ["fn f() { std::process::exit(1) }", "use std::process::{ExitCode, exit};"] {
            check("crates/app/src/a.rs", &format!("//! A.\n{text}"), &[exit]);
            check("crates/cli/src/a.rs", &format!("//! A.\n{text}"), &[]);
        }
        check("crates/app/src/a.rs", "//! A.\nfn f(p: &Mesh) { process::id(); p.exit() }", &[]);
        let state = "2: state of the whole process below cli";
        for text in
            ["static A: Mutex<u8> = Mutex::new(0);", "fn f() { static N: AtomicU64 = AtomicU64::new(0); }"]
        {
            check("crates/app/src/a.rs", &format!("//! A.\n{text}"), &[state]);
            check("crates/cpu/src/counting.rs", &format!("//! A.\n{text}"), &[]);
        }
        check(
            "crates/app/src/a.rs",
            "//! A.\nstatic A: [u8; 2] = [0; 2];\nfn f(a: &'static Mutex<u8>) {}",
            &[],
        );
    }

    #[test]
    fn nothing_is_left_for_later() {
        let path = "crates/base/src/a.rs";
        check(path, "//! A.\nfn f() { todo!() }", &["2: a stub"]);
        check(path, "//! A.\n#[test]\n#[ignore = \"slow\"]\nfn f() {}", &["3: an ignored test"]);
        check(path, "//! A.\n#[cfg_attr(unix, ignore)]\nfn f() {}", &["2: an ignored test"]);
        check(path, "// A.\n", &["1: a module opens with //! and what it is"]);
        let chore = format!("//! A. {} (me): x\n", CHORES[0]);
        check(path, &chore, &[&format!("1: {}: do it, or say so in an issue", CHORES[0])]);
        assert!(check_text("README.md", &chore).is_empty());
        assert_eq!(check_text(".ci/run", &chore).len(), 1);
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for home in HOMES {
            assert_eq!(check_text("README.md", &format!("see `{home}me/x`")).len(), 1);
            assert_eq!(check_text("tests/x.json", home).len(), 0);
            assert_eq!(check_text("README.md", &format!("https://site.org{home}x")).len(), 0);
        }
    }

    #[test]
    fn an_op_has_its_three_files() {
        let paths = ["a/mod.rs", "a/reference.rs", "a/tests.rs", "b/mod.rs", "b/tests.rs", "mod.rs"];
        let paths = paths.map(|path| format!("crates/grad/src/ops/{path}"));
        let found = check_ops(&paths);
        assert_eq!(found, [Violation::new("crates/grad/src/ops/b/mod.rs", 1, "the op has no reference.rs")]);
    }
}
