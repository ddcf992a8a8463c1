//! Beginnings of sequences on disk, which outlive the process: a file for each page, named by everything that its keys and values
//! depend on.
//!
//! A page's name is the hash of the page before it and its own tokens; the first one's of who may share it, the adapter, the regime of
//! the rotary embeddings and, where ranks have parts of the model, which part of how many this is: under another mesh it is not found.
//! `FOLDER/MODEL/SCOPE/INDEX-NAME` holds its tokens, its keys and values as they are in memory, and the hash of both, which is verified
//! when it is read. A thread writes the files (0600, published by rename) while the engine goes on; what is on its way is bounded, and
//! what found no room is offered again. Threads of their own read them, a bounded number of bytes ahead. What was used least recently
//! goes first, the ends of sequences before their beginnings. Ranks of one process share what is known of the folder, and its limit. Only
//! a folder that is a store is opened, and only its pages are removed.

mod owned;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use blake3::{Hash, Hasher};

use fathom_model::Spec;

use crate::engine::shares_beginnings;
use crate::error::Error;
use crate::pages::Root;

/// Bytes that may be on their way to the disk, and of each sequence from it.
const ON_THE_WAY: u64 = 64 << 20;
/// Pages that are read ahead of a sequence, at most.
const AHEAD: u64 = 64;
/// First bytes of a file, with the version of its form.
const MAGIC: &[u8; 8] = b"FTHMPG01";
/// Ends the name of a file that is not whole.
const UNFINISHED: &str = ".part";

/// Where beginnings are kept.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The folder, for any number of models.
    pub folder: PathBuf,
    /// What the keys and values of a model depend on besides the tokens, hashed: weights, tokenizer, types, instruction set.
    pub model: String,
    /// Most bytes of the folder.
    pub most_bytes: u64,
}

/// How far a sequence's pages are kept, and what the next one's name depends on.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    folder: String,
    hash: Hash,
    pages: usize,
}

impl Chain {
    /// Pages that it has.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// With a page of these tokens more.
    pub fn with(&self, ids: &[u32]) -> Chain {
        let mut hasher = Hasher::new();
        hasher.update(self.hash.as_bytes());
        ids.iter().for_each(|id| _ = hasher.update(&id.to_le_bytes()));
        Chain { folder: self.folder.clone(), hash: hasher.finalize(), pages: self.pages + 1 }
    }

    /// The file of its last page, below the store's folder.
    fn name(&self) -> String {
        format!("{}/{:08}-{}", self.folder, self.pages, &self.hash.to_hex()[..32])
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    used: u64,
}

/// A folder where beginnings are kept, open: for all ranks of a model in this process.
#[derive(Clone)]
pub struct Beginnings(Arc<Mutex<PrefixStore>>);

impl Beginnings {
    /// Opens a folder for the beginnings of a model's sequences; it is created.
    ///
    /// # Errors
    /// The model's layers remember more than keys and values, of which no beginning can be shared; the system's errors.
    pub fn open(at: &Stored, spec: &Spec) -> Result<Beginnings, Error> {
        if !shares_beginnings(spec) {
            return Err(Error::Unsupported(
                "layers of this model remember more than keys and values, so beginnings of prompts cannot be kept (--prefix-store)"
                    .into(),
            ));
        }
        let why = |error: std::io::Error| Error::Store { folder: at.folder.clone(), why: error.to_string() };
        Ok(Beginnings(Arc::new(Mutex::new(PrefixStore::open(at).map_err(why)?))))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, PrefixStore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which part of a model a rank has: its places along the axes of the mesh, the sizes of these, and over how many ranks experts are spread
/// and each of them is. None where it has all.
pub(crate) type Part = Option<[usize; 6]>;

/// The files of one model, and how much is in the folder.
pub(crate) struct PrefixStore {
    at: Stored,
    files: BTreeMap<String, Entry>,
    by_use: BTreeMap<u64, String>,
    clock: u64,
    bytes: u64,
    disk: Disk,
}

/// What is kept of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptModel {
    /// [`Stored::model`].
    pub model: String,
    /// Keys and salts under which something is kept.
    pub scopes: usize,
    /// Pages.
    pub pages: usize,
    /// Bytes of them.
    pub bytes: u64,
}

impl Stored {
    /// What is kept in a folder, by model.
    ///
    /// # Errors
    /// The folder is no store; the system's.
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
            // A folder without any is not a model's.
            if kept.pages > 0 {
                all.push(kept);
            }
        }
        all.sort_by(|a, b| a.model.cmp(&b.model));
        Ok(all)
    }

