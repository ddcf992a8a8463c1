//! Writes the table as token stores, one per split: `.bin` and `.idx` in Megatron's format, with the documents'
//! metadata next to them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use fathom_text::store::{DocMeta, Header, StoreWriter, length_bucket};
use fathom_text::tokenizer::Tokenizer;
use parquet::arrow::ArrowWriter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::kind::Maker;
use crate::error::Error;
use crate::pipeline::{Barrier, Batch, Job, Tally, Work};

/// Column added by the stage of this name.
const SPLIT: &str = "split";

/// Maximum number of stores of one table; each keeps files open.
const MAX_STORES: usize = 64;

/// Seed for selecting the tokenizer's training texts, distinct from that of a shuffle.
const SAMPLE_SEED: u64 = 0x746f_6b65_6e73;

/// Special token of a trained tokenizer.
const END_OF_TEXT: &str = "<|endoftext|>";

/// Options of `tokenize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TokenizeOptions {
    /// A `tokenizer.json` or a folder that holds one; none trains a byte-level BPE on the table.
    pub tokenizer: Option<PathBuf>,
    /// Most ids of a trained tokenizer, the 256 bytes and the special token included: 257 or more.
    pub vocab: u64,
    /// Bytes of text that a tokenizer is trained on: whole documents, chosen by a hash.
    pub sample_bytes: u64,
    /// First part of the stores' names, of letters, digits, `_` and `-`: `web` makes `web.bin`, or `web-train.bin`
    /// and so on where the table is split; none makes `train.bin` and so on.
    pub prefix: Option<String>,
    /// The column that names the store of each document, where the table has it: the stage `split` adds one. None makes one
    /// store of all.
    pub split: Option<String>,
}

impl Default for TokenizeOptions {
    fn default() -> Self {
        let (vocab, sample_bytes, split) = (32_768, 64 << 20, Some(SPLIT.to_owned()));
        TokenizeOptions { tokenizer: None, vocab, sample_bytes, prefix: None, split }
    }
}

/// Writes the token stores.
pub(super) struct Tokenize(TokenizeOptions);

impl Maker for Tokenize {
    type Options = TokenizeOptions;
    const NAME: &'static str = "tokenize";
    const ABOUT: &'static str = "writes token stores (Megatron's .bin and .idx), one a split, with source, length bucket and hash of each document";

    fn make(options: TokenizeOptions) -> Result<Work, Error> {
        let refuse = |key, found: &dyn ToString, advice: &str| {
            Err(Error::Setting { key, found: found.to_string(), advice: advice.to_owned() })
        };
        if let Some(prefix) = options.prefix.as_ref().filter(|prefix| !names_a_file(prefix)) {
            return refuse("prefix", prefix, "it names files; use letters, digits, _ and -");
        }
        if options.tokenizer.is_none() && options.vocab < 257 {
            return refuse("vocab", &options.vocab, "256 bytes and one special token need 257 or more");
        }
        Ok(Work::Sink(Box::new(Tokenize(options))))
    }
}

impl Barrier for Tokenize {
    fn run(&self, job: &Job<'_>, tally: &mut Tally) -> Result<(), Error> {
        let tokenizer = self.tokenizer(job)?;
        let folder = job.folder().join("tokenizer");
        std::fs::create_dir_all(&folder).map_err(|e| Error::write("create", &folder, e))?;
        tokenizer.save_dir(folder)?;
        let eos = tokenizer.require_eos()?;
        let mut stores = Stores {
            options: &self.0,
            job,
            header: Header::for_tokenizer(&tokenizer)?,
            open: BTreeMap::new(),
        };
        let mut documents: Option<Documents> = None;
        let mut accept = |encoded: TokenizedBatch| {
            let TokenizedBatch { batch, rows } = encoded;
            let splits = self.splits(&batch)?;
            let mut lines = Lines::default();
            for (row, (ids, mut meta)) in rows.into_iter().enumerate() {
                let store = stores.of(&batch, row, splits)?;
                meta.source = number_of(&mut store.writer, batch.source(row));
                store.writer.push_document(&ids, meta)?;
                store.end += ids.len() as u64;
                lines.push(store.end, ids.len() as u64, meta.hash);
                tally.score("tokens", ids.len() as f64);
                let bucket = length_bucket(ids.len() as u64);
                tally.count("length_bucket", &format!("2^{bucket:02}"), meta.text_bytes);
                if let Some(splits) = splits {
                    tally.count("store", splits.value(row), meta.text_bytes);
                }
            }
            if documents.is_none() {
                documents = Some(Documents::create(&job.folder().join(DOCUMENTS), splits.is_some())?);
            }
            if let Some(documents) = &mut documents {
                documents.write(&batch, splits, lines)?;
            }
            Ok(())
        };
        job.in_order(&|_, batch| TokenizedBatch::of(batch, &tokenizer, eos), &mut accept)?;
        match documents {
            Some(documents) => documents.finish()?,
            None => Documents::create(&job.folder().join(DOCUMENTS), false)?.finish()?,
        }
        stores.finish()
    }

