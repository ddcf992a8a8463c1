//! Document embeddings on disk: rows of numbers, with a sidecar that records how many are complete, so that an
//! interrupted run resumes after those.

use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use fathom_base::Embed;
use serde::{Deserialize, Serialize};

use crate::dedup::numbering::NumberRuns;
use crate::durable;
use crate::error::Error;

/// Documents embedded per batch.
const BATCH: usize = 64;

/// Batches between flushes of rows and sidecar: the most work a kill can lose.
const ACCOUNT_BATCHES: usize = 16;

/// One vector per added document, on disk.
pub struct Embeddings {
    path: PathBuf,
    file: File,
    account: Account,
}

/// Sidecar: the valid part of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Account {
    /// Identifies everything that the vectors depend on.
    key: String,
    /// Dimensions of a vector; 0 before the first.
    size: usize,
    /// True once every document has its vector.
    complete: bool,
    /// The documents, one row each.
    numbering: NumberRuns,
}

impl Embeddings {
    /// Opens the embeddings in the existing folder `work`: those recorded by an earlier run with the same `key`,
    /// otherwise an empty set. The key must identify all that determines a vector: documents, model and length.
    ///
    /// # Errors
    /// The file cannot be opened or truncated.
    pub fn open(work: &Path, key: &str) -> Result<Embeddings, Error> {
        let path = work.join("embeddings.bin");
        let failed = |e| Error::write("open", &path, e);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let kept = durable::load::<Account>(&account_path(&path))
            .filter(|account| account.key == key && account.bytes() <= length);
        let account = kept.unwrap_or_else(|| Account { key: key.to_owned(), ..Account::default() });
        file.set_len(account.bytes()).map_err(failed)?;
        Ok(Embeddings { path, file, account })
    }

    /// Number of documents with vectors.
    pub fn num_documents(&self) -> u64 {
        self.account.numbering.len()
    }

    /// Returns true if the last [`add`](Embeddings::add) ran to completion.
    pub fn is_complete(&self) -> bool {
        self.account.complete
    }

    /// Embeds those of `documents` that have no vector yet; every call must pass the same documents. `kept` is called
    /// after each durable save and may end the run with an error.
    ///
    /// # Errors
    /// A document cannot be read or embedded, numbers do not ascend, the disk fails, or `kept` returns an error.
    pub fn add<S: AsRef<str>>(
        &mut self,
        embed: &mut dyn Embed,
        documents: impl Iterator<Item = Result<(u64, S), Error>>,
        kept: &dyn Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let size = embed.size();
        if size == 0 || (self.account.size != size && self.num_documents() > 0) {
            let found = format!("vectors of {size} numbers");
            return Err(Error::setting("embed", found, "the model breaks its contract; choose another"));
        }
        self.account.size = size;
        let end = SeekFrom::Start(self.account.bytes());
        self.file.seek(end).map_err(|e| Error::read(&self.path, e))?;
        let last = self.account.numbering.last();
        let known =
            |document: &Result<(u64, S), Error>| matches!(document, Ok((number, _)) if Some(*number) <= last);
        let mut documents = documents.skip_while(known).peekable();
        while documents.peek().is_some() {
            let batches = documents.by_ref().take(ACCOUNT_BATCHES * BATCH);
            self.append(embed, batches)?;
            self.save()?;
            kept()?;
        }
        self.account.complete = true;
        self.save()
    }

    /// Appends rows; they become valid once the sidecar is saved.
    fn append<S: AsRef<str>>(
        &mut self,
        embed: &mut dyn Embed,
        documents: impl Iterator<Item = Result<(u64, S), Error>>,
    ) -> Result<(), Error> {
        let failed = |e| Error::write("write", &self.path, e);
        let mut writer = BufWriter::new(&self.file);
        let mut documents = documents.peekable();
        while documents.peek().is_some() {
            let batch = documents.by_ref().take(BATCH).collect::<Result<Vec<_>, Error>>()?;
            let texts: Vec<&str> = batch.iter().map(|(_, text)| text.as_ref()).collect();
            let vectors = embed.embed(&texts)?;
            let size = self.account.size;
            if vectors.len() != texts.len() || vectors.iter().any(|vector| vector.len() != size) {
                let found = format!("not {} vectors of {size} numbers", texts.len());
                return Err(Error::setting("embed", found, "the model breaks its contract; choose another"));
            }
            for ((number, _), vector) in batch.iter().zip(&vectors) {
                self.account.numbering.push(*number)?;
                for value in vector {
                    writer.write_all(&value.to_le_bytes()).map_err(failed)?;
                }
            }
        }
        writer.flush().map_err(failed)
    }

