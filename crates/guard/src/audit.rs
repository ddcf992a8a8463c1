//! The audit log: one line of JSON for each judged text and each verdict about it, in files that are rotated. Lines
//! are chained by keyed hashes, and the last one is named in a file of its own under a keyed hash, so that a changed,
//! dropped or added line is found. Texts are not in it unless the configuration says so: their keyed hash is.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use fathom_base::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::config::AuditSettings;
use crate::rail::Context;
use crate::verdict::{Decision, Direction, Reason, Verdict};

/// Name of the file with the number of lines, the hash of the last one, and a keyed hash of both.
const HEAD: &str = "audit.head";
/// Bytes of `,"hash":"` and the hash with its end.
const SUFFIX: usize = 9 + 64 + 2;

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Number of the line, from 1.
    pub line: u64,
    /// Hash of the line before.
    pub before: String,
    /// Seconds since 1970.
    pub time_s: f64,
    /// Hash or name of the caller's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Model.
    pub model: String,
    /// Hash of the configuration.
    pub config: String,
    /// Direction.
    pub direction: Direction,
    /// Rail, or none for a text that all rails allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// Decision.
    pub decision: Decision,
    /// Reason.
    pub reason: Reason,
    /// Kinds of findings with their number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kinds: BTreeMap<String, u64>,
    /// Score of a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// Microseconds of the rail, or of all of them.
    pub took_us: u64,
    /// True if the rail failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Rails that failed recently.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<String>,
    /// Keyed hash of the judged text.
    pub text_hash: String,
    /// The text itself, if the configuration says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// The log, open for writing.
pub struct Audit {
    settings: AuditSettings,
    folder: PathBuf,
    keys: Keys,
    state: Mutex<State>,
}

/// Keys of hashes, derived from the secret.
struct Keys {
    chain: [u8; 32],
    head: [u8; 32],
    text: [u8; 32],
}

impl Keys {
    fn of(secret: &[u8]) -> Keys {
        Keys {
            chain: blake3::derive_key("fathom guard audit chain", secret),
            head: blake3::derive_key("fathom guard audit head", secret),
            text: blake3::derive_key("fathom guard audit text", secret),
        }
    }

    fn chained(&self, body: &str) -> String {
        blake3::keyed_hash(&self.chain, body.as_bytes()).to_hex().to_string()
    }

    /// The text of the file [`HEAD`].
    fn head(&self, lines: u64, last: &str) -> String {
        let head = format!("{lines:020} {last}");
        format!("{head} {}\n", blake3::keyed_hash(&self.head, head.as_bytes()).to_hex())
    }

    /// The number of lines and the hash of the last one, as the file [`HEAD`] of a folder has them.
    fn read_head(&self, folder: &Path) -> std::result::Result<(u64, String), HeadFault> {
        let text = std::fs::read_to_string(folder.join(HEAD)).map_err(|_| HeadFault::Missing)?;
        let mut words = text.trim_end_matches('\n').split(' ');
        let head = words.next().and_then(|lines| lines.parse().ok()).zip(words.next().map(str::to_string));
        head.filter(|(lines, last)| self.head(*lines, last) == text).ok_or(HeadFault::Changed)
    }
}

/// A fault of the file [`HEAD`].
enum HeadFault {
    Missing,
    Changed,
}

impl HeadFault {
    fn problem(&self) -> &'static str {
        match self {
            HeadFault::Missing => "the log's audit.head is missing",
            HeadFault::Changed => "the log's audit.head was not written with this secret",
        }
    }
}

struct State {
    file: File,
    bytes: u64,
    number: u64,
    lines: u64,
    last: String,
    head: File,
    /// Set once a line could not be written: no text passes any more.
    broken: Option<String>,
}

fn file_name(number: u64) -> String {
    format!("audit-{number:06}.jsonl")
}

/// Files of a log, in order.
///
/// # Errors
/// The folder cannot be read.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|error| Error::io("read", folder, error))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("audit-") && name.ends_with(".jsonl")
    });
    files.sort();
    Ok(files)
}

