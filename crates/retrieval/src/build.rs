//! Writes an index: walks the files, groups them, and makes the segments of the groups that are not there yet.
//!
//! Groups are consecutive files in the order of their paths; a group ends at a file whose path has a hash that ends in
//! zeros, or where it is large, so that a change touches the groups around it only. A segment is named by the hash of what it is made from, so
//! that an interrupted run goes on where it was, and ends with the same bytes.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use fathom_base::lock::{Claim, claim};
use fathom_prose::pii::{Pii, PiiOptions};
use rayon::prelude::*;
use walkdir::WalkDir;

use crate::error::{Error, Result};
use crate::manifest::{self, FORMAT, FileEntry, Manifest, SEGMENTS, SegmentEntry, Settings, VECTORS};
use crate::near::{self, Keys};
use crate::progress::{IndexPhase, IndexProgress};
use crate::read::{Kind, Reader};
use crate::segment::{FileFacts, Segment, SegmentWriter};
use crate::store::address::StoreEntry;
use crate::store::{self, StoreAddress};
use crate::vectors::{self, Encode};
use crate::{files, map};

/// Groups of an index, at least, where there are as many files, and at most about twice as many: more would make a search
/// open more files, fewer would make a change touch more.
const GROUPS: usize = 256;
/// Bytes of files after which a group ends.
const GROUP_BYTES: u64 = 16 << 20;
/// Name of the lock.
const LOCK: &str = ".lock";

/// Options of an index.
#[derive(Clone, Debug)]
pub struct IndexOptions {
    /// Bytes of a chunk, at most.
    pub chunk_bytes: usize,
    /// Replaces personal data in chunks by marks.
    pub personal_data_out: bool,
    /// The store outside that searches ask for vectors; `None` for that of the index, if it has one.
    pub store: Option<StoreAddress>,
}

/// Smallest and largest size of a chunk, in bytes.
pub const CHUNK_BYTES: std::ops::RangeInclusive<usize> = 64..=1 << 20;

impl Default for IndexOptions {
    fn default() -> IndexOptions {
        IndexOptions { chunk_bytes: 1200, personal_data_out: false, store: None }
    }
}

/// Account of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexReport {
    /// Files with chunks.
    pub files: usize,
    /// Files that were read into segments in this run.
    pub read_files: usize,
    /// Documents of the index.
    pub documents: u64,
    /// Chunks of the index.
    pub chunks: u64,
    /// Near-duplicate chunks.
    pub duplicates: usize,
    /// Vectors that were computed in this run.
    pub encoded: usize,
    /// Vectors that were written to a store outside in this run.
    pub stored: u64,
    /// Files without chunks, with the reason.
    pub skipped: Vec<(String, String)>,
    /// Files with rows that were left out: their number, and the first with its reason.
    pub skipped_rows: Vec<(String, u64, String)>,
    /// Files of a walk that are no documents by their names, by ending.
    pub ignored: BTreeMap<String, usize>,
}

/// A file that is indexed.
struct Source {
    path: PathBuf,
    kind: Kind,
    entry: FileEntry,
}

/// A group of files, with the name of its segment.
struct Group {
    files: std::ops::Range<usize>,
    name: String,
}

