//! Fast byte-level BPE: the same ids as the `tokenizers` crate, several tens of times faster.
//!
//! The engine has three parts: words are split by functions that implement the expressions of the known families
//! ([`scan`]); known words are looked up ([`cache`]); new ones are merged by the ranks ([`bpe`]). A tokenizer is
//! supported only if each of its components is reproduced exactly; all others stay with the `tokenizers` crate, and
//! so does a text that the normalizer might change.

mod added;
mod alphabet;
mod bpe;
mod cache;
mod chars;
mod classes;
mod scan;
mod tree;
mod whole;

use super::pieces::{GPT2, LLAMA3, O200K, QWEN2, TEKKEN};
use added::{AddedTokens, TextPart};
pub(super) use alphabet::bytes_of;
use alphabet::char_of;
use bpe::{Bpe, Chain};
use cache::{Cache, FEW_IDS, Key, LONG, SHORT};
use classes::Classes;
use scan::{Cl100k, Gpt2, O200k, Scan, Whole};
use std::sync::{LazyLock, Mutex};
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{AddedToken, SplitDelimiterBehavior};
use unicode_normalization::{IsNormalized, is_nfc_quick};

/// Number of ids collected before they are appended to the result.
const GATHERED: usize = 1 << 10;

/// Method of splitting text into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Words {
    Gpt2,
    /// Numeric characters one by one, with GPT-2's expression between them.
    DigitsGpt2,
    /// With this maximum number of digits in a word.
    Cl100k(usize),
    O200k,
    Tekken,
    Whole,
}

/// A tokenizer that this engine reproduces exactly.
#[derive(Debug)]
pub(super) struct Fast {
    words: Words,
    /// True if the normalizer is NFC; only texts unchanged by it are accepted.
    nfc: bool,
    bpe: Bpe,
    plain: Option<AddedTokens>,
    special: Option<AddedTokens>,
    /// Working memory, one per concurrent call.
    spare: Mutex<Vec<Scratch>>,
}

#[derive(Debug)]
struct Scratch {
    cache: Cache,
    chain: Chain,
    new: Vec<u32>,
}

impl Fast {
    /// Builds the engine for a tokenizer; `None` if one of its components is not supported.
    pub(super) fn of(inner: &tokenizers::Tokenizer) -> Option<Self> {
        let ModelWrapper::BPE(model) = inner.get_model() else { return None };
        let nfc = match inner.get_normalizer() {
            None => false,
            Some(NormalizerWrapper::NFC(_)) => true,
            Some(_) => return None,
        };
        let words = Words::of(inner.get_pre_tokenizer()?)?;
        let mut tokens: Vec<(u32, AddedToken)> = inner.get_added_tokens_decoder().into_iter().collect();
        for (_, token) in &mut tokens {
            token.special = inner.get_added_vocabulary().is_special_token(&token.content);
        }
        tokens.sort_unstable_by_key(|(id, _)| *id);
        if nfc && tokens.iter().any(|(_, token)| token.normalized && !stays_under_nfc(&token.content)) {
            return None;
        }
        let (plain, special) = (AddedTokens::of(&tokens, false), AddedTokens::of(&tokens, true));
        let fast = Self { words, nfc, bpe: Bpe::of(model)?, plain, special, spare: Mutex::default() };
        fast.agrees(inner).then_some(fast)
    }

    /// Ids of a text; `None` if this engine cannot encode it. With `special`, spellings of special tokens become
    /// those tokens.
    pub(super) fn encode(&self, text: &str, special: bool) -> Option<Vec<u32>> {
        let added = if special { self.special.as_ref()? } else { self.plain.as_ref()? };
        if u32::try_from(text.len()).is_err() || (self.nfc && !stays_under_nfc(text)) {
            return None;
        }
        let spare = self.spare.lock().ok().and_then(|mut spare| spare.pop());
        let mut scratch = spare.unwrap_or_else(Scratch::new);
        let mut ids = Vec::with_capacity(text.len() / 3);
        added.parts(text, |part| match part {
            TextPart::Token(id) => ids.push(id),
            TextPart::Text(text) => self.encode_text(text, &mut scratch, &mut ids),
        });
        if let Ok(mut spare) = self.spare.lock() {
            spare.push(scratch);
        }
        Some(ids)
    }

    fn encode_text(&self, text: &str, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let classes = Classes::get();
        match self.words {
            Words::Gpt2 => self.encode_words(Gpt2::<false>(classes), text, scratch, ids),
            Words::DigitsGpt2 => self.encode_words(Gpt2::<true>(classes), text, scratch, ids),
            Words::Cl100k(most_digits) => {
                self.encode_words(Cl100k { classes, most_digits }, text, scratch, ids)
            }
            Words::O200k => {
                self.encode_words(O200k::<true> { classes, most_digits: 3 }, text, scratch, ids);
            }
            Words::Tekken => {
                self.encode_words(O200k::<false> { classes, most_digits: 1 }, text, scratch, ids);
            }
            Words::Whole => self.encode_words(Whole, text, scratch, ids),
        }
    }

