//! Dependencies between the crates: compares `cargo metadata` with the table of the design.

use std::process::Command;

use serde_json::Value;

use super::violation::Violation;

/// A row of the table: a crate may depend on the crates in its row, and on their dependencies, but on nothing else.
struct Line {
    name: &'static str,
    names: &'static [&'static str],
}

const fn line(name: &'static str, names: &'static [&'static str]) -> Line {
    Line { name, names }
}

/// From the bottom layer to the top: a row names only crates above it in this list.
const TABLE: [Line; 24] = [
    line("base", &[]),
    line("rehearsal", &[]),
    line("tensor", &["base"]),
    line("text", &["base"]),
    line("report", &["base"]),
    line("grad", &["tensor"]),
    line("cpu", &["tensor"]),
    line("cuda", &["tensor"]),
    line("mpi", &["tensor"]),
    line("model", &["grad"]),
    line("train", &["model", "text", "report"]),
    line("engine", &["model", "text"]),
    line("prose", &["base"]),
    line("query", &[]),
    line("curate", &["text", "report", "prose", "query"]),
    line("eval", &["text", "report"]),
    line("serve", &["base"]),
    line("guard", &["base"]),
    line("retrieval", &["prose"]),
    line("scaling", &[]),
    line(
        "app",
        &[
            "train",
            "engine",
            "curate",
            "eval",
            "serve",
            "guard",
            "retrieval",
            "scaling",
            "cpu",
            "cuda",
            "mpi",
        ],
    ),
    line("cli", &["app"]),
    line("python", &["app", "cli"]),
    line("xtask", &[]),
];

/// Crates whose tests may use the CPU machine, which they must not depend on otherwise. For `cuda` it is the reference.
const TESTED_ON_CPU: [&str; 6] = ["grad", "model", "train", "engine", "cuda", "mpi"];
/// Crates whose tests may use the rehearsal GPU, which nothing else may depend on.
const REHEARSED: [&str; 2] = ["cuda", "cli"];
/// Crates whose tests may put services within rails.
const GUARDED: [&str; 1] = ["serve"];

fn find(name: &str) -> Option<&'static Line> {
    TABLE.iter().find(|line| line.name == name)
}

fn reaches(from: &Line, to: &str) -> bool {
    from.names.iter().any(|&name| name == to || find(name).is_some_and(|line| reaches(line, to)))
}

/// The output of `cargo metadata` for the workspace.
///
/// # Errors
/// A message when cargo cannot be run, fails, or its output cannot be parsed.
pub fn metadata() -> Result<Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .output()
        .map_err(|error| format!("cannot run cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata is not JSON: {error}"))
}

/// Checks every dependency between crates of the workspace, and that every crate uses the workspace's lints. `read`
/// returns the text of a file by its path from the root.
///
/// # Errors
/// A message when the metadata is incomplete or a manifest cannot be read.
pub fn check(
    metadata: &Value,
    read: &dyn Fn(&str) -> Result<String, String>,
) -> Result<Vec<Violation>, String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_string();
    let root = text(metadata, "workspace_root");
    let mut found = Vec::new();
    for package in list(&metadata["packages"]) {
        let path = text(&package, "manifest_path");
        let path = path.strip_prefix(&root).unwrap_or(&path).trim_start_matches('/').to_string();
        let manifest = read(&path)?;
        let package_name = text(&package, "name");
        let mut violation = |needle: &str, message| {
            let line = manifest.lines().position(|line| line.trim_start().starts_with(needle));
            found.push(Violation::new(&path, line.map_or(1, |at| at + 1), message));
        };
        if !keeps_lints(&manifest) {
            violation("[lints]", "a crate keeps the workspace's lints: [lints] workspace = true".to_string());
        }
        let name = package_name.trim_start_matches("fathom-");
        let Some(from) = find(name) else {
            violation("name", format!("crate {name} is not in the table of crates"));
            continue;
        };
        for dependency in list(&package["dependencies"]) {
            let dependency_name = text(&dependency, "name");
            let Some(to) = dependency_name.strip_prefix("fathom-") else { continue };
            let tested: &[&str] = match to {
                "cpu" => &TESTED_ON_CPU,
                "rehearsal" => &REHEARSED,
                "guard" => &GUARDED,
                _ => &[],
            };
            let for_tests = dependency["kind"] == "dev" && tested.contains(&name);
            if !reaches(from, to) && !for_tests {
                violation(&dependency_name, format!("crate {name} must not depend on {to}"));
            }
        }
    }
    Ok(found)
}

fn keeps_lints(manifest: &str) -> bool {
    let manifest: Result<toml::Table, _> = manifest.parse();
    manifest.is_ok_and(|table| {
        table.get("lints").and_then(|lints| lints.get("workspace")?.as_bool()) == Some(true)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arrows_of_the_table_point_to_lower_rows() {
        for (at, line) in TABLE.iter().enumerate() {
            for name in line.names {
                assert!(TABLE[..at].iter().any(|to| to.name == *name), "{} -> {name}", line.name);
            }
        }
        let cli = find("cli").unwrap();
        let missed: Vec<_> =
            TABLE.iter().filter(|line| !reaches(cli, line.name)).map(|line| line.name).collect();
        assert_eq!(missed, ["rehearsal", "cli", "python", "xtask"]);
    }

    #[test]
    fn crates_of_the_table_are_there() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for line in TABLE.iter().filter(|line| line.name != "xtask") {
            assert!(root.join("crates").join(line.name).is_dir(), "{}", line.name);
        }
    }

    fn arrow(from: &str, to: &str, kind: Option<&str>, expected: &[&str]) {
        let metadata = json!({ "workspace_root": "/r", "packages": [{
            "name": format!("fathom-{from}"),
            "manifest_path": "/r/crates/x/Cargo.toml",
            "dependencies": [{ "name": "serde", "kind": null }, { "name": format!("fathom-{to}"), "kind": kind }],
        }] });
        let manifest =
            |_: &str| Ok(format!("[lints]\nworkspace = true\n[dependencies]\nfathom-{to} = \"1\"\n"));
        let found = check(&metadata, &manifest).unwrap();
        let found: Vec<String> =
            found.iter().map(|v| format!("{}:{}: {}", v.path, v.line, v.message)).collect();
        assert_eq!(found, expected, "{from} -> {to}");
    }

    #[test]
    fn wrong_arrows_are_named() {
        arrow("model", "base", None, &[]);
        arrow("train", "grad", None, &[]);
        arrow("train", "cpu", Some("dev"), &[]);
        arrow("cuda", "rehearsal", Some("dev"), &[]);
        arrow("cuda", "rehearsal", None, &["crates/x/Cargo.toml:4: crate cuda must not depend on rehearsal"]);
        arrow("train", "cpu", None, &["crates/x/Cargo.toml:4: crate train must not depend on cpu"]);
        arrow("train", "engine", None, &["crates/x/Cargo.toml:4: crate train must not depend on engine"]);
        arrow(
            "text",
            "tensor",
            Some("dev"),
            &["crates/x/Cargo.toml:4: crate text must not depend on tensor"],
        );
        arrow("common", "base", None, &["crates/x/Cargo.toml:1: crate common is not in the table of crates"]);
    }

    #[test]
    fn lints_of_the_workspace_are_kept() {
        assert!(keeps_lints("lints.workspace = true"));
        assert!(!keeps_lints("[package]\nname = \"x\""));
    }
}