    /// Flushes the rows, then saves the sidecar.
    fn save(&self) -> Result<(), Error> {
        self.file.sync_all().map_err(|e| Error::write("flush", &self.path, e))?;
        durable::save(&account_path(&self.path), &self.account)
    }

    /// Dimensions of a vector; 0 before the first.
    pub fn size(&self) -> usize {
        self.account.size
    }

    /// Number of the document at an index below [`num_documents`](Embeddings::num_documents).
    pub(super) fn number(&self, place: u64) -> u64 {
        self.account.numbering.number(place)
    }

    /// Rows at the indices `places`.
    pub(super) fn read(&mut self, places: &[u64]) -> Result<Vec<f32>, Error> {
        let mut values = Vec::with_capacity(places.len() * self.account.size);
        let mut bytes = vec![0; 4 * self.account.size];
        let mut at = None;
        for &place in places {
            let seek = if at == Some(place) {
                Ok(0)
            } else {
                self.file.seek(SeekFrom::Start(place * bytes.len() as u64))
            };
            seek.and_then(|_| self.file.read_exact(&mut bytes)).map_err(|e| Error::read(&self.path, e))?;
            values.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
            at = Some(place + 1);
        }
        Ok(values)
    }
}

impl Account {
    fn bytes(&self) -> u64 {
        4 * self.size as u64 * self.numbering.len()
    }
}

fn account_path(rows: &Path) -> PathBuf {
    rows.with_extension("json")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Embeds a text as its length and first byte, and counts the texts.
    #[derive(Default)]
    struct LengthEmbedder(usize);

    impl Embed for LengthEmbedder {
        fn embed(&mut self, texts: &[&str]) -> fathom_base::Result<Vec<Vec<f32>>> {
            self.0 += texts.len();
            Ok(texts.iter().map(|text| vec![text.len() as f32, f32::from(text.as_bytes()[0])]).collect())
        }

        fn size(&self) -> usize {
            2
        }
    }

    /// Document numbers with gaps.
    fn documents() -> impl Iterator<Item = Result<(u64, String), Error>> {
        (0..5000u64).filter(|number| number % 7 != 3).map(|number| Ok((number, number.to_string())))
    }

    #[test]
    fn an_ended_run_keeps_what_was_accounted_for() {
        let work = tempfile::tempdir().unwrap();
        let mut embed = LengthEmbedder::default();
        let count = documents().count();
        for ends in 1.. {
            let mut embeddings = Embeddings::open(work.path(), "key").unwrap();
            let before = embeddings.num_documents();
            assert_eq!(before, (1024 * (ends - 1)).min(count) as u64);
            let ended = || Err(Error::Interrupted { at: "embedded".to_owned() });
            match embeddings.add(&mut embed, documents(), &ended) {
                Err(Error::Interrupted { .. }) => {
                    assert!(!Embeddings::open(work.path(), "key").unwrap().is_complete());
                    // Data after the last recorded row is ignored.
                    let path = work.path().join("embeddings.bin");
                    let mut file = File::options().append(true).open(path).unwrap();
                    file.write_all(b"half a row").unwrap();
                }
                done => {
                    done.unwrap();
                    break;
                }
            }
        }
        assert_eq!(embed.0, count, "each text once");
        let mut kept = Embeddings::open(work.path(), "key").unwrap();
        assert!(kept.is_complete() && kept.num_documents() == count as u64);
        for (place, document) in documents().enumerate().step_by(97) {
            let (number, text) = document.unwrap();
            let row = kept.read(&[place as u64]).unwrap();
            assert_eq!((kept.number(place as u64), row[0]), (number, text.len() as f32));
            assert_eq!(row[1], f32::from(text.as_bytes()[0]));
        }
    }

    #[test]
    fn what_was_made_otherwise_is_made_again() {
        let work = tempfile::tempdir().unwrap();
        let fill = |key: &str| {
            let mut embed = LengthEmbedder::default();
            let mut embeddings = Embeddings::open(work.path(), key).unwrap();
            embeddings.add(&mut embed, documents(), &|| Ok(())).unwrap();
            embed.0
        };
        let count = documents().count();
        assert_eq!([fill("a"), fill("a"), fill("b")], [count, 0, count]);
        // Losing rows invalidates the sidecar.
        File::options().write(true).open(work.path().join("embeddings.bin")).unwrap().set_len(9).unwrap();
        assert_eq!(fill("b"), count);
        std::fs::write(work.path().join("embeddings.json"), "{ torn").unwrap();
        assert_eq!(fill("b"), count);
    }
}
