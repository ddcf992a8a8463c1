//! How tokenizers of SentencePiece's kind mark spaces: Transformers writes the same meaning in several ways.

use serde_json::{Value, json};

/// What stands for a space.
const MARK: &str = "\u{2581}";

/// Where a space is put before a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    /// Nowhere.
    None,
    /// Before every part of a text between special tokens, as llama.cpp does where `tokenizer.ggml.add_space_prefix` says so.
    Parts,
    /// The same, where a part does not begin with a space already.
    Always,
    /// Before a text's beginning alone, where it does not begin with a space already.
    First,
}

impl Prefix {
    /// What `tokenizer.json` calls it in a pre-tokenizer `Metaspace`, if that is what it is.
    pub fn scheme(self) -> Option<&'static str> {
        match self {
            Prefix::Always => Some("always"),
            Prefix::First => Some("first"),
            Prefix::None | Prefix::Parts => None,
        }
    }

    /// The one with this name.
    pub fn named(scheme: &str) -> Option<Prefix> {
        [Prefix::Always, Prefix::First].into_iter().find(|prefix| prefix.scheme() == Some(scheme))
    }

    /// The one of a tokenizer with these merges; `None` of one that does something else than mark spaces.
    pub fn of(normalizer: &Value, pre_tokenizer: &Value, merges: &[[String; 2]]) -> Option<Prefix> {
        let marks = |part: &Value| {
            part["type"] == "Replace" && part["pattern"]["String"] == " " && part["content"] == MARK
        };
        let steps = steps(normalizer);
        if pre_tokenizer["type"] == "Metaspace" {
            // Text is cut before each space, which changes nothing where no token has one inside.
            let inside = |[left, right]: &[String; 2]| {
                right.contains(MARK) || left.chars().skip(1).any(|c| c == '\u{2581}')
            };
            let cuts = pre_tokenizer["split"].as_bool().unwrap_or(true);
            // Spaces that a normalizer has marked are what it marks itself.
            let plain = steps.iter().all(|step| marks(step)) && pre_tokenizer["replacement"] == MARK;
            if !plain || cuts && merges.iter().any(inside) {
                return None;
            }
            return match pre_tokenizer["prepend_scheme"].as_str() {
                Some("never") => Some(Prefix::None),
                Some(scheme) => Prefix::named(scheme),
                None => match pre_tokenizer["add_prefix_space"].as_bool() {
                    Some(false) => Some(Prefix::None),
                    _ => Some(Prefix::Always),
                },
            };
        }
        // Gemma's cuts at spaces, of which its normalizer has left none.
        let split = pre_tokenizer["type"] == "Split" && pre_tokenizer["invert"] == false;
        let at_spaces = split && pre_tokenizer["pattern"]["String"] == " ";
        if !pre_tokenizer.is_null() && !at_spaces {
            return None;
        }
        let prepends = |part: &Value| part["type"] == "Prepend" && part["prepend"] == MARK;
        match steps.as_slice() {
            [part] if marks(part) => Some(Prefix::None),
            [first, second] if prepends(first) && marks(second) => Some(Prefix::Parts),
            _ => None,
        }
    }

    /// As normalizer, pre-tokenizer and decoder of a `tokenizer.json`.
    pub fn json(self) -> [Value; 3] {
        let replace =
            |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
        let mut normalizers = vec![replace(" ", MARK)];
        let mut decoders =
            vec![replace(MARK, " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
        if self == Prefix::Parts {
            normalizers.insert(0, json!({ "type": "Prepend", "prepend": MARK }));
        }
        if self != Prefix::None {
            decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
        }
        let decoder = json!({ "type": "Sequence", "decoders": decoders });
        match self.scheme() {
            Some(scheme) => {
                let metaspace = json!({ "type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": false });
                [Value::Null, metaspace, decoder]
            }
            None => [json!({ "type": "Sequence", "normalizers": normalizers }), Value::Null, decoder],
        }
    }
}

/// What a normalizer does, one after the other.
fn steps(normalizer: &Value) -> Vec<&Value> {
    match normalizer["normalizers"].as_array() {
        Some(parts) => parts.iter().flat_map(steps).collect(),
        None if normalizer.is_null() => Vec::new(),
        None => vec![normalizer],
    }
}
