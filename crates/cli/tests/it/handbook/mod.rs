//! The handbook in `docs/`: its commands run, its formulas match the code, its table of keys matches the schema.
//! `docs/README.md` explains the marks of blocks.

mod blocks;
mod expression;
mod formulas;
mod meshes;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use blocks::{Block, blocks};
use fathom_base::recipe::{KeyDoc, keys};
use fathom_curate::pipeline::{OptionDoc, Recipe as Curation, stage_kinds};
use fathom_serve::Recipe as Serving;
use fathom_train::recipe::Recipe;

use crate::{good, on_one_thread, text};

/// Pages in `docs`, and the repository's README.
const CHAPTERS: [&str; 35] = [
    "../README",
    "README",
    "quickstart",
    "recipes",
    "extending",
    "teaching",
    "encoders",
    "encoder-decoders",
    "retro",
    "alignment",
    "alignment-rl",
    "serving",
    "guardrails",
    "guardrails-models",
    "retrieval",
    "data",
    "curation",
    "stages",
    "models",
    "checkpoints",
    "memory",
    "mesh",
    "clusters",
    "gpu",
    "gpu-internals",
    "formats",
    "quantization",
    "launch",
    "python",
    "speed",
    "evaluation",
    "scaling",
    "claims",
    "tracking",
    "real-models",
];

/// Pages that only link to a renamed chapter.
const MOVED: [&str; 1] = ["quantisation"];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn chapter(name: &str) -> String {
    fs::read_to_string(docs().join(format!("{name}.md"))).unwrap()
}

/// Runs a block with `fathom` on the path.
fn shell(folder: &Path, script: &str) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_fathom")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    on_one_thread("sh")
        .args(["-euc", script])
        .current_dir(folder)
        .env("PATH", path)
        .env_remove("FATHOM_ISA")
        .output()
        .unwrap()
}

/// Returns whether `found` matches the handbook: `...` alone matches any lines, at the end of a line any rest of it.
fn shows(expected: &[&str], found: &[&str]) -> bool {
    let Some((first, rest)) = expected.split_first() else { return found.is_empty() };
    if *first == "..." {
        return (0..=found.len()).any(|skipped| shows(rest, &found[skipped..]));
    }
    let same = |line: &str| match first.strip_suffix("...") {
        Some(start) => line.starts_with(start.trim_end()),
        None => line.trim_end() == *first,
    };
    found.first().is_some_and(|line| same(line)) && shows(rest, &found[1..])
}

#[track_caller]
fn compare(at: &str, expected: &str, found: &str) {
    let [expected, found] = [expected, found].map(|text| text.lines().collect::<Vec<_>>());
    assert!(shows(&expected, &found), "{at} shows\n{}\nand it is\n{}", expected.join("\n"), found.join("\n"));
}

fn run(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let texts = folder.path().join("text");
    fs::create_dir(&texts).unwrap();
    if name == "retrieval" {
        std::os::unix::fs::symlink(docs(), folder.path().join("docs")).unwrap();
    }
    if name == "encoders" {
        let bert = docs().join("../tests/encoders/embed_bert");
        std::os::unix::fs::symlink(bert, folder.path().join("bert")).unwrap();
    }
    // The handbook's sections, one document each: enough that some remain for training after holding out.
    let pages = CHAPTERS.map(chapter).join("\n## ");
    let line = |section: &str| serde_json::json!({ "text": section }).to_string() + "\n";
    fs::write(texts.join("handbook.jsonl"), pages.split("\n## ").map(line).collect::<String>()).unwrap();
    let mut printed = String::new();
    for Block { line, mark, body } in blocks(&chapter(name)) {
        let at = format!("docs/{name}.md:{line}");
        let words: Vec<&str> = mark.split(' ').collect();
        match words.as_slice() {
            ["toml" | "yaml", file] => fs::write(folder.path().join(file), body).unwrap(),
            ["sh", "test"] | ["sh", "fails"] => {
                let output = shell(folder.path(), &body);
                let (out, err) = (text(&output.stdout), text(&output.stderr));
                let good = output.status.success() == (words[1] == "test");
                assert!(good && !err.contains("panicked"), "{at}: {}\n{body}\n{out}\n{err}", output.status);
                printed = if words[1] == "test" { out } else { err };
            }
            ["text", "output"] => compare(&at, &body, &printed),
            ["formula", name] => formulas::check(&at, name, &body),
            // Those of Python are run by the package's own tests.
            ["yaml"] | ["python", ..] => {}
            ["sh"] => assert!(!body.contains("$ "), "{at}: a command is written without a prompt"),
            other => panic!("{at}: a block is marked {other:?}; docs/README.md names the marks"),
        }
    }
}

