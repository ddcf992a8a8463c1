//! Copies of a rank's state on its machine's own disk, from which a killed run continues if they are newer than the
//! last checkpoint. They are valid only for the mesh and the rank that wrote them. The first rank's folder also records
//! the newest checkpoint: if the run's folder has an older one, the user has set the run back, and the copies are void.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use fathom_model::{write_file, write_private};
use fathom_tensor::Device;
use twox_hash::XxHash3_128;

use super::memory::Copy;
use crate::agree::{gather, outcome};
use crate::error::{Error, Result};

/// Number of copies that are kept: ranks may be killed when only some have written the last one.
const KEEP: usize = 2;
/// Bytes of the hash at the end of a file.
const HASH_BYTES: usize = 16;
/// File with the step of the newest checkpoint that the first rank knows.
const PUBLISHED: &str = "published";

/// The copies of one rank.
pub(super) struct Local {
    folder: PathBuf,
    writing: Option<JoinHandle<Result<()>>>,
}

impl Local {
    /// Opens this rank's copies of the run in folder `run`. All ranks call this together.
    ///
    /// # Errors
    /// If the run's folder or this one cannot be written to.
    pub fn open(device: &Device, folder: &Path, run: &Path) -> Result<Local> {
        let rank = device.mesh.rank();
        // A run restarted from scratch in the same folder must not use the copies of the previous one.
        let name = run.join("checkpoints/ID");
        let made = match rank {
            0 if !name.is_file() => make_id(&name),
            _ => Ok(()),
        };
        outcome(device, made)?;
        let id = fs::read_to_string(&name).map_err(|source| io("read", &name, source))?;
        let mesh = device.mesh.grid().to_string().replace(' ', "-");
        let folder = folder.join(id.trim()).join(mesh).join(format!("rank-{rank:05}"));
        fs::create_dir_all(&folder).map_err(|source| io("create", &folder, source))?;
        Ok(Local { folder, writing: None })
    }

    fn file(&self, step: u64) -> PathBuf {
        self.folder.join(format!("step-{step:08}.copy"))
    }

    /// Steps of the existing copies, newest first.
    fn steps(&self) -> Vec<u64> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let step = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_prefix("step-")?.strip_suffix(".copy")?.parse().ok()
        };
        let mut steps: Vec<u64> = entries.filter_map(step).collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        steps
    }

    /// Starts to write a copy on a thread, after the previous one has ended.
    ///
    /// # Errors
    /// Those of the previous copy.
    pub fn write(&mut self, copy: &Copy) -> Result<()> {
        let before = self.finish();
        let (path, bytes) = (self.file(copy.step), copy.bytes.clone());
        let old: Vec<PathBuf> = self.steps().into_iter().skip(KEEP - 1).map(|step| self.file(step)).collect();
        let write = move || -> Result<()> {
            write_private(&path, &[&bytes, &XxHash3_128::oneshot(&bytes).to_le_bytes()])?;
            old.iter().try_for_each(|path| remove(path))
        };
        let thread = std::thread::Builder::new().name("local copy".into()).spawn(write);
        self.writing = Some(thread.map_err(|source| io("start a thread that writes", &self.folder, source))?);
        before
    }

    /// True if no copy is being written.
    pub fn is_idle(&self) -> bool {
        self.writing.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the copy being written.
    ///
    /// # Errors
    /// Failures of its disk.
    pub fn finish(&mut self) -> Result<()> {
        match self.writing.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(done)) => done,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }

    /// The newest copy that all ranks have, if it is of a later step than the newest checkpoint, `saved`; removes void
    /// copies. All ranks call this together.
    ///
    /// # Errors
    /// A copy that is damaged, or cannot be removed, by name.
    pub fn newest(&self, device: &Device, saved: Option<u64>) -> Result<Option<Copy>> {
        let steps = self.steps();
        let number = |step: Option<u64>| step.and_then(|step| i32::try_from(step).ok()).unwrap_or(-1);
        let step = |at: usize| number(steps.get(at).copied());
        let all = gather(device, [step(0), step(1), number(self.published())])?;
        let published = all[0][2];
        let set_back = published > number(saved);
        if set_back {
            outcome(device, steps.iter().try_for_each(|step| remove(&self.file(*step))))?;
        }
        // Only after the copies are gone on all ranks.
        outcome(device, if published == number(saved) { Ok(()) } else { self.publish(device, saved) })?;
        if set_back {
            return Ok(None);
        }
        let has = |step: &i32| all.iter().all(|[first, second, _]| [first, second].contains(&step));
        let common = all[0][..2].iter().copied().filter(has).max().unwrap_or(-1);
        match u64::try_from(common) {
            Ok(step) if saved.is_none_or(|saved| step > saved) => outcome(device, self.read(step)).map(Some),
            _ => Ok(None),
        }
    }

    fn published(&self) -> Option<u64> {
        fs::read_to_string(self.folder.join(PUBLISHED)).ok()?.parse().ok()
    }

    /// Records the newest checkpoint on the first rank.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn publish(&self, device: &Device, newest: Option<u64>) -> Result<()> {
        if device.mesh.rank() > 0 {
            return Ok(());
        }
        let step = newest.map(|step| step.to_string()).unwrap_or_default();
        Ok(write_file(&self.folder.join(PUBLISHED), step.as_bytes())?)
    }

    fn read(&self, step: u64) -> Result<Copy> {
        let path = self.file(step);
        let mut bytes = fs::read(&path).map_err(|source| io("read", &path, source))?;
        let len = bytes.len().saturating_sub(HASH_BYTES);
        if bytes[len..] != XxHash3_128::oneshot(&bytes[..len]).to_le_bytes() {
            let message = "was truncated or altered; remove it to go on from the last checkpoint".to_string();
            return Err(Error::Checkpoint { path, message });
        }
        bytes.truncate(len);
        Ok(Copy { step, bytes: Arc::new(bytes) })
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.writing.take().map(JoinHandle::join);
    }
}

/// Writes a unique name.
fn make_id(path: &Path) -> Result<()> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanoseconds = since.map_or(0, |since| since.as_nanos());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|source| io("create", folder, source))?;
    }
    Ok(write_file(path, format!("{nanoseconds:x}-{}", std::process::id()).as_bytes())?)
}

fn remove(path: &Path) -> Result<()> {
    fs::remove_file(path).map_err(|source| io("remove", path, source))
}

fn io(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    fathom_base::Error::io(action, path, source).into()
}
