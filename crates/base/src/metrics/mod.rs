//! The event log of a run, `metrics.jsonl`: one event per line as a JSON object, with units in the field names.
//! Reports, TensorBoard files and comparisons are derived from it alone.
//!
//! A line is written with a single call on a file opened for appending, so a killed run leaves at most one torn line
//! at the end. Reading skips such a line; opening for writing removes it.

pub mod events;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

pub use events::Event;

use crate::error::{Error, Result};
use crate::files::{create_replacing, no_follow, plain};

/// Appends events to a file.
#[derive(Debug)]
pub struct MetricsWriter {
    path: PathBuf,
    file: File,
}

impl MetricsWriter {
    /// Opens or creates a file for appending. A torn last line is removed.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened, read or truncated.
    pub fn open(path: impl AsRef<Path>) -> Result<MetricsWriter> {
        let path = path.as_ref().to_path_buf();
        let mut file = no_follow(OpenOptions::new().create(true).append(true).read(true))
            .open(&path)
            .map_err(plain)
            .map_err(|error| Error::io("open for writing", &path, error))?;
        cut_torn_line(&mut file).map_err(|error| Error::io("repair", &path, error))?;
        Ok(MetricsWriter { path, file })
    }

    /// Appends one event.
    ///
    /// # Errors
    /// [`Error::Io`], such as a full disk.
    pub fn write(&mut self, event: &Event) -> Result<()> {
        let to_io = |error| Error::io("write", &self.path, error);
        let mut line = serde_json::to_vec(event).map_err(|error| to_io(error.into()))?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(to_io)
    }

    /// Appends an event that occurs once per log, unless the log has one of its kind; returns true if it was written.
    ///
    /// # Errors
    /// [`Error::Io`], and those of [`read_events`].
    pub fn write_once(&mut self, event: &Event) -> Result<bool> {
        let kind = |value: &Value| value.get("event").cloned();
        let own =
            serde_json::to_value(event).map_err(|error| Error::io("write", &self.path, error.into()))?;
        let has = read_events(&self.path)?.iter().any(|value| kind(value) == kind(&own));
        if !has {
            self.write(event)?;
        }
        Ok(!has)
    }

    /// Waits until everything written so far is on disk. For checkpoints.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&mut self) -> Result<()> {
        self.file.sync_data().map_err(|error| Error::io("sync", &self.path, error))
    }

    /// Removes what happened after a step, because a run resumes from that step's checkpoint and will report it
    /// again: every event with a greater `step`, every `stage` that starts at that step or later, and every event
    /// without either field that follows the first event with a greater step. Every `done` is removed too, since the
    /// run continues.
    ///
    /// # Errors
    /// [`Error::Io`]. The file is replaced atomically; after an error it is unchanged.
    pub fn truncate_after_step(&mut self, step: u64) -> Result<()> {
        let to_io = |error| Error::io("rewrite", &self.path, error);
        let temporary = self.path.with_extension("jsonl.tmp");
        let reader = File::open(&self.path).map(BufReader::new).map_err(to_io)?;
        let mut writer = create_replacing(&temporary).map(BufWriter::new).map_err(to_io)?;
        let mut past = false;
        for line in reader.split(b'\n') {
            let line = line.map_err(to_io)?;
            let Ok(event) = serde_json::from_slice::<Value>(&line) else { continue };
            let number = |name: &str| event.get(name).and_then(Value::as_u64);
            let done = event.get("event").and_then(Value::as_str) == Some("done");
            let keep = match (number("step"), number("start_step")) {
                (Some(at), _) => at <= step && !done,
                (None, Some(start)) => start < step,
                (None, None) => !past,
            };
            past |= number("step").is_some_and(|at| at > step);
            if keep {
                writer.write_all(&line).and_then(|()| writer.write_all(b"\n")).map_err(to_io)?;
            }
        }
        let file = writer.into_inner().map_err(|error| to_io(error.into_error()))?;
        file.sync_all().map_err(to_io)?;
        fs::rename(&temporary, &self.path).map_err(to_io)?;
        *self = MetricsWriter::open(&self.path)?;
        Ok(())
    }
}

/// Reads every event of a file as JSON, in order. A torn or unreadable last line is skipped.
///
/// # Errors
/// [`Error::Io`], or [`Error::BadEvent`] for a line before the last that is not a JSON object.
pub fn read_events(path: impl AsRef<Path>) -> Result<Vec<Value>> {
    let path = path.as_ref();
    let bytes = fs::read(path).map_err(|error| Error::io("read", path, error))?;
    let lines: Vec<&[u8]> = bytes.split(|b| *b == b'\n').collect();
    let last = lines.iter().rposition(|line| !line.is_empty()).unwrap_or(0);
    let mut events = Vec::with_capacity(lines.len());
    for (i, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
        match serde_json::from_slice::<Value>(line) {
            Ok(event) if event.is_object() => events.push(event),
            _ if i == last => {}
            Ok(_) => {
                let message = "a line must be a JSON object".to_string();
                return Err(Error::BadEvent { path: path.to_path_buf(), line: i + 1, message });
            }
            Err(error) => {
                let message = error.to_string();
                return Err(Error::BadEvent { path: path.to_path_buf(), line: i + 1, message });
            }
        }
    }
    Ok(events)
}