#[test]
fn commands_of_quickstart_and_recipes_run() {
    ["quickstart", "recipes"].into_iter().for_each(run);
}

#[test]
fn commands_of_extending_and_data_run() {
    ["extending", "data", "curation", "stages"].into_iter().for_each(run);
}

#[test]
fn commands_of_models_and_checkpoints_run() {
    ["models", "checkpoints"].into_iter().for_each(run);
}

#[test]
fn commands_of_mesh_and_launch_run() {
    ["mesh", "clusters", "launch", "python"].into_iter().for_each(run);
}

#[test]
fn commands_of_teaching_run() {
    run("teaching");
}

#[test]
fn commands_of_encoders_run() {
    run("encoders");
}

#[test]
fn commands_of_encoder_decoders_run() {
    run("encoder-decoders");
}

#[test]
fn commands_of_decoders_with_neighbours_run() {
    run("retro");
}

#[test]
fn commands_of_quantization_run() {
    run("quantization");
}

#[test]
fn commands_of_alignment_run() {
    run("alignment");
}

#[test]
fn commands_of_rewards_run() {
    run("alignment-rl");
}

#[test]
fn commands_of_serving_run() {
    run("serving");
}

#[test]
fn commands_of_retrieval_run() {
    run("retrieval");
}

#[test]
fn commands_of_guardrails_run() {
    run("guardrails");
    run("guardrails-models");
}

#[test]
fn commands_of_memory_run() {
    run("memory");
}

#[test]
fn commands_of_speed_and_evaluation_run() {
    ["../README", "README", "gpu", "gpu-internals", "formats", "speed", "evaluation", "real-models"]
        .into_iter()
        .for_each(run);
}

#[test]
fn commands_of_scaling_and_tracking_run() {
    run("scaling");
    run("claims");
    run("tracking");
}

#[test]
fn every_chapter_is_in_the_contents_and_tested() {
    let contents = chapter("README");
    for entry in fs::read_dir(docs()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "md") && !path.ends_with("README.md") {
            let name = path.file_stem().unwrap().to_str().unwrap();
            if MOVED.contains(&name) {
                continue;
            }
            assert!(contents.contains(&format!("]({name}.md)")), "{name} is not in docs/README.md");
            assert!(CHAPTERS.contains(&name), "{name} is not in CHAPTERS");
        }
    }
}

#[test]
fn links_lead_somewhere() {
    let others = ["../ARCHITECTURE", "../CONTRIBUTING", "../LOG"];
    for name in CHAPTERS.into_iter().chain(others).chain(MOVED) {
        let page = docs().join(format!("{name}.md"));
        for link in blocks::links(&chapter(name)) {
            let (file, section) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            assert!(target.exists(), "docs/{name}.md: no file {link}");
            let found = section.is_empty()
                || blocks::sections(&fs::read_to_string(target).unwrap()).any(|s| s == section);
            assert!(found, "docs/{name}.md: no section {link}");
        }
    }
}

