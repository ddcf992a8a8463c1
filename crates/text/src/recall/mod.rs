//! Synthetic recall: documents that train a model to look up a value by its key, however far back, and prompts that
//! test this ability ("needle in a haystack", passkey).
//!
//! A fact is a line `Remember the words amber fox river.`: a key of two words directly followed by its value, as in
//! the associative recall of Arora et al. 2023 (arXiv:2312.04927). A question repeats the key, and the answer
//! follows: `Which word follows amber fox? The words amber fox river.` A value directly after its key uses the
//! mechanism that a small model learns first: find an earlier occurrence of these words and copy what followed. With
//! `The value of key amber fox is river.` the same model answers 1 % within 2K tokens, because the same word precedes
//! every value. Keys are two common words; within a document no two keys share their second word.
//!
//! A fifth of all keys, selected by a hash, occurs only in the test split, so a right answer there was looked up
//! rather than memorized.

mod words;

use crate::error::{Error, Result};
use crate::rng::Rng;
use crate::store::{Store, content_hash};
use crate::tokenizer::Tokenizer;
use words::{ADJECTIVES, NOUNS, VALUES};

/// Source name of [`RecallGenerator::document`]s in a store.
pub const RECALL: &str = "synthetic recall";
/// Source name of [`RecallGenerator::drill`]s in a store.
pub const DRILL: &str = "synthetic drill";

/// Returns true for synthetic sources: drills and recall documents.
pub fn is_synthetic(source: &str) -> bool {
    [DRILL, RECALL].contains(&source)
}

/// Indices of a store's documents that are not synthetic.
pub fn real_documents(store: &Store) -> impl Iterator<Item = usize> {
    let sources = store.header().map_or(&[][..], |header| &header.sources);
    let source = |doc| store.doc_meta(doc).and_then(|meta| sources.get(meta.source as usize));
    (0..store.num_documents()).filter(move |doc| source(*doc).is_none_or(|name| !is_synthetic(name)))
}

/// Subset of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Four fifths of the keys.
    Train,
    /// The remaining fifth.
    Test,
}

impl Split {
    /// Split that a key belongs to.
    pub fn of_key(key: &str) -> Self {
        if content_hash(key.as_bytes()).is_multiple_of(5) { Self::Test } else { Self::Train }
    }
}

/// A test prompt and its expected continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needle {
    /// Filler with the fact inside, then the question up to the value; without a trailing space.
    pub prompt: String,
    /// The value. A model is right if its output, without leading space, begins with it.
    pub answer: String,
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
}

/// Generates recall documents and prompts; each is a function of (seed, split, index).
#[derive(Clone, Debug)]
pub struct RecallGenerator {
    seed: u64,
    split: Split,
    filler: Vec<String>,
}

/// A key and its value.
struct Fact {
    key: String,
    value: &'static str,
}

impl Fact {
    fn statement(&self) -> String {
        format!("Remember the words {} {}.", self.key, self.value)
    }

    /// Question, and the answer up to the value.
    fn question(&self) -> String {
        format!("Which word follows {0}? The words {0}", self.key)
    }

    fn answered(&self) -> String {
        format!("{} {}.", self.question(), self.value)
    }
}

/// Number of new facts per section, drawn uniformly from these.
const FACTS_PER_SECTION: [usize; 6] = [1, 1, 2, 2, 2, 4];
const QUESTIONS_PER_SECTION: usize = 12;
/// Number of filler lines between two rounds or questions of every second drill, drawn uniformly from these. A model
/// learns to copy from nearby first, and only from nearby if nothing is more distant; but with gaps everywhere it
/// learns hardly anything.
const GAPS: [usize; 6] = [0, 0, 1, 2, 4, 8];
/// Number of facts per round of a drill, drawn uniformly from these.
const FACTS_PER_DRILL: [usize; 4] = [2, 3, 5, 8];
/// Number of words per list, drawn uniformly from these.
const WORDS_PER_LIST: [usize; 4] = [6, 12, 20, 32];
/// Number of times a list is stated.
const REPEATS: usize = 4;
/// Number of times a set is stated.
const ROUNDS_PER_DRILL: usize = 5;
/// Maximum number of facts per document; keeps their second words distinct.
const MOST_FACTS: usize = NOUNS.len() / 2;
/// Minimum number of document lines per fact, including facts and questions.
const LINES_PER_FACT: usize = 8;
/// Number of document lines per question.
const LINES_PER_QUESTION: usize = 3;

