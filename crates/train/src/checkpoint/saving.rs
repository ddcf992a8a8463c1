//! A save on its way: a thread writes while steps go on.

use std::fs;
use std::thread::JoinHandle;
use std::time::Instant;

use fathom_model::Export;
use fathom_tensor::Share;

use super::{
    Checkpoints, LATEST, Saved, State, VERSION, hash_files, io, publish, remove, step_name, sync_folder,
    write_state,
};
use crate::error::Result;
use crate::run::Progress;

/// What the thread writes.
pub(super) struct Job {
    pub checkpoints: Checkpoints,
    pub progress: Progress,
    pub optimizer_step: u64,
    pub exports: Vec<(&'static str, Export)>,
}

impl Job {
    /// Publishes the checkpoint. What a failure leaves behind is removed: the disk may be full.
    fn run(self) -> Result<Saved> {
        let name = step_name(self.progress.step);
        let temporary = self.checkpoints.folder.join(format!(".{name}.tmp"));
        let saved = self.publish(&name, &temporary);
        if saved.is_err() {
            let _ = fs::remove_dir_all(&temporary);
        }
        saved
    }

    fn publish(self, name: &str, temporary: &std::path::Path) -> Result<Saved> {
        let begun = Instant::now();
        let Job { checkpoints, progress, optimizer_step, exports } = self;
        let target = checkpoints.folder.join(name);
        remove(temporary)?;
        fs::create_dir_all(temporary).map_err(io("create", temporary))?;
        // First everything is read, for the next update waits for that; then the disk is waited for.
        let mut writers = Vec::new();
        for (part, export) in exports {
            writers.push(export.stream(&temporary.join(part))?);
        }
        for writer in writers {
            writer.finish()?;
        }
        let files = hash_files(temporary)?;
        let bytes = files.values().map(|file| file.bytes).sum();
        write_state(temporary, &State { version: VERSION, progress, optimizer_step, files })?;
        sync_folder(temporary)?;
        // A folder of this name that is not the newest is of a run that was killed before it could say so.
        remove(&target)?;
        fs::rename(temporary, &target).map_err(io("publish", &target))?;
        sync_folder(&checkpoints.folder)?;
        publish(&checkpoints.folder.join(LATEST), name.as_bytes())?;
        checkpoints.retire(name)?;
        Ok(Saved { bytes, seconds: begun.elapsed().as_secs_f64() })
    }
}

/// A save on its way. Dropped, it is waited for and its errors are lost.
pub struct Saving {
    step: u64,
    stall_s: f64,
    shares: Vec<Share>,
    thread: Option<JoinHandle<Result<Saved>>>,
}

impl Saving {
    /// Starts the thread.
    pub(super) fn start(job: Job, shares: Vec<Share>) -> Result<Saving> {
        let (step, folder) = (job.progress.step, job.checkpoints.folder.clone());
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(move || job.run());
        let thread = Some(thread.map_err(io("start a thread that writes", &folder))?);
        Ok(Saving { step, stall_s: 0.0, shares, thread })
    }

    /// Finished updates in it.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Seconds that the training thread stood still for it.
    pub fn stall_s(&self) -> f64 {
        self.stall_s
    }

    /// Adds to [`Saving::stall_s`] what the caller waited otherwise.
    pub fn add_stall(&mut self, seconds: f64) {
        self.stall_s += seconds;
    }

    /// Waits until every tensor was read; from here on weights and optimizer may be updated.
    pub fn release(&mut self) {
        let begun = Instant::now();
        self.shares.clear();
        self.stall_s += begun.elapsed().as_secs_f64();
    }

    /// True when the thread has ended.
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the publication.
    ///
    /// # Errors
    /// If the file system refused; earlier checkpoints are as they were.
    pub fn finish(&mut self) -> Result<Saved> {
        self.release();
        let begun = Instant::now();
        let saved = match self.thread.take().map(JoinHandle::join) {
            None => Ok(Saved::default()),
            Some(Ok(saved)) => saved,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        };
        self.stall_s += begun.elapsed().as_secs_f64();
        saved
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        self.release();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