    /// Erases what is kept of a model in a folder; other files stay.
    ///
    /// # Errors
    /// The folder is no store; the system's.
    pub fn erase(folder: &Path, kept: &KeptModel) -> std::io::Result<()> {
        owned::check(folder)?;
        owned::erase_model(&folder.join(&kept.model))
    }
}

impl PrefixStore {
    /// Opens a folder, which is created, and removes what is over its limit.
    ///
    /// # Errors
    /// The folder has files and is no store; the system's.
    pub fn open(at: &Stored) -> std::io::Result<PrefixStore> {
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

    /// The beginning of a chain of pages, of a part of the model.
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

    /// The folder of a scope, below the store's.
    fn folder(&self, scope: Hash) -> String {
        format!("{}/{}", self.at.model, &scope.to_hex()[..16])
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.at.folder
    }

    /// Bytes in the folder.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The time, in uses.
    pub fn now(&self) -> u64 {
        self.clock
    }

    /// The last page of a chain is kept.
    pub fn has(&self, chain: &Chain) -> bool {
        self.files.contains_key(&chain.name())
    }

    /// Keeps the last page of a chain. False if there is no room for it without what was used since `since`, or too much is on its way
    /// and nothing waits.
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

    /// Reads the last page of each chain as it was put, in their order, on a thread of its own: up to the first that is not there, not
    /// whole, or of more than `page_bytes`, of which there is nothing. So many are read ahead, at most.
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
            // What was put may still be on its way.
            way.wait(given);
            for (file, bytes) in files {
                let page = if bytes > longest { None } else { read(&file, bytes) };
                let ends = page.is_none();
                if send.send(page).is_err() || ends {
                    return;
                }
            }
        };
        // Without a thread nothing is read, and what it would have given is computed.
        _ = thread::Builder::new().name("beginning".into()).spawn(work);
        (receive, ahead)
    }

    /// Removes the last page of a chain, which is not what it should be.
    pub fn remove(&mut self, chain: &Chain) {
        let name = chain.name();
        if self.files.contains_key(&name) {
            self.disk.give(Job::Remove(self.at.folder.join(&name)));
            self.leave(&name);
        }
    }

    /// Pages of a chain were used: the last ones first, so that they go before those that they stand on.
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

    /// Erases what this model has kept, of one scope or of all; returns its bytes.
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

    /// Room for so many bytes more, at the cost of what was last used at `since` or before.
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

enum Job {
    Write(PathBuf, Vec<u8>),
    Remove(PathBuf),
    EraseModel(PathBuf),
    EraseScope(PathBuf),
    Touch(Vec<PathBuf>),
}

/// The thread that writes.
struct Disk {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    way: Arc<Way>,
}

/// What is on its way.
#[derive(Default)]
struct Way {
    bytes: AtomicU64,
    /// Jobs that were given, and those of them that are done; in their order.
    jobs: Mutex<[u64; 2]>,
    less: Condvar,
    failed: AtomicBool,
}

impl Disk {
    fn new() -> Disk {
        let (jobs, receiver): (Sender<Job>, Receiver<Job>) = channel();
        let way = Arc::new(Way::default());
        let own = way.clone();
        let work = move || receiver.into_iter().for_each(|job| own.done(job));
        let thread = thread::Builder::new().name("prefixes".into()).spawn(work).ok();
        Disk { jobs: Some(jobs), thread, way }
    }

