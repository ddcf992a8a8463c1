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

/// New facts of a section, drawn evenly from these.
const FACTS_PER_SECTION: [usize; 6] = [1, 1, 2, 2, 2, 4];
/// Questions until a section is over.
const QUESTIONS_PER_SECTION: usize = 20;
/// Share of questions that may be about any earlier fact of the document.
const LOOK_BACK: f64 = 0.15;
/// Facts of a document at most; their second words stay distinct.
const MOST_FACTS: usize = NOUNS.len() / 2;
/// Filler lines between two questions of a haystack.
const LINES_PER_QUESTION: usize = 12;

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
    /// for now and then and at the end, as in a needle test.
    pub fn document(&self, index: u64, target_bytes: usize) -> String {
        let mut rng = self.rng(1, index);
        match index % 4 {
            0 | 2 => self.sections(&mut rng, target_bytes, 0.0),
            1 => self.sections(&mut rng, target_bytes, 0.5),
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

    /// Sections of one to four new facts and some twenty questions, mostly about these facts.
    ///
    /// Few facts at a time is what makes it learnable. In single runs a decoder of three layers, 128 wide, answered
    /// 80 % of the questions after 150 steps of 2048 tokens with one, two or four facts (most often two) per 256
    /// tokens; with three or four facts in every passage it answered none after 400 to 500 steps.
    fn sections(&self, rng: &mut Rng, target_bytes: usize, filler_share: f64) -> String {
        let (mut facts, mut used): (Vec<Fact>, _) = (Vec::new(), Vec::new());
        let mut filler = Filler::new(&self.filler, rng);
        let mut text = String::new();
        while text.len() < target_bytes {
            let old = facts.len();
            let new = if old + 4 <= MOST_FACTS { *rng.pick(&FACTS_PER_SECTION) } else { 0 };
            for _ in 0..new {
                let fact = self.fact(rng, &mut used);
                push_line(&mut text, &fact.statement());
                facts.push(fact);
            }
            let mut questions = QUESTIONS_PER_SECTION;
            while questions > 0 && text.len() < target_bytes {
                if rng.unit() < filler_share {
                    push_line(&mut text, &filler.line(rng));
                    continue;
                }
                let look_back = new == 0 || (old > 0 && rng.unit() < LOOK_BACK);
                let fact = if look_back { rng.pick(&facts) } else { rng.pick(&facts[old..]) };
                push_line(&mut text, &fact.answered());
                questions -= 1;
            }
        }
        text
    }

    /// Filler with one to three facts in it, each asked for at random places after it and at the end.
    fn haystack(&self, rng: &mut Rng, target_bytes: usize) -> String {
        let mut used = Vec::new();
        let mut facts: Vec<Fact> = (0..1 + rng.index(3)).map(|_| self.fact(rng, &mut used)).collect();
        let closing: usize = facts.iter().map(|f| f.statement().len() + f.answered().len()).sum();
        let mut filler = Filler::new(&self.filler, rng);
        // A slot is a filler line and what follows it.
        let (mut slots, mut bytes) = (vec![String::new()], closing);
        let mut due = LINES_PER_QUESTION;
        let mut planted: Vec<(usize, usize)> = Vec::new();
        while bytes < target_bytes {
            let line = filler.line(rng);
            bytes += line.len() + 1;
            due -= 1;
            if due == 0 {
                // Which fact is asked for here is decided once it is known where the facts lie.
                due = LINES_PER_QUESTION;
                planted.push((slots.len(), rng.index(facts.len())));
                bytes += facts[0].answered().len() + 1;
            }
            slots.push(line + "\n");
        }
        let places: Vec<usize> = facts.iter().map(|_| rng.index(slots.len())).collect();
        for (slot, fact) in planted {
            if places[fact] < slot {
                push_line(&mut slots[slot], &facts[fact].answered());
            }
        }
        for (place, fact) in places.iter().zip(&facts) {
            push_line(&mut slots[*place], &fact.statement());
        }
        rng.shuffle(&mut facts);
        facts.iter().for_each(|fact| slots.push(fact.answered() + "\n"));
        slots.concat()
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
