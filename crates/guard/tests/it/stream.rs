//! The streaming rule: what is streamed equals the rewritten whole, for every chunking.

use std::sync::Arc;

use fathom_guard::{AnswerStart, AnswerStream, Engine, Outcome, Reason};

use crate::support::{Random, engine, output};

/// Rails that rewrite, of every kind that is made for streams.
const REWRITING: &str = r#"
[[rail]]
use = "hidden_text"
on = ["output"]
action = "omit"

[[rail]]
use = "regex"
on = ["output"]
action = "mask"
kind = "ssn"
patterns = ['\b\d{3}-\d{2}-\d{4}\b', 'a{2,5}b?', 'ссн \d{4}']
words = ["classified", "top secret"]

[[rail]]
use = "secrets"
on = ["output"]
action = "mask"

[[rail]]
name = "cards"
use = "personal_data"
on = ["output"]
kinds = ["email", "card"]
action = "mask"

[[rail]]
name = "shouting"
use = "regex"
on = ["output"]
action = "omit"
patterns = ['[A-Z]{12,40}']
"#;

/// Values whose beginning must not be released.
const VALUES: [&str; 12] = [
    "123-45-6789",
    "4111 1111 1111 1111",
    "jane.doe@example.org",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "AKIAIOSFODNN7EXAMPLE",
    "api_key = \"q8Zk20Vb77xTrPw3\"",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7bq2\nc3RyZWFt\n-----END RSA PRIVATE KEY-----",
    "classified",
    "top secret",
    "aaaaab",
    "ссн 1234",
    "\u{e0041}\u{e0042}\u{200b}",
];

/// A text of words, values and whatever tears graphemes, for a seed.
fn text(random: &mut Random) -> String {
    const WORDS: [&str; 22] = [
        "the",
        "answer",
        "is",
        "number",
        "aa",
        "aaa",
        "ab",
        "e\u{301}",
        "👩‍👩‍👧",
        "नमस्ते",
        "क्ष",
        "🇩🇪🇫🇷",
        "1234",
        "56",
        "7890 12",
        "-",
        "x@",
        "secret",
        "token:",
        "LOUDERTHANLOUDER",
        "\r\n",
        "classify",
    ];
    let mut text = String::new();
    for _ in 0..random.below(120) + 5 {
        match random.below(8) {
            0 => text.push_str(VALUES[random.below(VALUES.len())]),
            1 => text.push(['a', 'b', '1', '-', 'ü', '\u{200d}', '\n'][random.below(7)]),
            _ => text.push_str(WORDS[random.below(WORDS.len())]),
        }
        if random.below(5) > 0 {
            text.push(' ');
        }
    }
    text
}

/// Streams a text in random pieces; returns the pieces that came out, or the reason of the refusal.
fn streamed(engine: &Arc<Engine>, text: &str, random: &mut Random) -> Result<Vec<String>, Reason> {
    let mut stream = AnswerStream::new(engine.clone(), output(), &AnswerStart::default());
    let mut out = Vec::new();
    let (mut at, most) = (0, [1, 3, 9, 40, 400][random.below(5)]);
    while at < text.len() {
        let end = text.ceil_char_boundary((at + 1 + random.below(most)).min(text.len()));
        let piece = &text[at..end];
        let tokens = random.below(piece.len() / 3 + 2);
        out.push(stream.push(piece, tokens).map_err(|verdict| verdict.reason)?);
        at = end;
    }
    out.push(stream.finish().map_err(|verdict| verdict.reason)?);
    Ok(out)
}

fn whole(engine: &Engine, text: &str) -> Outcome {
    engine.judge(text, &output())
}

fn check(texts: usize, chunkings: usize, seed: u64) {
    let engine = engine(REWRITING);
    let mut random = Random::new(seed);
    for _ in 0..texts {
        let text = text(&mut random);
        let whole = whole(&engine, &text);
        assert_eq!(whole.blocked, None);
        for _ in 0..chunkings {
            match streamed(&engine, &text, &mut random) {
                Ok(pieces) => assert_eq!(pieces.concat(), whole.text, "of {text:?}"),
                Err(reason) => panic!("{reason:?} for {text:?}\nwhole {:?}", whole.text),
            }
        }
    }
}

