//! Neighbours of a text's chunks, in a column next to its tokens: found once, before the first step, in an index of the
//! chunks' text.
//!
//! A document is given no neighbour from itself or from a copy of it. Documents that are held out from training are no
//! neighbours, but have some.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fathom_base::human;
use fathom_curate::store_prefix;
use fathom_model::Retrieval;
use fathom_retrieval::ranking::RankedChunk;
use fathom_retrieval::{Encode, EncoderFacts, Index, IndexOptions, Mode, Query, index};
use fathom_tensor::DType;
use fathom_text::Tokenizer;
use fathom_text::loader::{HeldOut, is_held_out};
use fathom_text::store::{Chunks, Neighbours, Store};
use fathom_train::retrieval::Database;
use serde_json::json;

use crate::error::{Context, Result, refuse};
use crate::events::{Event, Events};
use crate::host::EncoderHost;
use crate::job::Job;

/// Candidates of a chunk: those of its own document are left out.
const CANDIDATES: usize = 64;
/// Chunks that are looked up between two looks at the signal to stop.
const BATCH: usize = 256;
/// Bytes of an indexed passage: a chunk is never cut.
const PASSAGE_BYTES: usize = 1 << 20;

/// Returns the store with neighbours of its chunks; `None` if the run was asked to stop.
///
/// # Errors
/// A database of another tokenizer; neighbours that were found otherwise, if the run has trained with them.
pub(super) fn column(
    job: &Job,
    (store, tokenizer): (Store, &Tokenizer),
    stop: &AtomicBool,
    events: &dyn Events,
) -> Result<Option<Store>> {
    let Some(sizes) = job.stages[0].spec.retrieval else { return Ok(Some(store)) };
    let store = Arc::new(store);
    let database = Database::open(job.recipe(), &store, tokenizer)?;
    let search = Search {
        held_out: fathom_train::held_out(job.recipe(), &[&store])?,
        stores: [&store, database.store()],
        chunks: [&*store, database.store()].map(|store| Chunks::of(store, sizes.chunk)),
        sizes,
        tokenizer,
        encoder: encoder(job, events)?,
    };
    let (made_by, folder) = (search.made_by(), job.data().join("neighbours"));
    match Neighbours::open(search.stores) {
        Ok(Some(found)) if found.made_by == made_by => {}
        Ok(Some(_)) if job.checkpoints().exists() => refuse!(
            "{}: its neighbours were found with other settings, and this run has trained with them; give back what was there, or \
             begin in another folder (run.out=FOLDER)",
            store.prefix().display()
        ),
        Err(error) if job.checkpoints().exists() => return Err(error.into()),
        // The same settings find the same again.
        _ => {
            let Some(numbers) = search.run(&folder, stop, events)? else { return Ok(None) };
            let found = Neighbours::new(search.stores, (sizes.chunk, sizes.neighbours), made_by, numbers);
            found.write(&store_prefix(&job.data()))?;
        }
    }
    clear(&folder)?;
    drop(search);
    drop(database);
    // Nothing else has it.
    Ok(Arc::into_inner(store))
}

/// Opens the encoder of a recipe, if it names one.
fn encoder(job: &Job, events: &dyn Events) -> Result<Option<EncoderHost>> {
    let Some(folder) = &job.recipe().data.neighbour_encoder else { return Ok(None) };
    Ok(Some(EncoderHost::open(folder, Some(DType::F32), &job.machine, events)?.embedding()?))
}

/// Removes a folder, if it is there.
fn clear(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}

/// An encoder that refuses texts once the run is asked to stop.
struct StoppableEncoder<'a> {
    encoder: &'a EncoderHost,
    stop: &'a AtomicBool,
}

impl Encode for StoppableEncoder<'_> {
    fn facts(&self) -> EncoderFacts {
        self.encoder.facts()
    }

    fn encode(&self, texts: &[String]) -> fathom_base::Result<Vec<Vec<f32>>> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(fathom_base::Error::product(std::io::Error::other("the run was asked to stop")));
        }
        self.encoder.encode(texts)
    }
}

/// A search for neighbours.
struct Search<'a> {
    held_out: HeldOut,
    /// The run's store and that with the neighbours.
    stores: [&'a Store; 2],
    chunks: [Chunks; 2],
    sizes: Retrieval,
    tokenizer: &'a Tokenizer,
    encoder: Option<EncoderHost>,
}

