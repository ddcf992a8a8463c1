//! Guarded access to the `tokenizers` crate, whose input files may come from anywhere: files that make it panic are
//! rejected, as are files whose components could make a text too long for memory.

use super::missing;
use crate::error::{Error, OrIo, Result};
use fathom_base::guard::guarded;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;
use tokenizers::models::ModelWrapper;
use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PostProcessor, PreTokenizedString,
    PreTokenizer, TruncationDirection,
};

/// Upper bound of ids, as of `model.vocab`. Tables by id, and the list of holes when a vocabulary is written, have
/// this length.
pub(super) const MOST_IDS: usize = 1 << 24;
/// Expansion factor up to which a tokenizer is trusted. Llama 2's is 12.
const TRUSTED: f64 = 16.0;
/// Expansion factor above which a file is rejected. ALBERT's components have a worst case of 20 000.
const MOST: f64 = 65_536.0;
/// Maximum expansion factor of a decoder. The decoders of known families shorten.
const MOST_DECODED: f64 = 64.0;
/// Block size for measuring the expansion of a text; expanded blocks always fit into memory.
const BLOCK_BYTES: usize = 256;
/// Expanded size allowed for any text, however short.
const SPARE_BYTES: usize = 64 << 10;

/// The components of a `tokenizer.json` that can make texts longer.
#[derive(Deserialize)]
struct Shape {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
}

/// A tokenizer, and the factor by which its components can expand a text.
pub(super) struct GuardedTokenizer {
    pub(super) inner: tokenizers::Tokenizer,
    pub(super) growth: f64,
}

/// Reads and parses a `tokenizer.json`.
///
/// # Errors
/// Same as [`parse`], or the file cannot be read.
pub(super) fn read(path: &Path) -> Result<GuardedTokenizer> {
    if let Some(advice) = missing::advice(path) {
        return Err(Error::NoTokenizer { path: path.to_owned(), advice });
    }
    let bytes = std::fs::read(path).or_io("read", path)?;
    parse(&bytes, path)
}

/// Parses a `tokenizer.json`, disabling truncation, padding and merge dropout, which this crate never uses.
///
/// # Errors
/// The bytes are not a tokenizer, or no text could be encoded with it.
pub(super) fn parse(bytes: &[u8], path: &Path) -> Result<GuardedTokenizer> {
    let refuse = |reason: String| Error::Tokenizer { path: path.to_owned(), reason };
    // The crate's parser panics on some broken JSON, and omits the position in other cases.
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).map_err(|e| refuse(e.to_string()))?;
    let shape: Shape = serde_json::from_slice(bytes).map_err(|e| refuse(e.to_string()))?;
    // Added tokens are normalized during parsing, so the expansion is checked before.
    let growth = growth(&shape).map_err(refuse)?;
    let mut inner = match guarded(|| tokenizers::Tokenizer::from_bytes(bytes)) {
        Ok(Ok(inner)) => inner,
        Ok(Err(reason)) => return Err(refuse(reason.to_string())),
        Err(_) => return Err(refuse("its values contradict each other (the parser gave up)".into())),
    };
    inner.with_padding(None);
    inner.with_truncation(None).map_err(|e| refuse(e.to_string()))?;
    if let ModelWrapper::BPE(model) = inner.get_model()
        && model.dropout.is_some()
    {
        let mut model = model.clone();
        model.dropout = None;
        inner.with_model(model);
    }
    Ok(GuardedTokenizer { inner, growth })
}

/// Factor by which normalizer and pre-tokenizer can expand a text.
fn growth(shape: &Shape) -> std::result::Result<f64, String> {
    let growth = factor(&shape.normalizer) * factor(&shape.pre_tokenizer);
    for (what, factor, most) in [
        ("normalizer and pre_tokenizer", growth, MOST),
        ("post_processor", factor(&shape.post_processor), TRUSTED),
        ("decoder", factor(&shape.decoder), MOST_DECODED),
    ] {
        if factor > most {
            return Err(format!("{what} can make a text {factor:.0} times as long; {most} are too many"));
        }
    }
    Ok(growth)
}

