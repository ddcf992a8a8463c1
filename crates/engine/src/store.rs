//! Prefixes of sequences on disk, which outlive the process: one file per page, named by everything that its keys and
//! values depend on.
//!
//! A page's name is the hash of the previous page's name and its own tokens. The first page's depends on the scope of
//! sharing, the adapter, the regime of the rotary embeddings and, if ranks have parts of the model, the rank's part: it
//! is not found under another mesh. `FOLDER/MODEL/SCOPE/INDEX-NAME` holds its tokens, its keys and values as in memory,
//! and the hash of both, which is verified when it is read. Where layers have states, those after some of its pages are
//! files of the same kind, with the model's name in place of tokens. A thread writes the files (0600, published by rename) while
//! the engine continues; pending bytes are bounded, and pages without room are offered again later. Separate threads
//! read them, a bounded number of bytes ahead. The least recently used pages are removed first, ends of sequences
//! before their beginnings. Ranks of one process share the index of the folder, and its limit. Only a folder that is a
//! store is opened, and only its pages are removed.

mod disk;
mod form;
mod owned;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::SystemTime;

use blake3::{Hash, Hasher};

use crate::error::Error;
use crate::pages::Root;
pub use disk::HeldReads;
use disk::{Disk, Job, ON_THE_WAY, read};
use form::MAGIC;

/// Maximum number of pages read ahead for a sequence.
const AHEAD: u64 = 64;

/// Location of stored prefixes.
#[derive(Clone, Debug)]
pub struct StoreLocation {
    /// The folder, for any number of models.
    pub folder: PathBuf,
    /// Hash of everything except tokens on which the keys and values of a model depend: weights, tokenizer, types,
    /// instruction set.
    pub model: String,
    /// Maximum bytes of the folder.
    pub most_bytes: u64,
}

/// The stored pages of a sequence, and the hash on which the next page's name depends.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    folder: String,
    hash: Hash,
    pages: usize,
}

impl Chain {
    /// Number of its pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// The chain with another page of these tokens.
    pub fn with(&self, ids: &[u32]) -> Chain {
        let mut hasher = Hasher::new();
        hasher.update(self.hash.as_bytes());
        ids.iter().for_each(|id| _ = hasher.update(&id.to_le_bytes()));
        Chain { folder: self.folder.clone(), hash: hasher.finalize(), pages: self.pages + 1 }
    }

    /// The file of the states after its last page, which is no page of any chain.
    pub fn states(&self) -> Chain {
        let hash = Hasher::new().update(self.hash.as_bytes()).update(b"states").finalize();
        Chain { hash, ..self.clone() }
    }

