//! `niah_*`: keys and values among sentences of noise, of other needles, or of essays.

use super::haystack::{HaystackParts, Size, thrice};
use super::words::Pairs;
use crate::error::Result;

/// Sentence of noise.
pub const NOISE: &str =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
/// Length below which haystacks grow by small steps.
pub const SHORT_TOKENS: usize = 4096;

/// Text between the needles.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hay {
    Noise,
    Needles,
    Essays,
}

/// Kind of keys and values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Words,
    Numbers,
    Uuids,
}

/// A task of needles.
#[derive(Clone, Copy)]
pub struct Needles {
    pub hay: Hay,
    pub key: Kind,
    pub value: Kind,
    /// Keys, values of each, and keys that are asked for.
    pub keys: usize,
    pub values: usize,
    pub asked: usize,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Words => "words",
            Kind::Numbers => "numbers",
            Kind::Uuids => "uuids",
        }
    }

    fn draw(self, drawing: &mut HaystackParts<'_>, pairs: &Pairs) -> String {
        let random = &mut drawing.random;
        match self {
            Kind::Words => pairs.get(random.below(pairs.count())),
            Kind::Numbers => random.int(1_000_000, 9_999_999).to_string(),
            Kind::Uuids => {
                let bits = (0..4).fold(0u128, |bits, at| bits | u128::from(random.next_u32()) << (32 * at));
                // Version 4 of RFC 4122.
                let bits = bits & !(0xc000 << 48) | 0x8000 << 48;
                let bits = bits & !(0xf000 << 64) | 0x4000 << 64;
                let hex = format!("{bits:032x}");
                [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
            }
        }
    }
}

impl Needles {
    /// The step of the haystack's size.
    pub fn size(&self, drawing: &HaystackParts<'_>) -> Size {
        let step = match self.hay {
            Hay::Essays => 500,
            _ if drawing.tokens < SHORT_TOKENS => 5,
            _ => 25,
        };
        Size { step, probe: step, bound: thrice, extra: drawing.answer_tokens }
    }

    fn needle(&self, drawing: &mut HaystackParts<'_>, pairs: &Pairs, key: &str) -> (String, String) {
        let value = self.value.draw(drawing, pairs);
        (format!("One of the special magic {} for {key} is: {value}.", self.value.name()), value)
    }

    /// A prompt over a haystack of a size, and the values that are asked for.
    ///
    /// # Errors
    /// The haystack is too small for the needles.
    pub fn draw(
        &self,
        drawing: &mut HaystackParts<'_>,
        (pairs, essay): (&Pairs, &[String]),
        size: usize,
    ) -> Result<(String, Vec<String>)> {
        let (mut keys, mut values, mut needles) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.keys {
            let key = self.key.draw(drawing, pairs);
            let of_key = (0..self.values).map(|_| self.needle(drawing, pairs, &key));
            let (texts, own): (Vec<String>, Vec<String>) = of_key.unzip();
            needles.extend(texts);
            keys.push(key);
            values.push(own);
        }
        drawing.fixed().shuffle(&mut needles);
        let too_few =
            |drawing: &HaystackParts<'_>| drawing.wrong("has more needles than sentences around them");
        let context = if self.hay == Hay::Essays {
            drawing.planted(essay, size, &needles)?
        } else {
            let mut sentences: Vec<String> = Vec::with_capacity(size + needles.len());
            for _ in 0..size {
                sentences.push(if self.hay == Hay::Noise {
                    NOISE.to_string()
                } else {
                    let key = self.key.draw(drawing, pairs);
                    self.needle(drawing, pairs, &key).0
                });
            }
            let mut places = drawing.random.sample(size, needles.len()).ok_or_else(|| too_few(drawing))?;
            places.sort_unstable_by(|a, b| b.cmp(a));
            places.into_iter().zip(needles).for_each(|(place, needle)| sentences.insert(place, needle));
            sentences.join("\n")
        };
        let asked = drawing.random.sample(self.keys, self.asked).ok_or_else(|| too_few(drawing))?;
        let query = match asked.split_last() {
            Some((last, first)) if !first.is_empty() => {
                let first: Vec<&str> = first.iter().map(|at| keys[*at].as_str()).collect();
                format!("{}, and {}", first.join(", "), keys[*last])
            }
            _ => keys[asked[0]].clone(),
        };
        let answers = asked.iter().flat_map(|at| values[*at].clone()).collect();
        Ok((self.prompt(&context, &query), answers))
    }

    fn prompt(&self, context: &str, query: &str) -> String {
        let name = self.value.name();
        let (some, are, all, name) = match self.asked * self.values {
            1 => ("A", "is", "is", &name[..name.len() - 1]),
            _ => ("Some", "are", "are all", name),
        };
        format!(
            "{some} special magic {name} {are} hidden within the following text. Make sure to memorize it. I will quiz you about the \
             {name} afterwards.\n{context}\nWhat {all} the special magic {name} for {query} mentioned in the provided text? The special \
             magic {name} for {query} mentioned in the provided text {are}"
        )
    }
}
