//! Offline runs of Weights & Biases, which `wandb sync FOLDER` uploads.
//!
//! A `.wandb` file is a log in LevelDB's format (wandb/sdk/internal/datastore.py): a header of seven bytes, then blocks of
//! 32 KiB with fragments of records, each after its CRC-32, length and kind. A record is a protocol buffer
//! (wandb/proto/wandb_internal.proto), of which the fields that scalars need are declared here.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use fathom_base::recipe::Row;
use prost::{Message, Oneof};
use serde_json::Value;

use super::Sink;
use crate::error::{Error, Result};

/// Bytes of a block and of a fragment's header.
const BLOCK: usize = 32768;
const HEADER: usize = 7;
/// The file's first bytes: `:W&B`, a magic number, version 0.
const IDENTITY: [u8; 7] = [b':', b'W', b'&', b'B', 0xe1, 0xbe, 0];

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(int64, tag = "1")]
    num: i64,
    #[prost(oneof = "Kind", tags = "2, 17, 18, 21")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(message, tag = "2")]
    History(History),
    #[prost(message, tag = "17")]
    Run(RunRecord),
    #[prost(message, tag = "18")]
    Exit(Exit),
    #[prost(message, tag = "21")]
    Header(Header),
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(message, optional, tag = "1")]
    version_info: Option<VersionInfo>,
}

#[derive(Clone, PartialEq, Message)]
struct VersionInfo {
    #[prost(string, tag = "1")]
    producer: String,
    #[prost(string, tag = "2")]
    min_consumer: String,
}

#[derive(Clone, PartialEq, Message)]
struct Item {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "16")]
    value_json: String,
}

#[derive(Clone, PartialEq, Message)]
struct History {
    #[prost(message, repeated, tag = "1")]
    item: Vec<Item>,
    #[prost(message, optional, tag = "2")]
    step: Option<HistoryStep>,
}

#[derive(Clone, PartialEq, Message)]
struct HistoryStep {
    #[prost(int64, tag = "1")]
    num: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Config {
    #[prost(message, repeated, tag = "1")]
    update: Vec<Item>,
}

#[derive(Clone, PartialEq, Message)]
struct Timestamp {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
struct RunRecord {
    #[prost(string, tag = "1")]
    run_id: String,
    #[prost(string, tag = "3")]
    project: String,
    #[prost(message, optional, tag = "4")]
    config: Option<Config>,
    #[prost(string, tag = "8")]
    display_name: String,
    #[prost(message, optional, tag = "17")]
    start_time: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Message)]
struct Exit {
    #[prost(int32, tag = "1")]
    exit_code: i32,
}

/// Name and settings of an offline run.
#[derive(Clone, Debug, Default)]
pub struct Identity<'a> {
    /// Name of the run.
    pub name: &'a str,
    /// Project that it is uploaded to.
    pub project: &'a str,
    /// Start, in seconds since 1970.
    pub start_unix_s: u64,
    /// Completed updates before the first that is written.
    pub step: u64,
}

/// An offline run being written. Each call writes whole records to the operating system.
#[derive(Debug)]
pub struct OfflineRun {
    path: PathBuf,
    file: File,
    /// Bytes of the current block that are written.
    at: usize,
    num: i64,
}

