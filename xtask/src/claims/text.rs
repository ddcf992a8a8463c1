//! Text of the claims: sources of the crates in cargo's folder, of which one crate in eight is held out.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::trial::Trial;

/// Bytes of the text that is trained on, and of the held-out text.
const BYTES: usize = 6 << 20;
const HELD_OUT_BYTES: usize = 256 << 10;
/// Most bytes of a file, and of a crate, so that none is most of the text.
const FILE_BYTES: usize = 32 << 10;
const CRATE_BYTES: usize = 128 << 10;

/// Kind of the text that is trained on.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Rust sources.
    Code,
    /// All text files of the crates: sources, data, licences, settings.
    Raw,
    /// Rust sources, every fourth of them six times, each time with another first line.
    Copied,
}

impl Kind {
    fn reads(self, path: &Path) -> bool {
        let raw = ["rs", "md", "toml", "json", "txt", "yml", "html", "c", "h", "lock"];
        let ends: &[&str] = if self == Kind::Raw { &raw } else { &["rs"] };
        path.extension().and_then(|end| end.to_str()).is_some_and(|end| ends.contains(&end))
    }
}

/// Writes the folder `text`, of the kind, and the folder `held`, of sources of other crates.
pub fn write(kind: Kind, trial: &Trial<'_>) -> Result<(), String> {
    let crates = crates()?;
    let (held, trained): (Vec<_>, Vec<_>) = crates.into_iter().partition(|folder| is_held_out(folder));
    let files = gathered(&held, Kind::Code, HELD_OUT_BYTES);
    put(&trial.path("held"), files.iter().map(String::as_str).collect())?;
    let files = gathered(&trained, kind, BYTES);
    let mut text: Vec<String> = Vec::new();
    for (at, file) in files.into_iter().enumerate() {
        let copies = if kind == Kind::Copied && at % 4 == 0 { 5 } else { 0 };
        text.extend((0..copies).map(|copy| format!("// Copy {copy}.\n{file}")));
        text.push(file);
    }
    put(&trial.path("text"), text.iter().map(String::as_str).collect())
}

/// Folders of crates, one version of each, by name.
fn crates() -> Result<Vec<PathBuf>, String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let sources = home.ok_or("no CARGO_HOME and no HOME")?.join("registry/src");
    let entries = |path: &Path| -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> =
            fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        found.sort();
        found
    };
    let mut all: Vec<PathBuf> = entries(&sources).iter().flat_map(|registry| entries(registry)).collect();
    all.dedup_by_key(|path| name(path));
    if all.len() < 50 {
        return Err(format!("{}: {} crates, and a claim needs 50 or more", sources.display(), all.len()));
    }
    Ok(all)
}

/// Name of a crate, without its version.
fn name(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.rsplit_once('-').map_or(name.clone(), |(name, _)| name.to_string())
}

fn is_held_out(folder: &Path) -> bool {
    blake3::hash(name(folder).as_bytes()).as_bytes()[0].is_multiple_of(8)
}

/// Text of the crates' files, up to a number of bytes.
fn gathered(crates: &[PathBuf], kind: Kind, bytes: usize) -> Vec<String> {
    // In an order that has nothing to do with names.
    let mut crates: Vec<&PathBuf> = crates.iter().collect();
    crates.sort_by_key(|folder| *blake3::hash(format!("order {}", name(folder)).as_bytes()).as_bytes());
    let (mut all, mut total) = (Vec::new(), 0);
    for folder in crates {
        let mut own = 0;
        let mut open = vec![folder.clone()];
        while let Some(next) = open.pop().filter(|_| own < CRATE_BYTES) {
            let mut entries: Vec<PathBuf> =
                fs::read_dir(&next).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
            entries.sort();
            for path in entries {
                if path.is_dir() {
                    open.push(path);
                } else if kind.reads(&path)
                    && let Ok(mut text) = fs::read_to_string(&path)
                {
                    let end = (0..=FILE_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
                    text.truncate(end.unwrap_or(0));
                    own += text.len();
                    all.push(text);
                }
            }
        }
        total += own;
        if total >= bytes {
            break;
        }
    }
    all
}

/// Writes documents as files of a folder each, so that none is joined with others.
fn put(folder: &Path, texts: Vec<&str>) -> Result<(), String> {
    for (at, text) in texts.into_iter().enumerate() {
        let folder = folder.join(format!("{at:05}"));
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join("text.txt"), text))
            .map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    Ok(())
}
