//! arXiv source archives: a tar of papers, each a gzip of a tar or of a single TeX file.

use std::io::Read;

use super::packed::Packed;
use super::tarball::{Next, Problem, Tarball, is_tar};
use super::{Loss, Raw, Records, Step};
use crate::counters::Reason;
use fathom_prose::extract::{Content, LatexFile};

/// The papers of one archive.
pub(super) struct Papers {
    archive: Tarball<Packed>,
    limit: usize,
    number: u64,
}

impl Papers {
    pub(super) fn new(input: Packed, limit: usize) -> Papers {
        Papers { archive: Tarball::new(input, limit), limit, number: 0 }
    }

    fn lost(&self, reason: Reason, offset: u64, bytes: u64, detail: String) -> Step {
        let place = format!("entry {}, byte {offset}", self.number);
        Step::Lost(Loss { reason, records: 1, bytes, place, detail })
    }
}

fn reason_of(problem: Problem) -> Reason {
    match problem {
        Problem::Damaged => Reason::BrokenArchive,
        Problem::UnsafePath | Problem::Link => Reason::UnsafePath,
        Problem::TooLarge => Reason::TooLarge,
    }
}

impl Records for Papers {
    fn step(&mut self) -> Step {
        self.number += 1;
        let member = match self.archive.next() {
            Ok(Next::End) => return Step::End,
            Ok(Next::Refused { offset, bytes, problem, detail }) => {
                return self.lost(reason_of(problem), offset, bytes, detail);
            }
            Ok(Next::Member(member)) => member,
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                let input = self.archive.input_mut();
                let offset = input.offset();
                return match input.resync() {
                    Ok(_) => self.lost(Reason::BrokenArchive, offset, 0, error.to_string()),
                    Err(error) => Step::Failed(error),
                };
            }
            Err(error) => return Step::Failed(error),
        };
        let bytes = member.data.len() as u64;
        if !member.path.ends_with(".gz") && !is_source(&member.path) {
            return self.lost(Reason::OtherType, member.offset, bytes, format!("`{}`", member.path));
        }
        match sources(&member.path, &member.data, self.limit) {
            Ok(files) => {
                let stem = member.path.rsplit('/').next().unwrap_or(&member.path);
                let id = stem.trim_end_matches(".gz").trim_end_matches(".tex").to_string();
                let columns = vec![("arxiv_id".to_string(), id)];
                Step::Record(Raw { content: Content::Latex(files), number: Some(self.number), columns })
            }
            Err((reason, detail)) => {
                self.lost(reason, member.offset, bytes, format!("`{}`: {detail}", member.path))
            }
        }
    }
}

/// Whether a file of a paper is source text.
fn is_source(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    [".tex", ".ltx", ".latex", ".sty", ".cls", ".def"].iter().any(|end| lower.ends_with(end))
}

/// The sources of one paper: unpacked, and where that is a tar, its source files.
///
/// # Errors
/// What makes the paper unusable. Entries of its tar that are damaged or have unsafe paths make all of it suspicious.
fn sources(path: &str, data: &[u8], limit: usize) -> Result<Vec<LatexFile>, (Reason, String)> {
    let mut plain = Vec::new();
    if path.ends_with(".gz") {
        let unpacked = flate2::read::MultiGzDecoder::new(data).take(limit as u64 + 1).read_to_end(&mut plain);
        if plain.len() > limit {
            return Err((Reason::TooLarge, format!("expands to more than {limit} bytes")));
        }
        unpacked.map_err(|error| (Reason::BrokenArchive, error.to_string()))?;
    } else {
        plain.extend_from_slice(data);
    }
    if plain.starts_with(b"%PDF") || plain.starts_with(b"%!PS") {
        return Err((Reason::OtherType, "a paper without TeX source".to_string()));
    }
    if !is_tar(&plain) {
        return Ok(vec![LatexFile { path: "main.tex".to_string(), text: text_of(&plain) }]);
    }
    let mut files = Vec::new();
    let mut archive = Tarball::new(plain.as_slice(), limit);
    loop {
        match archive.next().map_err(|error| (Reason::BrokenArchive, error.to_string()))? {
            Next::End => break,
            // Nothing is unpacked, so a link inside a paper only means a file that is not there.
            Next::Refused { problem: Problem::Link, .. } => {}
            Next::Refused { problem, detail, .. } => return Err((reason_of(problem), detail)),
            Next::Member(member) if is_source(&member.path) => {
                files.push(LatexFile { path: member.path, text: text_of(&member.data) });
            }
            Next::Member(_) => {}
        }
    }
    if files.is_empty() {
        return Err((Reason::OtherType, "a paper without TeX source".to_string()));
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// UTF-8, or Latin-1 where it is not: the two encodings that TeX sources have.
fn text_of(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_string(),
        Err(_) => encoding_rs::mem::decode_latin1(bytes).into_owned(),
    }
}