    fn encode_words(&self, scan: impl Scan, text: &str, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let text = text.as_bytes();
        let mut gathered = [0u32; GATHERED];
        let (mut at, mut count) = (0, 0);
        while at < text.len() {
            let end = scan.end(text, at);
            let length = end - at;
            if length <= SHORT {
                let key = Key::of(text, at, length);
                if count > GATHERED - FEW_IDS {
                    ids.extend_from_slice(&gathered[..count]);
                    count = 0;
                }
                if let Some((few, number)) = scratch.cache.short(key) {
                    gathered[count..count + FEW_IDS].copy_from_slice(&few);
                    count += number;
                    at = end;
                    continue;
                }
            }
            ids.extend_from_slice(&gathered[..count]);
            count = 0;
            self.encode_new(text, at..end, scratch, ids);
            at = end;
        }
        ids.extend_from_slice(&gathered[..count]);
    }

    /// Encodes a word that is not in the first table.
    #[inline(never)]
    fn encode_new(&self, text: &[u8], at: std::ops::Range<usize>, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let Scratch { cache, chain, new } = scratch;
        let word = &text[at.clone()];
        let hash = cache::hash(word);
        if word.len() > LONG {
            return self.bpe.encode(word, hash, chain, ids);
        }
        if let Some(known) = cache.long(word, hash) {
            return ids.extend_from_slice(known);
        }
        new.clear();
        self.bpe.encode(word, hash, chain, new);
        ids.extend_from_slice(new);
        if word.len() <= SHORT && new.len() <= FEW_IDS {
            cache.keep_short(Key::of(text, at.start, word.len()), new);
        } else {
            cache.keep_long(word, hash, new);
        }
    }

    /// Returns true if both engines give the same ids for a varied sample text. Covers what is not examined above,
    /// such as the post-processor.
    fn agrees(&self, inner: &tokenizers::Tokenizer) -> bool {
        const PROBES: [&str; 2] =
            ["word", "It's 12345 of\t中文 \u{e9}\u{1F642} \r\n\n  fn f(x: &str) {\n    X'LL  }\u{a0}--\n "];
        PROBES.iter().all(|probe| {
            let theirs = inner.encode_fast(*probe, false).ok();
            let ours = self.encode(probe, !inner.get_encode_special_tokens());
            match (theirs, ours) {
                (Some(theirs), Some(ours)) => theirs.get_ids() == ours,
                // One of the texts may be unsupported while the other is not.
                (Some(_), None) => true,
                _ => false,
            }
        })
    }
}

impl Scratch {
    fn new() -> Self {
        Self { cache: Cache::new(), chain: Chain::default(), new: Vec::new() }
    }
}

impl Words {
    fn of(pre_tokenizer: &PreTokenizerWrapper) -> Option<Self> {
        use PreTokenizerWrapper::{ByteLevel, Digits, Sequence, Split};
        match pre_tokenizer {
            ByteLevel(level) if level.add_prefix_space => None,
            ByteLevel(level) => Some(if level.use_regex { Self::Gpt2 } else { Self::Whole }),
            Sequence(sequence) => match sequence.as_ref() {
                [only] => Self::of(only),
                [Split(split), ByteLevel(level)] if !level.use_regex && !level.add_prefix_space => {
                    let isolated = split.behavior == SplitDelimiterBehavior::Isolated && !split.invert;
                    let SplitPattern::Regex(regex) = &split.pattern else { return None };
                    Self::of_regex(regex).filter(|_| isolated)
                }
                [Digits(digits), ByteLevel(level)] if level.use_regex && !level.add_prefix_space => {
                    digits.individual_digits.then_some(Self::DigitsGpt2)
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn of_regex(regex: &str) -> Option<Self> {
        Some(match regex {
            GPT2 => Self::Gpt2,
            LLAMA3 => Self::Cl100k(3),
            QWEN2 => Self::Cl100k(1),
            O200K => Self::O200k,
            TEKKEN => Self::Tekken,
            _ => return None,
        })
    }
}

/// Splits a text into words by Llama 3's expression, with each byte as its character, for training.
pub(super) fn llama3_words(text: &str) -> Vec<String> {
    static CHARS: LazyLock<[char; 256]> = LazyLock::new(|| std::array::from_fn(|byte| char_of(byte as u8)));
    let (scan, bytes) = (Cl100k { classes: Classes::get(), most_digits: 3 }, text.as_bytes());
    let (mut words, mut at) = (Vec::with_capacity(bytes.len() / 4), 0);
    while at < bytes.len() {
        let end = scan.end(bytes, at);
        words.push(bytes[at..end].iter().map(|&byte| CHARS[usize::from(byte)]).collect());
        at = end;
    }
    words
}

fn stays_under_nfc(text: &str) -> bool {
    text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes
}

#[cfg(test)]
mod tests;
