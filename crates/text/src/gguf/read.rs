//! Converts the keys of a GGUF file to the files of a tokenizer's folder.

use std::collections::HashMap;

use fathom_base::gguf::{Fault, Gguf, Result};
use serde_json::{Map, Value, json};

use super::keys::{PREPEND, TEMPLATE};
use super::pre::{KNOWN, Pre};
use super::spaces::Prefix;

/// Relevant token types (`tokenizer.ggml.token_type`).
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER: i64 = 4;

/// Maximum number of tokens.
const MOST_TOKENS: usize = 1 << 24;

fn fault<T>(key: &str, what: impl Into<String>) -> Result<T> {
    Err(Fault { key: key.to_string(), what: what.into() })
}

/// Content of the file `name`.
pub(super) fn file(gguf: &Gguf, name: &str) -> Result<Option<Value>> {
    let vocabulary = Vocabulary::of(gguf)?;
    match name {
        "tokenizer.json" => vocabulary.tokenizer().map(Some),
        "tokenizer_config.json" => vocabulary.config().map(Some),
        "generation_config.json" => vocabulary.generation().map(Some),
        _ => Ok(None),
    }
}

struct Vocabulary<'a> {
    gguf: &'a Gguf,
    tokens: &'a [String],
    kinds: &'a [i64],
}

impl<'a> Vocabulary<'a> {
    fn of(gguf: &'a Gguf) -> Result<Vocabulary<'a>> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let Some(tokens) = gguf.texts(TOKENS)? else {
            return fault(TOKENS, "is missing: the file has no tokenizer");
        };
        if tokens.len() > MOST_TOKENS {
            return fault(TOKENS, format!("are {}; {MOST_TOKENS} are the most", tokens.len()));
        }
        let kinds = gguf.integers("tokenizer.ggml.token_type")?;
        if !kinds.is_empty() && kinds.len() != tokens.len() {
            return fault(
                "tokenizer.ggml.token_type",
                format!("are {}, of {} tokens", kinds.len(), tokens.len()),
            );
        }
        Ok(Vocabulary { gguf, tokens, kinds })
    }

    fn model(&self) -> Result<&str> {
        const MODEL: &str = "tokenizer.ggml.model";
        match self.gguf.text(MODEL)? {
            Some(model @ ("gpt2" | "llama")) => Ok(model),
            Some(other) => fault(MODEL, format!("is {other}; supported: gpt2, llama")),
            None => fault(MODEL, "is missing"),
        }
    }

    /// Named pre-tokenizer for byte-level merges.
    fn pre(&self) -> Result<Pre> {
        const PRE: &str = "tokenizer.ggml.pre";
        let known = || KNOWN.iter().flat_map(|pre| pre.names).copied().collect::<Vec<_>>().join(", ");
        match self.gguf.text(PRE)? {
            Some(name) => Pre::named(name)
                .map_or_else(|| fault(PRE, format!("is {name}, which is not known; known: {}", known())), Ok),
            None => fault(PRE, format!("is missing, and cannot be guessed; known: {}", known())),
        }
    }

    /// Id of a special token.
    fn id(&self, role: &str) -> Result<Option<usize>> {
        let key = format!("tokenizer.ggml.{role}_token_id");
        match self.gguf.count(&key)? {
            Some(id) if id >= self.tokens.len() as u64 => {
                fault(&key, format!("is {id}, of {} tokens", self.tokens.len()))
            }
            id => Ok(id.map(|id| id as usize)),
        }
    }

    fn token(&self, role: &str) -> Result<Option<&str>> {
        Ok(self.id(role)?.map(|id| self.tokens[id].as_str()))
    }

    fn config(&self) -> Result<Value> {
        let mut map = Map::new();
        for (name, role) in [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")] {
            map.extend(self.token(role)?.map(|token| (format!("{name}_token"), json!(token))));
        }
        map.extend(self.gguf.text(TEMPLATE)?.map(|source| ("chat_template".to_string(), json!(source))));
        map.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
        map.insert("clean_up_tokenization_spaces".into(), json!(false));
        Ok(Value::Object(map))
    }

    fn generation(&self) -> Result<Value> {
        let mut ends = Vec::new();
        for role in ["eos", "eot", "eom"] {
            ends.extend(self.id(role)?.filter(|id| !ends.contains(id)));
        }
        let mut map = Map::new();
        map.extend(self.id("bos")?.map(|id| ("bos_token_id".to_string(), json!(id))));
        if !ends.is_empty() {
            map.insert("eos_token_id".into(), json!(ends));
        }
        Ok(Value::Object(map))
    }

