//! Positions where a long text can be split without changing its ids.
//!
//! Pre-tokenizers of the GPT family are a regular expression applied from left to right. A split is harmless if a
//! match ends there whatever follows, and if the left part is matched the same way when nothing follows. Both hold
//! after a line feed that has an ASCII letter or digit (not white space) before it and an ASCII letter or digit after
//! it:
//!
//! - with GPT-2's expression the line feed is a separate match of `\s+` (the look-ahead `\s+(?!\S)` would give back
//!   one character, and there is only one);
//! - with those of Llama 3, Qwen 2 and o200k it is matched by `\s*[\r\n]+`, or belongs to the preceding punctuation
//!   (`[\r\n/]*`), which then ends because a letter follows;
//! - no alternative matches a line feed together with the letter after it.

use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;

/// Llama 3's expression, also used by [`super::train`].
pub(crate) const LLAMA3: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/// Qwen 2's expression.
pub(crate) const QWEN2: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/// GPT-2's expression.
pub(crate) const GPT2: &str =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
/// GPT-4o's expression.
pub(crate) const O200K: &str = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/// Mistral's Tekken expression: O200K without contractions, digits one by one.
pub(crate) const TEKKEN: &str = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/// Positions at which texts may be split for a given tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cuts {
    /// After a line feed between letters or digits.
    AtLines,
    /// Not known to be harmless: the text is never split.
    Never,
}

impl Cuts {
    /// Decides from the tokenizer's components; anything unrecognized gives `Never`.
    pub(super) fn of(inner: &tokenizers::Tokenizer) -> Self {
        let normalizer_is_local = matches!(inner.get_normalizer(), None | Some(NormalizerWrapper::NFC(_)));
        let added_are_local = inner
            .get_added_tokens_decoder()
            .values()
            .all(|token| !token.content.contains('\n') && !token.lstrip);
        let known = inner.get_pre_tokenizer().is_some_and(is_known);
        if normalizer_is_local && added_are_local && known { Self::AtLines } else { Self::Never }
    }

    /// Splits `text` into pieces of at least `size` bytes (the last may be shorter); their concatenation is `text`.
    pub(super) fn split(self, text: &str, size: usize) -> Vec<&str> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while self == Self::AtLines && rest.len() > size {
            let Some(cut) = next_cut(rest.as_bytes(), size) else { break };
            let (piece, tail) = rest.split_at(cut);
            pieces.push(piece);
            rest = tail;
        }
        if !rest.is_empty() {
            pieces.push(rest);
        }
        pieces
    }
}

/// First harmless split at or after `from`. ASCII letters and digits suffice and need no decoding.
fn next_cut(bytes: &[u8], from: usize) -> Option<usize> {
    (from.max(2)..bytes.len()).find(|&at| {
        bytes[at - 1] == b'\n' && bytes[at - 2].is_ascii_alphanumeric() && bytes[at].is_ascii_alphanumeric()
    })
}

fn is_known(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(level) => level.use_regex && !level.add_prefix_space,
        PreTokenizerWrapper::Sequence(sequence) => match sequence.as_ref() {
            [PreTokenizerWrapper::Split(split), PreTokenizerWrapper::ByteLevel(level)] => {
                let isolated =
                    split.behavior == tokenizers::SplitDelimiterBehavior::Isolated && !split.invert;
                let regex = match &split.pattern {
                    SplitPattern::Regex(regex) => {
                        [LLAMA3, QWEN2, GPT2, O200K, TEKKEN].contains(&regex.as_str())
                    }
                    SplitPattern::String(_) => false,
                };
                isolated && regex && !level.use_regex && !level.add_prefix_space
            }
            // Digits are cut out one by one, and GPT-2's expression is applied to the rest.
            [PreTokenizerWrapper::Digits(_), PreTokenizerWrapper::ByteLevel(level)] => {
                level.use_regex && !level.add_prefix_space
            }
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokenizers::models::bpe::BPE;
    use tokenizers::pre_tokenizers::{
        byte_level::ByteLevel, digits::Digits, sequence::Sequence, split::Split,
    };
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior,
    };

    fn pre_tokenizers() -> Vec<PreTokenizerWrapper> {
        let level = |regex| PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, regex));
        let mut all = vec![level(true)];
        for regex in [LLAMA3, QWEN2, GPT2, O200K, TEKKEN] {
            let pattern = SplitPattern::Regex(regex.into());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap();
            all.push(Sequence::new(vec![PreTokenizerWrapper::Split(split), level(false)]).into());
        }
        for individual in [true, false] {
            all.push(Sequence::new(vec![Digits::new(individual).into(), level(true)]).into());
        }
        all
    }

    fn words(pre_tokenizer: &PreTokenizerWrapper, text: &str) -> Vec<String> {
        let mut pre = PreTokenizedString::from(text);
        pre_tokenizer.pre_tokenize(&mut pre).unwrap();
        let splits = pre.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(word, ..)| word.to_owned()).collect()
    }

    #[test]
    fn known_pre_tokenizers_are_recognised() {
        for pre_tokenizer in pre_tokenizers() {
            let mut inner = tokenizers::Tokenizer::new(BPE::default());
            assert_eq!(Cuts::of(&inner), Cuts::Never);
            inner.with_pre_tokenizer(Some(pre_tokenizer));
            assert_eq!(Cuts::of(&inner), Cuts::AtLines);
            inner.with_normalizer(Some(tokenizers::normalizers::Lowercase)).unwrap();
            assert_eq!(Cuts::of(&inner), Cuts::Never);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        /// Dense in white space, line ends, punctuation, digits and non-ASCII letters.
        #[test]
        fn cutting_changes_no_word(text in "([a-c]|[A-B]|[0-9]|[ \t\r\n]|\n[a-b1]|[a-z1]\n[a-z1]|\n|[/.!']|[éжñ中]|'s){0,60}", size in 1usize..12) {
            let pieces = Cuts::AtLines.split(&text, size);
            prop_assert_eq!(pieces.concat(), text.clone());
            for pre_tokenizer in pre_tokenizers() {
                let whole = words(&pre_tokenizer, &text);
                let parts: Vec<String> = pieces.iter().flat_map(|p| words(&pre_tokenizer, p)).collect();
                prop_assert_eq!(parts, whole);
            }
        }
    }
}