fn secret(path: &Path) -> Result<Vec<u8>> {
    match std::fs::read(path) {
        Ok(secret) if secret.len() >= 16 => Ok(secret),
        Ok(_) => Err(Error::Unmet { what: format!("{}: the secret has less than 16 bytes", path.display()) }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let mut secret = vec![0; 32];
            let random = File::open("/dev/urandom").and_then(|mut file| {
                std::io::Read::read_exact(&mut file, &mut secret)?;
                let mut options = OpenOptions::new();
                options.write(true).create_new(true);
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
                options.open(path)?.write_all(&secret)
            });
            random.map_err(|error| Error::io("create", path, error))?;
            Ok(secret)
        }
        Err(error) => Err(Error::io("read", path, error)),
    }
}

impl Audit {
    /// Opens or continues the log of a configuration in `base`, its folder.
    ///
    /// # Errors
    /// Files that cannot be read or written, or a log whose end is damaged.
    pub fn open(settings: &AuditSettings, base: &Path) -> Result<Audit> {
        let folder = base.join(&settings.folder);
        std::fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, error))?;
        let keys = Keys::of(&secret(&base.join(&settings.secret))?);
        let written = files(&folder)?;
        let number = written.len().max(1) as u64;
        let (lines, last) = match keys.read_head(&folder) {
            Ok(head) => head,
            Err(HeadFault::Missing) if written.is_empty() => (0, String::new()),
            Err(fault) => {
                let what = format!("{}: {}; move the old log elsewhere", folder.display(), fault.problem());
                return Err(Error::Unmet { what });
            }
        };
        let path = folder.join(file_name(number));
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.map_err(|error| Error::io("create", &path, error))?;
        let bytes = file.metadata().map_err(|error| Error::io("read", &path, error))?.len();
        let path = folder.join(HEAD);
        let head = OpenOptions::new().create(true).write(true).truncate(false).open(&path);
        let head = head.map_err(|error| Error::io("create", &path, error))?;
        write_head(&head, &path, &keys.head(lines, &last))?;
        let state = State { file, bytes, number, lines, last, head, broken: None };
        Ok(Audit { settings: settings.clone(), folder, keys, state: Mutex::new(state) })
    }

    /// Why nothing can be written any more, if so.
    pub fn broken(&self) -> Option<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).broken.clone()
    }

    /// Writes the lines of a judged text: one for each verdict that is more than a plain allowance, or one for all.
    ///
    /// # Errors
    /// The log cannot be written; it stays broken, so that nothing passes unrecorded.
    pub fn record(
        &self,
        text: &str,
        direction: Direction,
        verdicts: &[Verdict],
        (context, config, degraded): (&Context, &str, &[String]),
    ) -> Result<()> {
        let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
        let text_hash = blake3::keyed_hash(&self.keys.text, text.as_bytes()).to_hex().to_string();
        let took_us: u128 = verdicts.iter().map(|verdict| verdict.took.as_micros()).sum();
        let clean = AuditRecord {
            line: 0,
            before: String::new(),
            time_s: (time_s * 1e3).round() / 1e3,
            key: context.key.clone(),
            thread: context.thread.clone(),
            model: context.model.clone(),
            config: config.to_string(),
            direction,
            rail: None,
            decision: Decision::Allow,
            reason: Reason::Clean,
            kinds: BTreeMap::new(),
            score: None,
            took_us: took_us as u64,
            failed: false,
            degraded: degraded.to_vec(),
            text_hash,
            text: self.settings.text.then(|| text.to_string()),
        };
        let more = verdicts.iter().filter(|it| it.decision != Decision::Allow || it.failed);
        let mut records: Vec<AuditRecord> = more
            .map(|verdict| AuditRecord {
                direction: verdict.direction,
                rail: Some(verdict.rail.clone()),
                decision: verdict.decision,
                reason: verdict.reason,
                kinds: verdict.kinds().into_iter().map(|(kind, n)| (kind.to_string(), n as u64)).collect(),
                score: verdict.score,
                took_us: verdict.took.as_micros() as u64,
                failed: verdict.failed,
                ..clean.clone()
            })
            .collect();
        if records.is_empty() {
            records.push(clean);
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for record in records {
            if let Some(why) = &state.broken {
                return Err(Error::Unmet { what: format!("the audit log is broken: {why}") });
            }
            if let Err(error) = self.append(&mut state, record) {
                state.broken = Some(error.to_string());
                log::error!("the audit log cannot be written, and nothing passes any more: {error}");
                return Err(error);
            }
        }
        Ok(())
    }

    fn append(&self, state: &mut State, mut record: AuditRecord) -> Result<()> {
        if state.bytes >= self.settings.rotate_mib.max(1) << 20 {
            state.number += 1;
            let path = self.folder.join(file_name(state.number));
            let file = OpenOptions::new().create_new(true).append(true).open(&path);
            state.file = file.map_err(|error| Error::io("create", &path, error))?;
            state.bytes = 0;
        }
        record.line = state.lines + 1;
        record.before = state.last.clone();
        let mut line = serde_json::to_string(&record).map_err(Error::product)?;
        let hash = self.keys.chained(&line);
        line.truncate(line.len() - 1);
        line.push_str(&format!(",\"hash\":\"{hash}\"}}\n"));
        let path = || self.folder.join(file_name(state.number));
        state.file.write_all(line.as_bytes()).map_err(|error| Error::io("write", path(), error))?;
        write_head(&state.head, &self.folder.join(HEAD), &self.keys.head(record.line, &hash))?;
        (state.lines, state.last) = (record.line, hash);
        state.bytes += line.len() as u64;
        Ok(())
    }
}