/// Writes or updates the index of files and folders; `progress` hears what is done, in no particular order.
///
/// # Errors
/// A path that does not exist; an index of other options; another process that writes it; errors of the system.
pub fn index(
    paths: &[PathBuf],
    out: &Path,
    options: &IndexOptions,
    encoder: Option<&dyn Encode>,
    progress: &(dyn Fn(IndexProgress) + Sync),
) -> Result<IndexReport> {
    check_chunk_bytes(options.chunk_bytes)?;
    let settings =
        Settings { chunk_bytes: options.chunk_bytes, personal_data_out: options.personal_data_out };
    vacant(out)?;
    let mut report = IndexReport::default();
    let found = walk(paths, out, &mut report.ignored)?;
    for folder in [out.to_path_buf(), out.join(SEGMENTS), out.join(VECTORS)] {
        fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, error))?;
    }
    let _lock = locked(out)?;
    let old = Manifest::read(out)?;
    check_encoder(out, old.as_ref(), encoder)?;
    let mut sources = described(found, old.as_ref())?;
    let groups = grouped(&sources, &settings);
    let kept: HashMap<&str, &SegmentEntry> =
        old.iter().flat_map(|old| &old.segments).map(|entry| (entry.name.as_str(), entry)).collect();
    let skips: HashMap<&str, &FileEntry> =
        old.iter().flat_map(|old| &old.files).map(|entry| (entry.path.as_str(), entry)).collect();
    let pii = options.personal_data_out.then(|| Pii::new(&PiiOptions::default())).transpose()?;
    let reader = Reader::new(options.chunk_bytes, pii);
    let read = AtomicU64::new(0);
    let all = sources.len() as u64;
    let made = |group: &Group| {
        let made = made(out, group, &sources, &reader, &kept);
        let files = group.files.len() as u64;
        let done = read.fetch_add(files, Ordering::Relaxed) + files;
        progress(IndexProgress { phase: IndexPhase::Reading, done, all });
        made
    };
    let made =
        groups.par_iter().map(made).collect::<Result<Vec<(SegmentEntry, Option<Vec<FileFacts>>)>>>()?;
    let mut segments = Vec::with_capacity(made.len());
    for (group, (entry, facts)) in groups.iter().zip(made) {
        note(group, facts.as_deref(), &skips, &mut sources);
        report.read_files += if facts.is_some() { group.files.len() } else { 0 };
        segments.push(entry);
    }
    let mut manifest = Manifest {
        format: FORMAT,
        settings,
        encoder: encoder.map(Encode::facts),
        store: StoreEntry::of(out, options.store.as_ref(), old.as_ref().and_then(|old| old.store.as_ref())),
        approximate: None,
        files: sources.into_iter().map(|source| source.entry).collect(),
        segments,
        duplicates: Vec::new(),
    };
    report.encoded = match encoder {
        Some(encoder) => vectors::add(out, &mut manifest, old.as_ref(), (encoder, progress))?,
        None => 0,
    };
    let keys = Keys::path(out, &manifest.segments);
    manifest.duplicates = match &old {
        Some(old) if keys.exists() && same_segments(old, &manifest) => old.duplicates.clone(),
        old => near::update(out, &manifest.segments, old.as_ref())?,
    };
    files::sync(&out.join(SEGMENTS))?;
    let stored = store::update(out, &manifest, progress)?;
    if old.as_ref() != Some(&manifest) {
        manifest.write(out)?;
    }
    clean(out, &manifest)?;
    if let Some(stored) = stored {
        report.stored = stored.written;
        stored.end()?;
    }
    account(&manifest, &mut report);
    Ok(report)
}

/// Notes in a group's files which of them, and which of their rows, were skipped, and why. Without facts the group was not
/// read, and what an earlier run noted holds.
fn note(
    group: &Group,
    facts: Option<&[FileFacts]>,
    before: &HashMap<&str, &FileEntry>,
    sources: &mut [Source],
) {
    for (at, source) in sources[group.files.clone()].iter_mut().enumerate() {
        (source.entry.skipped, source.entry.rows) = match facts {
            None => {
                let before = before.get(source.entry.path.as_str());
                before.map(|entry| (entry.skipped.clone(), entry.rows.clone())).unwrap_or_default()
            }
            Some(facts) => {
                let facts = facts.get(at);
                let rows =
                    facts.and_then(|facts| facts.first_skipped.clone().map(|why| (facts.skipped_rows, why)));
                (facts.and_then(|facts| facts.skipped.clone()), rows)
            }
        };
    }
}

fn check_chunk_bytes(asked: usize) -> Result<()> {
    if CHUNK_BYTES.contains(&asked) {
        return Ok(());
    }
    let (least, most) = (CHUNK_BYTES.start(), CHUNK_BYTES.end());
    Err(Error::Refused(format!("a chunk has {least} to {most} bytes, not {asked}")))
}

/// Refuses a folder that is no index and has other contents.
fn vacant(out: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(out) else { return Ok(()) };
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    let ours = [SEGMENTS, VECTORS, LOCK, "manifest.tmp"];
    let is_other = |name: &&std::ffi::OsString| !ours.iter().any(|own| *name == *own);
    match names.iter().find(is_other) {
        Some(other) if !names.iter().any(|name| name == manifest::NAME) => {
            let why = format!("it contains `{}`", other.to_string_lossy());
            let remedy = "name another folder";
            Err(Error::Refused(format!("{}: no index, and not empty: {why}; {remedy}", out.display())))
        }
        _ => Ok(()),
    }
}

