//! TensorBoard event files: scalars as protocol buffers in the TFRecord framing.
//!
//! A record is the length as u64, the masked CRC-32C of those eight bytes, the data, and the masked CRC-32C of
//! the data, all little-endian (tensorflow/core/lib/io/record_writer.cc). The mask turns the checksum right by
//! 15 bits and adds a constant, so that checksums of data which holds checksums stay good.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use fathom_base::metrics::events::{self as ev};
use prost::Message;

use crate::error::{Error, Result};
use crate::log::RunLog;

/// An event of tensorflow/core/util/event.proto, as far as scalars need it.
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
}

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

/// An event file being written. Records are written whole, so a killed run leaves a readable file.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Creates `events.out.tfevents.<unix seconds>.fathom` in a folder, which is created too.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn create(folder: &Path, start_unix_s: u64) -> Result<EventFile> {
        std::fs::create_dir_all(folder).map_err(|error| Error::write(folder, error))?;
        let path = folder.join(format!("events.out.tfevents.{start_unix_s:010}.fathom"));
        let file = File::create(&path).map_err(|error| Error::write(&path, error))?;
        let mut events = EventFile { path, file };
        let file_version = Some("brain.Event:2".to_string());
        events.record(&EventProto {
            wall_time: start_unix_s as f64,
            step: 0,
            file_version,
            summary: None,
        })?;
        Ok(events)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes scalars of one step. `wall_s` is seconds since 1970.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn scalars(&mut self, step: u64, wall_s: f64, scalars: &[(&str, f64)]) -> Result<()> {
        let value = |(tag, x): &(&str, f64)| ValueProto { tag: tag.to_string(), simple_value: *x as f32 };
        let summary = Some(SummaryProto { value: scalars.iter().map(value).collect() });
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        self.record(&EventProto { wall_time: wall_s, step, file_version: None, summary })
    }

    /// Writes a training step under fixed tags.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn step(&mut self, start_unix_s: u64, step: &ev::Step) -> Result<()> {
        let scalars = [
            ("train/loss", step.loss),
            ("train/lr", step.lr),
            ("train/grad_norm", step.grad_norm),
            ("train/tokens_total", step.tokens_total as f64),
            ("perf/tokens_per_s", step.tokens_per_s),
            ("perf/model_tflops", step.model_tflops),
            ("perf/step_s", step.step_s),
            ("perf/data_wait_s", step.data_wait_s),
            ("mem/pool_peak_bytes", step.pool_peak_bytes as f64),
            ("mem/rss_bytes", step.rss_bytes as f64),
        ];
        self.scalars(step.step, start_unix_s as f64 + step.time_s, &scalars)
    }

    fn record(&mut self, event: &EventProto) -> Result<()> {
        let record = frame(&event.encode_to_vec());
        self.file.write_all(&record).map_err(|error| Error::write(&self.path, error))
    }
}

/// Writes all scalars of a log into a folder, replacing the file of an earlier call for the same run.
///
/// # Errors
/// [`Error::Write`].
pub fn export(log: &RunLog, folder: &Path) -> Result<PathBuf> {
    let start = log.run.as_ref().map_or(0, |run| run.start_unix_s);
    let mut file = EventFile::create(folder, start)?;
    for step in &log.steps {
        file.step(start, step)?;
    }
    let wall = |step: u64| {
        let before = log.steps.iter().rfind(|s| s.step <= step);
        start as f64 + before.map_or(0.0, |s| s.time_s)
    };
    for bits in &log.bits {
        let tag = format!("val/bits_per_byte/{}", bits.name);
        file.scalars(bits.step, wall(bits.step), &[(&tag, bits.bits_per_byte)])?;
    }
    Ok(file.path)
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

    /// Takes a file apart again, checking every checksum.
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
    fn what_is_written_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = RunLog {
            run: Some(ev::Run { start_unix_s: 1_700_000_000, ..Default::default() }),
            ..RunLog::default()
        };
        log.steps = vec![ev::Step { step: 7, loss: 2.5, time_s: 1.5, ..Default::default() }];
        log.bits =
            vec![ev::EvalBits { name: "code".into(), step: 7, bits_per_byte: 1.25, ..Default::default() }];
        let path = export(&log, folder.path()).unwrap();
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents.1700000000"));
        let events = read_back(&std::fs::read(path).unwrap());
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        assert_eq!((events[1].step, events[1].wall_time), (7, 1_700_000_001.5));
        let values = &events[1].summary.as_ref().unwrap().value;
        assert_eq!((values[0].tag.as_str(), values[0].simple_value), ("train/loss", 2.5));
        let bits = &events[2].summary.as_ref().unwrap().value[0];
        assert_eq!((bits.tag.as_str(), bits.simple_value), ("val/bits_per_byte/code", 1.25));
    }
}