impl OfflineRun {
    /// Creates `offline-run-TIME-ID/run-ID.wandb` in a folder. A resumed run makes another one, whose name says after
    /// which step.
    ///
    /// # Errors
    /// A folder or file that cannot be written.
    pub fn create(folder: &Path, of: &Identity<'_>, recipe: &[Row]) -> Result<OfflineRun> {
        let id =
            format!("{:08x}", of.start_unix_s.wrapping_mul(0x9e37_79b9).wrapping_add(of.step) & 0xffff_ffff);
        let own = folder.join(format!("offline-run-{}-{id}", stamp(of.start_unix_s)));
        std::fs::create_dir_all(own.join("files")).map_err(|error| Error::write(&own, error))?;
        let path = own.join(format!("run-{id}.wandb"));
        let file = File::create(&path).map_err(|error| Error::write(&path, error))?;
        let mut run = OfflineRun { path, file, at: 0, num: 0 };
        run.bytes(&IDENTITY)?;
        run.at = IDENTITY.len();
        let producer = format!("fathom {}", env!("CARGO_PKG_VERSION"));
        let version_info = Some(VersionInfo { producer, min_consumer: "0.40.0".into() });
        run.record(Kind::Header(Header { version_info }))?;
        let item = |row: &Row| Item {
            key: row.path.clone(),
            value_json: Value::from(row.value.as_str()).to_string(),
        };
        let after = if of.step > 0 { format!(", from step {}", of.step) } else { String::new() };
        run.record(Kind::Run(RunRecord {
            run_id: id,
            project: of.project.into(),
            config: Some(Config { update: recipe.iter().map(item).collect() }),
            display_name: format!("{}{after}", of.name),
            start_time: Some(Timestamp { seconds: i64::try_from(of.start_unix_s).unwrap_or(i64::MAX) }),
        }))?;
        Ok(run)
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn record(&mut self, kind: Kind) -> Result<()> {
        self.num += 1;
        let record = Record { num: self.num, kind: Some(kind) }.encode_to_vec();
        let (mut rest, mut out, mut first) = (&record[..], Vec::with_capacity(record.len() + HEADER), true);
        loop {
            if BLOCK - self.at < HEADER {
                out.resize(out.len() + BLOCK - self.at, 0);
                self.at = 0;
            }
            let (part, after) = rest.split_at(rest.len().min(BLOCK - self.at - HEADER));
            // Whole, first, middle or last fragment.
            let kind: u8 = match (first, after.is_empty()) {
                (true, true) => 1,
                (true, false) => 2,
                (false, false) => 3,
                (false, true) => 4,
            };
            out.extend_from_slice(&crc32(kind, part).to_le_bytes());
            out.extend_from_slice(&(part.len() as u16).to_le_bytes());
            out.push(kind);
            out.extend_from_slice(part);
            self.at += HEADER + part.len();
            (rest, first) = (after, false);
            if rest.is_empty() {
                break;
            }
        }
        self.bytes(&out)
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| Error::write(&self.path, error))
    }
}

impl Sink for OfflineRun {
    fn scalars(&mut self, step: u64, wall_s: f64, scalars: &[(&str, f64)]) -> Result<()> {
        let item = |key: &str, value: f64| {
            // JSON has no other numbers; their strings are W&B's own.
            let value_json = match value {
                value if value.is_nan() => "\"NaN\"".to_string(),
                value if value.is_infinite() => format!("\"{}Infinity\"", if value < 0.0 { "-" } else { "" }),
                value => Value::from(value).to_string(),
            };
            Item { key: key.into(), value_json }
        };
        let mut items: Vec<Item> = scalars.iter().map(|(name, value)| item(name, *value)).collect();
        items.push(Item { key: "_step".into(), value_json: step.to_string() });
        items.push(item("_timestamp", wall_s));
        let num = i64::try_from(step).unwrap_or(i64::MAX);
        self.record(Kind::History(History { item: items, step: Some(HistoryStep { num }) }))
    }

    fn end(&mut self) -> Result<()> {
        self.record(Kind::Exit(Exit { exit_code: 0 }))
    }
}

/// Date and time of a folder's name, `20261130_020100`.
fn stamp(unix_s: u64) -> String {
    let text = crate::html::date(unix_s);
    format!("{}{:02}", text.replace(['-', ':'], "").replace(' ', "_"), unix_s % 60)
}

/// CRC-32 (IEEE 802.3) of a fragment's kind and data.
fn crc32(kind: u8, data: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    };
    !data.iter().fold(step(!0, &kind), step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_the_published_one() {
        // The check value of CRC-32: "123456789".
        assert_eq!(crc32(b'1', b"23456789"), 0xcbf4_3926);
    }
}
