//! Embeds the commit in the binary; only this crate is rebuilt when it changes. Links a smaller binary with LLD where
//! that is supported.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FATHOM_COMMIT");
    let given = std::env::var("FATHOM_COMMIT").ok().filter(|commit| !commit.is_empty());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if let Some(commit) = given.or_else(|| commit(&root.join(".git"))) {
        println!("cargo::rustc-env=FATHOM_COMMIT={}", commit.trim().chars().take(12).collect::<String>());
    }
    if links_with_lld().unwrap_or(false) {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}

/// Returns whether a release is linked by the toolchain's own LLD, which folds identical functions: rustc uses it on
/// this target unless another linker is requested, and distributions' toolchains may lack it.
fn links_with_lld() -> Option<bool> {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    let target = is("TARGET", "x86_64-unknown-linux-gnu") && is("HOST", "x86_64-unknown-linux-gnu");
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let asked = std::env::var_os("RUSTC_LINKER").is_some() || flags.contains("link");
    if !target || !is("PROFILE", "release") || asked {
        return Some(false);
    }
    let sysroot = Command::new(std::env::var_os("RUSTC")?).args(["--print", "sysroot"]).output().ok()?;
    let lld = Path::new(std::str::from_utf8(&sysroot.stdout).ok()?.trim())
        .join("lib/rustlib/x86_64-unknown-linux-gnu/bin/gcc-ld/ld.lld");
    Some(lld.is_file())
}

/// The checked-out commit; none without a repository, as in a source package.
fn commit(git: &Path) -> Option<String> {
    // In a worktree `.git` is a file that names its folder, which names the folder with the branches.
    let folder = match fs::read_to_string(git) {
        Ok(text) => git.parent()?.join(text.strip_prefix("gitdir:")?.trim()),
        Err(_) => git.to_path_buf(),
    };
    let common =
        fs::read_to_string(folder.join("commondir")).map_or(folder.clone(), |it| folder.join(it.trim()));
    // Every commit and checkout appends a line to it, even when a packed branch gets its own file.
    let _ = watched(folder.join("logs/HEAD"));
    let head = watched(folder.join("HEAD"))?;
    let Some(branch) = head.trim().strip_prefix("ref: ") else { return Some(head) };
    watched(common.join(branch)).or_else(|| packed(&common, branch))
}

/// The commit of a branch in git's packed refs.
fn packed(common: &Path, branch: &str) -> Option<String> {
    let all = watched(common.join("packed-refs"))?;
    let line = all.lines().find(|line| line.ends_with(&format!(" {branch}")))?;
    Some(line.split(' ').next()?.to_string())
}

/// Reads a file that triggers a rebuild when it changes. An absent file is not watched: cargo would rebuild every
/// time.
fn watched(path: PathBuf) -> Option<String> {
    let text = fs::read_to_string(&path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text)
}
