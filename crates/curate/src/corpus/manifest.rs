//! The manifest of a corpus: the specification it was made from. It is written last and removed first, so its
//! presence implies that the files next to it are complete and consistent.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use fathom_text::store::Store;
use fathom_text::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};

use super::layout::{store_prefix, tokenizer_dir};
use super::report::CorpusReport;
use super::spec::{CorpusSpec, TokenizerFrom};
use crate::error::Error;

/// Incremented when the same specification yields different bytes.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: u32,
    spec: CorpusSpec,
    /// [`Tokenizer::hash`].
    tokenizer_hash: String,
    /// [`Store::fingerprint`] in hexadecimal.
    store_fingerprint: String,
    report: CorpusReport,
    /// BLAKE3 hash of every file, by name relative to the folder; empty in manifests of earlier versions.
    #[serde(default)]
    files: BTreeMap<String, String>,
}

impl Manifest {
    fn read(out: &Path) -> Option<Manifest> {
        serde_json::from_slice(&fs::read(path_of(out)).ok()?).ok()
    }

    /// Returns the first file whose hash differs from the recorded one.
    fn altered(&self, out: &Path) -> Option<PathBuf> {
        let differs =
            |(name, hash): &(&String, &String)| hash_of(&out.join(name)).ok().as_ref() != Some(hash);
        self.files.iter().find(differs).map(|(name, _)| out.join(name))
    }
}

fn path_of(out: &Path) -> PathBuf {
    out.join("corpus.json")
}

/// Returns the report of a finished corpus in `spec.out` made from the same specification; `None` if anything is
/// missing, torn or different, since rebuilding repairs all of it.
pub(super) fn finished(spec: &CorpusSpec) -> Option<CorpusReport> {
    let manifest = Manifest::read(&spec.out)?;
    // Both sides have passed through JSON, so a share that JSON rounds in its last bit still compares equal.
    let wanted: CorpusSpec = serde_json::from_slice(&serde_json::to_vec(spec).ok()?).ok()?;
    let same_spec = manifest.spec == wanted;
    let (tokenizer_hash, store_fingerprint) = identify(&spec.out).ok()?;
    let whole =
        (&tokenizer_hash, &store_fingerprint) == (&manifest.tokenizer_hash, &manifest.store_fingerprint);
    let same_tokenizer = match &spec.tokenizer {
        TokenizerFrom::Train { .. } => true,
        TokenizerFrom::File(path) => {
            let given = if path.is_dir() { Tokenizer::from_dir(path) } else { Tokenizer::from_file(path) };
            given.and_then(|tokenizer| tokenizer.hash()).ok()? == manifest.tokenizer_hash
        }
    };
    let same = manifest.version == VERSION && same_spec && whole && same_tokenizer;
    // Checked last, since it reads every file.
    (same && manifest.altered(&spec.out).is_none()).then_some(manifest.report)
}

/// Returns an existing corpus file that differs from what was written; `None` if there is none or no corpus.
pub(super) fn altered(out: &Path) -> Option<PathBuf> {
    Manifest::read(out)?.altered(out).filter(|path| path.exists())
}

/// Returns true if the folder holds a corpus made from another specification.
pub(super) fn made_otherwise(spec: &CorpusSpec) -> bool {
    let Ok(text) = fs::read(path_of(&spec.out)) else { return false };
    let Ok(manifest) = serde_json::from_slice::<serde_json::Value>(&text) else { return false };
    let wanted = serde_json::to_vec(spec).and_then(|text| serde_json::from_slice(&text));
    wanted.is_ok_and(|wanted: serde_json::Value| manifest.get("spec").is_some_and(|spec| *spec != wanted))
}

/// Creates the folder and durably removes an older manifest before the files it describes change.
pub(super) fn begin(out: &Path) -> Result<(), Error> {
    fs::create_dir_all(tokenizer_dir(out)).map_err(|e| Error::write("create", &tokenizer_dir(out), e))?;
    match fs::remove_file(path_of(out)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::write("remove", &path_of(out), error))
        }
        Err(_) => Ok(()),
        Ok(()) => sync_folder(out),
    }
}

/// Writes the manifest: temporary name, flush to disk, rename.
pub(super) fn publish(spec: &CorpusSpec, report: &CorpusReport) -> Result<(), Error> {
    let (tokenizer_hash, store_fingerprint) = identify(&spec.out)?;
    let mut files = BTreeMap::new();
    for folder in ["store", "tokenizer"] {
        let place = spec.out.join(folder);
        for entry in fs::read_dir(&place).map_err(|e| Error::read(&place, e))? {
            let name = entry.map_err(|e| Error::read(&place, e))?.file_name().to_string_lossy().into_owned();
            let path = place.join(&name);
            files.insert(format!("{folder}/{name}"), hash_of(&path).map_err(|e| Error::read(&path, e))?);
        }
    }
    let manifest = Manifest {
        version: VERSION,
        spec: spec.clone(),
        tokenizer_hash,
        store_fingerprint,
        report: report.clone(),
        files,
    };
    let path = path_of(&spec.out);
    let temporary = spec.out.join("corpus.json.tmp");
    let mut text =
        serde_json::to_vec_pretty(&manifest).map_err(|e| Error::write("write", &path, e.into()))?;
    text.push(b'\n');
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(&text)?;
        file.sync_all()
    };
    write().map_err(|e| Error::write("write", &temporary, e))?;
    fs::rename(&temporary, &path).map_err(|e| Error::write("rename", &path, e))?;
    sync_folder(&spec.out)
}

/// Identifies the folder's contents: the tokenizer's hash and the store's fingerprint.
fn identify(out: &Path) -> Result<(String, String), fathom_text::Error> {
    let tokenizer = Tokenizer::from_dir(tokenizer_dir(out))?.hash()?;
    let fingerprint = Store::open(store_prefix(out))?.fingerprint();
    Ok((tokenizer, fingerprint.iter().map(|byte| format!("{byte:02x}")).collect()))
}

fn hash_of(path: &Path) -> std::io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize().to_hex().to_string())
}

fn sync_folder(folder: &Path) -> Result<(), Error> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| Error::write("flush", folder, e))
}
