//! Synthetic recall: documents that teach a model to look a value up by its key, however far back, and prompts that
//! test it ("needle in a haystack", passkey).
//!
//! A fact is a line `The value of key amber falcon is river.`; a question repeats the key, and the answer follows it
//! in the same words as in the fact. The words before the value are therefore the same in the fact and after the
//! question, which lets a small model solve it by the mechanism it learns first: find where these words stood before
//! and copy what followed. Keys are two common words; within a document no two keys share their second word.
//!
//! A fifth of all keys, chosen by a hash, occurs only in the test split, so a right answer there was looked up and not
//! learned by heart.

mod words;

use crate::error::{Error, Result};
use crate::rng::Rng;
use crate::store::content_hash;
use crate::tokenizer::Tokenizer;
use words::{ADJECTIVES, NOUNS, VALUES};

/// Which keys may occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Four fifths of the keys.
    Train,
    /// The other fifth.
    Test,
}

impl Split {
    /// The split that a key belongs to.
    pub fn of_key(key: &str) -> Self {
        if content_hash(key.as_bytes()).is_multiple_of(5) { Self::Test } else { Self::Train }
    }
}

/// A test prompt and what a model should say next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needle {
    /// Filler with the fact inside, then the question up to the value; no space at the end.
    pub prompt: String,
    /// The value. A model is right if what it generates, without leading space, begins with it.
    pub answer: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
}

/// Makes recall documents and prompts; each is a function of (seed, split, index).
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
        format!("The value of key {} is {}.", self.key, self.value)
    }

    /// The question and the answer up to the value.
    fn question(&self) -> String {
        format!("What is the value of key {0}? The value of key {0} is", self.key)
    }

    fn answered(&self) -> String {
        format!("{} {}.", self.question(), self.value)
    }
}

/// How much of a document is what.
struct Mix {
    /// Share of lines that are filler.
    filler: f64,
    /// Share of the other lines that are new facts; the rest are questions.
    facts: f64,
}

impl RecallGenerator {
    /// A generator without filler text of its own; plain made-up sentences take its place.
    pub fn new(seed: u64, split: Split) -> Self {
        Self { seed, split, filler: Vec::new() }
    }

    /// Uses these lines, taken from real text in their order, between facts and questions.
    pub fn with_filler(mut self, lines: Vec<String>) -> Self {
        self.filler = lines;
        self
    }

    /// A document of about `target_bytes` (at least a few lines). By index in turn: two dense ones, in which every
    /// line is a fact or a question; one in which half the lines are filler; one of filler with few facts, asked
    /// for at the end, as in a needle test.
    pub fn document(&self, index: u64, target_bytes: usize) -> String {
        let mut rng = self.rng(1, index);
        match index % 4 {
            0 | 2 => self.mixed(&mut rng, target_bytes, &Mix { filler: 0.0, facts: 0.3 }),
            1 => self.mixed(&mut rng, target_bytes, &Mix { filler: 0.5, facts: 0.3 }),
            _ => self.haystack(&mut rng, target_bytes),
        }
    }

    /// A prompt of at most `target_tokens` tokens, and close to it: filler lines in their order from a random place
    /// on, the fact at `depth` (0 at the start, 1 right before the question), then the question.
    ///
    /// # Errors
    /// The length does not even hold the fact and the question, or the tokenizer fails.
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
            // Tokens may join across lines, so only the whole prompt's count is certain.
            let prompt_tokens = tokenizer.encode(&prompt)?.len();
            if prompt_tokens <= target_tokens || lines.pop().is_none() {
                return Ok(Needle { prompt, answer: fact.value.to_owned(), prompt_tokens });
            }
        }
    }

    fn rng(&self, purpose: u64, index: u64) -> Rng {
        Rng::keyed(&[self.seed, self.split as u64, purpose, index])
    }

    /// A fact with a key of this split whose second word is not in `used`; notes the word there.
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

    fn mixed(&self, rng: &mut Rng, target_bytes: usize, mix: &Mix) -> String {
        let most_facts = NOUNS.len() / 2;
        let (mut facts, mut used) = (Vec::new(), Vec::new());
        let mut filler = Filler::new(&self.filler, rng);
        let mut text = String::new();
        while text.len() < target_bytes {
            if rng.unit() < mix.filler {
                push_line(&mut text, &filler.line(rng));
            } else if facts.len() < 2 || (facts.len() < most_facts && rng.unit() < mix.facts) {
                let fact = self.fact(rng, &mut used);
                push_line(&mut text, &fact.statement());
                facts.push(fact);
            } else {
                // Ranks back from the newest fact, log-uniform: near and far ones are asked for equally often.
                let back = (facts.len() as f64).powf(rng.unit()) as usize;
                let fact: &Fact = &facts[facts.len() - back.clamp(1, facts.len())];
                push_line(&mut text, &fact.answered());
            }
        }
        text
    }

    /// Filler with one to four facts anywhere, all asked for at the end, in random order.
    fn haystack(&self, rng: &mut Rng, target_bytes: usize) -> String {
        let mut used = Vec::new();
        let mut facts: Vec<Fact> = (0..1 + rng.index(4)).map(|_| self.fact(rng, &mut used)).collect();
        let room =
            target_bytes.saturating_sub(facts.iter().map(|f| f.statement().len() + f.answered().len()).sum());
        let mut filler = Filler::new(&self.filler, rng);
        let (mut lines, mut bytes) = (Vec::new(), 0);
        while bytes < room {
            let line = filler.line(rng);
            bytes += line.len() + 1;
            lines.push(line);
        }
        for fact in &facts {
            lines.insert(rng.index(lines.len() + 1), fact.statement());
        }
        rng.shuffle(&mut facts);
        lines.extend(facts.iter().map(Fact::answered));
        let mut text = String::with_capacity(target_bytes);
        lines.iter().for_each(|line| push_line(&mut text, line));
        text
    }
}

/// Filler lines one after another from a random place, or made-up sentences when there are none.
struct Filler<'f> {
    lines: &'f [String],
    next: usize,
}

/// Longer filler lines are cut (at a character), so that one line cannot be most of a prompt.
const MAX_FILLER_BYTES: usize = 240;

impl<'f> Filler<'f> {
    fn new(lines: &'f [String], rng: &mut Rng) -> Self {
        Self { lines, next: if lines.is_empty() { 0 } else { rng.index(lines.len()) } }
    }

    fn line(&mut self, rng: &mut Rng) -> String {
        // Blank lines say nothing; after a full round without a line there is none to find.
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

/// Puts the fact where `depth` of the filler's tokens are before it, and the question at the end.
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