impl RecallGenerator {
    /// Creates a generator without filler text; generated sentences take its place.
    pub fn new(seed: u64, split: Split) -> Self {
        Self { seed, split, filler: Vec::new() }
    }

    /// Uses these lines of real text, in order, between facts and questions.
    pub fn with_filler(mut self, lines: Vec<String>) -> Self {
        self.filler = lines;
        self
    }

    /// A document of about `target_bytes` (at least a few lines): filler with facts spread over it, as in a needle
    /// test, and questions in between. The distance to a fact's last statement covers all orders of magnitude, larger
    /// ones more often, so that a window of any length contains questions together with their facts.
    pub fn document(&self, index: u64, target_bytes: usize) -> String {
        let mut rng = self.rng(1, index);
        let mut filler = Filler::new(&self.filler, &mut rng);
        let (mut facts, mut used): (Vec<(usize, Fact)>, _) = (Vec::new(), Vec::new());
        let expected_lines = target_bytes / BYTES_PER_LINE;
        let lines_per_fact = LINES_PER_FACT.max(expected_lines / MOST_FACTS + 1);
        let (mut text, mut line) = (String::new(), 0);
        while text.len() < target_bytes {
            if line % lines_per_fact == 0 && facts.len() < MOST_FACTS {
                let fact = self.fact(&mut rng, &mut used);
                push_line(&mut text, &fact.statement());
                facts.push((line, fact));
            } else if line % LINES_PER_QUESTION == LINES_PER_QUESTION - 1 {
                let back = (line as f64).powf(rng.unit().sqrt());
                let distance = |stated: usize| ((line - stated) as f64 / back).ln().abs();
                let nearest = facts.iter_mut().min_by(|a, b| distance(a.0).total_cmp(&distance(b.0)));
                if let Some((stated, fact)) = nearest {
                    *stated = line;
                    push_line(&mut text, &fact.answered());
                }
            } else {
                push_line(&mut text, &filler.line(&mut rng));
            }
            line += 1;
        }
        text
    }

    /// A dense document of about `target_bytes`. Depending on the index, it has one of three forms: repeated lists of
    /// words, in which from the second repetition on every word can be predicted by looking up the previous one,
    /// which is the first thing that a model learns to copy (Olsson et al. 2022, arXiv:2209.11895, use such sequences
    /// to find the responsible heads); sets of facts, each stated several times in different orders; and facts with
    /// questions about them.
    pub fn drill(&self, index: u64, target_bytes: usize) -> String {
        let mut rng = self.rng(3, index);
        let mut filler = Filler::new(&self.filler, &mut rng);
        let mut text = String::new();
        while text.len() < target_bytes {
            let lines = match index % 3 {
                0 => repeats(&mut rng),
                1 => self.rounds(&mut rng),
                _ => self.section(&mut rng),
            };
            for line in lines {
                push_line(&mut text, &line);
                let gap = if index % 6 < 3 { 0 } else { *rng.pick(&GAPS) };
                (0..gap).for_each(|_| push_line(&mut text, &filler.line(&mut rng)));
            }
        }
        text
    }

    /// A prompt of at most, and close to, `target_tokens` tokens: consecutive filler lines from a random position on,
    /// the fact at `depth` (0 at the start, 1 right before the question), then the question.
    ///
    /// # Errors
    /// The length is too short for the fact and the question, or the tokenizer fails.
    pub fn needle_prompt(
        &self,
        index: u64,
        target_tokens: usize,
        depth: f64,
        tokenizer: &Tokenizer,
        filler: &[String],
    ) -> Result<Needle> {
        let mut rng = self.rng(2, index);
        let fact = self.fact(&mut rng, &mut Vec::new());
        let count = |line: &str| Ok::<_, Error>(tokenizer.encode(&format!("{line}\n"))?.len());
        let fixed = count(&fact.statement())? + count(&fact.question())?;
        if fixed > target_tokens {
            return Err(Error::Documents(format!(
                "a needle prompt needs {fixed} tokens without any filler; {target_tokens} were asked for"
            )));
        }
        let mut source = Filler::new(filler, &mut rng);
        let mut lines: Vec<(String, usize)> = Vec::new();
        let mut total = fixed;
        loop {
            let line = source.line(&mut rng);
            let tokens = count(&line)?;
            if total + tokens > target_tokens {
                break;
            }
            total += tokens;
            lines.push((line, tokens));
        }
        loop {
            let prompt = plant(&lines, &fact, depth);
            // Tokens may span lines, so only the count of the whole prompt is exact.
            let prompt_tokens = tokenizer.encode(&prompt)?.len();
            if prompt_tokens <= target_tokens || lines.pop().is_none() {
                return Ok(Needle { prompt, answer: fact.value.to_owned(), prompt_tokens });
            }
        }
    }

