//! Filters by name, the sets they form, and their order of evaluation.

use super::ngrams::LONGEST;
use super::options::Set;

/// One filter. Its name is used as the reason of a refusal, the key of its threshold and the name of its score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Filter {
    /// Rejects texts without words; its score is the number of words.
    Empty,
    /// Share of characters outside `[a-zA-Z0-9\n?!,.]` (Gopher, adapted).
    AlphaNumeric,
    /// Words that are an ellipsis or mostly `#`, per word (Gopher).
    SymbolToWord,
    /// Share of ASCII digits.
    NumbersRatio,
    /// Share of characters in URLs.
    UrlsRatio,
    /// Share of tab, newline, carriage return, backspace and space.
    WhiteSpace,
    /// Share of brackets.
    ParenthesesRatio,
    /// Share of paragraphs with policy phrases; 1 with "lorem ipsum" (C4, adapted).
    BoilerplateStringRatio,
    /// Distinct lines per line (Gopher).
    RepeatedLines,
    /// Distinct paragraphs per paragraph (Gopher).
    RepeatedParagraphs,
    /// Characters of distinct lines per character of lines (Gopher).
    RepeatedLinesChar,
    /// Characters of distinct paragraphs per character of paragraphs (Gopher).
    RepeatedParagraphsChar,
    /// Words.
    WordCount,
    /// Share of lines that do not end in `. ? ! " '` (C4).
    Punctuation,
    /// Share of words with a letter (Gopher).
    WordsWithoutAlphabets,
    /// Occurrences of the, be, to, of, and, that, have, with in lower case (Gopher).
    CommonEnglishWords,
    /// Characters per word.
    MeanWordLength,
    /// Characters of the longest word (C4).
    MaxWordLength,
    /// Share of lines that end in an ellipsis or "read more" (C4).
    Ellipsis,
    /// Share of characters removed by deleting the most frequent n-gram (Gopher).
    TopNGram(u8),
    /// Share of characters in repeated n-grams (Gopher).
    DupNGram(u8),
    /// Share of lines that begin with a bullet (Gopher).
    BulletRatio,
    /// 1 if a URL contains "porn".
    PornographicUrls,
    /// 1 if the required substring is in the required position.
    Substring,
    /// datatrove's Gopher repetition: repeated paragraphs per paragraph.
    GopherDupParagraphs,
    /// Characters of repeated paragraphs per character.
    GopherDupParagraphChars,
    /// Repeated lines per line.
    GopherDupLines,
    /// Characters of repeated lines per character.
    GopherDupLineChars,
    /// Characters of the most frequent n-gram's occurrences per character.
    GopherTop(u8),
    /// Characters of repeated n-grams per character.
    GopherDup(u8),
    /// datatrove's Gopher quality: words that are not punctuation.
    GopherWordCount,
    /// Characters per such word.
    GopherMeanWordLength,
    /// `#` per word.
    GopherHashes,
    /// Ellipses per word.
    GopherEllipses,
    /// Share of lines that begin with `•` or `-`.
    GopherBullets,
    /// Share of lines that end in an ellipsis.
    GopherEndEllipses,
    /// Share of words with a letter.
    GopherLetters,
    /// Distinct common English words.
    GopherStopWords,
    /// FineWeb: share of lines that end in terminal punctuation.
    FineWebPunctuation,
    /// Share of short lines.
    FineWebShortLines,
    /// Characters of repeated lines per character.
    FineWebCharDuplicates,
    /// Newlines per word.
    FineWebList,
    /// mC4: characters of the third longest line.
    C4Paragraphs,
}

macro_rules! ngram_names {
    ($prefix:literal, $suffix:literal) => {
        [
            "",
            "",
            concat!($prefix, 2, $suffix),
            concat!($prefix, 3, $suffix),
            concat!($prefix, 4, $suffix),
            concat!($prefix, 5, $suffix),
            concat!($prefix, 6, $suffix),
            concat!($prefix, 7, $suffix),
            concat!($prefix, 8, $suffix),
            concat!($prefix, 9, $suffix),
            concat!($prefix, 10, $suffix),
            concat!($prefix, 11, $suffix),
            concat!($prefix, 12, $suffix),
            concat!($prefix, 13, $suffix),
            concat!($prefix, 14, $suffix),
            concat!($prefix, 15, $suffix),
            concat!($prefix, 16, $suffix),
        ]
    };
}

const TOP: [&str; LONGEST + 1] = ngram_names!("repeating_top_", "grams");
const DUP: [&str; LONGEST + 1] = ngram_names!("repeating_dup_", "gram");
const GOPHER_TOP: [&str; LONGEST + 1] = ngram_names!("gopher_top_", "_gram");
const GOPHER_DUP: [&str; LONGEST + 1] = ngram_names!("gopher_duplicated_", "_n_grams");

