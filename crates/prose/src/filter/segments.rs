//! Word segmentation of text without spaces by ICU's dictionaries: longest match first, which counts words well and
//! gets most boundaries right.

use std::sync::LazyLock;

use icu_segmenter::options::WordBreakInvariantOptions;
use icu_segmenter::{WordSegmenter, WordSegmenterBorrowed};

/// Bytes segmented together; the segmenter stores the breaks of the whole piece.
const PIECE: usize = 4096;

static DICTIONARIES: LazyLock<WordSegmenterBorrowed<'static>> =
    LazyLock::new(|| WordSegmenter::new_dictionary(WordBreakInvariantOptions::default()));

/// Passes the start and end of every word and punctuation mark of `text[start..end]`, which must not contain white
/// space, to `each`. Linear in the length, even if nothing is in any dictionary.
pub(super) fn segments(text: &str, start: usize, end: usize, mut each: impl FnMut(usize, usize)) {
    let mut from = start;
    while from < end {
        let to = text.floor_char_boundary(from + PIECE).min(end);
        let (mut next, mut before) = (to, 0);
        for at in DICTIONARIES.segment_str(&text[from..to]).skip(1) {
            // The end of a piece may split a word, so its last word is segmented again with the next piece.
            if from + at == to && to < end && before > 0 {
                next = from + before;
            } else {
                each(from + before, from + at);
            }
            before = at;
        }
        from = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        let mut words = Vec::new();
        segments(text, 0, text.len(), |start, end| words.push(&text[start..end]));
        words
    }

    #[test]
    fn words_are_those_of_the_dictionaries() {
        let check = |text: &str, expected: &[&str]| assert_eq!(words(text), expected, "{text}");
        check("你好，世界。", &["你好", "，", "世界", "。"]);
        check("こんにちは、東京都", &["こんにちは", "、", "東京", "都"]);
        check("สวัสดีชาวโลก", &["สวัสดี", "ชาว", "โลก"]);
        check("iPhone手机3.5", &["iPhone", "手机", "3.5"]);
    }

    #[test]
    fn long_stretches_lose_and_cut_nothing() {
        for (text, count) in [("你好世界".repeat(5000), 10_000), ("x".repeat(10_000), 3)] {
            let found = words(&text);
            assert_eq!((found.concat(), found.len()), (text, count));
        }
    }
}
