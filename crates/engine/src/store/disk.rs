//! The threads between the engine and the files of stored prefixes.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use super::form::{MAGIC, UNFINISHED, gone, private};
use super::owned;

/// Maximum bytes being written to disk, and maximum bytes being read for each sequence.
pub(super) const ON_THE_WAY: u64 = 64 << 20;

/// Work on the folder.
pub(super) enum Job {
    Write(PathBuf, Vec<u8>),
    Remove(PathBuf),
    EraseModel(PathBuf),
    EraseScope(PathBuf),
    Touch(Vec<PathBuf>),
}

/// The writer thread.
pub(super) struct Disk {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    pub way: Arc<Way>,
}

/// Pending work.
#[derive(Default)]
pub(super) struct Way {
    bytes: AtomicU64,
    /// Numbers of submitted and of finished jobs, which run in order.
    jobs: Mutex<[u64; 2]>,
    less: Condvar,
    failed: AtomicBool,
    /// Number of pages that may still be read while reads are suspended.
    pub readable: AtomicU64,
}

/// Suspends reads of pages until it is dropped.
pub struct HeldReads(pub(super) Arc<Way>);

impl Drop for HeldReads {
    fn drop(&mut self) {
        let _jobs = self.0.jobs();
        self.0.readable.store(u64::MAX, Ordering::Relaxed);
        self.0.less.notify_all();
    }
}

impl Disk {
    pub fn new() -> Disk {
        let (jobs, receiver): (Sender<Job>, Receiver<Job>) = channel();
        let way = Arc::new(Way { readable: AtomicU64::new(u64::MAX), ..Way::default() });
        let own = way.clone();
        let work = move || receiver.into_iter().for_each(|job| own.done(job));
        let thread = thread::Builder::new().name("prefixes".into()).spawn(work).ok();
        Disk { jobs: Some(jobs), thread, way }
    }

    pub fn has_room(&self, wait: bool) -> bool {
        if self.way.bytes.load(Ordering::Relaxed) < ON_THE_WAY {
            return true;
        }
        if wait {
            self.wait();
        }
        wait
    }

    pub fn give(&self, job: Job) {
        if let Job::Write(_, bytes) = &job {
            self.way.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        self.way.jobs()[0] += 1;
        if let Some(Err(unsent)) = self.jobs.as_ref().map(|jobs| jobs.send(job)) {
            self.way.done(unsent.0);
        }
    }

    /// Number of jobs submitted so far.
    pub fn given(&self) -> u64 {
        self.way.jobs()[0]
    }

    /// Waits for all pending work.
    pub fn wait(&self) {
        self.way.wait(self.given());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Submitted jobs are finished first.
            _ = thread.join();
        }
    }
}

impl Way {
    fn jobs(&self) -> MutexGuard<'_, [u64; 2]> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the first `given` jobs are done.
    pub fn wait(&self, given: u64) {
        let mut jobs = self.jobs();
        while jobs[1] < given {
            jobs = self.less.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until another page may be read.
    pub fn wait_readable(&self) {
        let mut jobs = self.jobs();
        while self.readable.load(Ordering::Relaxed) == 0 {
            jobs = self.less.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
        if self.readable.load(Ordering::Relaxed) != u64::MAX {
            self.readable.fetch_sub(1, Ordering::Relaxed);
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
                // A removed file needs no time stamp.
                let now = SystemTime::now();
                // Anything other than a regular file is skipped rather than waited for.
                let is_file = |file: &PathBuf| fs::symlink_metadata(file).is_ok_and(|found| found.is_file());
                for file in files.into_iter().filter(is_file) {
                    _ = File::open(file).and_then(|file| file.set_modified(now));
                }
                Ok(())
            }
        };
        match result {
            Ok(()) => self.failed.store(false, Ordering::Relaxed),
            // A full disk is reported once, not for every page.
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

/// The contents of a regular file of exactly this size; other kinds of files are not waited for.
pub(super) fn read(file: &Path, size: u64) -> Option<Vec<u8>> {
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
