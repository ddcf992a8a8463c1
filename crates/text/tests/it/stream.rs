//! Streams of tokenizers whose decoders look at several tokens: words that begin with a space, characters split into
//! bytes.

use fathom_text::Tokenizer;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::OnceLock;

/// Llama 2's components: words that begin with U+2581, other characters byte by byte, and a dropped space before the
/// text.
fn by_words() -> &'static Tokenizer {
    static READ: OnceLock<Tokenizer> = OnceLock::new();
    READ.get_or_init(|| {
        let words = ["<s>", "</s>", "<tool>", "▁", "H", "i", "▁H", "▁Hi", "h", "▁h", "▁hi", ".", "▁▁"].map(str::to_owned);
        let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
        let vocab = words.into_iter().chain(bytes).enumerate();
        let vocab: Map<String, Value> = vocab.map(|(id, token)| (token, json!(id))).collect();
        let merges = [["▁", "H"], ["▁H", "i"], ["▁", "h"], ["▁h", "i"], ["▁", "▁"]];
        let special = |id: u32, content: &str| {
            json!({ "id": id, "content": content, "special": true, "normalized": false, "single_word": false,
                "lstrip": false, "rstrip": false })
        };
        let space = |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
        let decoders = [
            space("▁", " "),
            json!({ "type": "ByteFallback" }),
            json!({ "type": "Fuse" }),
            json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }),
        ];
        let tokenizer = json!({
            "version": "1.0",
            "added_tokens": [special(0, "<s>"), special(1, "</s>"), special(2, "<tool>")],
            "normalizer": { "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": "▁" }, space(" ", "▁")] },
            "decoder": { "type": "Sequence", "decoders": decoders },
            "model": { "type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": merges },
        });
        Tokenizer::from_bytes(tokenizer.to_string().as_bytes(), Path::new("tokenizer.json")).unwrap()
    })
}

/// Output of a stream for each id, and at its end.
fn pieces(before: &[u32], ids: &[u32]) -> Vec<Option<String>> {
    let mut stream = by_words().stream_after(before);
    let mut pieces: Vec<Option<String>> = ids.iter().map(|id| stream.push(*id)).collect();
    pieces.push(stream.finish());
    pieces
}

fn joined(pieces: Vec<Option<String>>) -> String {
    pieces.into_iter().flatten().collect()
}

#[test]
fn characters_in_bytes_come_whole() {
    let ids = by_words().encode("中🙂é").unwrap();
    assert_eq!(ids.len(), 10, "a space and bytes");
    let given: Vec<String> = pieces(&[], &ids).into_iter().flatten().collect();
    assert_eq!(given, ["中", "🙂", "é"]);
}

#[test]
fn a_space_before_a_word_stays_behind_a_special_token() {
    let [tool, hi] = ["<tool>", "▁Hi"].map(|token| by_words().token_id(token).unwrap());
    assert_eq!(by_words().decode_text(&[hi, tool, hi]), "Hi Hi");
    assert_eq!(joined(pieces(&[], &[hi, tool, hi])), "Hi Hi");
}

#[test]
fn a_continuation_keeps_the_space_before_its_first_word() {
    let prompt = by_words().encode_prompt("Hi 中").unwrap();
    let hi = by_words().token_id("▁hi").unwrap();
    assert_eq!(joined(pieces(&prompt, &[hi])), " hi");
    assert_eq!(joined(pieces(&[], &[hi])), "hi");
}

#[test]
fn bytes_that_are_no_character_are_given_in_the_end() {
    let byte = |byte: u8| by_words().token_id(&format!("<0x{byte:02X}>")).unwrap();
    let hi = by_words().token_id("▁Hi").unwrap();
    assert_eq!(joined(pieces(&[], &[hi, byte(0xE4), byte(0xB8)])), "Hi\u{FFFD}\u{FFFD}");
    assert_eq!(joined(pieces(&[], &[byte(0xFF), hi])), "\u{FFFD} Hi");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn a_stream_is_the_text_of_its_ids(text in "(Hi|hi| |  |[.]|é|中|🙂|\\PC|<tool>|</s>){0,24}", at in any::<prop::sample::Index>()) {
        let ids = by_words().encode_special(&text).unwrap();
        let whole = by_words().decode_text(&ids);
        prop_assert_eq!(&joined(pieces(&[], &ids)), &whole);
        // Continued at a character boundary.
        let cut = at.index(ids.len() + 1);
        let before = by_words().decode_text(&ids[..cut]);
        if !before.is_empty() && !before.contains('\u{FFFD}') {
            prop_assert_eq!(before + &joined(pieces(&ids[..cut], &ids[cut..])), whole);
        }
    }
}
