//! A save in progress: a thread on every rank writes while steps continue, and the first rank's thread publishes when
//! all agree.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use fathom_model::{Export, Hurry, rank_file};
use fathom_tensor::{Device, Share};

use super::files::{
    FileState, Files, announce, aside_name, io, read_files, remove, step_name, sync_folder, write_json,
};
use super::folder::{Checkpoints, LATEST, NEXT};
use super::state::{State, VERSION, write_state};
use crate::agree::{outcome, until};
use crate::error::{Error, Result};
use crate::run::Progress;

/// Temporary folder and rank of a writer.
pub(super) struct Place {
    pub temporary: PathBuf,
    pub rank: usize,
    pub ranks: usize,
}

/// Input of the writer thread.
pub(super) struct Job {
    pub checkpoints: Checkpoints,
    pub place: Place,
    pub progress: Progress,
    pub optimizer_step: u64,
    pub exports: Vec<(&'static str, Export)>,
}

impl Place {
    /// Path of the list of files that a rank wrote.
    fn list(&self, rank: usize) -> PathBuf {
        self.temporary.join(format!("rank-{rank:05}.json"))
    }

    /// Writes and syncs this rank's files.
    fn write(&self, exports: Vec<(&'static str, Export)>, written: &SaveReporter) -> Result<Files> {
        // Everything is read first, since the next update waits for that; only then does the thread wait for the disk.
        let mut writers = Vec::new();
        for (part, export) in exports {
            let folder = self.temporary.join(part);
            fs::create_dir_all(&folder).map_err(io("create", &folder))?;
            let name = rank_file(self.rank, self.ranks);
            writers.push((format!("{part}/{name}"), export.stream(&folder.join(name), &written.hurry)?));
        }
        written.read.store(true, Ordering::Release);
        let mut files = Files::new();
        for (name, writer) in writers {
            files.insert(name, FileState::of(writer.digest()));
            writer.finish()?;
        }
        if self.rank > 0 {
            write_json(&self.list(self.rank), &files)?;
        }
        Ok(files)
    }
}

impl Job {
    /// Publishes the checkpoint, on the first rank.
    fn publish(self, mut files: Files) -> Result<SaveStats> {
        let Job { checkpoints, place, progress, optimizer_step, .. } = self;
        let name = step_name(progress.step);
        let target = checkpoints.folder.join(&name);
        for rank in 1..place.ranks {
            let list = place.list(rank);
            files.extend(read_files(&list)?);
            fs::remove_file(&list).map_err(io("remove", &list))?;
        }
        let bytes = files.values().map(|file| file.bytes).sum();
        write_state(
            &place.temporary,
            &State { version: VERSION, progress, optimizer_step, files, base: checkpoints.base.clone() },
        )?;
        sync_folder(&place.temporary)?;
        // A run killed before `LATEST` names its first checkpoint finds the name here.
        let (latest, next) = (checkpoints.folder.join(LATEST), checkpoints.folder.join(NEXT));
        announce(&next, &name)?;
        // An existing checkpoint of this step may be the newest: it must stay findable until this one is in place.
        if target.exists() {
            let aside = checkpoints.folder.join(aside_name(&name));
            remove(&aside)?;
            fs::rename(&target, &aside).map_err(io("put aside", &target))?;
        }
        fs::rename(&place.temporary, &target).map_err(io("publish", &target))?;
        sync_folder(&checkpoints.folder)?;
        fs::rename(&next, &latest).map_err(io("publish", &latest))?;
        sync_folder(&checkpoints.folder)?;
        checkpoints.retire(&name)?;
        Ok(SaveStats { bytes, seconds: 0.0 })
    }

