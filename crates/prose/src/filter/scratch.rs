//! Per-thread state: buffers, and the facts of the current text computed so far.

use super::chars::CharFacts;
use super::lines::{Bag, LineFacts, Pieces, find_lines, find_paragraphs};
use super::ngrams::{DupRule, NGrams, NgramCounts, NgramRequest, Row};
use super::options::WordRule;
use super::repetition::{gopher_lines, gopher_paragraphs};
use super::table::Table;
use super::tokens::Tokens;
use super::unicode::split_lines;
use super::urls::UrlFacts;
use super::words::Words;
use memchr::memmem;

/// Working memory of a thread. Calls do not depend on earlier contents.
#[derive(Default)]
pub struct Scratch {
    chars: Option<CharFacts>,
    lines: Option<LineFacts>,
    urls: Option<UrlFacts>,
    paragraphs: Option<Pieces>,
    gopher_lines: Option<Pieces>,
    gopher_paragraphs: Option<Pieces>,
    gopher_marks: Option<GopherMarks>,
    has_words: bool,
    has_tokens: bool,
    has_ngrams: bool,
    has_token_ngrams: bool,
    words: Words,
    tokens: Tokens,
    found: NgramCounts,
    token_found: NgramCounts,
    ngrams: NGrams,
    table: Table,
    bag: Bag,
    joined: String,
}

/// Counts for Gopher's line and symbol rules.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GopherMarks {
    pub(super) hashes: u32,
    pub(super) ellipses: u32,
    pub(super) lines: u32,
    pub(super) bullets: u32,
    pub(super) end_ellipses: u32,
}

/// Requirements of the enabled filters.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    pub(super) rule: WordRule,
    pub(super) short: u32,
    pub(super) ngrams: usize,
    pub(super) token_ngrams: usize,
}

/// A text and its lazily computed facts.
pub(super) struct View<'a> {
    pub(super) text: &'a str,
    needs: &'a Needs,
    s: &'a mut Scratch,
}

impl<'a> View<'a> {
    pub(super) fn new(text: &'a str, needs: &'a Needs, s: &'a mut Scratch) -> Self {
        (s.chars, s.lines, s.urls, s.paragraphs) = (None, None, None, None);
        (s.gopher_lines, s.gopher_paragraphs, s.gopher_marks) = (None, None, None);
        (s.has_words, s.has_tokens, s.has_ngrams, s.has_token_ngrams) = (false, false, false, false);
        View { text, needs, s }
    }

    pub(super) fn chars(&mut self) -> CharFacts {
        *self.s.chars.get_or_insert_with(|| CharFacts::of(self.text))
    }

    pub(super) fn urls(&mut self) -> UrlFacts {
        *self.s.urls.get_or_insert_with(|| UrlFacts::of(self.text))
    }

    pub(super) fn lines(&mut self) -> LineFacts {
        let Scratch { lines, bag, table, .. } = &mut *self.s;
        *lines.get_or_insert_with(|| find_lines(self.text, self.needs.short, bag, table))
    }

    pub(super) fn paragraphs(&mut self) -> Pieces {
        let Scratch { paragraphs, bag, table, .. } = &mut *self.s;
        *paragraphs.get_or_insert_with(|| find_paragraphs(self.text, bag, table))
    }

    pub(super) fn gopher_lines(&mut self) -> Pieces {
        let Scratch { gopher_lines: known, bag, table, .. } = &mut *self.s;
        *known.get_or_insert_with(|| gopher_lines(self.text, bag, table))
    }

    pub(super) fn gopher_paragraphs(&mut self) -> Pieces {
        let Scratch { gopher_paragraphs: known, bag, table, .. } = &mut *self.s;
        *known.get_or_insert_with(|| gopher_paragraphs(self.text, bag, table))
    }

    pub(super) fn gopher_marks(&mut self) -> GopherMarks {
        *self.s.gopher_marks.get_or_insert_with(|| gopher_marks(self.text))
    }

    /// Returns true if the text may be in a script without spaces, whose punctuation counts like its words.
    pub(super) fn finds_words_by_dictionary(&self) -> bool {
        self.needs.rule == WordRule::Dictionary
    }

