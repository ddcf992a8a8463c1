//! The checks before a push: format, house rules, clippy, and the tests of the crates that a branch changes.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The branches that others fork from.
const MAIN: [&str; 2] = ["origin/main", "main"];

/// Runs all checks, even after one has failed; returns the commands of those that failed.
///
/// # Errors
/// git is not available, or this is not a checkout.
pub fn quick() -> Result<Vec<String>, String> {
    let packages = packages(&changed()?);
    println!("changed: {}", if packages.is_empty() { "no crate".into() } else { packages.join(", ") });
    let mut failed = Vec::new();
    let mut check = |program: &str, args: &[&str]| {
        println!("== {program} {}", args.join(" "));
        if !Command::new(program).args(args).status().is_ok_and(|status| status.success()) {
            failed.push(format!("failed: {program} {}", args.join(" ")));
        }
    };
    check("cargo", &["fmt", "--check"]);
    if !packages.is_empty() {
        let named = packages.iter().flat_map(|package| ["-p", package]);
        let args = ["test", "--release", "--no-fail-fast", "--lib", "--bins"];
        check("cargo", &args.into_iter().chain(named).collect::<Vec<_>>());
    }
    failed.extend(crate::lint::run_if_changed()?);
    failed.extend(crate::tidy::run()?);
    Ok(failed)
}

/// Files that differ from the point where this branch left main, committed or not.
fn changed() -> Result<BTreeSet<String>, String> {
    let fork = MAIN.iter().find_map(|main| git(&["merge-base", "HEAD", main]).ok());
    // A checkout without main is compared with its last commit.
    let fork = fork.map_or("HEAD".to_string(), |fork| fork.trim().to_string());
    let tracked = git(&["diff", "--name-only", &fork])?;
    let untracked = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(tracked.lines().chain(untracked.lines()).map(String::from).collect())
}

/// The packages that contain `files`.
fn packages<'a>(files: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let of = |file: &String| {
        let mut parts = Path::new(file).iter().filter_map(|part| part.to_str());
        match (parts.next()?, parts.next()) {
            ("xtask", Some(_)) => Some("xtask".to_string()),
            // A removed crate has no tests.
            ("crates", Some(name)) => {
                Path::new("crates").join(name).is_dir().then(|| format!("fathom-{name}"))
            }
            _ => None,
        }
    };
    files.into_iter().filter_map(of).collect::<BTreeSet<_>>().into_iter().collect()
}

fn git(args: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(args).output().map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_of_their_crates() {
        let files = ["crates/no-such/src/lib.rs", "docs/speed.md", "xtask/src/ci.rs", "README.md"];
        assert_eq!(packages(&files.map(String::from)), ["xtask"]);
    }
}
