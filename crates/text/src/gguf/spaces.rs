//! Space marking of SentencePiece-like tokenizers, for which Transformers has several equivalent forms.

use serde_json::{Value, json};

/// Mark that replaces a space.
const MARK: &str = "\u{2581}";

/// Position of the space inserted before a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    /// No inserted space.
    None,
    /// Before every part of a text between special tokens, as in llama.cpp with `tokenizer.ggml.add_space_prefix`.
    Parts,
    /// Like [`Parts`](Prefix::Parts), unless the part already begins with a space.
    Always,
    /// Only before the beginning of a text, unless it already begins with a space.
    First,
}

impl Prefix {
    /// Name in a `Metaspace` pre-tokenizer of `tokenizer.json`, if it has one.
    pub fn scheme(self) -> Option<&'static str> {
        match self {
            Prefix::Always => Some("always"),
            Prefix::First => Some("first"),
            Prefix::None | Prefix::Parts => None,
        }
    }

    /// Prefix with this name.
    pub fn named(scheme: &str) -> Option<Prefix> {
        [Prefix::Always, Prefix::First].into_iter().find(|prefix| prefix.scheme() == Some(scheme))
    }

    /// Prefix of a tokenizer with these merges; `None` if it does more than mark spaces.
    pub fn of(normalizer: &Value, pre_tokenizer: &Value, merges: &[[String; 2]]) -> Option<Prefix> {
        let marks = |part: &Value| {
            part["type"] == "Replace" && part["pattern"]["String"] == " " && part["content"] == MARK
        };
        let steps = steps(normalizer);
        if pre_tokenizer["type"] == "Metaspace" {
            // Text is split before each space, which changes nothing if no token contains one.
            let inside = |[left, right]: &[String; 2]| {
                right.contains(MARK) || left.chars().skip(1).any(|c| c == '\u{2581}')
            };
            let cuts = pre_tokenizer["split"].as_bool().unwrap_or(true);
            // Spaces already marked by a normalizer are unaffected.
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
        // Gemma splits at spaces, of which its normalizer leaves none.
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

    /// Normalizer, pre-tokenizer and decoder for `tokenizer.json`.
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

/// Steps of a normalizer, in order.
fn steps(normalizer: &Value) -> Vec<&Value> {
    match normalizer["normalizers"].as_array() {
        Some(parts) => parts.iter().flat_map(steps).collect(),
        None if normalizer.is_null() => Vec::new(),
        None => vec![normalizer],
    }
}