    fn tokenizer(&self) -> Result<Value> {
        let pairs = self.model()? == "llama";
        let mut value = if pairs { self.sentence_pieces()? } else { self.bytes()? };
        value["version"] = json!("1.0");
        value["added_tokens"] = self.added(pairs);
        value["post_processor"] = self.template(pairs)?.unwrap_or_else(|| {
            if pairs { Value::Null } else { json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true }) }
        });
        Ok(value)
    }

    fn vocabulary(&self) -> Map<String, Value> {
        self.tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect()
    }

    /// Tokens that are matched in texts before anything else.
    fn added(&self, pairs: bool) -> Value {
        let special = |kind: i64| kind == CONTROL || (pairs && kind == UNKNOWN);
        let added = self.kinds.iter().enumerate().filter(|(_, kind)| special(**kind) || **kind == USER);
        let entry = |(id, kind): (usize, &i64)| {
            json!({
                "id": id,
                "content": self.tokens[id],
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": special(*kind),
            })
        };
        added.filter(|(id, _)| !self.tokens[*id].is_empty()).map(entry).collect()
    }

    /// Post-processor that adds tokens before and after every text.
    fn template(&self, pairs: bool) -> Result<Option<Value>> {
        let default = if pairs { true } else { self.pre()?.adds_bos };
        let before = self.gguf.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(default);
        let after = self.gguf.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        let before = self.id("bos")?.filter(|_| before);
        let after = self.id("eos")?.filter(|_| after);
        if before.is_none() && after.is_none() {
            return Ok(None);
        }
        let token =
            |id: usize, part: u32| json!({ "SpecialToken": { "id": self.tokens[id], "type_id": part } });
        let text = |name: &str, part: u32| json!({ "Sequence": { "id": name, "type_id": part } });
        let around = |name: &str, part: u32| -> Vec<Value> {
            let before = before.map(|id| token(id, part));
            before.into_iter().chain([text(name, part)]).chain(after.map(|id| token(id, part))).collect()
        };
        let special = |id: usize| {
            let name = &self.tokens[id];
            (name.clone(), json!({ "id": name, "ids": [id], "tokens": [name] }))
        };
        let tokens: Map<String, Value> = before.into_iter().chain(after).map(special).collect();
        let pair = [around("A", 0), around("B", 1)].concat();
        Ok(Some(json!({
            "type": "TemplateProcessing",
            "single": around("A", 0),
            "pair": pair,
            "special_tokens": tokens,
        })))
    }

    /// Byte-level BPE model.
    fn bytes(&self) -> Result<Value> {
        const MERGES: &str = "tokenizer.ggml.merges";
        let pre = self.pre()?;
        let Some(merges) = self.gguf.texts(MERGES)? else { return fault(MERGES, "are missing") };
        let qwen = pre.names.contains(&"qwen2");
        Ok(json!({
            "normalizer": if qwen { json!({ "type": "NFC" }) } else { Value::Null },
            "pre_tokenizer": pre.json(),
            "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
            "model": {
                "type": "BPE",
                "ignore_merges": pre.whole_words,
                "vocab": self.vocabulary(),
                "merges": merges,
            },
        }))
    }

    /// SentencePiece vocabulary with scores; merges are ordered by the scores of their results, as derived by
    /// Transformers.
    fn sentence_pieces(&self) -> Result<Value> {
        const SCORES: &str = "tokenizer.ggml.scores";
        let scores = self.gguf.floats(SCORES)?;
        if scores.len() != self.tokens.len() {
            return fault(SCORES, format!("are {}, of {} tokens", scores.len(), self.tokens.len()));
        }
        let unknown = self.token("unknown")?.or_else(|| {
            self.kinds.iter().position(|kind| *kind == UNKNOWN).map(|id| self.tokens[id].as_str())
        });
        let [normalizer, pre_tokenizer, decoder] = self.prefix()?.json();
        let bytes = self.tokens.iter().any(|token| token == "<0x00>");
        Ok(json!({
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "decoder": decoder,
            "model": {
                "type": "BPE",
                "unk_token": unknown,
                "fuse_unk": true,
                "byte_fallback": bytes,
                "vocab": self.vocabulary(),
                "merges": self.merges(scores),
            },
        }))
    }

    /// Position of the inserted space.
    fn prefix(&self) -> Result<Prefix> {
        if let Some(scheme) = self.gguf.text(PREPEND)? {
            return Prefix::named(scheme).map_or_else(|| fault(PREPEND, format!("is {scheme}")), Ok);
        }
        let parts = self.gguf.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        Ok(if parts { Prefix::Parts } else { Prefix::None })
    }

    fn merges(&self, scores: &[f32]) -> Vec<[&str; 2]> {
        // Pieces longer than any word are not merged; spellings of control tokens are not merges.
        const LONGEST: usize = 256;
        let ids: HashMap<&str, usize> =
            self.tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect();
        let mut found = Vec::new();
        for (whole, token) in self.tokens.iter().enumerate() {
            let kind = self.kinds.get(whole).copied().unwrap_or(1);
            if token.len() > LONGEST || matches!(kind, UNKNOWN | CONTROL | 6) {
                continue;
            }
            for (at, _) in token.char_indices().skip(1) {
                let (left, right) = token.split_at(at);
                if let (Some(first), Some(second)) = (ids.get(left), ids.get(right)) {
                    found.push((scores[whole], whole, *first, *second));
                }
            }
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then((a.2, a.3).cmp(&(b.2, b.3))));
        let text = |id: usize| self.tokens[id].as_str();
        found.into_iter().map(|(_, _, first, second)| [text(first), text(second)]).collect()
    }
}