impl Search<'_> {
    /// Hash of all settings.
    fn made_by(&self) -> [u8; 32] {
        let Retrieval { chunk, neighbours } = self.sizes;
        let by = self.encoder.as_ref().map_or("bm25".into(), |encoder| encoder.facts().fingerprint);
        *blake3::hash(format!("{chunk} {neighbours} {:?} {by}", self.held_out).as_bytes()).as_bytes()
    }

    /// Numbers of the neighbours of all chunks; `None` if the run was asked to stop.
    fn run(&self, folder: &Path, stop: &AtomicBool, events: &dyn Events) -> Result<Option<Vec<i32>>> {
        let ([own, _], all) = (&self.chunks, self.chunks[0].count());
        let (index, numbers) = match self.index(folder, stop, events) {
            Err(_) if stop.load(Ordering::Relaxed) => return Ok(None),
            made => made?,
        };
        let (found, done) = (std::sync::Mutex::new(BTreeMap::new()), AtomicUsize::new(0));
        let lane = || -> Result<()> {
            loop {
                let first = done.fetch_add(BATCH, Ordering::Relaxed);
                if first >= all || stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                // The others end too.
                let ends = |error| {
                    done.store(all, Ordering::Relaxed);
                    error
                };
                let batch = first..(first + BATCH).min(all);
                let text = format!("finding neighbours of {}", human::counted(all as u64, "chunk"));
                events.on(Event::Progress { text, done: first as u64, all: all as u64 });
                let near = self.batch(&index, &numbers, batch).map_err(ends)?;
                found.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(first, near);
            }
        };
        let lanes = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
            lanes.into_iter().try_for_each(|lane| match lane.join() {
                Ok(ended) => ended,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let found: Vec<i32> = found.into_values().flatten().collect();
        let with = found.chunks(self.sizes.neighbours).filter(|near| near[0] >= 0).count();
        let all = human::counted(all as u64, "chunk");
        events.line(&format!(
            "{all} of {}; {} of them with neighbours",
            human::counted(self.stores[0].num_documents() as u64, "document"),
            human::grouped(with as u64)
        ));
        debug_assert_eq!(found.len(), own.count() * self.sizes.neighbours);
        Ok(Some(found))
    }

    /// An index of the chunks that may be neighbours, and the number of each by its number in the index.
    fn index(&self, folder: &Path, stop: &AtomicBool, events: &dyn Events) -> Result<(Index, Vec<usize>)> {
        let ([_, database], [_, chunks]) = (self.stores, &self.chunks);
        let (rows, maker) = (folder.join("chunks.jsonl"), folder.join("made_by"));
        // One that a killed run began with other settings.
        if std::fs::read(&maker).ok().as_deref() != Some(&self.made_by()[..]) {
            clear(folder)?;
        }
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let create =
            || std::fs::File::create(&rows).with_context(|| format!("cannot create {}", rows.display()));
        let mut out = BufWriter::new(create()?);
        std::fs::write(&maker, self.made_by())
            .with_context(|| format!("cannot write {}", maker.display()))?;
        for doc in 0..database.num_documents() {
            if is_held_out(database.doc_hash(doc)?, self.held_out) {
                continue;
            }
            for chunk in chunks.of_doc(doc) {
                let text = self.text(1, chunk)?;
                if !text.trim().is_empty() {
                    writeln!(out, "{}", json!({"id": chunk.to_string(), "text": text}))
                        .with_context(|| format!("cannot write {}", rows.display()))?;
                }
            }
        }
        out.flush().with_context(|| format!("cannot write {}", rows.display()))?;
        drop(out);
        let place = folder.join("index");
        let options = IndexOptions { chunk_bytes: PASSAGE_BYTES, ..IndexOptions::default() };
        let encoder = self.encoder.as_ref().map(|encoder| StoppableEncoder { encoder, stop });
        let encoder = encoder.as_ref().map(|encoder| encoder as &dyn Encode);
        events.doing("indexing the chunks of the text");
        index(&[rows], &place, &options, encoder, &|_| {})?;
        let index = Index::open(&place)?;
        let number = |chunk: u32| {
            let id = index.hit(chunk, 0.0)?.id;
            id.parse().with_context(|| format!("{}: a chunk is called `{id}`", place.display()))
        };
        let numbers = (0..index.chunks()).map(number).collect::<Result<Vec<usize>>>()?;
        Ok((index, numbers))
    }

    /// Text of a chunk of the run's store, or of that with the neighbours.
    fn text(&self, store: usize, chunk: usize) -> Result<String> {
        let ids = self.chunks[store].text(self.stores[store], chunk, self.sizes.chunk)?;
        Ok(self.tokenizer.decode_text(&ids))
    }

    /// Neighbours of some chunks.
    fn batch(&self, index: &Index, numbers: &[usize], chunks: std::ops::Range<usize>) -> Result<Vec<i32>> {
        let texts = chunks.clone().map(|chunk| self.text(0, chunk)).collect::<Result<Vec<String>>>()?;
        let vectors = self.encoder.as_ref().map(|encoder| encoder.encode(&texts)).transpose()?;
        let mut all = Vec::new();
        for (at, (chunk, text)) in chunks.zip(&texts).enumerate() {
            let vector = vectors.as_ref().map(|vectors| vectors[at].as_slice());
            let mode = if vector.is_some() { Mode::Dense } else { Mode::Sparse };
            let query = Query { text, vector, k: CANDIDATES, mode, ..Query::default() };
            let ranked = if text.trim().is_empty() { Vec::new() } else { index.ranked(&query)? };
            all.extend(self.others(chunk, &ranked, numbers)?);
        }
        Ok(all)
    }

    /// The best chunks of a ranking that are of other documents; -1 fills up.
    fn others(&self, chunk: usize, ranked: &[RankedChunk], numbers: &[usize]) -> Result<Vec<i32>> {
        let ([own, database], [chunks, others]) = (self.stores, &self.chunks);
        let hash = own.doc_hash(chunks.place(chunk).doc)?;
        let mut near = Vec::with_capacity(self.sizes.neighbours);
        for (number, _) in ranked {
            let other = numbers[*number as usize];
            if near.len() < self.sizes.neighbours && database.doc_hash(others.place(other).doc)? != hash {
                near.push(i32::try_from(other).unwrap_or(-1));
            }
        }
        near.resize(self.sizes.neighbours, -1);
        Ok(near)
    }
}
