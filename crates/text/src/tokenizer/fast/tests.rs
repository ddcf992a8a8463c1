//! Comparison with the `tokenizers` crate: words and ids of hostile and ordinary text, for every known family.
#![allow(clippy::unwrap_used)]

use super::super::pieces::{GPT2, LLAMA3, O200K, QWEN2, TEKKEN};
use super::*;
use proptest::prelude::*;
use std::sync::LazyLock;
use tokenizers::Tokenizer;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::Split;

const TEXT: &str = "It's the cat's THE CAT'S we'll we've don't I'd HELLO HTTPServer getHTTP 12345 1999 中文文本中文 \
    русский текст русский ελληνικά e\u{301}te\u{301} naïve naïve 한국어 한국어 日本語テキスト \u{1F642}\u{1F642}\u{200D} \
    \u{17F} 'ſ  \t\t\tfn main() {\n        let x = 5;\n\n\n    }\r\n\r\n // ---- ==== /// \u{a0}\u{3000}\u{2028} ٣٤٥ ⅧⅨ ";

fn pre_tokenizers() -> Vec<PreTokenizerWrapper> {
    let level = |regex| PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, regex));
    let mut all = vec![level(true), level(false)];
    for regex in [LLAMA3, QWEN2, GPT2, O200K, TEKKEN] {
        let pattern = SplitPattern::Regex(regex.into());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap();
        all.push(Sequence::new(vec![split.into(), level(false)]).into());
    }
    all.push(Sequence::new(vec![Digits::new(true).into(), level(true)]).into());
    all
}

fn train(pre_tokenizer: PreTokenizerWrapper, ignore_merges: bool) -> tokenizers::Tokenizer {
    // Parts of the text, so that the whole-text family learns words rather than the text.
    let parts: Vec<&str> = TEXT.split_inclusive(' ').collect();
    let texts = (0..parts.len()).map(|i| parts[i..(i + 3).min(parts.len())].concat()).collect();
    train_on(texts, 600, pre_tokenizer, ignore_merges)
}

fn train_on(
    texts: Vec<String>,
    vocab_size: usize,
    pre_tokenizer: PreTokenizerWrapper,
    ignore_merges: bool,
) -> tokenizers::Tokenizer {
    let mut inner = Tokenizer::new(BPE::default());
    inner.with_pre_tokenizer(Some(pre_tokenizer));
    let trainer = BpeTrainer::builder()
        .vocab_size(vocab_size)
        .min_frequency(2)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![AddedToken::from("<|end|>", true), AddedToken::from("<|endless|>", true)])
        .build();
    inner.train(&mut TrainerWrapper::from(trainer), texts.into_iter()).unwrap();
    if let ModelWrapper::BPE(model) = inner.get_model() {
        let mut model = model.clone();
        model.ignore_merges = ignore_merges;
        inner.with_model(model);
    }
    inner
        .add_tokens([AddedToken::from("ok'", false), AddedToken::from("ss|>x", false).normalized(false)])
        .unwrap();
    inner
}

struct Case {
    inner: tokenizers::Tokenizer,
    recognising: tokenizers::Tokenizer,
    fast: Fast,
}

static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let mut cases = Vec::new();
    for (number, pre_tokenizer) in pre_tokenizers().into_iter().enumerate() {
        let mut inner = train(pre_tokenizer, number % 2 == 1);
        if number == 3 {
            inner.with_normalizer(Some(NFC)).unwrap();
        }
        let recognising = inner.clone();
        inner.set_encode_special_tokens(true);
        let fast = Fast::of(&inner).unwrap();
        cases.push(Case { inner, recognising, fast });
    }
    cases
});

fn check(text: &str) {
    for (number, Case { inner, recognising, fast }) in CASES.iter().enumerate() {
        for (special, theirs) in [(false, inner), (true, recognising)] {
            let wanted = theirs.encode_fast(text, false).unwrap();
            for pass in ["new", "known"] {
                match fast.encode(text, special) {
                    Some(ids) => assert_eq!(ids, wanted.get_ids(), "case {number}, {pass}, {text:?}"),
                    None => assert!(fast.nfc && !stays_under_nfc(text), "case {number} refuses {text:?}"),
                }
            }
        }
    }
}

#[test]
fn known_text_has_the_same_ids() {
    for text in
        [TEXT, "", " ", "\n", "  ", "a", "'", "''s", "<|end|>a<|endless|> <|endless|>x ok' <|en", "ok'ok's"]
    {
        check(text);
    }
}

#[test]
fn long_words_have_the_same_ids() {
    for text in ["a", "ab", "中", "中A", "A中", "A", " ", "\n ", "-", "/", "9", "русский", "e\u{301}"]
    {
        for repeat in [15, 16, 17, 64, 65, 128, 129, 300, 3000] {
            let text = text.repeat(repeat);
            check(&text);
            check(&format!("{text}x"));
        }
    }
}

/// Words of multi-byte characters, some of them frequent, in a seeded order.
fn world(seed: u64, words: usize) -> String {
    let mut random = seed;
    let mut below = |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let mut text = String::new();
    for _ in 0..words {
        let (first, count) = [(0x4E00, 400), (0x410, 64), (0xC0, 40), (0x3040, 90), (0xAC00, 900), (0x61, 5)]
            [below(6) as usize];
        for _ in 0..1 + below(12) {
            // Squaring makes the first ones frequent.
            let number = first + (below(count) * below(count) / count) as u32;
            text.extend(char::from_u32(number));
        }
        text.push_str([" ", " ", "", "a", "\n", "。"][below(6) as usize]);
    }
    text
}