/// Truncates the file after its last line break. Later writes follow there, since the file is opened for appending.
fn cut_torn_line(file: &mut File) -> std::io::Result<()> {
    let length = file.metadata()?.len();
    let mut end = length;
    let mut block = [0u8; 4096];
    while end > 0 {
        let start = end.saturating_sub(block.len() as u64);
        let part = &mut block[..(end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        std::io::Read::read_exact(file, part)?;
        if let Some(at) = part.iter().rposition(|b| *b == b'\n') {
            end = start + at as u64 + 1;
            break;
        }
        end = start;
    }
    if end < length { file.set_len(end) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::events::{RunEnd, Stage, Step};
    use super::*;

    fn step(step: u64) -> Event {
        Event::Step(Step { step, loss: 2.5, loss_bits: 2.5f32.to_bits(), ..Step::default() })
    }

    fn steps(path: &Path) -> Vec<u64> {
        read_events(path).unwrap().iter().filter_map(|event| event["step"].as_u64()).collect()
    }

    #[test]
    fn a_torn_last_line_is_skipped_and_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::open(&path).unwrap();
        writer.write(&step(1)).unwrap();
        writer.write(&step(2)).unwrap();
        let whole = fs::read(&path).unwrap();
        for cut in 1..whole.len() / 2 {
            fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            // If only the line break is missing, the line can still be read.
            assert_eq!(steps(&path), if cut == 1 { vec![1, 2] } else { vec![1] });
            MetricsWriter::open(&path).unwrap().write(&step(2)).unwrap();
            assert_eq!(fs::read(&path).unwrap(), whole);
        }
        fs::write(&path, b"no line break at all").unwrap();
        MetricsWriter::open(&path).unwrap().write(&step(7)).unwrap();
        assert_eq!(steps(&path), [7]);
    }

    #[test]
    fn of_some_kinds_a_log_has_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::open(&path).unwrap();
        assert!(writer.write_once(&step(1)).unwrap() && !writer.write_once(&step(2)).unwrap());
        assert_eq!(steps(&path), [1]);
        assert!(writer.write_once(&Event::Done(RunEnd::default())).unwrap());
        assert!(!MetricsWriter::open(&path).unwrap().write_once(&step(3)).unwrap());
    }

    #[test]
    fn a_broken_line_in_the_middle_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        fs::write(&path, b"{\"event\":\"a\"}\n[1]\n{\"event\":\"b\"}\n").unwrap();
        let message = read_events(&path).unwrap_err().to_string();
        assert!(
            message.ends_with("metrics.jsonl:2: not a metric event: a line must be a JSON object"),
            "{message}"
        );
        assert!(read_events(folder.path().join("none")).unwrap_err().to_string().starts_with("cannot read"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_named() {
        let error = MetricsWriter::open("/dev/full").unwrap().write(&step(1)).unwrap_err().to_string();
        assert!(error.starts_with("cannot write /dev/full: No space left on device"), "{error}");
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, precious] = ["metrics.jsonl", "precious"].map(|name| folder.path().join(name));
        fs::write(&precious, "mine").unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        let message = MetricsWriter::open(&path).unwrap_err().to_string();
        assert!(message.contains("metrics.jsonl: it is a symbolic link"), "{message}");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&precious, path.with_extension("jsonl.tmp")).unwrap();
        let mut writer = MetricsWriter::open(&path).unwrap();
        writer.write(&step(1)).unwrap();
        writer.truncate_after_step(1).unwrap();
        assert_eq!(fs::read(&precious).unwrap(), b"mine");
        assert_eq!(steps(&path), [1]);
    }

    #[test]
    fn a_run_that_goes_on_is_not_done() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::open(&path).unwrap();
        for event in [step(1), Event::Done(RunEnd { step: 1, ..RunEnd::default() })] {
            writer.write(&event).unwrap();
        }
        writer.truncate_after_step(1).unwrap();
        assert_eq!(read_events(&path).unwrap().len(), 1, "the step");
    }

    #[test]
    fn a_resumed_run_has_no_duplicates() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::open(&path).unwrap();
        let stage = |start_step| Event::Stage(Stage { start_step, ..Stage::default() });
        for event in [
            stage(0),
            step(1),
            step(2),
            stage(2),
            step(3),
            Event::Done(RunEnd { step: 3, ..RunEnd::default() }),
        ] {
            writer.write(&event).unwrap();
        }
        writer.truncate_after_step(2).unwrap();
        assert_eq!(steps(&path), [1, 2]);
        assert_eq!(read_events(&path).unwrap().len(), 3, "stage 0 and two steps");
        writer.write(&stage(2)).unwrap();
        writer.write(&step(3)).unwrap();
        assert_eq!(steps(&path), [1, 2, 3]);
        writer.truncate_after_step(9).unwrap();
        assert_eq!(read_events(&path).unwrap().len(), 5);
    }
}
