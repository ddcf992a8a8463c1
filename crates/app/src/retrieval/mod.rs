//! Indexes of documents: writing one, asking one, and measuring it.

mod measured;

use std::path::{Path, PathBuf};

use fathom_retrieval::ranking::RankedChunk;
use fathom_retrieval::{
    Condition, Encode, Hit, Index, IndexOptions, IndexPhase, IndexProgress, IndexReport, Mode, Query,
};
use fathom_serve::{Knowledge, Passage, SearchRequest};
use fathom_tensor::DType;
use serde_json::{Value, json};

use crate::error::{Error, Result, refuse};
use crate::events::{Event, Events};
use crate::host::EncoderHost;
use crate::machine::Machine;

pub use measured::{MeasureRequest, RetrievalMeasures, measure};

/// Hits that a reranker reads, per hit that is wanted, and at least.
const RERANKED: (usize, usize) = (4, 50);

/// Options of an index.
pub struct IndexRequest {
    /// Files and folders.
    pub paths: Vec<PathBuf>,
    /// Folder of the index.
    pub out: PathBuf,
    /// How documents become chunks.
    pub options: IndexOptions,
    /// Folder of an encoder, for vectors.
    pub encoder: Option<PathBuf>,
}

/// Writes or updates an index.
///
/// # Errors
/// A path that does not exist; an index of other options or another encoder; errors of the system.
pub fn index(request: &IndexRequest, machine: &Machine, events: &dyn Events) -> Result<IndexReport> {
    let encoder = request
        .encoder
        .as_deref()
        .map(|folder| EncoderHost::open(folder, Some(DType::F32), machine, events)?.embedding());
    let encoder = encoder.transpose()?;
    let encoder = encoder.as_ref().map(|encoder| encoder as &dyn Encode);
    let progress = |IndexProgress { phase, done, all }: IndexProgress| {
        let text = match phase {
            IndexPhase::Reading => "reads files",
            IndexPhase::Encoding => "encodes passages",
            IndexPhase::Storing => "writes vectors to the store",
        };
        events.on(Event::Progress { text: text.into(), done, all });
    };
    Ok(fathom_retrieval::index(&request.paths, &request.out, &request.options, encoder, &progress)?)
}

/// The contents of an index, as JSON.
pub fn account(report: &IndexReport) -> Value {
    let skipped = |(path, why): &(String, String)| json!({"path": path, "why": why});
    let rows =
        |(path, rows, first): &(String, u64, String)| json!({"path": path, "rows": rows, "first": first});
    json!({
        "files": report.files,
        "read_files": report.read_files,
        "documents": report.documents,
        "chunks": report.chunks,
        "near_duplicates": report.duplicates,
        "encoded": report.encoded,
        "stored": report.stored,
        "skipped": report.skipped.iter().map(skipped).collect::<Value>(),
        "skipped_rows": report.skipped_rows.iter().map(rows).collect::<Value>(),
        "ignored": report.ignored,
    })
}

/// Options of an opened index.
#[derive(Clone, Debug, Default)]
pub struct LibraryOptions {
    /// Folder of the index.
    pub index: PathBuf,
    /// Folder of its encoder; `None` for the folder that it was written with, if it is still there.
    pub encoder: Option<PathBuf>,
    /// Folder of a reranker.
    pub reranker: Option<PathBuf>,
    /// Leaves vectors unused.
    pub sparse: bool,
}

/// An opened index with its models.
pub struct Library {
    index: Index,
    encoder: Option<EncoderHost>,
    reranker: Option<EncoderHost>,
}

/// A question to a library.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Its text.
    pub text: String,
    /// Hits, at most.
    pub k: usize,
    /// Conditions that a hit's document fulfils.
    pub conditions: Vec<Condition>,
    /// Ranking before a reranker.
    pub mode: Mode,
    /// Compares with every vector.
    pub exact: bool,
}