    /// The file of its last page, relative to the store's folder.
    fn name(&self) -> String {
        format!("{}/{:08}-{}", self.folder, self.pages, &self.hash.to_hex()[..32])
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    used: u64,
}

/// An open folder of prefixes, for all ranks of a model in this process.
#[derive(Clone)]
pub struct Beginnings(Arc<Mutex<PrefixStore>>);

impl Beginnings {
    /// Opens a folder for the prefixes of a model's sequences, creating it if needed.
    ///
    /// # Errors
    /// The folder has files and is not a store; errors of the system.
    pub fn open(at: &StoreLocation) -> Result<Beginnings, Error> {
        let why = |error: std::io::Error| Error::Store { folder: at.folder.clone(), why: error.to_string() };
        Ok(Beginnings(Arc::new(Mutex::new(PrefixStore::open(at).map_err(why)?))))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, PrefixStore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rank's part of the model: its indices along the axes of the mesh, their sizes, and the numbers of ranks over which
/// experts and the columns of each are distributed. `None` for the whole model.
pub(crate) type Part = Option<[usize; 6]>;

/// The files of one model, and the size of the folder.
pub(crate) struct PrefixStore {
    at: StoreLocation,
    files: BTreeMap<String, Entry>,
    by_use: BTreeMap<u64, String>,
    clock: u64,
    bytes: u64,
    disk: Disk,
}

/// The stored prefixes of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptModel {
    /// [`StoreLocation::model`].
    pub model: String,
    /// Number of scopes: keys and salts with stored pages.
    pub scopes: usize,
    /// Number of pages, and of states after them.
    pub pages: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl StoreLocation {
    /// The stored prefixes in a folder, by model.
    ///
    /// # Errors
    /// The folder is not a store; errors of the system.
    pub fn kept(folder: &Path) -> std::io::Result<Vec<KeptModel>> {
        owned::check(folder)?;
        let mut all = Vec::new();
        for model in owned::models(folder)? {
            let scopes = owned::scopes(&model)?;
            let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let mut kept = KeptModel { model: name, scopes: scopes.len(), pages: 0, bytes: 0 };
            for scope in &scopes {
                let pages = owned::pages(scope)?;
                kept.pages += pages.len();
                kept.bytes += pages.iter().map(|page| page.about.len()).sum::<u64>();
            }
            // A folder without pages is not a model's.
            if kept.pages > 0 {
                all.push(kept);
            }
        }
        all.sort_by(|a, b| a.model.cmp(&b.model));
        Ok(all)
    }

    /// Erases the stored prefixes of a model in a folder; other files stay.
    ///
    /// # Errors
    /// The folder is not a store; errors of the system.
    pub fn erase(folder: &Path, kept: &KeptModel) -> std::io::Result<()> {
        owned::check(folder)?;
        owned::erase_model(&folder.join(&kept.model))
    }
}

impl PrefixStore {
    /// Opens a folder, creating it if needed, and removes pages beyond its limit.
    ///
    /// # Errors
    /// The folder has files and is not a store; errors of the system.
    pub fn open(at: &StoreLocation) -> std::io::Result<PrefixStore> {
        owned::open(&at.folder)?;
        let mut found = Vec::new();
        for model in owned::models(&at.folder)? {
            for scope in owned::scopes(&model)? {
                for owned::Page { path, about, index, whole } in owned::pages(&scope)? {
                    let Some(name) = path.strip_prefix(&at.folder).ok().and_then(Path::to_str) else {
                        continue;
                    };
                    if !whole {
                        _ = fs::remove_file(&path);
                        continue;
                    }
                    let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    found.push((used, Reverse(index), name.to_string(), about.len()));
                }
            }
        }
        found.sort();
        let mut store = PrefixStore {
            at: at.clone(),
            files: BTreeMap::new(),
            by_use: BTreeMap::new(),
            clock: 0,
            bytes: 0,
            disk: Disk::new(),
        };
        for (_, _, name, bytes) in found {
            store.enter(name, bytes);
        }
        store.make_room(0, u64::MAX);
        Ok(store)
    }

    /// The start of a chain of pages, for a part of the model.
    pub fn chain(&self, (scope, adapter, regime): &Root, part: Part) -> Chain {
        let scope = blake3::hash(scope.as_bytes());
        let mut hasher = Hasher::new();
        hasher
            .update(scope.as_bytes())
            .update(&(adapter.len() as u64).to_le_bytes())
            .update(adapter.as_bytes());
        hasher.update(&(*regime as u64).to_le_bytes());
        part.iter().flatten().for_each(|place| _ = hasher.update(&(*place as u64).to_le_bytes()));
        Chain { folder: self.folder(scope), hash: hasher.finalize(), pages: 0 }
    }

    /// The folder of a scope, relative to the store's.
    fn folder(&self, scope: Hash) -> String {
        format!("{}/{}", self.at.model, &scope.to_hex()[..16])
    }

    /// The store's folder.
    pub fn root(&self) -> &Path {
        &self.at.folder
    }

    /// The model's name in the folder.
    pub fn model(&self) -> &str {
        &self.at.model
    }

    /// Bytes in the folder.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The current time, counted in uses.
    pub fn now(&self) -> u64 {
        self.clock
    }

    /// True if the last page of a chain is stored.
    pub fn has(&self, chain: &Chain) -> bool {
        self.files.contains_key(&chain.name())
    }

    /// Stores the last page of a chain. False if there is no room without removing pages used since `since`, or if too
    /// many bytes are pending and `wait` is false.
    pub fn put(&mut self, chain: &Chain, page: impl FnOnce() -> Vec<u8>, (since, wait): (u64, bool)) -> bool {
        if !self.disk.has_room(wait) {
            return false;
        }
        let bytes = page();
        let size = (MAGIC.len() + bytes.len() + blake3::OUT_LEN) as u64;
        if !self.make_room(size, since) {
            return false;
        }
        let name = chain.name();
        self.disk.give(Job::Write(self.at.folder.join(&name), bytes));
        self.enter(name, size);
        true
    }

    /// Reads the last page of each chain, in order, on a new thread: up to the first that is missing, damaged, or
    /// larger than `page_bytes`, for which `None` is sent. Also returns how many are read ahead.
    pub fn read(&self, chains: &[Chain], page_bytes: u64) -> (Receiver<Option<Vec<u8>>>, usize) {
        let longest = page_bytes + (MAGIC.len() + blake3::OUT_LEN) as u64;
        let known = |chain: &Chain| {
            let name = chain.name();
            let bytes = self.files.get(&name).map_or(0, |entry| entry.bytes);
            (self.at.folder.join(name), bytes)
        };
        let files: Vec<(PathBuf, u64)> = chains.iter().map(known).collect();
        let ahead = (ON_THE_WAY / longest).clamp(1, AHEAD) as usize;
        let (send, receive) = sync_channel(ahead);
        let (way, given) = (self.disk.way.clone(), self.disk.given());
        let work = move || {
            // A page may still be waiting to be written.
            way.wait(given);
            for (file, bytes) in files {
                way.wait_readable();
                let page = if bytes > longest { None } else { read(&file, bytes) };
                let ends = page.is_none();
                if send.send(page).is_err() || ends {
                    return;
                }
            }
        };
        // Without a thread nothing is read, and the pages are computed instead.
        _ = thread::Builder::new().name("beginning".into()).spawn(work);
        (receive, ahead)
    }

    /// Suspends reads after `after` more pages, until the result is dropped, as if the disk did not answer.
    pub fn hold_reads(&self, after: u64) -> HeldReads {
        self.disk.way.readable.store(after, Ordering::Relaxed);
        HeldReads(self.disk.way.clone())
    }

    /// Removes the last page of a chain, which is damaged.
    pub fn remove(&mut self, chain: &Chain) {
        let name = chain.name();
        if self.files.contains_key(&name) {
            self.disk.give(Job::Remove(self.at.folder.join(&name)));
            self.leave(&name);
        }
    }

    /// Marks the pages of a chain as used, the last ones first, so that they are removed before those they depend on.
    pub fn touch(&mut self, chains: &[Chain]) {
        let mut touched = Vec::new();
        for chain in chains.iter().rev() {
            let name = chain.name();
            if let Some(entry) = self.files.get(&name).copied() {
                self.leave(&name);
                self.enter(name.clone(), entry.bytes);
                touched.push(self.at.folder.join(name));
            }
        }
        self.disk.give(Job::Touch(touched));
    }

    /// Erases this model's stored prefixes, of one scope or all; returns their bytes.
    pub fn erase(&mut self, scope: Option<&str>) -> u64 {
        let scope = scope.map(|scope| self.folder(blake3::hash(scope.as_bytes())));
        let below = format!("{}/", scope.as_ref().unwrap_or(&self.at.model));
        let named: Vec<String> = self
            .files
            .range(below.clone()..)
            .map(|(name, _)| name.clone())
            .take_while(|name| name.starts_with(&below))
            .collect();
        let before = self.bytes;
        named.iter().for_each(|name| self.leave(name));
        self.disk.give(match &scope {
            Some(scope) => Job::EraseScope(self.at.folder.join(scope)),
            None => Job::EraseModel(self.at.folder.join(&self.at.model)),
        });
        self.disk.wait();
        before - self.bytes
    }

    fn enter(&mut self, name: String, bytes: u64) {
        self.leave(&name);
        self.clock += 1;
        self.bytes += bytes;
        self.by_use.insert(self.clock, name.clone());
        self.files.insert(name, Entry { bytes, used: self.clock });
    }

    fn leave(&mut self, name: &str) {
        if let Some(Entry { bytes, used }) = self.files.remove(name) {
            self.by_use.remove(&used);
            self.bytes -= bytes;
        }
    }

    /// Makes room for `bytes` bytes, removing only pages last used at `since` or before.
    fn make_room(&mut self, bytes: u64, since: u64) -> bool {
        while self.bytes + bytes > self.at.most_bytes {
            let Some((used, name)) = self.by_use.first_key_value() else { return false };
            if *used > since {
                return false;
            }
            let name = name.clone();
            self.disk.give(Job::Remove(self.at.folder.join(&name)));
            self.leave(&name);
        }
        true
    }
}
