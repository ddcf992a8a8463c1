//! Training, round trips, pieces, streams, roles and bad files.

use crate::{EOS, corpus, tokenizer};
use fathom_text::Tokenizer;
use proptest::prelude::*;

#[test]
fn training_is_deterministic_and_ignores_order() {
    let first = Tokenizer::train_bpe(corpus().into_iter(), 700, &[EOS]).unwrap();
    let again = Tokenizer::train_bpe(corpus().into_iter(), 700, &[EOS]).unwrap();
    let reversed = Tokenizer::train_bpe(corpus().into_iter().rev(), 700, &[EOS]).unwrap();
    assert_eq!(first.to_json().unwrap(), again.to_json().unwrap());
    assert_eq!(first.to_json().unwrap(), reversed.to_json().unwrap());
    assert_eq!(first.hash().unwrap(), reversed.hash().unwrap());
    assert_eq!(first.vocab_size(), 700);
    assert_eq!((first.eos(), first.token_id(EOS)), (Some(0), Some(0)));
}

#[test]
fn a_vocabulary_needs_room_for_the_bytes() {
    let error = Tokenizer::train_bpe(corpus().into_iter(), 256, &[EOS]).unwrap_err().to_string();
    assert!(error.contains("257"), "{error}");
}

#[test]
fn an_empty_corpus_gives_the_bytes() {
    let bytes = Tokenizer::train_bpe(std::iter::empty(), 500, &[EOS]).unwrap();
    assert_eq!(bytes.vocab_size(), 257);
    assert_eq!(bytes.decode(&bytes.encode("any é 中\n").unwrap()), "any é 中\n");
}

#[test]
fn special_tokens_are_text_unless_asked_for() {
    let tokenizer = tokenizer();
    let text = format!("end{EOS}");
    let plain = tokenizer.encode(&text).unwrap();
    assert!(!plain.contains(&0) && plain.len() > 3);
    assert_eq!(tokenizer.decode(&plain), text);
    let special = tokenizer.encode_special(&text).unwrap();
    assert_eq!(special.last(), Some(&0));
    assert_eq!(tokenizer.decode(&special), text);
    assert_eq!(tokenizer.decode_text(&special), "end");
}

#[test]
fn long_texts_in_pieces_give_the_ids_of_the_whole() {
    let tokenizer = tokenizer();
    let text = corpus().join("\n\n").repeat(4);
    assert!(text.len() > 100 << 10);
    let mut inner = tokenizers::Tokenizer::from_bytes(tokenizer.to_json().unwrap()).unwrap();
    inner.set_encode_special_tokens(true);
    let whole = inner.encode_fast(text.as_str(), false).unwrap();
    assert_eq!(tokenizer.encode(&text).unwrap(), whole.get_ids());
    let both = tokenizer.encode_batch(&[text.as_str(), "short"]).unwrap();
    assert_eq!(both[0], whole.get_ids());
    assert_eq!(tokenizer.decode(&both[0]), text);
}

