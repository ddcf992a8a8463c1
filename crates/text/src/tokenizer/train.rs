//! Training a byte-level BPE tokenizer.

use super::pieces::LLAMA3;
use super::{Tokenizer, fast, foreign, roles};
use crate::error::{Error, Result};
use std::path::PathBuf;
use tokenizers::decoders::byte_level::ByteLevel as ByteLevelDecoder;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Trainer};

/// Maximum bytes of text read. The trainer counts pairs in 31 bits, and no pair can occur more often than there are
/// bytes.
const MAX_TRAINING_BYTES: u64 = 1 << 30;

impl Tokenizer {
    /// Trains a byte-level BPE vocabulary on these texts.
    ///
    /// Words are split by Llama 3's expression; all 256 bytes are in the alphabet, so any text round-trips. Ids are
    /// assigned to the special tokens in the given order, the bytes, then the merges by descending frequency, ties by
    /// id. The same texts give the same vocabulary, whatever their order and the number of threads. A pair seen only
    /// once is not merged, so a small corpus may give a smaller vocabulary than requested. Reads at most 1 GiB of
    /// text.
    ///
    /// # Errors
    /// `vocab_size` is below 256 plus the special tokens.
    pub fn train_bpe(
        texts: impl Iterator<Item = String> + Send,
        vocab_size: usize,
        special: &[&str],
    ) -> Result<Self> {
        let least = 256 + special.len();
        if vocab_size < least {
            return Err(Error::Documents(format!(
                "a vocabulary of {vocab_size} cannot hold the 256 bytes and {} special tokens; ask for {least} or more",
                special.len()
            )));
        }
        let fail = |e: tokenizers::Error| Error::Encode(e.to_string());
        let mut inner = tokenizers::Tokenizer::new(BPE::default());
        let words = Split::new(SplitPattern::Regex(LLAMA3.into()), SplitDelimiterBehavior::Isolated, false);
        let bytes = ByteLevel::new(false, true, false);
        let cut = Sequence::new(vec![words.map_err(fail)?.into(), bytes.into()]);
        inner.with_pre_tokenizer(Some(cut));
        inner.with_decoder(Some(ByteLevelDecoder::new(false, true, false)));
        inner.with_post_processor(Some(ByteLevel::new(false, false, false)));
        let mut trainer = BpeTrainer::builder()
            .vocab_size(vocab_size)
            .min_frequency(2)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .special_tokens(special.iter().map(|token| AddedToken::from(*token, true)).collect())
            .build();
        let mut bytes_left = MAX_TRAINING_BYTES;
        let within_limit = texts.take_while(move |text| {
            let fits = text.len() as u64 <= bytes_left;
            bytes_left = bytes_left.saturating_sub(text.len() as u64);
            fits
        });
        // Equivalent to the pre-tokenizer above, without running its expression.
        trainer.feed(within_limit, |text| Ok(fast::llama3_words(text))).map_err(fail)?;
        let mut model = BPE::default();
        let special = trainer.train(&mut model).map_err(fail)?;
        inner.with_model(model);
        inner.add_special_tokens(special).map_err(fail)?;
        let parsed = foreign::GuardedTokenizer { inner, growth: 1.0 };
        Self::assemble(parsed, PathBuf::from("the trained tokenizer"), roles::Roles::default())
    }
}