/// Refuses an encoder other than that of the index.
fn check_encoder(out: &Path, old: Option<&Manifest>, encoder: Option<&dyn Encode>) -> Result<()> {
    let Some(had) = old.and_then(|old| old.encoder.as_ref()) else { return Ok(()) };
    let remedy = "index into another folder, or remove this one first";
    let why = match encoder.map(Encode::facts) {
        Some(facts) if facts.fingerprint == had.fingerprint => return Ok(()),
        Some(facts) => {
            format!("its vectors are of the encoder {}, not of {}; {remedy}", had.name, facts.name)
        }
        None => format!("its vectors are of the encoder {}; name it (--encoder DIR), {remedy}", had.name),
    };
    Err(Error::Encoder { path: out.to_path_buf(), why })
}

/// Holds the lock of an index. It is emptied at the end, so that equal indexes have equal files.
struct Lock(fs::File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Its contents are for messages alone.
        _ = self.0.set_len(0);
    }
}

fn locked(out: &Path) -> Result<Option<Lock>> {
    let path = out.join(LOCK);
    match claim(&path, Duration::from_secs(1)).map_err(|error| Error::io("lock", &path, error))? {
        Claim::Held(file) => Ok(Some(Lock(file))),
        Claim::Taken(holder) => Err(Error::InUse { path: out.to_path_buf(), holder }),
        // Some file systems of clusters have no locks.
        Claim::Impossible(_) => Ok(None),
    }
}

/// Documents among files and folders, in ascending order of their paths. Hidden files and the index itself are left out.
fn walk(
    paths: &[PathBuf],
    out: &Path,
    ignored: &mut BTreeMap<String, usize>,
) -> Result<Vec<(PathBuf, Kind)>> {
    let own = fs::canonicalize(out).ok();
    let mut found = BTreeMap::new();
    for path in paths {
        let there = fs::metadata(path).map_err(|error| Error::io("read", path, error))?;
        if there.is_file() {
            // A file that is named is read as text, whatever its name.
            found.insert(path.clone(), Kind::of(path).unwrap_or(Kind::Text));
            continue;
        }
        let hidden = |entry: &walkdir::DirEntry| {
            entry.depth() > 0 && entry.file_name().to_string_lossy().starts_with('.')
        };
        let is_own = |entry: &walkdir::DirEntry| {
            own.is_some() && entry.file_type().is_dir() && fs::canonicalize(entry.path()).ok() == own
        };
        let entries = WalkDir::new(path).into_iter().filter_entry(|entry| !hidden(entry) && !is_own(entry));
        for entry in entries {
            let entry = entry.map_err(|error| Error::io("read", path, error.into()))?;
            if !entry.file_type().is_file() {
                continue;
            }
            match Kind::of(entry.path()) {
                Some(kind) => _ = found.insert(entry.into_path(), kind),
                None => {
                    let ending = entry.path().extension().map(|it| format!(".{}", it.to_string_lossy()));
                    *ignored.entry(ending.unwrap_or_default()).or_default() += 1;
                }
            }
        }
    }
    if found.is_empty() {
        return Err(Error::Refused("there are no documents in these paths".into()));
    }
    Ok(found.into_iter().collect())
}

/// Files with their hashes; unchanged ones have the hash of the manifest.
fn described(found: Vec<(PathBuf, Kind)>, old: Option<&Manifest>) -> Result<Vec<Source>> {
    let known: HashMap<&str, &FileEntry> =
        old.iter().flat_map(|old| &old.files).map(|entry| (entry.path.as_str(), entry)).collect();
    let one = |(path, kind): (PathBuf, Kind)| -> Result<Source> {
        let there = fs::metadata(&path).map_err(|error| Error::io("read", &path, error))?;
        let since = there.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified_ns = since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        let (name, bytes) = (path.to_string_lossy().into_owned(), there.len());
        let before = known.get(name.as_str()).filter(|it| it.bytes == bytes && it.modified_ns == modified_ns);
        let hash = match before {
            Some(before) => before.hash.clone(),
            None => blake3::hash(&map::open(&path)?).to_hex().to_string(),
        };
        let entry = FileEntry { path: name, bytes, modified_ns, hash, skipped: None, rows: None };
        Ok(Source { path, kind, entry })
    };
    found.into_par_iter().map(one).collect()
}