/// Expansion factor of one component, determined from its fields, since older files do not name the types.
fn factor(part: &Value) -> f64 {
    let parts = ["normalizers", "pretokenizers", "processors", "decoders"];
    if let Some(parts) = parts.iter().find_map(|key| part.get(key)?.as_array()) {
        return parts.iter().map(factor).product();
    }
    let length = |key: &str| part.get(key).and_then(Value::as_str).map(|text| text.len() as f64);
    if let (Some(pattern), Some(content)) = (part.get("pattern"), length("content")) {
        return match pattern.get("String").and_then(Value::as_str).map_or(0, str::len) {
            // An expression may match the empty string between any two bytes.
            0 => content + 1.0,
            matched => (content / matched as f64).max(1.0),
        };
    }
    if let Some(prepended) = length("prepend") {
        // Prepended to every part between special tokens, which may be short. No family prepends more than one
        // character.
        return if prepended > 64.0 { f64::INFINITY } else { prepended + 1.0 };
    }
    if let Some(map) = part.get("precompiled_charsmap").and_then(Value::as_str) {
        return longest_replacement(map).max(1.0);
    }
    match part.get("type").and_then(Value::as_str).unwrap_or_default() {
        // U+FDFA has three bytes, and thirty-three when decomposed.
        "NFKC" | "NFKD" => 11.0,
        "NFC" | "NFD" | "ByteLevel" => 3.0,
        "Lowercase" | "WordPiece" => 2.0,
        // A space on either side, the letter in lower case, and its accents separated.
        "Bert" | "BertNormalizer" | "Metaspace" => 8.0,
        "TemplateProcessing" => {
            let pieces = |key| part.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let texts = |key| pieces(key).iter().filter(|piece| piece.get("Sequence").is_some()).count();
            texts("single").max(texts("pair")).max(1) as f64
        }
        _ => 1.0,
    }
}

/// Length of the longest text in SentencePiece's character map: base64 of a table length, the table, and
/// zero-terminated texts.
fn longest_replacement(base64: &str) -> f64 {
    let (mut bytes, mut bits, mut held) = (Vec::with_capacity(base64.len() / 4 * 3), 0u32, 0);
    for digit in base64.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => break,
        };
        (bits, held) = (bits << 6 | u32::from(value), held + 6);
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    let table = bytes.first_chunk::<4>().map_or(0, |length| u32::from_le_bytes(*length) as usize);
    let texts = bytes.get(table.saturating_add(4)..).unwrap_or_default();
    texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0) as f64
}

/// Calls the crate.
///
/// # Errors
/// The crate's own error, or a panic.
pub(super) fn ask<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    match guarded(call) {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Error::Encode(error.to_string())),
        Err(why) => Err(Error::Encode(format!("its file holds something that its code panics on ({why})"))),
    }
}

/// Ids of a text; `template` adds the tokens that the tokenizer puts around a prompt.
///
/// # Errors
/// Same as [`ask`]; or the text would become too long for memory.
pub(super) fn encode(
    inner: &tokenizers::Tokenizer,
    growth: f64,
    text: &str,
    template: bool,
) -> Result<Vec<u32>> {
    ask(|| {
        if growth > TRUSTED {
            try_length(inner, text)?;
        }
        Ok(inner.encode_fast(text, template)?.get_ids().to_vec())
    })
}

