//! Bits per byte: exact arithmetic, windows, and gzip.

use fathom_eval::*;

use crate::{Rule, tokenizer};

fn documents() -> Vec<HeldOut> {
    let tokenizer = tokenizer();
    let texts =
        ["The value of key amber falcon is river.".repeat(20), "x".into(), "äöü 🦅 over the hills".into()];
    texts.into_iter().map(|text| HeldOut::from_text(text, &tokenizer).unwrap()).collect()
}

#[test]
fn a_uniform_model_needs_log2_of_the_vocabulary_per_token() {
    let tokenizer = tokenizer();
    // A model gives its losses in f32.
    let loss = f64::from((tokenizer.vocab_size() as f64).ln() as f32);
    for context in [2, 3, 7, 64, 4096] {
        let uniform = Rule::new(|_, _| loss, 4096);
        let found = bits_per_byte(&uniform, &tokenizer, documents(), context, &Limits::default());
        let found = found.unwrap();
        let expected = loss / std::f64::consts::LN_2 * found.tokens as f64 / found.bytes as f64;
        assert!((found.bits_per_byte - expected).abs() < 1e-12, "{found:?} {expected}");
        let text: String = documents().into_iter().map(|document| document.text).collect();
        assert_eq!(found.bytes, text.len() as u64);
        // Documents are compressed as one concatenated stream.
        let whole = HeldOut::from_text(text, &tokenizer).unwrap();
        let packed = bits_per_byte(&uniform, &tokenizer, [whole], context, &Limits::default());
        assert_eq!(found.gzip_bits_per_byte, packed.unwrap().gzip_bits_per_byte);
    }
}

#[test]
fn every_token_is_scored_once_with_the_context_that_is_promised() {
    let tokenizer = tokenizer();
    let document = HeldOut { ids: (0..100).collect(), text: "z".repeat(100) };
    let mut longest = vec![0; 100];
    let model = Rule::new(
        |before: &[u32], id| {
            longest[id as usize] = longest[id as usize].max(before.len());
            // Every token has a different loss, so the sum shows that each was counted once.
            f64::from(id + 1)
        },
        16,
    );
    let found = bits_per_byte(&model, &tokenizer, [document], 16, &Limits::default()).unwrap();
    let nats = found.bits_per_byte * 100.0 * std::f64::consts::LN_2;
    assert!((nats - 5050.0).abs() < 1e-9, "{nats}");
    assert!(longest.iter().all(|before| (1..16).contains(before)), "{longest:?}");
}

#[test]
fn stored_ids_lose_their_end_of_text_and_give_the_text_back() {
    let tokenizer = tokenizer();
    let text = "key: äöü 🦅 <|endoftext|>\r\n\tover";
    let mut ids = tokenizer.encode(text).unwrap();
    ids.extend(tokenizer.eos());
    let read = HeldOut::from_ids(ids, &tokenizer);
    assert_eq!(read, HeldOut::from_text(text.into(), &tokenizer).unwrap());
}

#[test]
fn refusals_say_why() {
    let tokenizer = tokenizer();
    let model = Rule::new(|_, _| 1.0, 16);
    let measure = |documents: Vec<HeldOut>, context| {
        let found = bits_per_byte(&model, &tokenizer, documents, context, &Limits::default());
        found.unwrap_err().to_string()
    };
    assert!(measure(documents(), 17).contains("2 to 16"));
    assert!(measure(vec![], 16).contains("hold none"));
}

#[test]
fn gzip_is_that_of_the_command() {
    let text: String = (0..4000).map(|i| format!("line {} of {}\n", i * i % 977, i % 13)).collect();
    // The result of `gzip -9 | wc -c` for this text; compressor libraries differ by a few percent.
    let tokenizer = tokenizer();
    let model = Rule::new(|_, _| 1.0, 4096);
    let document = HeldOut::from_text(text, &tokenizer).unwrap();
    let found = bits_per_byte(&model, &tokenizer, [document], 4096, &Limits::default()).unwrap();
    let ours = found.gzip_bits_per_byte * found.bytes as f64 / 8.0;
    assert!((ours / GZIP_9 - 1.0).abs() < 0.03, "{ours}");
}

const GZIP_9: f64 = 10_840.0;

#[test]
fn a_long_document_counts_as_far_as_the_time_holds() {
    let tokenizer = tokenizer();
    let text = "Over the hills and far away. ".repeat(60);
    let document = HeldOut::from_text(text.clone(), &tokenizer).unwrap();
    let measure = |seconds: f64| {
        let (clock, spend) = crate::manual_clock();
        let loss = |_: &[u32], _: u32| {
            spend(1e-3);
            1.0
        };
        let slow = Rule::new(loss, 4096);
        let limits = Limits { deadline: Some(clock.within(seconds)), ..Limits::default() };
        let documents = [document.clone(), document.clone()];
        bits_per_byte(&slow, &tokenizer, documents, 17, &limits).unwrap()
    };
    let (all, part) = (measure(60.0), measure(0.1));
    assert_eq!((all.bytes, all.documents, all.context_tokens), (2 * text.len() as u64, 2, 17));
    // Six windows of sixteen predicted tokens.
    assert_eq!((part.tokens, part.documents), (96, 1));
    let read = tokenizer.decode(&document.ids[..96]);
    assert_eq!(part.bytes, read.len() as u64);
    assert!((part.bits_per_byte - 96.0 / std::f64::consts::LN_2 / read.len() as f64).abs() < 1e-9);
    // At least one window is measured, even without any time.
    assert_eq!(measure(0.0).tokens, 16);
}