    /// Body of the thread. A failed save removes its files: the disk may be full.
    fn run(mut self, written: &SaveReporter, verdict: &Receiver<bool>) -> Result<SaveStats> {
        let started = Instant::now();
        let exports = std::mem::take(&mut self.exports);
        let files = self.place.write(exports, written);
        let failure = files.as_ref().err().map(ToString::to_string);
        written.over.store(true, Ordering::Release);
        // The receiver is gone if the run has ended or returns to an earlier step.
        let _ = written.sender.send(failure);
        let agreed = verdict.recv().unwrap_or(false);
        let (rank, temporary) = (self.place.rank, self.place.temporary.clone());
        let saved = match (files, agreed) {
            (Ok(files), true) if rank == 0 => self.publish(files),
            (Ok(files), true) => {
                Ok(SaveStats { bytes: files.values().map(|file| file.bytes).sum(), seconds: 0.0 })
            }
            (Ok(_), false) => {
                Err(Error::Checkpoint { path: temporary.clone(), message: "was given up".into() })
            }
            (Err(error), _) => Err(error),
        };
        if saved.is_err() && rank == 0 {
            let _ = fs::remove_dir_all(&temporary);
        }
        saved.map(|saved| SaveStats { seconds: started.elapsed().as_secs_f64(), ..saved })
    }
}

/// Channel on which the thread reports that this rank's files are on disk, or why not.
struct SaveReporter {
    read: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    hurry: Hurry,
    sender: Sender<Option<String>>,
}

/// A save in progress. Dropping it waits for the thread and abandons the save.
pub struct PendingSave {
    step: u64,
    stall_s: f64,
    shares: Vec<Share>,
    /// Weights and optimizer may be updated.
    released: bool,
    /// This rank has read everything.
    read: Arc<AtomicBool>,
    /// This rank has written, or failed to.
    over: Arc<AtomicBool>,
    /// The training thread is waiting for the reads.
    hurry: Hurry,
    written: Receiver<Option<String>>,
    /// `None` once it was sent.
    verdict: Option<Sender<bool>>,
    thread: Option<JoinHandle<Result<SaveStats>>>,
}

impl PendingSave {
    /// Starts the thread.
    pub(super) fn start(job: Job, shares: Vec<Share>) -> Result<PendingSave> {
        let (step, folder) = (job.progress.step, job.checkpoints.folder.clone());
        let [read, over] = [false; 2].map(|flag| Arc::new(AtomicBool::new(flag)));
        let (sender, written) = channel();
        let (verdict, verdicts) = channel();
        let hurry = Hurry::default();
        let telling = SaveReporter { read: read.clone(), over: over.clone(), hurry: hurry.clone(), sender };
        let work = move || job.run(&telling, &verdicts);
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(work);
        let thread = Some(thread.map_err(io("start a thread that writes", &folder))?);
        Ok(PendingSave {
            step,
            stall_s: 0.0,
            shares,
            released: false,
            read,
            over,
            hurry,
            written,
            verdict: Some(verdict),
            thread,
        })
    }

    /// Number of finished updates in it.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Seconds that the training thread waited for it.
    pub fn stall_s(&self) -> f64 {
        self.stall_s
    }

    /// Adds the caller's own waiting time to [`PendingSave::stall_s`].
    pub fn add_stall(&mut self, seconds: f64) {
        self.stall_s += seconds;
    }

    /// Waits until every tensor was read; afterwards weights and optimizer may be updated.
    pub fn release(&mut self) {
        let started = Instant::now();
        self.hurry.store(true, Ordering::Relaxed);
        self.shares.clear();
        self.released = true;
        self.stall_s += started.elapsed().as_secs_f64();
    }

    /// [`PendingSave::release`] on all ranks, which call this together.
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn release_together(&mut self, device: &Device) -> Result<()> {
        if self.released {
            return Ok(());
        }
        self.wait_together(device, &|saving| saving.read.load(Ordering::Acquire) || saving.is_written())?;
        self.release();
        Ok(())
    }

    /// Waits until `is_so` holds on all ranks, urging the writers on.
    fn wait_together(&mut self, device: &Device, is_so: &dyn Fn(&PendingSave) -> bool) -> Result<()> {
        let started = Instant::now();
        self.hurry.store(true, Ordering::Relaxed);
        let waited = until(device, &|| is_so(self));
        self.stall_s += started.elapsed().as_secs_f64();
        waited
    }

    /// True when this rank has written its files, or failed to.
    pub fn is_written(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// True when the ranks have agreed and the thread has ended.
    pub fn is_over(&self) -> bool {
        self.verdict.is_none() && self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until all ranks have written and lets the first publish, which continues in its thread. All ranks call
    /// this together; once is enough.
    ///
    /// # Errors
    /// If some rank could not write: nothing will be published.
    pub fn settle(&mut self, device: &Device) -> Result<()> {
        let Some(verdict) = self.verdict.take() else { return Ok(()) };
        self.wait_together(device, &PendingSave::is_written)?;
        self.release();
        let started = Instant::now();
        let failure = self.written.recv().unwrap_or_else(|_| Some("the thread that writes is gone".into()));
        let mine = match failure {
            None => Ok(()),
            Some(message) => Err(Error::Save(message)),
        };
        let agreed = outcome(device, mine);
        // The thread waits for this or has ended.
        let _ = verdict.send(agreed.is_ok());
        self.stall_s += started.elapsed().as_secs_f64();
        agreed
    }

    /// Waits for the publication. All ranks call this together.
    ///
    /// # Errors
    /// If the file system refused a rank; earlier checkpoints are as they were.
    pub fn finish(&mut self, device: &Device) -> Result<SaveStats> {
        let settled = self.settle(device);
        let started = Instant::now();
        let saved = match self.thread.take().map(JoinHandle::join) {
            None => Ok(SaveStats::default()),
            Some(Ok(saved)) => saved,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        };
        self.stall_s += started.elapsed().as_secs_f64();
        settled.and(saved)
    }
}

impl Drop for PendingSave {
    fn drop(&mut self) {
        self.release();
        self.verdict = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Result of a save.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SaveStats {
    /// Bytes on disk.
    pub bytes: u64,
    /// Seconds from the request to publication.
    pub seconds: f64,
}