/// With `FATHOM_TEST_STREAMS` a thousand texts in a hundred chunkings each, which takes minutes.
#[test]
fn the_stream_equals_the_rewritten_whole_for_every_chunking() {
    match std::env::var_os("FATHOM_TEST_STREAMS") {
        Some(_) => check(1000, 100, 2),
        None => check(60, 10, 1),
    }
}

#[test]
fn no_byte_of_a_value_is_released() {
    let engine = engine(REWRITING);
    let mut random = Random::new(3);
    for value in &VALUES[..9] {
        for before in ["It is ", "", "Then, as I said before, and before that, it was always this one: "] {
            let text = format!("{before}{value} and nothing more than that, of course.");
            for _ in 0..10 {
                let mut so_far = String::new();
                for piece in streamed(&engine, &text, &mut random).unwrap() {
                    so_far.push_str(&piece);
                    let shared = so_far.strip_prefix(before).unwrap_or_default();
                    let head = shared.chars().zip(value.chars()).take_while(|(a, b)| a == b).count();
                    // A name before its value is no part of the secret.
                    assert!(head < 3 || value.starts_with("api_key"), "`{so_far}` has the head of {value}");
                }
            }
        }
    }
}

#[test]
fn text_without_findings_is_the_models_byte_for_byte_and_soon() {
    let engine = engine(
        "[[rail]]\nuse = \"regex\"\non = [\"output\"]\naction = \"mask\"\npatterns = ['\\d{3}-\\d{2}-\\d{4}']\n",
    );
    let mut stream = AnswerStream::new(engine, output(), &AnswerStart::default());
    let mut out = String::new();
    for at in 0..64 {
        let piece = stream.push(" word", 1).unwrap();
        assert!(at >= 31 || piece.is_empty());
        out.push_str(&piece);
        if at == 31 {
            assert!(out.len() > 32 * 5 - 64, "{out}");
        }
    }
    out.push_str(&stream.finish().unwrap());
    assert_eq!(out, " word".repeat(64));
}

#[test]
fn a_block_in_the_middle_releases_nothing_of_the_match() {
    let engine = engine(
        "[guard]\nwindow = 1\n[[rail]]\nuse = \"regex\"\non = [\"output\"]\npatterns = ['bomb recipe']\n",
    );
    let mut stream = AnswerStream::new(engine.clone(), output(), &AnswerStart::default());
    let mut out = String::new();
    let mut refused = None;
    for piece in ["Here ", "is the ", "bo", "mb", " rec", "ipe for you"] {
        match stream.push(piece, 1) {
            Ok(text) => out.push_str(&text),
            Err(verdict) => refused = Some(verdict.reason),
        }
    }
    assert!("Here is the ".starts_with(&out), "{out}");
    assert_eq!(refused, Some(Reason::Pattern));
    assert_eq!(engine.metrics().late_count(), 0);
}

#[test]
fn more_than_the_most_held_bytes_block() {
    let engine = engine(
        "[guard]\nmax_held = 2048\n[[rail]]\nuse = \"length\"\non = [\"output\"]\nhold = \"all\"\nmax_chars = 100000\n",
    );
    let mut stream = AnswerStream::new(engine, output(), &AnswerStart::default());
    let refused = (0..100).find_map(|_| stream.push(&"word ".repeat(10), 10).err());
    assert_eq!(refused.unwrap().reason, Reason::Unreadable);
}

#[test]
fn the_first_text_of_five_rails_is_released_with_the_first_window() {
    let engine = engine(REWRITING);
    let mut stream = AnswerStream::new(engine, output(), &AnswerStart::default());
    let mut out = String::new();
    for at in 1..=32 {
        out.push_str(&stream.push(" word", 1).unwrap());
        assert!(at == 32 || out.is_empty());
    }
    assert!(out.len() > 32 * 5 - 20, "{out}");
}
