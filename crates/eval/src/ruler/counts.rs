//! `cwe` and `fwe`: the most frequent words of a list, and of coded text.

use std::collections::BTreeSet;

use super::haystack::{HaystackParts, Sample, Size, twice};
use super::needles::SHORT_TOKENS;
use super::words;
use crate::error::Result;

/// Common words, which are asked for.
const COMMON: usize = 10;
/// Words of the list whose tokens are measured.
const PROBE_WORDS: usize = 4096;
/// Letters of a coded word.
const CODED: usize = 6;
/// Tokens of the length for each coded word of the vocabulary.
const TOKENS_PER_CODED: usize = 50;
/// Zeta(2), which the frequencies of coded words are divided by.
const ZETA_2: f64 = 1.644_934_066_848_226_4;

/// Words to list.
struct Lists {
    own: Vec<&'static str>,
    /// English words for lists that are longer, which RULER has in a file.
    more: Option<Vec<String>>,
}

impl Lists {
    /// Numbered words, and the common ones among them.
    fn example(
        &mut self,
        drawing: &mut HaystackParts<'_>,
        count: usize,
        [common, rare]: [usize; 2],
    ) -> Result<(String, Vec<String>)> {
        if count > self.own.len() && self.more.is_none() {
            let found = drawing.json("english_words.json", "a list of English words for this length")?;
            let words = found.as_object().into_iter().flat_map(|it| it.values());
            self.more = Some(words.filter_map(|word| word.as_str().map(str::to_string)).collect());
        }
        let long = self.more.as_ref().filter(|_| count > self.own.len());
        let drawn = drawing.random.sample(long.map_or(self.own.len(), Vec::len), count);
        let drawn = drawn.ok_or_else(|| drawing.wrong("english_words.json has too few words"))?;
        let word = |at: &usize| long.map_or_else(|| self.own[*at], |more| more[*at].as_str());
        let words: Vec<&str> = drawn.iter().map(word).collect();
        let (often, seldom) = words.split_at(COMMON.min(words.len()));
        let mut all = [often.repeat(common), seldom.repeat(rare)].concat();
        drawing.fixed().shuffle(&mut all);
        let often: Vec<String> = often.iter().map(|word| word.to_string()).collect();
        Ok((numbered(&all), often))
    }
}

fn numbered<T: std::fmt::Display>(words: &[T]) -> String {
    let lines: Vec<String> =
        words.iter().enumerate().map(|(at, word)| format!("{}. {word}", at + 1)).collect();
    lines.join(" ")
}

/// The samples of `cwe`.
///
/// # Errors
/// The length is too short, or needs a file of words.
pub fn common_words(drawing: &mut HaystackParts<'_>, count: usize) -> Result<Vec<Sample>> {
    let mut own = words::all();
    drawing.fixed().shuffle(&mut own);
    let mut lists = Lists { own, more: None };
    let ask = |context: &str| {
        format!(
            "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that appear most \
             often.\n{context}\nQuestion: What are the 10 most common words in the above list? Answer: The top 10 words that appear most \
             often in the list are:"
        )
    };
    let mut draw = |drawing: &mut HaystackParts<'_>, count: usize| {
        let short = drawing.tokens < SHORT_TOKENS;
        let (shown, repeats) = if short { (20, [3, 1]) } else { (40, [10, 3]) };
        let (context, answers) = lists.example(drawing, shown, repeats)?;
        let example = format!("{} {}", ask(&context), numbered(&answers));
        let (context, answers) = lists.example(drawing, count, if short { [6, 1] } else { [30, 3] })?;
        Ok((format!("{example}\n{}", ask(&context)), answers))
    };
    let size = Size { step: 10, probe: PROBE_WORDS, bound: twice, extra: drawing.answer_tokens };
    let words = drawing.largest(&size, &mut draw)?;
    (0..count).map(|_| drawing.sample(&size, words, &mut draw)).collect()
}

/// A coded text of at most `words` words, whose frequencies follow a zeta distribution, and the three most frequent.
fn coded(drawing: &HaystackParts<'_>, vocabulary: &[String], words: usize) -> (String, Vec<String>) {
    let mut all: Vec<&str> = Vec::new();
    for (at, word) in vocabulary.iter().enumerate() {
        let often = (words as f64 * ((at + 1) as f64).powf(-2.0) / ZETA_2) as usize;
        all.extend(std::iter::repeat_n(word.as_str(), often));
    }
    drawing.fixed().shuffle(&mut all);
    let text = format!(
        "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared coded words. \
         {}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently appeared words in \
         the above coded text? Answer: According to the coded text above, the three most frequently appeared words are:",
        all.join(" ")
    );
    (text, vocabulary.iter().skip(1).take(3).cloned().collect())
}

/// Coded words in the order of their frequency; the first stands for noise.
fn vocabulary(drawing: &mut HaystackParts<'_>, size: usize) -> Vec<String> {
    let mut words = BTreeSet::new();
    for _ in 0..size {
        words.insert(drawing.letters(b'a', CODED));
    }
    while words.len() < size {
        words.insert(drawing.letters(b'a', CODED));
    }
    let mut words: Vec<String> = words.into_iter().collect();
    drawing.fixed().shuffle(&mut words);
    if let Some(first) = words.first_mut() {
        *first = "...".into();
    }
    words
}

/// The samples of `fwe`.
///
/// # Errors
/// The length is too short.
pub fn frequent_words(drawing: &mut HaystackParts<'_>, count: usize) -> Result<Vec<Sample>> {
    let room = drawing.most.saturating_sub(drawing.answer_tokens);
    let (size, step) = (room / TOKENS_PER_CODED, room / 32);
    if size < 4 || step == 0 {
        return Err(drawing.wrong(format!("a length of {} is too short", drawing.most)));
    }
    let words = vocabulary(drawing, size);
    let mut most = room / CODED;
    while drawing.count(&coded(drawing, &words, most).0)? < room {
        most += step;
    }
    most -= step;
    let mut samples = Vec::with_capacity(count);
    for _ in 0..count {
        let words = vocabulary(drawing, size);
        let mut used = most;
        let (text, answers, tokens) = loop {
            let (text, answers) = coded(drawing, &words, used);
            let tokens = drawing.count(&text)?;
            if tokens <= room {
                break (text, answers, tokens);
            }
            used = used.checked_sub(step).filter(|used| *used > 0).ok_or_else(|| {
                drawing.wrong(format!("a length of {} is too short for this tokenizer", drawing.most))
            })?;
        };
        samples.push(Sample { text, answers, tokens: tokens + drawing.answer_tokens });
    }
    Ok(samples)
}
