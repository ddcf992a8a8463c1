//! Questions about functions with their answers, from doc comments of Rust sources.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::json;

/// Maximum number of rows, and of rows from one crate.
const ROWS: usize = 4096;
const OF_A_CRATE: usize = 64;
/// Allowed bytes of a signature and of an answer, suited to a small model.
const SIGNATURE: std::ops::RangeInclusive<usize> = 12..=160;
const ANSWER: std::ops::RangeInclusive<usize> = 16..=160;
/// One of this many crates is held out.
const HELD_OUT: u8 = 10;
/// Maximum bytes of a file.
const FILE: u64 = 1 << 20;

/// Training rows and held-out rows; no crate, signature or answer is in both.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    pub learned: Vec<Pair>,
    pub held_out: Vec<Pair>,
}

/// A function with the first paragraph of its documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub signature: String,
    pub answer: String,
}

impl Pair {
    /// Returns the question about the function.
    pub fn question(&self) -> String {
        format!("What does `{}` do?", self.signature)
    }

    /// Returns the pair as a row of a training file.
    pub fn row(&self) -> String {
        let messages = json!([
            {"role": "user", "content": self.question()},
            {"role": "assistant", "content": self.answer}
        ]);
        json!({ "messages": messages }).to_string()
    }
}

impl Pairs {
    /// Collects the documented functions of the crates, or other folders, below some folders, in the order of the
    /// hashes of the crates' names.
    pub fn below(roots: &[PathBuf]) -> Pairs {
        let mut crates: Vec<([u8; 32], PathBuf)> = Vec::new();
        for root in roots {
            for folder in entries(root).into_iter().filter(|path| path.is_dir()) {
                let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                // Versions of a crate get the same name.
                let name = name.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default().to_string();
                crates.push((*blake3::hash(name.as_bytes()).as_bytes(), folder));
            }
        }
        crates.sort();
        let (mut pairs, mut known) = (Pairs::default(), [BTreeSet::new(), BTreeSet::new()]);
        for (hash, folder) in crates {
            if pairs.learned.len() >= ROWS {
                break;
            }
            let held_out = hash[31].is_multiple_of(HELD_OUT);
            let [own, others] = if held_out { [1, 0] } else { [0, 1] };
            let mut of_crate = Vec::new();
            documented(&folder, &mut of_crate);
            for pair in of_crate {
                let (signature, answer) = (&pair.signature, &pair.answer);
                if known[others].contains(signature)
                    || known[others].contains(answer)
                    || known[own].contains(answer)
                {
                    continue;
                }
                known[own].extend([signature.clone(), answer.clone()]);
                if held_out { pairs.held_out.push(pair) } else { pairs.learned.push(pair) }
            }
        }
        pairs
    }
}

/// Returns a folder's entries by name; none if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut all: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    all.sort();
    all
}

/// Collects functions from the Rust files of a folder and its subfolders.
fn documented(folder: &Path, pairs: &mut Vec<Pair>) {
    for path in entries(folder) {
        if pairs.len() >= OF_A_CRATE {
            pairs.truncate(OF_A_CRATE);
            return;
        }
        let link = path.symlink_metadata().is_ok_and(|about| about.is_symlink());
        if path.is_dir() && !link {
            documented(&path, pairs);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && path.metadata().is_ok_and(|about| about.is_file() && about.len() <= FILE)
        {
            pairs.extend(of_text(&std::fs::read_to_string(&path).unwrap_or_default()));
        }
    }
}

/// Returns the documented functions of a file.
fn of_text(text: &str) -> Vec<Pair> {
    let mut pairs = Vec::new();
    let (mut doc, mut ended) = (String::new(), false);
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if let Some(said) = line.strip_prefix("///") {
            let said = said.trim();
            // Only the first paragraph is used.
            ended |= said.is_empty() && !doc.is_empty();
            if !ended && !said.is_empty() {
                doc += if doc.is_empty() { "" } else { " " };
                doc += said;
            }
            continue;
        }
        if line.starts_with("#[") && line.ends_with(']') {
            continue;
        }
        let is_function =
            ["pub fn ", "fn ", "pub const fn ", "pub async fn "].iter().any(|word| line.starts_with(word));
        if is_function && !doc.is_empty() {
            let mut signature = line.to_string();
            while !signature.contains(['{', ';']) && signature.len() <= *SIGNATURE.end() {
                let Some(more) = lines.next() else { break };
                signature += " ";
                signature += more;
            }
            let end = signature.find(['{', ';']).unwrap_or(signature.len());
            let signature = signature[..end].trim().trim_start_matches("pub ").to_string();
            let pair = Pair { signature, answer: std::mem::take(&mut doc) };
            pairs.extend(good(&pair).then_some(pair));
        }
        doc.clear();
        ended = false;
    }
    pairs
}

/// Returns whether a pair has a proper sentence, and a signature that fits on a line.
fn good(pair: &Pair) -> bool {
    let Pair { signature, answer } = pair;
    SIGNATURE.contains(&signature.len())
        && ANSWER.contains(&answer.len())
        && signature.is_ascii()
        && answer.is_ascii()
        && signature.contains('(')
        && answer.starts_with(|c: char| c.is_ascii_uppercase())
        && answer.ends_with('.')
        && !answer.contains("://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_and_the_first_words_of_their_docs() {
        let text = "
/// Returns the larger of two numbers,
/// the first if they are equal.
///
/// # Panics
/// Never.
#[inline]
pub fn max(a: u32, b: u32) -> u32 {
    a
}

/// About a struct.
pub struct Large;

/// no sentence
fn small(x: u8) {}

impl Large {
    /// Makes a large thing of two parts.
    pub const fn new(
        left: u8,
        right: u8,
    ) -> Large;
    fn undocumented(&self) {}
}
";
        let pairs = of_text(text);
        assert_eq!(pairs.len(), 2, "{pairs:?}");
        assert_eq!(pairs[0].signature, "fn max(a: u32, b: u32) -> u32");
        assert_eq!(pairs[0].answer, "Returns the larger of two numbers, the first if they are equal.");
        assert_eq!(pairs[1].signature, "const fn new( left: u8, right: u8, ) -> Large");
        assert_eq!(pairs[1].question(), "What does `const fn new( left: u8, right: u8, ) -> Large` do?");
    }

    #[test]
    fn what_is_held_out_is_not_learned() {
        let folder = tempfile::tempdir().unwrap();
        for crate_number in 0..60u8 {
            let name = format!(
                "{}-1.0.{crate_number}",
                char::from(b'a' + crate_number % 26).to_string().repeat(1 + usize::from(crate_number / 26))
            );
            let src = folder.path().join(name).join("src");
            std::fs::create_dir_all(&src).unwrap();
            let own =
                format!("/// Counts the things of kind {crate_number}.\nfn count_{crate_number}() {{}}\n");
            let shared = "/// Says what everybody says.\nfn shared_by_all() {}\n";
            std::fs::write(src.join("lib.rs"), own + shared).unwrap();
        }
        let pairs = Pairs::below(&[folder.path().to_path_buf()]);
        assert_eq!(pairs.learned.len() + pairs.held_out.len(), 61, "one of each crate, and one of all");
        assert!((1..20).contains(&pairs.held_out.len()), "{}", pairs.held_out.len());
    }
}
