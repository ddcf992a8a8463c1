//! arXiv source archives: a tar of papers, each a gzip of a tar or of a single TeX file.

use std::io::{self, Read};

use fathom_prose::extract::{Content, LatexFile};

use super::packed::{self, Decompressor, Expansion};
use super::records::{Loss, Raw, Records, Step};
use super::tarball::{CUT_OFF, Member, Next, Problem, Tarball, is_tar};
use crate::counters::Reason;

/// Reader of the papers in one archive.
pub(super) struct Papers {
    archive: Tarball<Decompressor>,
    /// Maximum bytes of a paper's sources; figures do not count, they are skipped unread.
    limit: usize,
    number: u64,
}

/// Reason why a paper is unusable, with details.
type Unusable = (Reason, String);

impl Papers {
    pub(super) fn new(input: Decompressor, limit: usize) -> Papers {
        Papers { archive: Tarball::new(input), limit, number: 0 }
    }

    fn lost(&self, reason: Reason, offset: u64, bytes: u64, detail: String) -> Step {
        let place = format!("entry {}, byte {offset}", self.number);
        Step::Lost(Loss { reason, records: 1, bytes, place, detail })
    }

    /// Reads the next entry of the archive.
    fn paper(&mut self) -> io::Result<Step> {
        let Member { path, offset, size } = match self.archive.next()? {
            Next::End => return Ok(Step::End),
            Next::Refused { offset, bytes, problem, detail } => {
                return Ok(self.lost(reason_of(problem), offset, bytes, detail));
            }
            Next::Member(member) => member,
        };
        let found = if path.ends_with(".gz") {
            unpacked(&mut self.archive, size, self.limit)
        } else if is_source(&path) {
            only_file(&mut self.archive, self.limit)
        } else {
            Err((Reason::OtherType, String::new()))
        };
        if !self.archive.skip()? {
            return Ok(self.lost(Reason::BrokenArchive, offset, size, CUT_OFF.to_string()));
        }
        Ok(match found {
            Ok(files) => {
                let stem = path.rsplit('/').next().unwrap_or(&path);
                let id = stem.trim_end_matches(".gz").trim_end_matches(".tex").to_string();
                let columns = vec![("arxiv_id".to_string(), id)];
                Step::Record(Raw { content: Content::Latex(files), number: Some(self.number), columns })
            }
            Err((reason, detail)) => {
                let colon = if detail.is_empty() { "" } else { ": " };
                self.lost(reason, offset, size, format!("`{path}`{colon}{detail}"))
            }
        })
    }
}

fn reason_of(problem: Problem) -> Reason {
    match problem {
        Problem::Damaged => Reason::BrokenArchive,
        Problem::UnsafePath | Problem::Link => Reason::UnsafePath,
    }
}

impl Records for Papers {
    fn step(&mut self) -> Step {
        self.number += 1;
        match self.paper() {
            Ok(step) => step,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let input = self.archive.input_mut();
                let offset = input.offset();
                match input.resync() {
                    Ok(_) => self.lost(packed::cause(&error), offset, 0, error.to_string()),
                    Err(error) => Step::Failed(error),
                }
            }
            Err(error) => Step::Failed(error),
        }
    }
}

/// Returns true if a file of a paper is source text.
fn is_source(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    [".tex", ".ltx", ".latex", ".sty", ".cls", ".def"].iter().any(|end| lower.ends_with(end))
}

/// Unpacks the sources of a paper of `size` compressed bytes: a single file, or those of a tar.
fn unpacked(packed: impl Read, size: u64, limit: usize) -> Result<Vec<LatexFile>, Unusable> {
    let left = Expansion::default().most(size);
    let mut plain = BoundedReader { inner: flate2::read::MultiGzDecoder::new(packed), left };
    let mut head = Vec::new();
    (&mut plain).take(512).read_to_end(&mut head).map_err(unusable)?;
    if head.starts_with(b"%PDF") || head.starts_with(b"%!PS") {
        return Err(without_source());
    }
    let tar = is_tar(&head);
    let whole = head.as_slice().chain(plain);
    if tar { source_files(Tarball::new(whole), limit) } else { only_file(whole, limit) }
}

/// A paper that consists of one file.
fn only_file(input: impl Read, limit: usize) -> Result<Vec<LatexFile>, Unusable> {
    let mut bytes = Vec::new();
    input.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(unusable)?;
    if bytes.len() > limit {
        return Err((Reason::TooLarge, format!("a source of more than {limit} bytes")));
    }
    Ok(vec![LatexFile { path: "main.tex".to_string(), text: text_of(&bytes) }])
}

/// Source files of a paper's tar; figures and everything else are skipped unread.
///
/// # Errors
/// The paper is unusable. Damaged entries or unsafe paths make the whole paper suspicious.
fn source_files(mut archive: Tarball<impl Read>, limit: usize) -> Result<Vec<LatexFile>, Unusable> {
    let (mut files, mut left) = (Vec::new(), limit as u64);
    loop {
        match archive.next().map_err(unusable)? {
            Next::End => break,
            // Nothing is extracted to disk, so a link inside a paper merely means a missing file.
            Next::Refused { problem: Problem::Link, .. } => {}
            Next::Refused { problem, detail, .. } => return Err((reason_of(problem), detail)),
            Next::Member(Member { path, size, .. }) => {
                let mut bytes = Vec::new();
                if is_source(&path) {
                    let too_large = || (Reason::TooLarge, format!("sources of more than {limit} bytes"));
                    left = left.checked_sub(size).ok_or_else(too_large)?;
                    archive.read_to_end(&mut bytes).map_err(unusable)?;
                    files.push(LatexFile { path, text: text_of(&bytes) });
                }
                if !archive.skip().map_err(unusable)? {
                    return Err((Reason::BrokenArchive, CUT_OFF.to_string()));
                }
            }
        }
    }
    if files.is_empty() {
        return Err(without_source());
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn without_source() -> Unusable {
    (Reason::OtherType, "a paper without TeX source".to_string())
}

fn unusable(error: io::Error) -> Unusable {
    let large = error.kind() == io::ErrorKind::FileTooLarge;
    (if large { Reason::TooLarge } else { Reason::BrokenArchive }, error.to_string())
}

/// A reader that is read to its end but never beyond the limit against decompression bombs.
struct BoundedReader<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            io::Error::new(io::ErrorKind::FileTooLarge, "it expands without measure, like a bomb")
        })?;
        Ok(count)
    }
}

/// UTF-8, with a fallback to Latin-1: the two encodings of TeX sources.
fn text_of(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_string(),
        Err(_) => encoding_rs::mem::decode_latin1(bytes).into_owned(),
    }
}