impl Filter {
    /// Stable name: reason of a refusal and name of a score.
    pub fn name(self) -> &'static str {
        use Filter::*;
        match self {
            Empty => "empty",
            AlphaNumeric => "alpha_numeric",
            SymbolToWord => "symbol_to_word",
            NumbersRatio => "numbers_ratio",
            UrlsRatio => "urls_ratio",
            WhiteSpace => "white_space",
            ParenthesesRatio => "parentheses_ratio",
            BoilerplateStringRatio => "boilerplate_string_ratio",
            RepeatedLines => "repeated_lines",
            RepeatedParagraphs => "repeated_paragraphs",
            RepeatedLinesChar => "repeated_lines_char",
            RepeatedParagraphsChar => "repeated_paragraphs_char",
            WordCount => "word_count",
            Punctuation => "punctuation",
            WordsWithoutAlphabets => "words_without_alphabets",
            CommonEnglishWords => "common_english_words",
            MeanWordLength => "mean_word_length",
            MaxWordLength => "max_word_length",
            Ellipsis => "ellipsis",
            TopNGram(n) => TOP[n as usize],
            DupNGram(n) => DUP[n as usize],
            BulletRatio => "bullet_ratio",
            PornographicUrls => "pornographic_urls",
            Substring => "substring",
            GopherDupParagraphs => "gopher_dup_para_frac",
            GopherDupParagraphChars => "gopher_dup_para_char_frac",
            GopherDupLines => "gopher_dup_line_frac",
            GopherDupLineChars => "gopher_dup_line_char_frac",
            GopherTop(n) => GOPHER_TOP[n as usize],
            GopherDup(n) => GOPHER_DUP[n as usize],
            GopherWordCount => "gopher_word_count",
            GopherMeanWordLength => "gopher_mean_word_length",
            GopherHashes => "gopher_hashes",
            GopherEllipses => "gopher_ellipses",
            GopherBullets => "gopher_bullets",
            GopherEndEllipses => "gopher_end_ellipses",
            GopherLetters => "gopher_letters",
            GopherStopWords => "gopher_stop_words",
            FineWebPunctuation => "fineweb_line_punct_ratio",
            FineWebShortLines => "fineweb_short_line_ratio",
            FineWebCharDuplicates => "fineweb_char_dup_ratio",
            FineWebList => "fineweb_list_ratio",
            C4Paragraphs => "c4_paragraphs",
        }
    }
}

/// Filters of `set` in their published order; n-gram filters for the lengths listed in the options.
pub(super) fn members(set: Set, o: &super::FilterOptions) -> Vec<Filter> {
    use Filter::*;
    let mut list = Vec::new();
    match set {
        Set::English => curator(o, true, &mut list),
        Set::NonEnglish => curator(o, false, &mut list),
        Set::GopherRepetition => {
            list.extend([GopherDupParagraphs, GopherDupParagraphChars, GopherDupLines, GopherDupLineChars]);
            list.extend(o.gopher.top_ngrams.iter().map(|l| GopherTop(l.n)));
            list.extend(o.gopher.dup_ngrams.iter().map(|l| GopherDup(l.n)));
        }
        Set::GopherQuality => {
            list.extend([GopherWordCount, GopherMeanWordLength, GopherHashes, GopherEllipses]);
            list.extend([GopherBullets, GopherEndEllipses, GopherLetters, GopherStopWords]);
        }
        Set::FineWeb => {
            list.extend([FineWebPunctuation, FineWebShortLines, FineWebCharDuplicates, FineWebList]);
        }
        Set::C4Paragraphs => list.push(C4Paragraphs),
    }
    list
}

fn curator(o: &super::FilterOptions, english: bool, list: &mut Vec<Filter>) {
    use Filter::*;
    if english {
        list.push(AlphaNumeric);
    }
    list.extend([SymbolToWord, NumbersRatio, UrlsRatio]);
    list.extend([WhiteSpace, ParenthesesRatio, BoilerplateStringRatio]);
    list.extend([RepeatedLines, RepeatedParagraphs, RepeatedLinesChar, RepeatedParagraphsChar, WordCount]);
    list.push(Punctuation);
    if english {
        list.extend([WordsWithoutAlphabets, CommonEnglishWords]);
    }
    list.extend([MeanWordLength, MaxWordLength, Ellipsis]);
    list.extend(o.repeating_top_ngrams.iter().map(|l| TopNGram(l.n)));
    list.extend(o.repeating_dup_ngrams.iter().map(|l| DupNGram(l.n)));
    list.push(BulletRatio);
}