impl Library {
    /// Opens an index, its encoder and a reranker.
    ///
    /// # Errors
    /// Not an index; a damaged one; an encoder other than its own.
    pub fn open(options: &LibraryOptions, machine: &Machine, events: &dyn Events) -> Result<Library> {
        let index = Index::open(&options.index)?;
        let encoder = match (index.encoder(), &options.encoder) {
            _ if options.sparse => None,
            (None, None) => None,
            (None, Some(_)) => refuse!(
                "{}: it has no vectors; `fathom index PATHS.. OUT --encoder DIR` adds them",
                options.index.display()
            ),
            (Some(own), asked) => {
                let folder = asked.clone().unwrap_or_else(|| PathBuf::from(&own.name));
                if asked.is_none() && !folder.exists() {
                    events.warn(&format!(
                        "{}: its encoder {} is not there, so BM25 alone ranks; --encoder DIR names it",
                        options.index.display(),
                        own.name
                    ));
                    None
                } else {
                    let host = EncoderHost::open(&folder, Some(DType::F32), machine, events)?.embedding()?;
                    if host.facts().fingerprint != own.fingerprint {
                        refuse!(
                            "{}: its vectors are of the encoder {} ({}), and {} is another one ({}); name its own (--encoder DIR), or \
                             leave vectors unused (--mode bm25)",
                            options.index.display(),
                            own.name,
                            own.fingerprint,
                            folder.display(),
                            host.facts().fingerprint
                        );
                    }
                    Some(host)
                }
            }
        };
        let reranker = options
            .reranker
            .as_deref()
            .map(|folder| EncoderHost::open(folder, Some(DType::F32), machine, events)?.ranking());
        Ok(Library { index, encoder, reranker: reranker.transpose()? })
    }

    /// The index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Folder of the index.
    pub fn folder(&self) -> &Path {
        self.index.folder()
    }

    /// Hits of a question, the best first. A query longer than a model is cut after the model's last token; BM25 reads all
    /// of it.
    ///
    /// # Errors
    /// A damaged index; an encoder that fails.
    pub fn ask(&self, question: &Question) -> Result<Vec<Hit>> {
        Ok(self.index.hits(&self.ranked(question)?, question.k)?)
    }

    /// Chunks that answer a question, the best first. A reranker reorders the first of the ranking by their relevance.
    fn ranked(&self, question: &Question) -> Result<Vec<RankedChunk>> {
        let vector = match &self.encoder {
            Some(encoder) if question.mode != Mode::Sparse => {
                encoder.encode(std::slice::from_ref(&question.text))?.pop()
            }
            _ => None,
        };
        let query = Query {
            text: &question.text,
            vector: vector.as_deref(),
            k: question.k,
            conditions: &question.conditions,
            mode: question.mode,
            exact: question.exact,
        };
        let mut ranked = self.index.ranked(&query)?;
        if let Some(reranker) = &self.reranker {
            ranked.truncate((question.k * RERANKED.0).max(RERANKED.1));
            let read = |(chunk, score): &RankedChunk| Ok(self.index.hit(*chunk, *score)?.text);
            let texts = ranked.iter().map(read).collect::<Result<Vec<String>>>()?;
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let scores = reranker.relevance(&question.text, &texts)?;
            ranked.iter_mut().zip(scores).for_each(|((_, own), score)| *own = f64::from(score));
            // Equal scores keep the order of the ranking.
            ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        }
        Ok(ranked)
    }
}

impl Knowledge for Library {
    fn search(&self, request: &SearchRequest) -> fathom_base::Result<Vec<Passage>> {
        let condition = |text: &String| text.parse::<Condition>().map_err(fathom_base::Error::product);
        let conditions = request.conditions.iter().map(condition).collect::<fathom_base::Result<_>>()?;
        let question =
            Question { text: request.query.clone(), k: request.k, conditions, ..Question::default() };
        let hits = self.ask(&question).map_err(fathom_base::Error::product)?;
        let passage = |hit: Hit| {
            let headings = std::iter::once(hit.title.as_str()).chain(hit.headings.iter().map(String::as_str));
            let heading = headings.filter(|it| !it.is_empty()).collect::<Vec<_>>().join(" > ");
            Passage {
                place: hit.place(),
                heading,
                score: hit.score,
                facts: serde_json::to_value(&hit).unwrap_or_default(),
                text: hit.text,
            }
        };
        Ok(hits.into_iter().map(passage).collect())
    }
}

impl From<fathom_retrieval::Error> for Error {
    fn from(error: fathom_retrieval::Error) -> Error {
        match error {
            fathom_retrieval::Error::Base(error) => error.into(),
            error => Error::Outside(Box::new(error)),
        }
    }
}