/// Groups of files.
fn grouped(sources: &[Source], settings: &Settings) -> Vec<Group> {
    let each = (sources.len() / GROUPS).next_power_of_two();
    let mut groups = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, source) in sources.iter().enumerate() {
        bytes += source.entry.bytes;
        let ends = near::hash(source.entry.path.as_bytes()).is_multiple_of(each as u64);
        let is_full = bytes >= GROUP_BYTES || at + 1 - start >= 2 * each;
        if ends || is_full || at + 1 == sources.len() {
            let files = start..at + 1;
            groups.push(Group { name: name(&sources[files.clone()], settings), files });
            (start, bytes) = (at + 1, 0);
        }
    }
    groups
}

/// Name of a segment: the hash of what it is made from.
fn name(sources: &[Source], settings: &Settings) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("fathom segment {FORMAT}\n{settings:?}\n").as_bytes());
    for source in sources {
        hasher
            .update(format!("{:?} {:?} {}\n", source.entry.path, source.kind, source.entry.hash).as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// The segment of a group: as the manifest has it, as an interrupted run left it, or written now; with the facts of its
/// files unless the manifest has them.
fn made(
    out: &Path,
    group: &Group,
    sources: &[Source],
    reader: &Reader,
    kept: &HashMap<&str, &SegmentEntry>,
) -> Result<(SegmentEntry, Option<Vec<FileFacts>>)> {
    let path = manifest::segment(out, &group.name);
    if let Some(entry) = kept.get(group.name.as_str())
        && path.exists()
    {
        return Ok(((*entry).clone(), None));
    }
    let files = &sources[group.files.clone()];
    if !path.exists() || Segment::open(&path).is_err() {
        let mut writer = SegmentWriter::default();
        for source in files {
            let bytes = map::open(&source.path)?;
            if blake3::hash(&bytes).to_hex().as_str() != source.entry.hash {
                let why = "it changed while it was read; run `fathom index` again";
                return Err(Error::Refused(format!("{}: {why}", source.path.display())));
            }
            writer.file(&source.entry.path, source.kind, reader.read(source.kind, &bytes));
        }
        files::publish(&path, &[&writer.finish()])?;
    }
    let segment = Segment::open(&path)?;
    let facts = segment.files().ok_or_else(|| Error::damaged(&path, "it has no facts of its files"))?;
    let entry = SegmentEntry {
        name: group.name.clone(),
        files: files.len(),
        documents: facts.iter().map(|facts| facts.documents).sum(),
        chunks: segment.chunks() as u64,
        terms: segment.terms(),
        vectors: None,
    };
    Ok((entry, Some(facts)))
}

fn same_segments(a: &Manifest, b: &Manifest) -> bool {
    a.segments.iter().map(|entry| &entry.name).eq(b.segments.iter().map(|entry| &entry.name))
}

/// Removes files that the manifest does not name.
fn clean(out: &Path, manifest: &Manifest) -> Result<()> {
    let named: std::collections::HashSet<&str> = manifest
        .segments
        .iter()
        .flat_map(|entry| [Some(entry.name.as_str()), entry.vectors.as_deref()])
        .chain([manifest.approximate.as_deref()])
        .flatten()
        .collect();
    let keys = Keys::path(out, &manifest.segments);
    files::clean(&out.join(SEGMENTS), |name| {
        named.contains(name) || keys.file_name().is_some_and(|it| it == name)
    })?;
    let part =
        |name: &str| name.rsplit_once('.').is_some_and(|(of, part)| part != "tmp" && named.contains(of));
    files::clean(&out.join(VECTORS), part)?;
    match fs::remove_file(out.join("manifest.tmp")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", out, error)),
        _ => Ok(()),
    }
}

fn account(manifest: &Manifest, report: &mut IndexReport) {
    report.documents = manifest.segments.iter().map(|entry| entry.documents).sum();
    report.chunks = manifest.segments.iter().map(|entry| entry.chunks).sum();
    report.duplicates = manifest.duplicates.len();
    for entry in &manifest.files {
        match (&entry.skipped, &entry.rows) {
            (Some(why), _) => report.skipped.push((entry.path.clone(), why.clone())),
            (None, Some((rows, first))) => {
                report.files += 1;
                report.skipped_rows.push((entry.path.clone(), *rows, first.clone()));
            }
            _ => report.files += 1,
        }
    }
}