#[test]
fn a_file_with_dropout_gives_the_ids_of_one_without() {
    let json = tokenizer().to_json().unwrap();
    let random = json.replace(r#""dropout":null"#, r#""dropout":0.5"#);
    assert_ne!(random, json);
    let random = Tokenizer::from_bytes(random.as_bytes(), "tokenizer.json".as_ref()).unwrap();
    let text = &corpus()[0][..2000];
    assert_eq!(random.encode(text).unwrap(), tokenizer().encode(text).unwrap());
}

#[test]
fn a_folder_written_here_reads_back_with_its_roles() {
    let dir = tempfile::tempdir().unwrap();
    tokenizer().save_dir(dir.path()).unwrap();
    let back = Tokenizer::from_dir(dir.path()).unwrap();
    assert_eq!(back.hash().unwrap(), tokenizer().hash().unwrap());
    assert_eq!(back.eos(), Some(0));
    assert_eq!(back.stops(), [0]);
    assert_eq!(back.bos(), None, "<|bos|> is no well-known spelling");
    assert!(!dir.path().join("tokenizer.json.tmp").exists());
}

#[test]
fn what_lies_next_to_a_tokenizer_goes_with_it() {
    let [from, to] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    tokenizer().save(from.path().join("tokenizer.json")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(from.path().join(name), text).unwrap();
    let config = r#"{"chat_template": "{{ messages }}", "pad_token": "<|bos|>", "bos_token": null, "tokenizer_class": "X"}"#;
    write("tokenizer_config.json", config);
    write("chat_template.jinja", "{{ messages }}\n");
    write("special_tokens_map.json", r#"{"eos_token": "<|endoftext|>"}"#);
    write("config.json", r#"{"bos_token_id": 1}"#);
    let tokenizer = Tokenizer::from_dir(from.path()).unwrap();
    tokenizer.save_dir(to.path()).unwrap();
    // Into its own folder as well.
    tokenizer.save_dir(from.path()).unwrap();
    for folder in [from.path(), to.path()] {
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let config: serde_json::Value = serde_json::from_str(&read("tokenizer_config.json")).unwrap();
        assert_eq!(
            config,
            serde_json::json!({ "chat_template": "{{ messages }}", "pad_token": "<|bos|>", "bos_token": null,
                "eos_token": "<|endoftext|>", "tokenizer_class": "X" })
        );
        assert_eq!(read("chat_template.jinja"), "{{ messages }}\n");
        let back = Tokenizer::from_dir(folder).unwrap();
        // A tokenizer without a beginning-of-text token keeps none, whatever the model's configuration says.
        assert_eq!((back.own_bos(), back.eos()), (None, Some(0)));
    }
}

#[test]
fn roles_come_from_the_files_next_to_it() {
    let dir = tempfile::tempdir().unwrap();
    tokenizer().save(dir.path().join("tokenizer.json")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("tokenizer_config.json", r#"{"eos_token": {"content": "<|endoftext|>"}, "bos_token": "<|bos|>"}"#);
    write("generation_config.json", r#"{"eos_token_id": [7, 0, 9]}"#);
    let roles = Tokenizer::from_dir(dir.path()).unwrap();
    assert_eq!((roles.bos(), roles.eos(), roles.stops()), (Some(1), Some(0), &[0, 7, 9][..]));
    for (name, text, says) in [
        ("tokenizer_config.json", r#"{"eos_token": "<gone>"}"#, "`<gone>` is not in the vocabulary"),
        ("tokenizer_config.json", r#"{"eos_token": 5}"#, "key `eos_token`"),
        ("tokenizer_config.json", "[]", "an object was expected"),
        ("tokenizer_config.json", "{", "tokenizer_config.json"),
        ("generation_config.json", r#"{"eos_token_id": "x"}"#, "key `eos_token_id`"),
        ("generation_config.json", r#"{"eos_token_id": -1}"#, "key `eos_token_id`"),
    ] {
        write("tokenizer_config.json", "{}");
        write("generation_config.json", "{}");
        write(name, text);
        let error = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains(name), "{error}");
    }
}

#[test]
fn unusable_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    let missing = Tokenizer::from_file(&path).unwrap_err().to_string();
    assert!(missing.contains("cannot read") && missing.contains("tokenizer.json"), "{missing}");
    for bytes in [&b"{}"[..], b"", b"\xff\xfe", b"[1,2", br#"{"version":"1.0","model":{"type":"BPE"}}"#] {
        std::fs::write(&path, bytes).unwrap();
        let error = Tokenizer::from_file(&path).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json is not a usable tokenizer"), "{error}");
    }
}

/// Two words, the end of text as an added token, and the parts of the test case.
fn with_parts(parts: serde_json::Value) -> Vec<u8> {
    let mut file = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{ "id": 2, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": true, "special": true }],
        "model": { "type": "WordLevel", "vocab": { "a": 0, "<unk>": 1 }, "unk_token": "<unk>" },
    });
    for (key, value) in parts.as_object().unwrap() {
        file[key] = value.clone();
    }
    file.to_string().into_bytes()
}

/// A hostile file causes errors rather than panics, both when it is read and when it is used.
#[test]
fn hostile_files_are_answered() {
    let path = std::path::Path::new("tokenizer.json");
    let replace = |pattern: serde_json::Value, content: &str| serde_json::json!({ "type": "Replace", "pattern": pattern, "content": content });
    let doubling = replace(serde_json::json!({ "String": "a" }), "aa");
    let sequence = |count: usize| serde_json::json!({ "type": "Sequence", "normalizers": vec![doubling.clone(); count] });
    let whole = |parts| Tokenizer::from_bytes(&with_parts(parts), path);

    // An expression that matches the empty string between any two letters.
    let empty = whole(serde_json::json!({ "normalizer": replace(serde_json::json!({ "Regex": "" }), "x") }));
    if let Ok(empty) = empty {
        for answer in [empty.encode("a b"), empty.encode_special("a b"), empty.encode_prompt("a b")] {
            assert!(answer.is_ok_and(|ids| ids.len() < 100) || empty.encode("a b").is_err());
        }
        assert!(empty.prompt_bos().is_none());
    }
    // Forty doublings are rejected; sixteen are accepted as long as texts contain none of the letters.
    let error = whole(serde_json::json!({ "normalizer": sequence(40) })).unwrap_err().to_string();
    assert!(error.contains("1099511627776 times as long"), "{error}");
    let some = whole(serde_json::json!({ "normalizer": sequence(16) })).unwrap();
    assert!(some.encode(&"b".repeat(100_000)).is_ok());
    let error = some.encode(&"a".repeat(100_000)).unwrap_err().to_string();
    assert!(error.contains("makes texts too long"), "{error}");
    for (key, parts) in [("pretokenizers", "pre_tokenizer"), ("decoders", "decoder")] {
        let byte_level = serde_json::json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": false });
        let part = if key == "decoders" { doubling.clone() } else { byte_level };
        let parts = serde_json::json!({ parts: { "type": "Sequence", key: vec![part; 40] } });
        let error = whole(parts).unwrap_err().to_string();
        assert!(error.contains("times as long"), "{error}");
    }
    // Tables and lists by id would have four thousand million entries.
    let vocab = serde_json::json!({ "type": "WordLevel", "vocab": { "a": 0, "<unk>": u32::MAX }, "unk_token": "<unk>" });
    let error = whole(serde_json::json!({ "model": vocab })).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json is not a usable tokenizer"), "{error}");
    fathom_text::fuzz::fuzz_tokenizer_use(&with_parts(serde_json::json!({ "normalizer": sequence(3) })));
}

/// Models the file of Llama 2: its added tokens are normalized, but other files refer to them by their original
/// spelling.
#[test]
fn an_added_token_is_named_as_its_file_spells_it() {
    let dir = tempfile::tempdir().unwrap();
    let normalizer = serde_json::json!({ "type": "Prepend", "prepend": "▁" });
    let bytes = with_parts(serde_json::json!({ "normalizer": normalizer }));
    let bare = Tokenizer::from_bytes(&bytes, "tokenizer.json".as_ref()).unwrap();
    assert_eq!((bare.eos(), bare.token(2).as_deref()), (Some(2), Some("</s>")));
    bare.save_dir(dir.path()).unwrap();
    let config = std::fs::read_to_string(dir.path().join("tokenizer_config.json")).unwrap();
    assert!(config.contains(r#""eos_token": "</s>""#), "{config}");
    assert_eq!(Tokenizer::from_dir(dir.path()).unwrap().eos(), Some(2));
}

/// The error for a folder with another form of tokenizer explains the conversion, and for a hub name the download.
#[test]
fn a_tokenizer_of_another_form_is_refused_with_how_to_convert() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.model"), "pieces").unwrap();
    let file = dir.path().join("tokenizer.json");
    for error in [Tokenizer::from_dir(dir.path()), Tokenizer::from_file(&file)] {
        let error = error.unwrap_err().to_string();
        let folder = dir.path().display();
        assert!(
            error.starts_with(&format!("{folder}/tokenizer.json is missing; tokenizer.model is")),
            "{error}"
        );
        let lines = format!(
            "    from transformers import AutoTokenizer\n    \
             AutoTokenizer.from_pretrained(\"{folder}\").save_pretrained(\"{folder}\")\n"
        );
        assert!(error.contains(&lines), "{error}");
    }
    for error in [Tokenizer::from_dir("no-such/model"), Tokenizer::from_file("no-such/model")] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("hf download no-such/model --local-dir no-such/model"), "{error}");
    }
    let error = Tokenizer::from_file("no-such/model.json").unwrap_err().to_string();
    assert!(!error.contains("hf download"), "{error}");
}

fn streamed(ids: &[u32]) -> String {
    let mut stream = tokenizer().stream();
    let mut text = String::new();
    for &id in ids {
        if let Some(piece) = stream.push(id) {
            assert!(!piece.is_empty());
            text.push_str(&piece);
        }
    }
    text + &stream.finish().unwrap_or_default()
}

#[test]
fn a_stream_never_gives_half_a_character() {
    let ids = tokenizer().encode("é中🙂").unwrap();
    assert_eq!(ids.len(), 9, "bytes, since no merge covers them");
    let mut stream = tokenizer().stream();
    let pieces: Vec<Option<String>> = ids.iter().map(|&id| stream.push(id)).collect();
    let given: Vec<&str> = pieces.iter().flatten().map(String::as_str).collect();
    assert_eq!(given, ["é", "中", "🙂"]);
    assert_eq!(stream.finish(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_text_round_trips(text in "\\PC{0,40}|[a-z \n\t]{0,80}|.{0,20}") {
        let ids = tokenizer().encode(&text).unwrap();
        prop_assert_eq!(tokenizer().decode(&ids), text.clone());
        prop_assert_eq!(streamed(&ids), text);
    }

    #[test]
    fn any_ids_stream_to_what_they_decode_to(ids in prop::collection::vec(0u32..1100, 0..60)) {
        prop_assert_eq!(streamed(&ids), tokenizer().decode_text(&ids));
    }
}
