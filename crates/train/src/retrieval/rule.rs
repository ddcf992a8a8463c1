//! The rule that adds the neighbours of a text's chunks, from a column of its store.

use std::sync::Arc;

use fathom_model::Retrieval;
use fathom_text::Tokenizer;
use fathom_text::pack::Span;
use fathom_text::store::{Chunks, Neighbours, Store};

use super::Retro;
use crate::error::{Error, Result};
use crate::micro_batch::{MicroBatch, SourceTokens};
use crate::objective::Objective;
use crate::recipe::Recipe;
use crate::source::{Rule, Shape, fill};

/// The store whose chunks are neighbours.
#[derive(Clone, Debug)]
pub struct Database {
    store: Arc<Store>,
}

impl Database {
    /// The store that a recipe names, or else the run's own.
    ///
    /// # Errors
    /// A store that is missing, broken, or was written with another tokenizer.
    pub fn open(recipe: &Recipe, own: &Arc<Store>, tokenizer: &Tokenizer) -> Result<Database> {
        let Some(prefix) = &recipe.data.neighbours else { return Ok(Database { store: own.clone() }) };
        let store = Store::open(prefix)?;
        store.check_tokenizer(tokenizer)?;
        store.check_ids(tokenizer.vocab_size() as u64)?;
        Ok(Database { store: Arc::new(store) })
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }
}

/// The rule.
#[derive(Clone, Debug)]
pub struct RetrievalRule {
    sizes: Retrieval,
    neighbours: Neighbours,
    /// Chunks of the run's store and of the database.
    chunks: [Chunks; 2],
    database: Arc<Store>,
}

impl RetrievalRule {
    /// The rule of a store with its neighbours.
    ///
    /// # Errors
    /// A store without a column of neighbours, or with one of other stores or of another tokenizer.
    pub fn new(recipe: &Recipe, own: &Arc<Store>, tokenizer: &Tokenizer) -> Result<RetrievalRule> {
        let Database { store: database } = Database::open(recipe, own, tokenizer)?;
        match RetrievalRule::of(own, database)? {
            Some(rule) => Ok(rule),
            None => {
                let message = "are not there: the run's first process finds them before the first step";
                Err(Error::Recipe { key: "data.neighbours".into(), message: message.into() })
            }
        }
    }

    /// The rule of a store, if it has a column of neighbours in a database.
    fn of(own: &Store, database: Arc<Store>) -> Result<Option<RetrievalRule>> {
        let Some(neighbours) = Neighbours::open([own, &database])? else { return Ok(None) };
        let sizes = Retrieval { chunk: neighbours.tokens, neighbours: neighbours.k };
        let chunks = [own, &*database].map(|store| Chunks::of(store, sizes.chunk));
        Ok(Some(RetrievalRule { sizes, neighbours, chunks, database }))
    }

    /// Adds the neighbours of a document's part to a source; whole chunks have some.
    fn add(&self, source: &mut SourceTokens, chunks: &mut Vec<usize>, row: usize, span: &Span) -> Result<()> {
        let ([own, others], size) = (&self.chunks, self.sizes.chunk);
        let (start, end) = (span.start as usize, span.start as usize + span.len as usize);
        for chunk in start.div_ceil(size)..end / size {
            for neighbour in self.neighbours.of(own.of_doc(span.doc as usize).start + chunk) {
                let ids = others.text(&self.database, neighbour, self.sizes.neighbour())?;
                if !ids.is_empty() {
                    push(source, ids.iter().map(|id| id.cast_signed()));
                    chunks.push(row + chunk * size - start);
                }
            }
        }
        Ok(())
    }
}

/// Appends a document.
fn push(source: &mut SourceTokens, ids: impl Iterator<Item = i32>) {
    let from = source.ids.len();
    source.ids.extend(ids);
    source.docs.push(from..source.ids.len());
    source.positions.extend(0..(source.ids.len() - from) as i32);
}

