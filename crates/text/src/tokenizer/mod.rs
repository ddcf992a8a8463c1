//! Tokenizers in Hugging Face's `tokenizer.json` form: reading, training, encoding and decoding.
//!
//! The reference is the `tokenizers` crate with its pure-Rust regex; byte-level BPE of the known families is encoded
//! by a faster engine with the same ids ([`fast`]). In addition, this module splits long texts where the
//! pre-tokenizer would split anyway ([`pieces`]), never turns text into special tokens by accident, converts a stream
//! of ids to a stream of whole characters ([`Stream`]), reads the ids of special roles from the files next to the
//! tokenizer, and guards against panics whatever a file contains ([`foreign`]).

mod fast;
mod folder;
mod foreign;
mod missing;
pub(crate) mod pieces;
mod roles;
mod stream;
mod train;

pub use folder::FILES;
pub(crate) use roles::probe as probe_roles;
pub use stream::Stream;

use crate::error::{Error, Result};
use crate::gguf::side_file;
use fathom_base::guard::guarded;
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Size of the pieces in which longer texts are encoded, in parallel.
const PIECE_BYTES: usize = 32 << 10;

/// Bytes of text from which the fast engine pays off: building its tables for a large vocabulary takes as long as the
/// other engine needs to encode this much.
const WORTH_BYTES: usize = 64 << 10;