fn write_head(file: &File, path: &Path, head: &str) -> Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, head.as_bytes(), 0)
        .map_err(|error| Error::io("write", path, error))
}

/// Reads the lines of a log.
///
/// # Errors
/// A file that cannot be read, or a line that is none of a log.
pub fn read(folder: &Path, mut each: impl FnMut(AuditRecord)) -> Result<()> {
    for file in files(folder)? {
        let text = std::fs::read_to_string(&file).map_err(|error| Error::io("read", &file, error))?;
        for (at, line) in text.lines().enumerate() {
            let record = serde_json::from_str(line).map_err(|error| Error::Unmet {
                what: format!("{}:{}: not a line of an audit log: {error}", file.display(), at + 1),
            })?;
            each(record);
        }
    }
    Ok(())
}

/// A place at which a log was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {problem}", file.display())]
pub struct AuditMismatch {
    /// The file.
    pub file: PathBuf,
    /// Line in it, from 1.
    pub line: usize,
    /// Description.
    pub problem: &'static str,
}

/// Verifies the chain of a log with the secret in a file; returns the number of lines.
///
/// # Errors
/// Files that cannot be read; [`AuditMismatch`] as the inner error of a changed, dropped or added line, or of a head that
/// is missing or was not written with the secret.
pub fn verify(folder: &Path, secret_file: &Path) -> Result<std::result::Result<u64, AuditMismatch>> {
    let key = std::fs::read(secret_file).map_err(|error| Error::io("read", secret_file, error))?;
    let keys = Keys::of(&key);
    let (mut last, mut lines, mut at) = (String::new(), 0u64, (folder.to_path_buf(), 0));
    for file in files(folder)? {
        let text = std::fs::read(&file).map_err(|error| Error::io("read", &file, error))?;
        for (number, line) in text.split_inclusive(|byte| *byte == b'\n').enumerate() {
            at = (file.clone(), number + 1);
            let wrong = |problem| Ok(Err(AuditMismatch { file: at.0.clone(), line: at.1, problem }));
            let line = std::str::from_utf8(line).ok().and_then(|line| line.strip_suffix('\n'));
            let Some(line) = line else { return wrong("the line is not complete") };
            let Some(cut) = line.len().checked_sub(SUFFIX).filter(|cut| line.is_char_boundary(*cut)) else {
                return wrong("the line is none of a log");
            };
            let (body, hash) = (format!("{}}}", &line[..cut]), &line[cut + 9..line.len() - 2]);
            let Ok(record) = serde_json::from_str::<AuditRecord>(&body) else {
                return wrong("the line is none of a log");
            };
            if keys.chained(&body) != hash {
                return wrong("the line was changed");
            }
            if record.before != last || record.line != lines + 1 {
                return wrong("a line before this one was dropped or added");
            }
            (last, lines) = (hash.to_string(), record.line);
        }
    }
    let problem = match keys.read_head(folder) {
        Ok((all, hash)) if all == lines && hash == last => return Ok(Ok(lines)),
        Ok(_) => "lines behind this one were dropped or added",
        Err(fault) => fault.problem(),
    };
    Ok(Err(AuditMismatch { file: at.0, line: at.1, problem }))
}
