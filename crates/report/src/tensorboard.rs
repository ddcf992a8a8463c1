//! TensorBoard event files: scalars as protocol buffers in the TFRecord framing.
//!
//! A record is the length as u64, the masked CRC-32C of those eight bytes, the data, and the masked CRC-32C of the
//! data, all little-endian (tensorflow/core/lib/io/record_writer.cc). The mask rotates the checksum right by 15 bits
//! and adds a constant, so that checksums remain useful for data that contains checksums.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use prost::Message;

use crate::error::{Error, Result};

/// Subset of the event of tensorflow/core/util/event.proto that scalars need.
#[derive(Clone, PartialEq, Message)]
struct EventProto {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<SummaryProto>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLogProto>,
}

/// Marks a restart of the run at the event's step.
#[derive(Clone, PartialEq, Message)]
struct SessionLogProto {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `SessionLog.START`.
const SESSION_START: i32 = 1;

#[derive(Clone, PartialEq, Message)]
struct SummaryProto {
    #[prost(message, repeated, tag = "1")]
    value: Vec<ValueProto>,
}

#[derive(Clone, PartialEq, Message)]
struct ValueProto {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, tag = "2")]
    simple_value: f32,
}

/// An event file being written. Each call writes whole records to the operating system, so TensorBoard shows a run in
/// progress, and a killed run leaves a readable file.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Creates `events.out.tfevents.<unix seconds>.fathom` in a folder, which is created too, for a run that begins,
    /// or continues after `step` updates. A continued run adds a file, since readers join the files of a folder.
    /// Points after `step` in earlier files become void, because the run writes them again.
    ///
    /// # Errors
    /// [`Error::Write`] if the folder or the file cannot be written.
    pub fn resume(folder: &Path, now_unix_s: u64, step: u64) -> Result<EventFile> {
        std::fs::create_dir_all(folder).map_err(|error| Error::write(folder, error))?;
        let mut copy = 0;
        let (path, file) = loop {
            let path = folder.join(file_name(now_unix_s, copy));
            match File::create_new(&path) {
                Ok(file) => break (path, file),
                // The run was started twice within a second.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => copy += 1,
                Err(error) => return Err(Error::write(&path, error)),
            }
        };
        let (mut events, wall_time) = (EventFile { path, file }, now_unix_s as f64);
        let file_version = Some("brain.Event:2".to_string());
        events.record(&EventProto { wall_time, file_version, ..EventProto::default() })?;
        // Readers drop their points from this step on (tensorboard, event_accumulator.py).
        let session_log = Some(SessionLogProto { status: SESSION_START });
        let step = signed(step + 1);
        events.record(&EventProto { wall_time, step, session_log, ..EventProto::default() })?;
        Ok(events)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes scalars of one step. `wall_s` is in seconds since 1970.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn scalars(&mut self, step: u64, wall_s: f64, scalars: &[(&str, f64)]) -> Result<()> {
        let value = |(tag, x): &(&str, f64)| ValueProto { tag: tag.to_string(), simple_value: *x as f32 };
        let summary = Some(SummaryProto { value: scalars.iter().map(value).collect() });
        self.record(&EventProto { wall_time: wall_s, step: signed(step), summary, ..EventProto::default() })
    }

    fn record(&mut self, event: &EventProto) -> Result<()> {
        let record = frame(&event.encode_to_vec());
        self.file.write_all(&record).map_err(|error| Error::write(&self.path, error))
    }
}

fn file_name(unix_s: u64, copy: u32) -> String {
    let suffix = if copy == 0 { String::new() } else { format!(".{copy}") };
    format!("events.out.tfevents.{unix_s:010}.fathom{suffix}")
}

fn signed(step: u64) -> i64 {
    i64::try_from(step).unwrap_or(i64::MAX)
}

fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut out = Vec::with_capacity(data.len() + 16);
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked_crc(&length).to_le_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(&masked_crc(data).to_le_bytes());
    out
}

fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a file, checking every checksum.
    fn read_back(mut bytes: &[u8]) -> Vec<EventProto> {
        let mut out = Vec::new();
        while !bytes.is_empty() {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let crc = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            assert_eq!(crc(8), masked_crc(&bytes[..8]));
            let data = &bytes[12..12 + length];
            assert_eq!(crc(12 + length), masked_crc(data));
            out.push(EventProto::decode(data).unwrap());
            bytes = &bytes[16 + length..];
        }
        out
    }

    #[test]
    fn checksum_is_the_published_one() {
        // RFC 3720, appendix B.4: 32 bytes of zero.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(masked_crc(&[0; 32]), 0x8a91_36aau32.rotate_right(15).wrapping_add(0xa282_ead8));
    }

    #[test]
    fn a_run_is_seen_while_it_goes_on_and_a_resumed_one_voids_what_it_repeats() {
        let folder = tempfile::tempdir().unwrap();
        let loss = |step: u64| [("train/loss", step as f64)];
        let mut first = EventFile::resume(folder.path(), 1_700_000_000, 0).unwrap();
        for at in 1..=3 {
            first.scalars(at, 1_700_000_000.0 + at as f64, &loss(at)).unwrap();
            // Records must be complete without closing or flushing the file.
            assert_eq!(read_back(&std::fs::read(first.path()).unwrap()).len(), 2 + at as usize);
        }
        let mut second = EventFile::resume(folder.path(), 1_700_000_000, 2).unwrap();
        assert!(second.path() > first.path(), "readers take files in the order of their names");
        second.scalars(3, 1_700_000_009.0, &loss(3)).unwrap();
        let events = read_back(&std::fs::read(second.path()).unwrap());
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        assert_eq!((events[1].step, events[1].session_log.clone().unwrap().status), (3, SESSION_START));
        assert_eq!((events[2].step, events[2].wall_time), (3, 1_700_000_009.0));
    }

    #[test]
    fn what_is_written_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = EventFile::resume(folder.path(), 1_700_000_000, 6).unwrap();
        file.scalars(7, 1_700_000_001.5, &[("train/loss", 2.5)]).unwrap();
        file.scalars(7, 1_700_000_002.0, &[("val/bits_per_byte/code", 1.25)]).unwrap();
        let path = file.path();
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents.1700000000"));
        let events = read_back(&std::fs::read(path).unwrap());
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        assert_eq!((events[2].step, events[2].wall_time), (7, 1_700_000_001.5));
        let values = &events[2].summary.as_ref().unwrap().value;
        assert_eq!((values[0].tag.as_str(), values[0].simple_value), ("train/loss", 2.5));
        let bits = &events[3].summary.as_ref().unwrap().value[0];
        assert_eq!((bits.tag.as_str(), bits.simple_value), ("val/bits_per_byte/code", 1.25));
    }
}