    fn rehearse(&self, empty: &Batch) -> Result<(), Error> {
        if let Some(tokenizer) = self.given()? {
            tokenizer.require_eos()?;
        }
        self.splits(empty).map(drop)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.0.tokenizer.iter().map(|path| tokenizer_file(path)).collect()
    }
}

impl Tokenize {
    /// Split column, if the table has it.
    fn splits<'b>(&self, batch: &'b Batch) -> Result<Option<&'b StringArray>, Error> {
        let Some(name) = self.0.split.as_deref() else { return Ok(None) };
        let found = batch.column(name);
        if found.is_none() && (name != SPLIT || batch.table().column_by_name(name).is_some()) {
            let detail = format!("`tokenize` divides by `{name}`, and there is no such column of text");
            return Err(Error::Table { detail });
        }
        Ok(found)
    }

    /// Tokenizer named by the recipe.
    fn given(&self) -> Result<Option<Tokenizer>, Error> {
        self.0.tokenizer.as_deref().map(open_tokenizer).transpose()
    }

    /// The given tokenizer, or one trained on a sample of the table.
    fn tokenizer(&self, job: &Job<'_>) -> Result<Tokenizer, Error> {
        if let Some(given) = self.given()? {
            return Ok(given);
        }
        let sample = sample(job, self.0.sample_bytes)?;
        let vocab = usize::try_from(self.0.vocab).unwrap_or(usize::MAX);
        let train = || Tokenizer::train_bpe(sample.into_iter(), vocab, &[END_OF_TEXT]);
        Ok(job.on_threads(train)??)
    }
}

/// Loads the tokenizer named by an option: a `tokenizer.json` or a folder that contains one.
pub(super) fn open_tokenizer(path: &Path) -> Result<Tokenizer, Error> {
    Ok(if path.is_dir() { Tokenizer::from_dir(path)? } else { Tokenizer::from_file(path)? })
}

/// File that determines the behavior of such a tokenizer.
pub(super) fn tokenizer_file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() }
}

/// Returns true if a word can be part of a file name but not of a path.
fn names_a_file(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    !word.is_empty() && word.len() <= 64 && word.chars().all(plain)
}

/// A store and its number of tokens so far.
struct Open {
    writer: StoreWriter,
    end: u64,
}

/// Stores of a table by split, created when their first document arrives.
struct Stores<'j> {
    options: &'j TokenizeOptions,
    job: &'j Job<'j>,
    header: Header,
    open: BTreeMap<String, Open>,
}

impl Stores<'_> {
    /// Store of a row.
    fn of(&mut self, batch: &Batch, row: usize, splits: Option<&StringArray>) -> Result<&mut Open, Error> {
        let name = splits.map_or(Some(""), |splits| splits.is_valid(row).then(|| splits.value(row)));
        let refuse = |what: &str| {
            let detail = format!("`tokenize` cannot name a store for {}: {what}", batch.id(row));
            Err(Error::Table { detail })
        };
        let Some(name) = name else {
            return refuse("its split is null; give each document one, or set split=none");
        };
        if !self.open.contains_key(name) {
            if splits.is_some() && !names_a_file(name) {
                return refuse(
                    "its split is not of letters, digits, _ and -; set split=none or another column",
                );
            }
            if self.open.len() == MAX_STORES {
                return refuse("64 splits have stores already; set split=none or another column");
            }
            let name = name.to_owned();
            let open = self.create(&name)?;
            self.open.insert(name, open);
        }
        match self.open.get_mut(name) {
            Some(open) => Ok(open),
            None => unreachable!("it was just inserted"),
        }
    }

    fn create(&self, split: &str) -> Result<Open, Error> {
        let file = match (self.options.prefix.as_deref(), split) {
            (None, "") => "train".to_owned(),
            (None, split) => split.to_owned(),
            (Some(prefix), "") => prefix.to_owned(),
            (Some(prefix), split) => format!("{prefix}-{split}"),
        };
        let writer = StoreWriter::create(self.job.folder().join(file), self.header.clone())?;
        Ok(Open { writer, end: 0 })
    }

    /// Completes all stores. A table without documents gets one too.
    fn finish(mut self) -> Result<(), Error> {
        if self.open.is_empty() {
            let open = self.create("")?;
            self.open.insert(String::new(), open);
        }
        self.open.into_values().try_for_each(|open| open.writer.finish().map(drop))?;
        Ok(())
    }
}