#[test]
fn characters_of_several_bytes_have_the_same_ids() {
    let (mut closed, mut open) = (0, 0);
    for (number, pre_tokenizer) in pre_tokenizers().into_iter().enumerate().skip(1) {
        let texts = (0..40).map(|seed| world(seed, 60)).collect();
        let mut inner = train_on(texts, 500 + 300 * number, pre_tokenizer, number % 2 == 1);
        inner.set_encode_special_tokens(true);
        let fast = Fast::of(&inner).unwrap();
        for c in world(1, 400).chars().filter(|c| !c.is_ascii()) {
            *(if fast.bpe.is_closed(c) { &mut closed } else { &mut open }) += 1;
        }
        for seed in 100..160 {
            let text = world(seed, 60);
            let wanted = inner.encode_fast(text.as_str(), false).unwrap();
            assert_eq!(fast.encode(&text, false).unwrap(), wanted.get_ids(), "case {number}, {text:?}");
        }
    }
    assert!(closed > 1000 && open > 1000, "{closed} characters are closed, {open} are not");
}

#[test]
fn training_counts_the_words_of_the_pre_tokenizer() {
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};
    let llama3 = &pre_tokenizers()[2];
    for text in [TEXT.to_owned(), world(7, 500), String::new()] {
        let mut words = PreTokenizedString::from(text.as_str());
        llama3.pre_tokenize(&mut words).unwrap();
        let words = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let wanted: Vec<String> = words.into_iter().map(|(word, ..)| word.to_owned()).collect();
        assert_eq!(llama3_words(&text), wanted);
    }
}

#[test]
fn a_megabyte_of_one_letter_is_no_trouble() {
    let text = "a".repeat(1 << 20);
    for Case { inner, fast, .. } in CASES.iter().take(2) {
        assert_eq!(
            fast.encode(&text, false).unwrap(),
            inner.encode_fast(text.as_str(), false).unwrap().get_ids()
        );
    }
}

#[test]
fn what_is_not_known_stays_with_the_other_engine() {
    let known = || train(pre_tokenizers().swap_remove(0), false);
    assert!(Fast::of(&known()).is_some());
    let refused = |change: &dyn Fn(&mut tokenizers::Tokenizer)| {
        let mut inner = known();
        change(&mut inner);
        inner.set_encode_special_tokens(true);
        Fast::of(&inner).is_none()
    };
    assert!(refused(&|inner| {
        inner.with_normalizer(Some(tokenizers::normalizers::Lowercase)).unwrap();
    }));
    assert!(refused(&|inner| {
        inner.with_pre_tokenizer(Some(ByteLevel::new(true, true, true)));
    }));
    assert!(refused(&|inner| {
        inner.with_pre_tokenizer(Some(tokenizers::pre_tokenizers::metaspace::Metaspace::default()));
    }));
    let model = |change: &dyn Fn(&mut BPE)| {
        refused(&|inner| {
            let ModelWrapper::BPE(model) = inner.get_model() else { unreachable!() };
            let mut model = model.clone();
            change(&mut model);
            inner.with_model(model);
        })
    };
    assert!(model(&|model| model.dropout = Some(0.1)));
    assert!(model(&|model| model.end_of_word_suffix = Some("</w>".into())));
    assert!(model(&|model| model.continuing_subword_prefix = Some("##".into())));
    assert!(!model(&|model| model.continuing_subword_prefix = Some(String::new())));
}

#[test]
fn tokens_that_ask_for_more_than_their_spelling_are_refused() {
    let mut inner = train(pre_tokenizers().swap_remove(0), false);
    inner.add_tokens([AddedToken::from("word", false).single_word(true)]).unwrap();
    inner.set_encode_special_tokens(true);
    assert_eq!(Fast::of(&inner).unwrap().encode("a word", false), None);
    let mut inner = train(pre_tokenizers().swap_remove(0), false);
    inner.add_special_tokens([AddedToken::from("<mask>", true).lstrip(true)]).unwrap();
    inner.set_encode_special_tokens(true);
    let fast = Fast::of(&inner).unwrap();
    assert_eq!(fast.encode("a <mask>", true), None);
    assert_eq!(
        fast.encode("a <mask>", false).unwrap(),
        inner.encode_fast("a <mask>", false).unwrap().get_ids()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_text_has_the_same_ids(text in "\\PC{0,60}|(?s:.{0,40})") {
        check(&text);
    }

    #[test]
    fn dense_text_has_the_same_ids(
        parts in prop::collection::vec(
            prop_oneof![
                Just("'".to_owned()), Just("'S".into()), Just("'ll".into()), Just("'RE".into()), Just("\u{17F}".into()),
                Just(" ".into()), Just("  ".into()), Just("\t".into()), Just("\n".into()), Just("\r\n".into()),
                Just("\u{a0}".into()), Just("\u{3000}".into()), Just("\u{85}".into()), Just("\u{2028}".into()),
                Just("/".into()), Just("<|end|>".into()), Just("<|endless|>".into()), Just("ss|>x".into()),
                Just("ok'".into()), Just("\u{301}".into()), Just("\u{200d}".into()), Just("\u{1F642}".into()),
                Just("ǅ".into()), Just("ʰ".into()), Just("中".into()), Just("ª".into()), Just("Ⅷ".into()), Just("²".into()),
                Just("٣".into()), "[a-e]{1,9}", "[A-C]{1,4}", "[0-9]{1,5}", "[б-ж]{1,8}", "[!-/]{1,3}", "\\PC",
            ],
            0..24,
        )
    ) {
        check(&parts.concat());
    }
}