/// A tokenizer and the ids of its special roles.
///
/// Encoding is a pure function of the text: the same text gives the same ids whatever the number of threads.
pub struct Tokenizer {
    /// Treats the spellings of special tokens as plain text.
    plain: tokenizers::Tokenizer,
    /// The same tokenizer with special tokens recognized; created on first use, since most jobs never need it.
    special: OnceLock<tokenizers::Tokenizer>,
    /// Fast engine, if it supports this tokenizer; created once there is enough text.
    fast: OnceLock<Option<fast::Fast>>,
    /// Bytes encoded before `fast` was created.
    asked_bytes: AtomicUsize,
    roles: roles::Roles,
    path: PathBuf,
    /// Folder that it was read from, with the files next to it.
    folder: Option<PathBuf>,
    vocab_size: usize,
    /// True if tokens are spelled in the byte-level alphabet.
    byte_level: bool,
    /// Byte length of each token; computed on first use.
    lengths: OnceLock<Vec<u32>>,
    /// Tokens that the template puts around a text, if they are always the same.
    around: OnceLock<Option<(Vec<u32>, Vec<u32>)>>,
    /// Factor by which normalizer and pre-tokenizer can expand a text.
    growth: f64,
    cuts: pieces::Cuts,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Tokenizer").field("path", &self.path).field("vocab_size", &self.vocab_size).finish()
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`. The roles `bos` and `eos` are guessed from well-known spellings.
    ///
    /// # Errors
    /// The file cannot be read, or is not a tokenizer; the message names the file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if fathom_base::gguf::is_file(path) {
            return Self::from_dir(path);
        }
        Self::assemble(foreign::read(path)?, path.to_owned(), roles::Roles::default())
    }

    /// Reads `tokenizer.json` from a model folder (or its equivalent from a GGUF file), and the roles from
    /// `generation_config.json`, `tokenizer_config.json`, `special_tokens_map.json` and `config.json`, in this order
    /// of precedence.
    ///
    /// # Errors
    /// Same as [`Tokenizer::from_file`]; or one of the other files exists and is unusable.
    pub fn from_dir(dir: impl AsRef<Path>) -> Result<Self> {
        let of_gguf = fathom_base::gguf::is_file(dir.as_ref());
        let path = if of_gguf { dir.as_ref().to_owned() } else { dir.as_ref().join("tokenizer.json") };
        let parsed = match side_file(dir.as_ref(), "tokenizer.json")? {
            Some(bytes) if of_gguf => foreign::parse(&bytes, &path)?,
            _ => foreign::read(&path)?,
        };
        let roles = roles::Roles::from_dir(dir.as_ref(), |token| parsed.inner.token_to_id(token))?;
        Ok(Self { folder: Some(dir.as_ref().to_owned()), ..Self::assemble(parsed, path, roles)? })
    }

    /// Reads the bytes of a `tokenizer.json`; `path` is used in messages.
    ///
    /// # Errors
    /// The bytes are not a tokenizer.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self> {
        Self::assemble(foreign::parse(bytes, path)?, path.to_owned(), roles::Roles::default())
    }

    fn assemble(parsed: foreign::GuardedTokenizer, path: PathBuf, mut roles: roles::Roles) -> Result<Self> {
        let foreign::GuardedTokenizer { mut inner, growth } = parsed;
        inner.set_encode_special_tokens(true);
        let vocabulary = inner.get_vocab(true);
        let past_last = vocabulary.values().max().map_or(0, |&id| id as usize + 1);
        if past_last > foreign::MOST_IDS {
            let reason = format!("token id {}: ids are below {}", past_last - 1, foreign::MOST_IDS);
            return Err(Error::Tokenizer { path, reason });
        }
        roles.guess_missing(|token| inner.token_to_id(token));
        let cuts = pieces::Cuts::of(&inner);
        let (special, fast, asked_bytes) = (OnceLock::new(), OnceLock::new(), AtomicUsize::new(0));
        let (folder, vocab_size) = (None, past_last);
        // Detected by the spelling of a space, since byte-level vocabularies have a token for every byte.
        let byte_level = vocabulary.contains_key("\u{120}") && inner.get_decoder().is_some();
        Ok(Self {
            plain: inner,
            special,
            fast,
            asked_bytes,
            roles,
            path,
            folder,
            vocab_size,
            byte_level,
            lengths: OnceLock::new(),
            around: OnceLock::new(),
            growth,
            cuts,
        })
    }

    /// Encodes text without adding tokens; spellings of special tokens are treated as ordinary text.
    ///
    /// Texts above 32 KiB are split at line ends where the pre-tokenizer splits anyway, so the ids are those of the
    /// whole text. Tokenizers for which this is not guaranteed receive the whole text.
    ///
    /// # Errors
    /// The tokenizer has neither a token for a piece of the text nor an unknown token.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_as(text, false)
    }

    /// Encodes text in which spellings of special tokens denote those tokens; no tokens are added.
    ///
    /// # Errors
    /// Same as [`Tokenizer::encode`].
    pub fn encode_special(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_as(text, true)
    }

    /// Like [`Tokenizer::encode_special`], also returning the byte offset at which each token ends.
    ///
    /// # Errors
    /// Same as [`Tokenizer::encode`].
    pub fn encode_with_ends(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>)> {
        let ids = self.encode_special(text)?;
        let lengths = self.lengths.get_or_init(|| {
            (0..self.vocab_size as u32).map(|id| self.token_bytes(id).len() as u32).collect()
        });
        let add = |end: &mut usize, id: &u32| {
            *end += lengths.get(*id as usize).map_or(0, |length| *length as usize);
            Some(*end)
        };
        let ends: Vec<usize> = ids.iter().scan(0, add).collect();
        // Byte-level tokens concatenate to the text; for others the offsets are looked up.
        if self.byte_level && ends.last().copied().unwrap_or(0) == text.len() {
            return Ok((ids, ends));
        }
        let ends = foreign::ends(self.recognising(), self.growth, text)?;
        if ends.len() != ids.len() {
            let reason = format!("says where {} of {} tokens end", ends.len(), ids.len());
            return Err(Error::Tokenizer { path: self.path.clone(), reason });
        }
        Ok((ids, ends))
    }

    /// Encodes a prompt like Transformers' `tokenizer(text)`: special tokens are recognized, and the tokenizer's
    /// template is applied (in many families a leading bos).
    ///
    /// # Errors
    /// Same as [`Tokenizer::encode`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let Some((before, after)) = self.around.get_or_init(|| self.template()) else {
            return foreign::encode(self.recognising(), self.growth, text, true);
        };
        Ok([before, &self.encode_special(text)?[..], after].concat())
    }

    /// Encodes one or two texts like Transformers' `tokenizer(first, second)`, also returning the number of ids of
    /// the first token type. If there are more than `most` tokens, including those of the template, the last ones of
    /// the longer text are dropped (`truncation="longest_first"`).
    ///
    /// # Errors
    /// Same as [`Tokenizer::encode`].
    pub fn encode_pair(
        &self,
        first: &str,
        second: Option<&str>,
        most: Option<usize>,
    ) -> Result<(Vec<u32>, usize)> {
        foreign::encode_pair(self.recognising(), self.growth, (first, second), most)
    }

    /// Tokens that the template puts before and after every text; `None` if they differ between two sample texts.
    pub fn frame(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        self.around.get_or_init(|| self.template()).clone()
    }

    /// [`Tokenizer::frame`], computed again.
    fn template(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        let encode = |text, template| foreign::encode(self.recognising(), self.growth, text, template).ok();
        let around = |text| {
            let (bare, whole) = (encode(text, false)?, encode(text, true)?);
            let at = whole.windows(bare.len().max(1)).position(|part| part == bare)?;
            Some((whole[..at].to_vec(), whole[at + bare.len()..].to_vec()))
        };
        let found = around("What is the capital of France?")?;
        let empty = [&found.0[..], &found.1].concat();
        (around("fn f(x: u8) -> u8 {}")? == found && encode("", true)? == empty).then_some(found)
    }

    /// Beginning-of-text token, if [`Tokenizer::encode_prompt`] puts it before every text.
    pub fn prompt_bos(&self) -> Option<u32> {
        let template = self.encode_prompt("");
        self.bos().filter(|bos| template.is_ok_and(|template| template.first() == Some(bos)))
    }

    /// Encodes many texts on all threads, each like [`Tokenizer::encode`], preserving their order.
    ///
    /// # Errors
    /// Same as [`Tokenizer::encode`], for the first text that fails.
    pub fn encode_batch<S: AsRef<str> + Sync>(&self, texts: &[S]) -> Result<Vec<Vec<u32>>> {
        texts.par_iter().map(|text| self.encode(text.as_ref())).collect()
    }

    /// Decodes ids, writing out special tokens. Ids outside the vocabulary are skipped, and invalid UTF-8 becomes
    /// U+FFFD. Returns an empty text if the file's decoder fails.
    pub fn decode(&self, ids: &[u32]) -> String {
        foreign::ask(|| self.plain.decode(ids, false)).unwrap_or_default()
    }

    /// Decodes ids without special tokens.
    pub fn decode_text(&self, ids: &[u32]) -> String {
        foreign::ask(|| self.plain.decode(ids, true)).unwrap_or_default()
    }

    /// Starts a stream that decodes ids one by one, without special tokens.
    pub fn stream(&self) -> Stream<'_> {
        Stream::new(self, &[])
    }

    /// Like [`Tokenizer::stream`], for ids that continue `before`: the concatenated texts equal the text of all ids.
    pub fn stream_after(&self, before: &[u32]) -> Stream<'_> {
        Stream::new(self, before)
    }

    /// Number of ids that a model's embedding must cover: the largest id plus one.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Id of a token by its spelling.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.plain.token_to_id(token)
    }

    /// Spelling of a token by its id, in the vocabulary's own alphabet. Added tokens are spelled as in their file,
    /// which is how other files refer to them, not as normalized.
    pub fn token(&self, id: u32) -> Option<String> {
        let added = self.plain.get_added_vocabulary().get_added_tokens_decoder().get(&id);
        added.map(|token| token.content.clone()).or_else(|| self.plain.id_to_token(id))
    }

    /// Returns true for a token that is not text, such as one that begins or ends a text.
    pub fn is_special(&self, id: u32) -> bool {
        let added = self.plain.get_added_vocabulary().get_added_tokens_decoder().get(&id);
        added.is_some_and(|token| token.special) || self.stops().contains(&id) || self.bos() == Some(id)
    }

    /// Bytes of a token, which need not be whole characters; empty for an id without a token.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let Some(token) = self.token(id) else { return Vec::new() };
        if self.plain.get_added_vocabulary().get_added_tokens_decoder().contains_key(&id) {
            return token.into_bytes();
        }
        if self.byte_level
            && let Some(bytes) = fast::bytes_of(&token)
        {
            return bytes;
        }
        let byte = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        if let Some(byte) = byte.filter(|hex| hex.len() == 2).and_then(|hex| u8::from_str_radix(hex, 16).ok())
        {
            return vec![byte];
        }
        token.replace('\u{2581}', " ").into_bytes()
    }

    /// Beginning-of-text id, if the tokenizer or its model defines one.
    pub fn bos(&self) -> Option<u32> {
        self.roles.bos
    }

    /// Beginning-of-text id of the tokenizer itself, like Transformers' `tokenizer.bos_token_id`: `None` if its files
    /// define none, even if the model's configuration names an id (Qwen 2).
    pub fn own_bos(&self) -> Option<u32> {
        self.roles.bos.filter(|_| !self.roles.without_bos)
    }

    /// Other named tokens in its files, by key: `pad_token` and others used in chat templates.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.roles.others.iter().map(|(key, token)| (*key, token.as_str()))
    }

    /// End-of-document id in training: the first of [`Tokenizer::stops`].
    pub fn eos(&self) -> Option<u32> {
        self.roles.eos.first().copied()
    }

    /// Returns [`Tokenizer::eos`], or an error that names the file.
    ///
    /// # Errors
    /// The tokenizer has no end-of-text token.
    pub fn require_eos(&self) -> Result<u32> {
        self.eos().ok_or_else(|| Error::NoEos {
            path: self.path.clone(),
            reason: format!(
                "looked in the files next to it and for {}; name one in tokenizer_config.json under eos_token",
                roles::KNOWN_EOS.join(", ")
            ),
        })
    }

    /// All ids that end generation.
    pub fn stops(&self) -> &[u32] {
        &self.roles.eos
    }

    /// Atomically writes `tokenizer.json` to this path.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        crate::store::write_whole(path.as_ref(), self.to_json()?.as_bytes())
    }

    /// Content of `tokenizer.json`.
    ///
    /// # Errors
    /// The tokenizer cannot be written as JSON.
    pub fn to_json(&self) -> Result<String> {
        foreign::ask(|| self.plain.to_string(false))
    }

    /// Identifies the mapping from text to ids: BLAKE3 of the `tokenizer.json` as written by this crate, 32 hex
    /// digits. Recorded in stores, so that a store is not read with another tokenizer.
    ///
    /// # Errors
    /// Same as [`Tokenizer::to_json`].
    pub fn hash(&self) -> Result<String> {
        // The vocabulary is written in id order, so the text is the same in every process.
        Ok(blake3::hash(self.to_json()?.as_bytes()).to_hex()[..32].to_owned())
    }

    fn encode_as(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let fast = self.fast_for(text.len());
        let encode = |piece: &&str| -> Result<Vec<u32>> {
            if let Some(ids) = fast.and_then(|fast| fast.encode(piece, special)) {
                return Ok(ids);
            }
            let inner = if special { self.recognising() } else { &self.plain };
            foreign::encode(inner, self.growth, piece, false)
        };
        match self.cuts.split(text, PIECE_BYTES).as_slice() {
            [] => Ok(Vec::new()),
            [whole] => encode(whole),
            pieces => {
                let parts: Vec<Vec<u32>> = pieces.par_iter().map(encode).collect::<Result<_>>()?;
                Ok(parts.concat())
            }
        }
    }

    /// Fast engine for a text of `bytes` bytes. Both engines give the same ids, so the moment of switching does not
    /// matter.
    fn fast_for(&self, bytes: usize) -> Option<&fast::Fast> {
        if self.fast.get().is_none() {
            let before = self.asked_bytes.fetch_add(bytes, Ordering::Relaxed);
            if before.saturating_add(bytes) < WORTH_BYTES {
                return None;
            }
        }
        self.fast.get_or_init(|| guarded(|| fast::Fast::of(&self.plain)).ok().flatten()).as_ref()
    }

    fn recognising(&self) -> &tokenizers::Tokenizer {
        self.special.get_or_init(|| {
            let mut inner = self.plain.clone();
            inner.set_encode_special_tokens(false);
            inner
        })
    }
}