/// Collects the names of Fathom's environment variables in the sources of a folder.
fn variables(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            variables(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(path).unwrap();
            let names = text.split("\"FATHOM_").skip(1).filter_map(|rest| rest.split_once('"'));
            let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
            found.extend(names.map(|(name, _)| name).filter(is_name).map(|name| format!("FATHOM_{name}")));
        }
    }
}

#[test]
fn every_environment_variable_is_in_a_table() {
    let (pages, mut found) = ([chapter("README"), chapter("gpu-internals")].concat(), BTreeSet::new());
    for entry in fs::read_dir(docs().join("../crates")).unwrap() {
        variables(&entry.unwrap().path().join("src"), &mut found);
    }
    assert!(found.contains("FATHOM_ISA"), "{found:?}");
    for name in found.iter().filter(|name| !name.starts_with("FATHOM_TEST_")) {
        assert!(pages.contains(&format!("| `{name}` |")), "{name} is in no table of docs");
    }
}

#[test]
fn the_readme_has_every_verb() {
    let (readme, help) = (chapter("../README"), good(["--help"]));
    let verbs =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    for verb in verbs.filter_map(|line| line.split_whitespace().next()).filter(|verb| *verb != "help") {
        let named = [format!("fathom {verb}`"), format!("fathom {verb} ")];
        assert!(named.iter().any(|name| readme.contains(name)), "README.md has no `fathom {verb}`");
    }
}

const BEGIN: &str = "<!-- keys: begin -->\n";
const END: &str = "<!-- keys: end -->";

/// The table of keys, grouped by table of the recipe.
fn key_tables(keys: Vec<KeyDoc>, whole: &str) -> String {
    let mut out = String::new();
    let mut table = String::new();
    for key in keys {
        let prefix = key.path.rsplit_once('.').map_or("", |(prefix, _)| prefix).to_string();
        if prefix != table || out.is_empty() {
            let heading = if prefix.is_empty() { whole.into() } else { format!("`{prefix}`") };
            out += &format!("\n### {heading}\n\n| key | takes | default | what |\n|---|---|---|---|\n");
            table = prefix;
        }
        let doc = key.doc.replace('|', "\\|");
        out += &format!("| `{}` | {} | `{}` | {doc} |\n", key.path, key.expected, key.default);
    }
    out + "\n"
}

/// Options of all stages, a table each.
fn stage_tables() -> String {
    let mut out = String::new();
    for kind in stage_kinds() {
        let (first, rest) = kind.about.split_at(1);
        let head = "| option | takes | default | what |\n|---|---|---|---|";
        out += &format!("\n## {}\n\n{}{rest}.\n\n{head}\n", kind.name, first.to_uppercase());
        for OptionDoc { name, default, takes, about, choices } in kind.options() {
            let choices = choices.iter().map(|choice| format!("<br>`{}`: {}", choice.name, choice.about));
            let what = (about + &choices.collect::<String>()).replace('|', "\\|");
            out += &format!("| `{name}` | {takes} | `{default}` | {what} |\n");
        }
    }
    out + "\n"
}

#[test]
fn keys_are_those_of_the_schema() {
    let pages = [
        ("recipes", key_tables(keys::<Recipe>(), "The run as a whole")),
        ("curation", key_tables(keys::<Curation>(), "The curation as a whole")),
        ("serving", key_tables(keys::<Serving>(), "The server")),
        ("stages", stage_tables()),
    ];
    for (name, expected) in pages {
        let page = chapter(name);
        let start = page.find(BEGIN).unwrap() + BEGIN.len();
        let end = page.find(END).unwrap();
        if std::env::var_os("FATHOM_BLESS").is_some() {
            let text = format!("{}{expected}{}", &page[..start], &page[end..]);
            fs::write(docs().join(format!("{name}.md")), text).unwrap();
        } else if page[start..end] != expected {
            panic!("docs/{name}.md is behind the schema; FATHOM_BLESS=1 rewrites it:\n{expected}");
        }
    }
}