    fn rng(&self, purpose: u64, index: u64) -> Rng {
        Rng::keyed(&[self.seed, self.split as u64, purpose, index])
    }

    /// A fact with a key of this split whose second word is not in `used`; adds the word there.
    fn fact(&self, rng: &mut Rng, used: &mut Vec<&'static str>) -> Fact {
        loop {
            let noun = *rng.pick(&NOUNS);
            let key = format!("{} {noun}", rng.pick(&ADJECTIVES));
            if !used.contains(&noun) && Split::of_key(&key) == self.split {
                used.push(noun);
                let value = *rng.pick(&VALUES);
                return Fact { key, value };
            }
        }
    }

    /// Facts, followed by questions about them.
    fn section(&self, rng: &mut Rng) -> Vec<String> {
        let (mut used, count) = (Vec::new(), *rng.pick(&FACTS_PER_SECTION));
        let facts: Vec<Fact> = (0..count).map(|_| self.fact(rng, &mut used)).collect();
        let mut lines: Vec<String> = facts.iter().map(Fact::statement).collect();
        lines.extend((0..QUESTIONS_PER_SECTION).map(|_| rng.pick(&facts).answered()));
        lines
    }

    /// A set of facts, stated repeatedly.
    fn rounds(&self, rng: &mut Rng) -> Vec<String> {
        let (mut used, count) = (Vec::new(), *rng.pick(&FACTS_PER_DRILL));
        let mut facts: Vec<Fact> = (0..count).map(|_| self.fact(rng, &mut used)).collect();
        let round = |_| {
            let stated: Vec<String> =
                facts.iter().map(|fact| format!("{} {}", fact.key, fact.value)).collect();
            rng.shuffle(&mut facts);
            format!("The words {}.", stated.join(", "))
        };
        (0..ROUNDS_PER_DRILL).map(round).collect()
    }
}

/// A list of distinct words, none of them a key, stated repeatedly.
fn repeats(rng: &mut Rng) -> Vec<String> {
    let mut words: Vec<&str> = NOUNS.iter().chain(&VALUES).copied().collect();
    rng.shuffle(&mut words);
    words.truncate(*rng.pick(&WORDS_PER_LIST));
    vec![format!("{}.", words.join(" ")); REPEATS]
}

/// Consecutive filler lines from a random position, or generated sentences if there are none.
struct Filler<'f> {
    lines: &'f [String],
    next: usize,
}

/// Approximate bytes per filler line.
const BYTES_PER_LINE: usize = 48;
/// Maximum bytes of a filler line; longer ones are truncated at a character, so that no line dominates a prompt.
const MAX_FILLER_BYTES: usize = 240;

impl<'f> Filler<'f> {
    fn new(lines: &'f [String], rng: &mut Rng) -> Self {
        Self { lines, next: if lines.is_empty() { 0 } else { rng.index(lines.len()) } }
    }

    fn line(&mut self, rng: &mut Rng) -> String {
        // Skip blank lines; after a full round without a usable line there is none.
        for _ in 0..self.lines.len() {
            let line = self.lines[self.next].trim_end();
            self.next = (self.next + 1) % self.lines.len();
            if !line.trim().is_empty() && !line.contains('\n') {
                return line[..line.floor_char_boundary(MAX_FILLER_BYTES)].to_owned();
            }
        }
        let (what, place) = (rng.pick(&VALUES), rng.pick(&VALUES));
        let how =
            ["was quiet that day", "could be seen from afar", "had been there for years", "is easy to find"];
        format!("The {what} near the {place} {}.", rng.pick(&how))
    }
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// Inserts the fact after a share `depth` of the filler's tokens, and appends the question.
fn plant(lines: &[(String, usize)], fact: &Fact, depth: f64) -> String {
    let total: usize = lines.iter().map(|(_, tokens)| tokens).sum();
    let before_fact = total as f64 * depth.clamp(0.0, 1.0);
    let (mut text, mut before, mut planted) = (String::new(), 0, false);
    for (line, tokens) in lines {
        if !planted && before as f64 + *tokens as f64 / 2.0 > before_fact {
            push_line(&mut text, &fact.statement());
            planted = true;
        }
        push_line(&mut text, line);
        before += tokens;
    }
    if !planted {
        push_line(&mut text, &fact.statement());
    }
    text + &fact.question()
}