/// Whole documents spread over the table, about `bytes` of them, selected by the hashes of their ids.
fn sample(job: &Job<'_>, bytes: u64) -> Result<Vec<String>, Error> {
    let total = job.text_bytes();
    let chosen = |id: &str| {
        let hash = XxHash3_64::oneshot_with_seed(SAMPLE_SEED, id.as_bytes());
        u128::from(hash) * u128::from(total) < u128::from(bytes) << 64
    };
    let mut texts = Vec::new();
    let take = |_: u64, batch: &Batch| {
        let rows = (0..batch.rows()).filter(|&row| chosen(batch.id(row)));
        Ok(rows.map(|row| batch.text(row).to_owned()).collect::<Vec<_>>())
    };
    job.in_order(&take, &mut |more| {
        texts.extend(more);
        Ok(())
    })?;
    Ok(texts)
}

/// Token ids of a batch, with an end-of-text token after each document, and the documents' metadata; source numbers
/// are not assigned yet.
struct TokenizedBatch {
    batch: Batch,
    rows: Vec<(Vec<u32>, DocMeta)>,
}

impl TokenizedBatch {
    fn of(batch: &Batch, tokenizer: &Tokenizer, eos: u32) -> Result<TokenizedBatch, Error> {
        let row = |row: usize| {
            let text = batch.text(row);
            let mut ids = tokenizer.encode(text)?;
            ids.push(eos);
            Ok((ids, DocMeta::of_text(text, 0)))
        };
        let rows = (0..batch.rows()).map(row).collect::<Result<_, Error>>()?;
        Ok(TokenizedBatch { batch: batch.clone(), rows })
    }
}

fn number_of(store: &mut StoreWriter, source: &str) -> u32 {
    // Documents of a source are contiguous, so the last source nearly always matches.
    let known = store.header().sources.iter().rposition(|name| name == source);
    known.map_or_else(|| store.add_source(source), |number| number as u32)
}

/// Metadata columns for the documents of a batch.
#[derive(Default)]
struct Lines {
    ends: Vec<u64>,
    tokens: Vec<u64>,
    buckets: Vec<u32>,
    hashes: Vec<String>,
}

impl Lines {
    fn push(&mut self, end: u64, tokens: u64, hash: u128) {
        self.ends.push(end);
        self.tokens.push(tokens);
        self.buckets.push(length_bucket(tokens));
        self.hashes.push(format!("{hash:032x}"));
    }
}

/// File name of the document metadata.
const DOCUMENTS: &str = "documents.parquet";

/// Writer of `documents.parquet`: one row per document, in the order of the table and thus of each store; `end` is
/// the end of its tokens in its store, and `split` names the store if there are several.
struct Documents {
    path: PathBuf,
    schema: SchemaRef,
    writer: ArrowWriter<File>,
}

impl Documents {
    fn create(path: &Path, split: bool) -> Result<Documents, Error> {
        let field = |name: &str, kind: DataType| Field::new(name, kind, false);
        let mut fields = vec![
            field("id", DataType::Utf8),
            field("source", DataType::Utf8),
            field("end", DataType::UInt64),
            field("tokens", DataType::UInt64),
            field("length_bucket", DataType::UInt32),
            field("hash", DataType::Utf8),
        ];
        fields.extend(split.then(|| field(SPLIT, DataType::Utf8)));
        let schema = Arc::new(Schema::new(fields));
        let file = File::create(path).map_err(|e| Error::write("create", path, e))?;
        let writer = ArrowWriter::try_new(file, schema.clone(), None).map_err(|e| failed(path, e))?;
        Ok(Documents { path: path.to_owned(), schema, writer })
    }

    fn write(&mut self, batch: &Batch, splits: Option<&StringArray>, lines: Lines) -> Result<(), Error> {
        let text = |of: &dyn Fn(usize) -> String| -> ArrayRef {
            Arc::new(StringArray::from_iter_values((0..batch.rows()).map(of)))
        };
        let mut columns: Vec<ArrayRef> = vec![
            text(&|row| batch.id(row).to_owned()),
            text(&|row| batch.source(row).to_owned()),
            Arc::new(UInt64Array::from(lines.ends)),
            Arc::new(UInt64Array::from(lines.tokens)),
            Arc::new(UInt32Array::from(lines.buckets)),
            Arc::new(StringArray::from(lines.hashes)),
        ];
        columns.extend(splits.map(|splits| Arc::new(splits.clone()) as ArrayRef));
        let table = RecordBatch::try_new(self.schema.clone(), columns)
            .map_err(|e| Error::Table { detail: e.to_string() })?;
        self.writer.write(&table).map_err(|e| failed(&self.path, e))
    }

    fn finish(self) -> Result<(), Error> {
        let file = self.writer.into_inner().map_err(|e| failed(&self.path, e))?;
        file.sync_all().map_err(|e| Error::write("write", &self.path, e))
    }
}

fn failed(path: &Path, error: parquet::errors::ParquetError) -> Error {
    Error::write("write", path, std::io::Error::other(error.to_string()))
}
