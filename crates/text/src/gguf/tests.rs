//! Tests of tokenizers in GGUF files.

use std::path::PathBuf;

use fathom_base::gguf::{Value as Key, header};
use serde_json::{Value as Json, json};

use super::*;
use crate::chat::Template;
use crate::tokenizer::Tokenizer;

fn write(folder: &Path, keys: &[(String, Key)]) -> PathBuf {
    let path = folder.join("model.gguf");
    std::fs::write(&path, header(keys, &[])).unwrap();
    path
}

const TEXTS: [&str; 4] = ["the quick brown fox, the lazy dog", "1234 don't\n\n  stop", "naïve 漢字 🙂", ""];

#[test]
fn a_trained_tokenizer_goes_through_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let texts = (0..50).map(|n| format!("the quick brown fox number {n} and the lazy dog don't stop"));
    let trained = Tokenizer::train_bpe(texts, 300, &["<|endoftext|>"]).unwrap();
    trained.save_dir(folder.path()).unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), "{{ messages[0].content }}!").unwrap();
    let size = trained.vocab_size();
    let keys = metadata(folder.path(), size + 3).unwrap();
    let path = write(folder.path(), &keys);
    let read = Tokenizer::from_dir(&path).unwrap();
    for text in TEXTS {
        assert_eq!(read.encode(text).unwrap(), trained.encode(text).unwrap(), "{text}");
        assert_eq!(read.decode(&read.encode(text).unwrap()), text);
    }
    assert_eq!((read.eos(), read.vocab_size()), (trained.eos(), size + 3));
    let template = Template::from_dir(&path, &read).unwrap();
    assert!(template.is_some());
    // Writing it again gives the same keys.
    let again: Vec<_> = metadata(&path, size + 3).unwrap();
    assert_eq!(again.len(), keys.len());
    assert_eq!(
        again.iter().find(|(key, _)| key.ends_with(".pre")),
        keys.iter().find(|(key, _)| key.ends_with(".pre"))
    );
}

#[test]
fn sentence_pieces_merge_by_score() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let pieces = ["\u{2581}", "t", "h", "e", "\u{2581}t", "he", "\u{2581}the", "th"].map(String::from);
    let tokens: Vec<String> =
        ["<unk>", "<s>", "</s>"].map(String::from).into_iter().chain(bytes).chain(pieces).collect();
    let kinds = (0..tokens.len() as i64)
        .map(|id| [2, 3, 3].get(id as usize).copied().unwrap_or(if id < 259 { 6 } else { 1 }));
    let scores = (0..tokens.len()).map(|id| if id < 263 { -1e9 } else { 263.0 - id as f32 });
    let mut keys: Vec<(String, Key)> = [
        ("model", Key::Text("llama".into())),
        ("tokens", Key::Texts(tokens.clone())),
        ("scores", Key::Floats(scores.collect())),
        ("token_type", Key::Integers(kinds.collect())),
        ("bos_token_id", Key::Unsigned(1)),
        ("eos_token_id", Key::Unsigned(2)),
    ]
    .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value))
    .to_vec();
    let read = Tokenizer::from_dir(write(folder.path(), &keys)).unwrap();
    let spelt = |ids: &[u32]| ids.iter().map(|id| tokens[*id as usize].clone()).collect::<Vec<_>>();
    assert_eq!(spelt(&read.encode("the he").unwrap()), ["\u{2581}the", "\u{2581}", "he"]);
    assert_eq!(spelt(&read.encode_prompt("x").unwrap())[..2], ["<s>", "\u{2581}"]);
    assert_eq!(read.decode_text(&read.encode("the é").unwrap()), "the é");
    let path = folder.path().join("model.gguf");
    let again = metadata(&path, tokens.len()).unwrap();
    let path = write(folder.path(), &again);
    assert_eq!(spelt(&Tokenizer::from_dir(&path).unwrap().encode("the he").unwrap()).len(), 3);
    // Invalid values are refused by key.
    for (key, value, part) in [
        ("tokenizer.ggml.model", Key::Text("bert".into()), "tokenizer.ggml.model"),
        ("tokenizer.ggml.scores", Key::Floats(vec![1.0]), "tokenizer.ggml.scores"),
        ("tokenizer.ggml.eos_token_id", Key::Unsigned(1 << 31), "eos_token_id"),
        ("tokenizer.ggml.tokens", Key::Bool(true), "tokenizer.ggml.tokens"),
    ] {
        let at = keys.iter().position(|(name, _)| name == key).unwrap();
        let before = std::mem::replace(&mut keys[at].1, value);
        let error = Tokenizer::from_dir(write(folder.path(), &keys)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        keys[at].1 = before;
    }
}

