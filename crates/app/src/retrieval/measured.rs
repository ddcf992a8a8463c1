//! Measures of retrieval on a folder in the layout of BEIR: `corpus.jsonl`, `queries.jsonl`, `qrels/SPLIT.tsv`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use fathom_retrieval::measure::{Judgements, Measures, mean, measures};
use fathom_retrieval::{IndexOptions, Mode};
use serde::Deserialize;

use super::{IndexRequest, Library, LibraryOptions, Question, index};
use crate::error::{Context, Result, refuse};
use crate::events::Events;
use crate::machine::Machine;

/// Ranks at which retrieval is measured.
const DEPTHS: [usize; 4] = [1, 5, 10, 100];

/// Options of a measurement.
#[derive(Clone, Debug, Default)]
pub struct MeasureRequest {
    /// Folder in the layout of BEIR.
    pub folder: PathBuf,
    /// Index of its corpus; written here if it is not there. `None` for a temporary one.
    pub index: Option<PathBuf>,
    /// Folder of an encoder; `None` measures BM25 alone.
    pub encoder: Option<PathBuf>,
    /// Folder of a reranker.
    pub reranker: Option<PathBuf>,
    /// Ranking.
    pub mode: Mode,
    /// Judgements that are used, by the name of their file: `test`.
    pub split: String,
}

/// Measures by depth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RetrievalMeasures {
    /// Documents of the corpus.
    pub documents: u64,
    /// Queries with a relevant document.
    pub queries: usize,
    /// Depths with their measures.
    pub depths: Vec<(usize, Measures)>,
}

/// A folder in the system's temporary one, removed at the end.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new() -> TemporaryFolder {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("fathom-retrieval-{}-{}", std::process::id(), since.as_nanos());
        TemporaryFolder(std::env::temp_dir().join(name))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // Its creation may have failed.
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A query of `queries.jsonl`.
#[derive(Deserialize)]
struct QueryRow {
    _id: String,
    text: String,
}

/// Measures retrieval. A document of several passages has the rank of its best.
///
/// # Errors
/// A folder of another layout; those of an index.
pub fn measure(
    request: &MeasureRequest,
    machine: &Machine,
    events: &dyn Events,
) -> Result<RetrievalMeasures> {
    let corpus = request.folder.join("corpus.jsonl");
    let queries = queries(&request.folder.join("queries.jsonl"))?;
    let judged = judgements(&request.folder.join("qrels").join(format!("{}.tsv", request.split)))?;
    let temporary = TemporaryFolder::new();
    let out = request.index.clone().unwrap_or_else(|| temporary.0.clone());
    let written = index(
        &IndexRequest {
            paths: vec![corpus],
            out: out.clone(),
            // Passages of such sets are short, and are ranked whole.
            options: IndexOptions { chunk_bytes: 1 << 20, ..IndexOptions::default() },
            encoder: request.encoder.clone(),
        },
        machine,
        events,
    )?;
    let options = LibraryOptions {
        index: out,
        encoder: request.encoder.clone(),
        reranker: request.reranker.clone(),
        sparse: request.encoder.is_none(),
    };
    let library = Library::open(&options, machine, events)?;
    let deepest = DEPTHS.iter().copied().max().unwrap_or(1);
    let mut rankings = Vec::with_capacity(judged.len());
    for (id, judgements) in &judged {
        let Some(text) = queries.get(id) else {
            refuse!("{}: query `{id}` is judged and not in queries.jsonl", request.folder.display());
        };
        let question = Question {
            text: text.clone(),
            k: deepest,
            mode: request.mode,
            exact: true,
            ..Question::default()
        };
        rankings.push((library.ranked_documents(&question)?, judgements));
    }
    let at = |k: usize| {
        let (means, count) = mean(rankings.iter().map(|(ranking, judged)| measures(ranking, judged, k)));
        ((k, means), count)
    };
    let (depths, counts): (Vec<_>, Vec<_>) = DEPTHS.into_iter().map(at).unzip();
    Ok(RetrievalMeasures {
        documents: written.documents,
        queries: counts.first().copied().unwrap_or(0),
        depths,
    })
}

impl Library {
    /// Names of documents by their best passage; near-duplicates are ranked like any other.
    fn ranked_documents(&self, question: &Question) -> Result<Vec<String>> {
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        for (chunk, score) in self.ranked(question)? {
            let hit = self.index.hit(chunk, score)?;
            if seen.insert(hit.id.clone()) {
                all.push(hit.id);
            }
        }
        Ok(all)
    }
}

fn queries(path: &Path) -> Result<HashMap<String, String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut all = HashMap::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let row: QueryRow = serde_json::from_str(line)
            .with_context(|| format!("{}:{}: not a query with `_id` and `text`", path.display(), at + 1))?;
        all.insert(row._id, row.text);
    }
    Ok(all)
}

/// Judgements by query, from lines of query, document and relevance, with a line of names above.
fn judgements(path: &Path) -> Result<BTreeMap<String, Judgements>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut all: BTreeMap<String, Judgements> = BTreeMap::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split('\t').map(str::trim).collect();
        match fields[..] {
            [query, document, relevance] if relevance.parse::<i64>().is_ok() => {
                let relevance = relevance.parse().unwrap_or(0);
                all.entry(query.into()).or_default().insert(document.into(), relevance);
            }
            _ if at == 0 => {}
            _ => refuse!(
                "{}:{}: not a judgement: query, document and a whole number, separated by tabs",
                path.display(),
                at + 1
            ),
        }
    }
    Ok(all)
}
