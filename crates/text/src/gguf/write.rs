//! Writes a tokenizer as the keys of a GGUF file.

use std::collections::HashSet;
use std::path::Path;

use fathom_base::gguf::Value as Key;
use serde_json::Value;
use tokenizers::Model;
use tokenizers::models::bpe::BPE;

use super::keys::{PREPEND, TEMPLATE};
use super::pre::Pre;
use super::side_file;
use super::spaces::Prefix;
use crate::chat::template_source;
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// Token types (`tokenizer.ggml.token_type`).
const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER: i64 = 4;
const UNUSED: i64 = 5;
const BYTE: i64 = 6;

/// Keys for the tokenizer of a model's folder (or GGUF file), for an embedding of `vocab` rows.
///
/// # Errors
/// The tokenizer cannot be read, or llama.cpp has no name for its kind or its pre-tokenizer.
pub fn metadata(model: &Path, vocab: usize) -> Result<Vec<(String, Key)>> {
    let tokenizer = Tokenizer::from_dir(model)?;
    let json: Value = serde_json::from_str(&tokenizer.to_json()?).unwrap_or_default();
    let refuse = |reason: String| Error::Tokenizer { path: model.to_owned(), reason };
    if tokenizer.vocab_size() > vocab {
        let reason = format!("it has {} ids, and the model {vocab}", tokenizer.vocab_size());
        return Err(refuse(reason));
    }
    let merges = merges(&json["model"]).ok_or_else(|| {
        refuse(format!("its model is {}, and BPE alone can be written", json["model"]["type"]))
    })?;
    let (pre, apart) = named(&json);
    // Vocabularies with byte fallback are SentencePiece's.
    let pieces = json["model"]["byte_fallback"] == true && pre.is_none();
    let mut scheme = None;
    let mut keys: Vec<(String, Key)> = Vec::new();
    let mut put = |key: &str, value: Key| keys.push((format!("tokenizer.ggml.{key}"), value));
    let (tokens, kinds) = tokens(&tokenizer, &json, vocab, pieces);
    if pieces {
        let prefix = Prefix::of(&json["normalizer"], &json["pre_tokenizer"], &merges).ok_or_else(|| {
            let [normalizer, cuts] = ["normalizer", "pre_tokenizer"].map(|key| in_short(&json[key]));
            refuse(format!(
                "llama.cpp does not do what its normalizer {normalizer} and its pre_tokenizer {cuts} do"
            ))
        })?;
        scheme = prefix.scheme();
        put("model", Key::Text("llama".into()));
        put("pre", Key::Text("default".into()));
        put("add_space_prefix", Key::Bool(prefix != Prefix::None));
        put("scores", Key::Floats(scores(&tokens, &merges)));
    } else {
        let name = pre.map(|pre| pre.names[0]).ok_or_else(|| {
            refuse(match apart {
                Some(token) => format!(
                    "llama.cpp cuts text as its pre_tokenizer does for models whose `ignore_merges` is {} alone, and `{token}` is \
                     other tokens there",
                    json["model"]["ignore_merges"] != true
                ),
                None => format!("llama.cpp has no name for its pre_tokenizer {}", json["pre_tokenizer"]),
            })
        })?;
        if !json["normalizer"].is_null() && (json["normalizer"]["type"] != "NFC" || name != "qwen2") {
            return Err(refuse(format!(
                "llama.cpp does not normalise, and its normalizer is {}",
                json["normalizer"]
            )));
        }
        put("model", Key::Text("gpt2".into()));
        put("pre", Key::Text(name.into()));
        put("merges", Key::Texts(merges.iter().map(|[left, right]| format!("{left} {right}")).collect()));
    }
    put("tokens", Key::Texts(tokens));
    put("token_type", Key::Integers(kinds));
    let around = tokenizer.encode_prompt("")?;
    let id = |id: u32| Key::Unsigned(id.into());
    tokenizer.bos().into_iter().for_each(|bos| put("bos_token_id", id(bos)));
    let mut ends = ["eos_token_id", "eot_token_id", "eom_token_id"].into_iter().zip(tokenizer.stops());
    ends.by_ref().for_each(|(key, end)| put(key, id(*end)));
    let config: Value = match side_file(model, "tokenizer_config.json")? {
        Some(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
        None => Value::Null,
    };
    // A token is given as its text, or as a table that contains it.
    let named = |role: &str| config[role].as_str().or_else(|| config[role]["content"].as_str());
    let unknown = json["model"]["unk_token"].as_str().or_else(|| named("unk_token"));
    for (key, token) in [("unknown_token_id", unknown), ("padding_token_id", named("pad_token"))] {
        let found = token.and_then(|token| tokenizer.token_id(token));
        found.into_iter().for_each(|found| put(key, id(found)));
    }
    put("add_bos_token", Key::Bool(tokenizer.prompt_bos().is_some()));
    put("add_eos_token", Key::Bool(around.last().is_some_and(|last| tokenizer.eos() == Some(*last))));
    keys.extend(scheme.map(|scheme| (PREPEND.into(), Key::Text(scheme.into()))));
    if let Some(source) = template_source(model)? {
        keys.push((TEMPLATE.into(), Key::Text(source)));
    }
    Ok(keys)
}

/// Pre-tokenizer for which llama.cpp has a name. If only the variant with the other treatment of whole words has a
/// name, it is used as long as both agree; otherwise a token on which they differ is returned instead.
fn named(json: &Value) -> (Option<Pre>, Option<String>) {
    let whole_words = json["model"]["ignore_merges"] == true;
    let of = |whole_words| Pre::of(&json["pre_tokenizer"], whole_words);
    match (of(whole_words), of(!whole_words)) {
        (None, Some(other)) => match unmerged(json) {
            None => (Some(other), None),
            apart => (None, apart),
        },
        (own, _) => (own, None),
    }
}

/// A token that the merges do not yield; `None` if they yield all.
fn unmerged(json: &Value) -> Option<String> {
    let mut model = json["model"].clone();
    model["ignore_merges"] = false.into();
    let tokens: Vec<String> = model["vocab"].as_object()?.keys().cloned().collect();
    // Its deserializer borrows from a string.
    let Ok(bpe) = serde_json::from_str::<BPE>(&model.to_string()) else { return tokens.into_iter().next() };
    let added: HashSet<&str> =
        json["added_tokens"].as_array().into_iter().flatten().filter_map(|a| a["content"].as_str()).collect();
    let is_whole = |token: &String| bpe.tokenize(token).is_ok_and(|parts| parts.len() == 1);
    tokens.into_iter().find(|token| !added.contains(token.as_str()) && !is_whole(token))
}

/// Shortens JSON for a message, since tables of characters take a page.
fn in_short(value: &Value) -> String {
    const LONG: usize = 300;
    let mut text = value.to_string();
    if text.len() > LONG {
        text.truncate(text.floor_char_boundary(LONG));
        text.push('…');
    }
    text
}

/// Merges of a BPE model, in either notation.
fn merges(model: &Value) -> Option<Vec<[String; 2]>> {
    let merge = |merge: &Value| match merge {
        Value::String(both) => {
            both.split_once(' ').map(|(left, right)| [left.to_string(), right.to_string()])
        }
        both => Some([both[0].as_str()?.to_string(), both[1].as_str()?.to_string()]),
    };
    (model["type"] == "BPE").then_some(())?;
    model["merges"].as_array()?.iter().map(merge).collect()
}

/// Spellings and types of all ids.
fn tokens(tokenizer: &Tokenizer, json: &Value, vocab: usize, pieces: bool) -> (Vec<String>, Vec<i64>) {
    let mut kinds = vec![NORMAL; vocab];
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        if let Some(kind) = added["id"].as_u64().and_then(|id| kinds.get_mut(id as usize)) {
            *kind = if added["special"] == true { CONTROL } else { USER };
        }
    }
    let unknown = json["model"]["unk_token"].as_str();
    let token = |(id, kind): (usize, &mut i64)| {
        let Some(token) = tokenizer.token(id as u32) else {
            *kind = UNUSED;
            return format!("[PAD{id}]");
        };
        let byte = pieces && token.len() == 6 && token.starts_with("<0x") && token.ends_with('>');
        if byte {
            *kind = BYTE;
        } else if pieces && unknown == Some(token.as_str()) {
            *kind = UNKNOWN;
        }
        token
    };
    let tokens = kinds.iter_mut().enumerate().map(token).collect();
    (tokens, kinds)
}

/// Scores in merge order; tokens that no merge yields can never be merged.
fn scores(tokens: &[String], merges: &[[String; 2]]) -> Vec<f32> {
    let mut rank = std::collections::HashMap::new();
    for (index, [left, right]) in merges.iter().enumerate() {
        rank.entry(format!("{left}{right}")).or_insert(index);
    }
    tokens.iter().map(|token| rank.get(token).map_or(-1e9, |rank| -(*rank as f32))).collect()
}