/// A tokenizer as written by Transformers for Gemma and Llama: merges of every pair that is a token, in score order.
fn sentence_pieces(normalizer: Json, pre_tokenizer: Json) -> Json {
    let space = "\u{2581}";
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let letters = [space, "t", "h", "e", "c", "a"].map(String::from);
    let merges = [["h", "e"], [space, "t"], ["t", "he"], [space, "the"], ["\u{2581}t", "he"], ["a", "t"]];
    let merges = merges.into_iter().chain([[space, space], [space, "a"], ["c", "at"]]);
    let merges: Vec<[&str; 2]> = merges.collect();
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>", "<turn>"]
        .map(String::from)
        .into_iter()
        .chain(bytes)
        .chain(letters)
        .collect();
    for [left, right] in &merges {
        let whole = format!("{left}{right}");
        if !tokens.contains(&whole) {
            tokens.push(whole);
        }
    }
    let added = |id: usize| {
        json!({ "id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true })
    };
    let vocab: serde_json::Map<String, Json> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    json!({
        "version": "1.0", "added_tokens": (0..4).map(added).collect::<Vec<_>>(), "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": space }, "content": " " }, { "type": "ByteFallback" },
            { "type": "Fuse" } ] },
        "model": { "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocab, "merges": merges },
    })
}

#[test]
fn what_marks_spaces_goes_through_a_file() {
    let space = "\u{2581}";
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": space });
    let split = json!({ "type": "Split", "pattern": { "String": " " }, "behavior": "MergedWithPrevious", "invert": false });
    let prepend =
        json!({ "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": space }, replace] });
    let metaspace = |scheme: &str, split: bool| json!({ "type": "Metaspace", "replacement": space, "prepend_scheme": scheme, "split": split });
    let list = |steps: &[&Json]| json!({ "type": "Sequence", "normalizers": steps });
    let null = Json::Null;
    let folder = tempfile::tempdir().unwrap();
    let save = |normalizer: &Json, pre_tokenizer: &Json| {
        let json = sentence_pieces(normalizer.clone(), pre_tokenizer.clone());
        std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    };
    let cases = [
        (&replace, &split, false),
        (&replace, &null, false),
        (&prepend, &null, true),
        (&null, &metaspace("first", false), true),
        (&null, &metaspace("always", false), true),
        (&null, &metaspace("never", false), false),
        // Forms written by Transformers 5 for a `tokenizer.model` without and with a configuration; older releases
        // write a list of one.
        (&list(&[&replace]), &null, false),
        (&list(&[&replace]), &metaspace("first", false), true),
        (&list(&[]), &metaspace("always", false), true),
    ];
    for (normalizer, pre_tokenizer, prefix) in cases {
        save(normalizer, pre_tokenizer);
        let before = Tokenizer::from_dir(folder.path()).unwrap();
        let keys = metadata(folder.path(), before.vocab_size()).unwrap();
        let key = |name: &str| keys.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        assert_eq!(key("tokenizer.ggml.model"), Some(Key::Text("llama".into())));
        assert_eq!(key("tokenizer.ggml.add_space_prefix"), Some(Key::Bool(prefix)));
        let read = Tokenizer::from_dir(write(folder.path(), &keys)).unwrap();
        for text in ["the cat", " the  cat", "", "  ", "a<turn>the cat<turn> that\n", "é the"] {
            let ids = before.encode_special(text).unwrap();
            assert_eq!(read.encode_special(text).unwrap(), ids, "{pre_tokenizer} {text}");
        }
    }
    // Here text is split inside tokens that contain a space.
    save(&null, &metaspace("first", true));
    let error = metadata(folder.path(), 300).unwrap_err().to_string();
    assert!(error.contains("pre_tokenizer") && error.contains("Metaspace"), "{error}");
}