/// Like [`encode`] with the template, for one or two texts: the ids, and the number of those of the first token type.
pub(super) fn encode_pair(
    inner: &tokenizers::Tokenizer,
    growth: f64,
    (first, second): (&str, Option<&str>),
    most: Option<usize>,
) -> Result<(Vec<u32>, usize)> {
    ask(|| {
        let bare = |text: &str| {
            if growth > TRUSTED {
                try_length(inner, text)?;
            }
            inner.encode_fast(text, false)
        };
        let (mut first, mut second) = (bare(first)?, second.map(bare).transpose()?);
        if let Some(most) = most {
            let added = inner.get_post_processor().map_or(0, |it| it.added_tokens(second.is_some()));
            let room = most.saturating_sub(added);
            let [own, other] = longest_first([first.len(), second.as_ref().map_or(0, |it| it.len())], room);
            first.truncate(own, 0, TruncationDirection::Right);
            second.iter_mut().for_each(|second| second.truncate(other, 0, TruncationDirection::Right));
        }
        let whole = inner.post_process(first, second, true)?;
        let of_first = whole.get_type_ids().iter().take_while(|kind| **kind == 0).count();
        Ok((whole.get_ids().to_vec(), of_first))
    })
}

/// Lengths of two texts that share `room`; the longer one is shortened first.
fn longest_first([first, second]: [usize; 2], room: usize) -> [usize; 2] {
    if first + second <= room {
        return [first, second];
    }
    let (short, half) = (first.min(second), room / 2);
    let (short, long) = if short <= half { (short, room - short) } else { (half, room - half) };
    if first > second { [long, short] } else { [short, long] }
}

/// End of each token of a text, in bytes, with special tokens recognized.
pub(super) fn ends(inner: &tokenizers::Tokenizer, growth: f64, text: &str) -> Result<Vec<usize>> {
    ask(|| {
        if growth > TRUSTED {
            try_length(inner, text)?;
        }
        Ok(inner.encode(text, false)?.get_offsets().iter().map(|(_, end)| *end).collect())
    })
}

/// Measures, block by block, how long normalizer and pre-tokenizer make a text.
fn try_length(inner: &tokenizers::Tokenizer, text: &str) -> tokenizers::Result<()> {
    let most = text.len().saturating_mul(TRUSTED as usize).saturating_add(SPARE_BYTES);
    let (mut rest, mut grown) = (text, 0usize);
    while !rest.is_empty() {
        let (block, tail) = rest.split_at(rest.ceil_char_boundary(BLOCK_BYTES.min(rest.len())));
        rest = tail;
        let mut normal = NormalizedString::from(block);
        if let Some(normalizer) = inner.get_normalizer() {
            normalizer.normalize(&mut normal)?;
        }
        let mut words = PreTokenizedString::from(normal);
        if let Some(pre_tokenizer) = inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut words)?;
        }
        let splits = words.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
        grown += splits.iter().map(|(word, ..)| word.len()).sum::<usize>();
        if grown > most {
            let found = format!("{} bytes of text become more than {most}", text.len() - rest.len());
            return Err(format!("its normaliser or pre-tokenizer makes texts too long: {found}").into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_multiply() {
        let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
        let text = |text: &str| json!({ "String": text });
        let doubling = replace(text("a"), "aa");
        let llama = json!({"normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(text(" "), "▁")]});
        for (part, expected) in [
            (Value::Null, 1.0),
            (doubling.clone(), 2.0),
            (replace(text("``"), "\""), 1.0),
            (replace(json!({"Regex": " {2,}"}), "▁"), 4.0),
            (llama, 12.0),
            (json!({"type": "Sequence", "normalizers": vec![doubling; 40]}), 2f64.powi(40)),
            (
                json!({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "ByteLevel"}]}),
                9.0,
            ),
            (
                json!({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"Sequence": {"id": "A"}}]}),
                2.0,
            ),
        ] {
            assert_eq!(factor(&part), expected, "{part}");
        }
        // A table of four bytes, then texts of two and three bytes.
        assert_eq!(longest_replacement("BAAAAAAAAABhYgBhYmMA"), 3.0);
        assert_eq!(longest_replacement("?"), 0.0);
    }
}