impl Rule for RetrievalRule {
    fn apply(&self, micro: &mut MicroBatch, shape: &Shape) -> Result<()> {
        shape.check_docs(micro.docs.len() + 1)?;
        let (mut source, mut chunks) = (SourceTokens::default(), Vec::new());
        for (doc, span) in micro.docs.iter().zip(&micro.spans) {
            self.add(&mut source, &mut chunks, doc.start, span)?;
        }
        let tokens = shape.samples * shape.seq_tokens;
        let [room, _] = Retro { sizes: self.sizes }.streams(tokens, shape.docs).unwrap_or_default();
        // Documents that nothing reads are as long as neighbours, so that they take no longer.
        while source.ids.len() < room {
            let rest = (room - source.ids.len()).min(self.sizes.neighbour());
            push(&mut source, std::iter::repeat_n(0, rest));
        }
        (micro.source, micro.chunks) = (Some(source), chunks);
        fill(micro, tokens, shape.seq_tokens);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fathom_text::store::{DocMeta, Header, StoreWriter};

    use super::*;

    const SHAPE: Shape = Shape {
        stage: 0,
        samples: 1,
        seq_tokens: 64,
        docs: 9,
        one_length: false,
        alone: true,
        lead: 0,
        fills: true,
    };

    /// A store of two documents of ten tokens, in chunks of four: numbers 0 to 2, and 3 to 5.
    fn store(folder: &std::path::Path) -> Arc<Store> {
        let prefix = folder.join("text");
        let mut writer = StoreWriter::create(&prefix, Header::new(300)).unwrap();
        for first in [100, 200] {
            let ids: Vec<u32> = (first..first + 10).collect();
            writer
                .push_document(&ids, DocMeta { source: 0, hash: u128::from(first), text_bytes: 10 })
                .unwrap();
        }
        writer.finish().unwrap();
        Arc::new(Store::open(&prefix).unwrap())
    }

    fn micro(spans: &[Span], ids: &[std::ops::Range<i32>]) -> MicroBatch {
        let mut micro = MicroBatch { spans: spans.to_vec(), ..MicroBatch::default() };
        for ids in ids {
            let start = micro.ids.len();
            micro.ids.extend(ids.clone());
            micro.labels.extend(ids.clone().map(|id| id + 1));
            micro.positions.extend(0..ids.len() as i32);
            micro.docs.push(start..micro.ids.len());
        }
        micro
    }

    #[test]
    fn whole_chunks_have_the_neighbours_of_their_place_in_the_document() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        assert!(RetrievalRule::of(&store, store.clone()).unwrap().is_none());
        let numbers = vec![3, 5, 4, -1, -1, -1, 0, 1, 2, -1, -1, -1];
        let made = Neighbours::new([&store, &store], (4, 2), [1; 32], numbers);
        made.write(store.prefix()).unwrap();
        let rule = RetrievalRule::of(&store, store.clone()).unwrap().unwrap();
        // All of the first document, and of the second its tokens from the third on: its first chunk is cut.
        let spans = [Span { doc: 0, start: 0, len: 10 }, Span { doc: 1, start: 2, len: 8 }];
        let mut micro = micro(&spans, &[100..110, 202..210]);
        rule.apply(&mut micro, &SHAPE).unwrap();
        let source = micro.source.unwrap();
        // Chunks 3 and 5 for the first chunk, 4 for the second; 2 for the second document's second, at its third row.
        assert_eq!(micro.chunks, [0, 0, 4, 12]);
        let of = |doc: usize| source.ids[source.docs[doc].clone()].to_vec();
        let range = |range: std::ops::Range<i32>| range.collect::<Vec<i32>>();
        assert_eq!(
            [of(0), of(1), of(2), of(3)],
            [range(200..208), range(208..210), range(204..210), range(108..110)]
        );
        // Both streams are full, with documents as long as neighbours.
        assert_eq!((micro.ids.len(), micro.docs.len()), (64, 3));
        assert_eq!(source.ids.len(), 256);
        assert!(
            source.docs[4..].iter().all(|doc| doc.len() <= 8)
                && source.docs.len() <= rule.sizes.documents(64)
        );
        assert!(micro.labels[18..].iter().all(|label| *label < 0));
    }
}