/// gpt-oss does not merge words that are tokens, but its merges yield every one of them.
#[test]
fn words_that_are_not_merged_are_written_where_merges_make_them() {
    let folder = tempfile::tempdir().unwrap();
    let texts = (0..50).map(|n| format!("the quick brown fox number {n} and the lazy dog don't stop"));
    let trained = Tokenizer::train_bpe(texts, 300, &["<|return|>"]).unwrap();
    let mut json: Json = serde_json::from_str(&trained.to_json().unwrap()).unwrap();
    json["pre_tokenizer"] = super::pre::Pre::named("gpt-4o").unwrap().json();
    json["model"]["ignore_merges"] = true.into();
    let keys = |json: &Json| {
        std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
        metadata(folder.path(), 320).map_err(|error| error.to_string())
    };
    let keys_of_all = keys(&json).unwrap();
    assert!(keys_of_all.contains(&("tokenizer.ggml.pre".into(), Key::Text("gpt-4o".into()))));
    let before = Tokenizer::from_dir(folder.path()).unwrap();
    let read = Tokenizer::from_dir(write(folder.path(), &keys_of_all)).unwrap();
    for text in TEXTS {
        assert_eq!(read.encode(text).unwrap(), before.encode(text).unwrap(), "{text}");
    }
    // A word that its merges do not yield.
    json["model"]["vocab"]["zebra"] = 310.into();
    let error = keys(&json).unwrap_err();
    assert!(error.contains("`ignore_merges` is false alone") && error.contains("`zebra`"), "{error}");
    // A split that llama.cpp has no name for.
    json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "never heard of".into();
    assert!(keys(&json).unwrap_err().contains("no name for its pre_tokenizer"));
}

#[test]
fn unknown_pre_tokenizers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let keys = [
        ("model", Key::Text("gpt2".into())),
        ("pre", Key::Text("never-heard-of".into())),
        ("tokens", Key::Texts(vec!["a".into(), "b".into()])),
        ("merges", Key::Texts(Vec::new())),
    ]
    .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value));
    let error = Tokenizer::from_dir(write(folder.path(), &keys)).unwrap_err().to_string();
    assert!(error.contains("tokenizer.ggml.pre") && error.contains("never-heard-of"), "{error}");
}

#[test]
fn padding_and_unknown_tokens_go_through_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let trained =
        Tokenizer::train_bpe(["the lazy dog".to_string()].into_iter(), 300, &["<pad>", "<unk>"]).unwrap();
    trained.save_dir(folder.path()).unwrap();
    let config = json!({ "pad_token": { "content": "<pad>" }, "unk_token": "<unk>" });
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let ids = |model: &Path| {
        let keys = metadata(model, trained.vocab_size()).unwrap();
        ["padding", "unknown"].map(|role| {
            let name = format!("tokenizer.ggml.{role}_token_id");
            keys.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone())
        })
    };
    let wanted = ["<pad>", "<unk>"].map(|token| trained.token_id(token).map(|id| Key::Unsigned(id.into())));
    assert_eq!((ids(folder.path()), wanted[0].is_some()), (wanted.clone(), true));
    let path = write(folder.path(), &metadata(folder.path(), trained.vocab_size()).unwrap());
    assert_eq!(ids(&path), wanted);
}

#[test]
fn a_description_is_kept_and_what_follows_from_weights_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let texts = |texts: &[&str]| Key::Texts(texts.iter().map(|text| text.to_string()).collect());
    let kept = [
        ("general.basename", Key::Text("Tiny".into())),
        ("general.languages", texts(&["en", "de"])),
        ("general.license", Key::Text("apache-2.0".into())),
        ("general.name", Key::Text("Tiny Chat".into())),
        ("general.organization", Key::Text("Someone".into())),
        ("general.tags", texts(&["chat"])),
    ]
    .map(|(key, value)| (key.to_string(), value));
    let others = [
        ("general.architecture", Key::Text("llama".into())),
        ("general.file_type", Key::Unsigned(7)),
        ("general.quantization_version", Key::Unsigned(2)),
        ("llama.block_count", Key::Unsigned(1)),
    ]
    .map(|(key, value)| (key.to_string(), value));
    let path = write(folder.path(), &[&others[..], &kept[..]].concat());
    assert_eq!(description(&path).unwrap(), kept);
    assert_eq!(description(folder.path()).unwrap(), []);
}
