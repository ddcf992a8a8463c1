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
pub struct Retrieving {
    sizes: Retrieval,
    neighbours: Neighbours,
    /// Chunks of the run's store and of the database.
    chunks: [Chunks; 2],
    database: Arc<Store>,
}

impl Retrieving {
    /// The rule of a store with its neighbours.
    ///
    /// # Errors
    /// A store without a column of neighbours, or with one of other stores or of another tokenizer.
    pub fn new(recipe: &Recipe, own: &Arc<Store>, tokenizer: &Tokenizer) -> Result<Retrieving> {
        let Database { store: database } = Database::open(recipe, own, tokenizer)?;
        let Some(neighbours) = Neighbours::open([own, &database])? else {
            let message =
                "are not there: the run's first process finds them before the first step".to_string();
            return Err(Error::Recipe { key: "data.neighbours".into(), message });
        };
        let sizes = Retrieval { chunk: neighbours.tokens, neighbours: neighbours.k };
        let chunks = [&**own, &*database].map(|store| Chunks::of(store, sizes.chunk));
        Ok(Retrieving { sizes, neighbours, chunks, database })
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

impl Rule for Retrieving {
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