    pub(super) fn words(&mut self) -> &Words {
        if !self.s.has_words {
            self.s.words.find(self.text, self.needs.rule);
            self.s.has_words = true;
        }
        &self.s.words
    }

    pub(super) fn tokens(&mut self) -> &Tokens {
        if !self.s.has_tokens {
            if self.needs.rule == WordRule::Unicode {
                self.s.words.find(self.text, WordRule::Spaces);
                self.s.has_words = false;
            } else {
                self.words();
            }
            self.s.tokens.find(self.text, &self.s.words.spans);
            self.s.has_tokens = true;
        }
        &self.s.tokens
    }

    /// Repeated n-grams of words.
    pub(super) fn ngrams(&mut self) -> &NgramCounts {
        self.words();
        let s = &mut *self.s;
        if !s.has_ngrams {
            let wanted = NgramRequest { longest: self.needs.ngrams, rule: DupRule::Overlap };
            let Words { hashes, chars, gaps, .. } = &s.words;
            s.ngrams.climb(Row { hashes, chars, gaps }, &wanted, &mut s.table, &mut s.found);
            s.has_ngrams = true;
        }
        &s.found
    }

    /// Repeated n-grams of tokens.
    pub(super) fn token_ngrams(&mut self) -> &NgramCounts {
        self.tokens();
        let s = &mut *self.s;
        if !s.has_token_ngrams {
            let wanted = NgramRequest { longest: self.needs.token_ngrams, rule: DupRule::Skip };
            let row = Row { hashes: &s.tokens.hashes, chars: &s.tokens.chars, gaps: &[] };
            s.ngrams.climb(row, &wanted, &mut s.table, &mut s.token_found);
            s.has_token_ngrams = true;
        }
        &s.token_found
    }

    /// Number of characters removed by deleting the most frequent n-gram of `n` words from the text; `None` if the
    /// text has fewer words.
    ///
    /// This is Curator's measure: the words, joined by single spaces (or directly if they are adjacent), are searched
    /// in the text. Under the Unicode rule there may be punctuation between words, so the range from the first to the
    /// last word is searched.
    pub(super) fn top_ngram_chars(&mut self, n: usize) -> Option<u64> {
        let top = self.ngrams().top[n];
        if top.count == 0 {
            return None;
        }
        let (text, rule) = (self.text, self.needs.rule);
        let s = &mut *self.s;
        let first = top.word as usize;
        let spans = &s.words.spans[first..first + n];
        s.joined.clear();
        if rule == WordRule::Unicode {
            s.joined.push_str(&text[spans[0].0 as usize..spans[n - 1].1 as usize]);
        } else {
            let mut behind = spans[0].0;
            for &(start, end) in spans {
                if start > behind {
                    s.joined.push(' ');
                }
                s.joined.push_str(&text[start as usize..end as usize]);
                behind = end;
            }
        }
        let times = memmem::find_iter(text.as_bytes(), s.joined.as_bytes()).count() as u64;
        Some(times * super::unicode::count_chars(s.joined.as_bytes()) as u64)
    }

    /// Occurrences of the most frequent token n-gram times its characters including spaces; 0 if the text has fewer
    /// tokens.
    pub(super) fn top_token_ngram_chars(&mut self, n: usize) -> u64 {
        let top = self.token_ngrams().top[n];
        if top.count == 0 {
            return 0;
        }
        let chars = &self.s.tokens.chars;
        let first = top.word as usize;
        u64::from(top.count) * (u64::from(chars[first + n] - chars[first]) + n as u64 - 1)
    }
}

fn gopher_marks(text: &str) -> GopherMarks {
    let bytes = text.as_bytes();
    let mut marks = GopherMarks {
        hashes: memchr::memchr_iter(b'#', bytes).count() as u32,
        ellipses: (memmem::find_iter(bytes, "...").count() + memmem::find_iter(bytes, "…").count()) as u32,
        ..GopherMarks::default()
    };
    for line in split_lines(text) {
        let stripped = super::lines::fast_strip(line);
        marks.lines += 1;
        marks.bullets += u32::from(stripped.starts_with(['•', '-']));
        marks.end_ellipses += u32::from(stripped.ends_with("...") || stripped.ends_with('…'));
    }
    marks
}