    fn has_room(&self, wait: bool) -> bool {
        if self.way.bytes.load(Ordering::Relaxed) < ON_THE_WAY {
            return true;
        }
        if wait {
            self.wait();
        }
        wait
    }

    fn give(&self, job: Job) {
        if let Job::Write(_, bytes) = &job {
            self.way.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        self.way.jobs()[0] += 1;
        if let Some(Err(unsent)) = self.jobs.as_ref().map(|jobs| jobs.send(job)) {
            self.way.done(unsent.0);
        }
    }

    /// Jobs that were given so far.
    fn given(&self) -> u64 {
        self.way.jobs()[0]
    }

    /// Until nothing of this is on its way.
    fn wait(&self) {
        self.way.wait(self.given());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // What it was given is written first.
            _ = thread.join();
        }
    }
}

impl Way {
    fn jobs(&self) -> MutexGuard<'_, [u64; 2]> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until so many jobs are done.
    fn wait(&self, given: u64) {
        let mut jobs = self.jobs();
        while jobs[1] < given {
            jobs = self.less.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self, job: Job) {
        let result = match job {
            Job::Write(file, bytes) => {
                let result = write(&file, &bytes).map_err(|error| (file, error));
                self.bytes.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
                result
            }
            Job::Remove(file) => gone(fs::remove_file(&file)).map_err(|error| (file, error)),
            Job::EraseModel(folder) => owned::erase_model(&folder).map_err(|error| (folder, error)),
            Job::EraseScope(folder) => owned::erase_scope(&folder).map_err(|error| (folder, error)),
            Job::Touch(files) => {
                // A file that is gone needs no time.
                let now = SystemTime::now();
                // Nor is waited for what stands in for one.
                let is_file = |file: &PathBuf| fs::symlink_metadata(file).is_ok_and(|found| found.is_file());
                for file in files.into_iter().filter(is_file) {
                    _ = File::open(file).and_then(|file| file.set_modified(now));
                }
                Ok(())
            }
        };
        match result {
            Ok(()) => self.failed.store(false, Ordering::Relaxed),
            // A disk that is full says it once, not for every page.
            Err((file, error)) if !self.failed.swap(true, Ordering::Relaxed) => {
                log::warn!(
                    "{}: {error}; beginnings of prompts are not kept there until this works again",
                    file.display()
                );
            }
            Err(_) => {}
        }
        self.jobs()[1] += 1;
        self.less.notify_all();
    }
}

/// A folder for its owner alone.
fn private(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// What is not there need not be removed.
fn gone(result: std::io::Result<()>) -> std::io::Result<()> {
    result.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

fn write(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        private(folder)?;
    }
    let unfinished = PathBuf::from(format!("{}{UNFINISHED}", file.display()));
    gone(fs::remove_file(&unfinished))?;
    let mut out = File::options().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    let hash = blake3::hash(bytes);
    let written = [&MAGIC[..], bytes, hash.as_bytes()].into_iter().try_for_each(|part| out.write_all(part));
    if let Err(error) = written.and_then(|()| fs::rename(&unfinished, file)) {
        _ = fs::remove_file(&unfinished);
        return Err(error);
    }
    Ok(())
}

/// What was written, if all of it is there, in a file: what stands in for one is not waited for.
fn read(file: &Path, size: u64) -> Option<Vec<u8>> {
    if !fs::symlink_metadata(file).is_ok_and(|found| found.is_file() && found.len() == size) {
        return None;
    }
    let mut options = File::options();
    let file = fathom_base::files::no_follow(options.read(true)).open(file).ok()?;
    let mut bytes = Vec::with_capacity(usize::try_from(size).ok()?);
    file.take(size + 1).read_to_end(&mut bytes).ok()?;
    let (page, hash) = bytes.strip_prefix(MAGIC)?.split_last_chunk::<{ blake3::OUT_LEN }>()?;
    if blake3::hash(page) != *hash {
        return None;
    }
    bytes.truncate(bytes.len() - blake3::OUT_LEN);
    bytes.drain(..MAGIC.len());
    Some(bytes)
}
