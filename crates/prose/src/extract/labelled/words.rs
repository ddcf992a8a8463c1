//! Seeded English-like sentences with natural frequencies of function words, so that extractors that count stop words
//! recognize them as language.

/// A small random number generator (SplitMix64), identical on every machine.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `count`, which must not be 0.
    pub(super) fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }

    pub(super) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True with probability 1/`n`.
    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(super) fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

const NOUNS: [&str; 64] = [
    "river",
    "council",
    "engine",
    "market",
    "teacher",
    "garden",
    "letter",
    "winter",
    "bridge",
    "village",
    "science",
    "doctor",
    "library",
    "station",
    "ticket",
    "island",
    "museum",
    "budget",
    "harbour",
    "theatre",
    "question",
    "answer",
    "report",
    "minister",
    "company",
    "student",
    "kitchen",
    "window",
    "morning",
    "evening",
    "mountain",
    "network",
    "database",
    "function",
    "recipe",
    "flour",
    "bicycle",
    "railway",
    "climate",
    "forest",
    "energy",
    "battery",
    "camera",
    "painting",
    "history",
    "language",
    "sentence",
    "novel",
    "author",
    "reader",
    "software",
    "release",
    "version",
    "keyboard",
    "method",
    "result",
    "measure",
    "pattern",
    "material",
    "colour",
    "season",
    "weather",
    "journey",
    "neighbour",
];
const VERBS: [&str; 32] = [
    "opened",
    "described",
    "measured",
    "repaired",
    "followed",
    "crossed",
    "announced",
    "rejected",
    "explained",
    "collected",
    "painted",
    "compared",
    "delivered",
    "discovered",
    "finished",
    "improved",
    "carried",
    "changed",
    "watched",
    "remembered",
    "built",
    "wrote",
    "found",
    "kept",
    "lost",
    "moved",
    "planned",
    "sold",
    "taught",
    "visited",
    "wanted",
    "used",
];
const ADJECTIVES: [&str; 32] = [
    "old", "quiet", "narrow", "public", "early", "famous", "heavy", "local", "modern", "northern", "open",
    "recent", "simple", "steady", "sudden", "useful", "warm", "wooden", "bright", "careful", "common",
    "distant", "early", "empty", "formal", "gentle", "honest", "larger", "second", "third", "wide", "young",
];
const LINKS: [&str; 16] = [
    "and",
    "but",
    "because",
    "while",
    "although",
    "so that",
    "after",
    "before",
    "which is why",
    "when",
    "as",
    "if",
    "where",
    "since",
    "until",
    "even though",
];

fn clause(dice: &mut Dice) -> String {
    let the = dice.pick(&["the", "a", "this", "that", "every", "their", "our", "the"]);
    let of = match dice.below(4) {
        0 => format!(" of the {}", dice.pick(&NOUNS)),
        1 => format!(" in the {}", dice.pick(&NOUNS)),
        2 => format!(" that was {}", dice.pick(&ADJECTIVES)),
        _ => String::new(),
    };
    let subject = format!("{the} {} {}{of}", dice.pick(&ADJECTIVES), dice.pick(&NOUNS));
    let had = dice.pick(&["", "", "had ", "has ", "would have "]);
    let object = format!(
        "{} {} {}",
        dice.pick(&["the", "a", "its", "the", "some"]),
        dice.pick(&ADJECTIVES),
        dice.pick(&NOUNS)
    );
    let tail = match dice.below(4) {
        0 => format!(" with the {}", dice.pick(&NOUNS)),
        1 => format!(" for the {} of the {}", dice.pick(&NOUNS), dice.pick(&NOUNS)),
        2 => " at the same time".to_string(),
        _ => String::new(),
    };
    format!("{subject} {had}{} {object}{tail}", dice.pick(&VERBS))
}

/// One sentence of 6 to 30 words.
pub(super) fn sentence(dice: &mut Dice) -> String {
    let mut text = clause(dice);
    if dice.one_in(2) {
        text = format!("{text}, {} {}", dice.pick(&LINKS), clause(dice));
    }
    if dice.one_in(6) {
        text = format!("{text} ({})", dice.between(1950, 2026));
    }
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    let stop = if dice.one_in(12) { "?" } else { "." };
    format!("{first}{}{stop}", chars.as_str())
}

/// A list of sentences.
pub(super) fn paragraph(dice: &mut Dice, low: usize, high: usize) -> Vec<String> {
    (0..dice.between(low, high)).map(|_| sentence(dice)).collect()
}

/// A headline.
pub(super) fn title(dice: &mut Dice) -> String {
    let text = format!(
        "{} {} {} the {}",
        dice.pick(&ADJECTIVES),
        dice.pick(&NOUNS),
        dice.pick(&VERBS),
        dice.pick(&NOUNS)
    );
    let words: Vec<String> = text.split(' ').map(capital).collect();
    words.join(" ")
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default() + chars.as_str()
}

/// A person's name.
pub(super) fn person(dice: &mut Dice) -> String {
    let first = dice.pick(&[
        "Ada", "Boris", "Chen", "Dora", "Emil", "Fatima", "Goran", "Hanna", "Ivo", "Jun", "Karim", "Lena",
    ]);
    let last = dice.pick(&[
        "Abel", "Brandt", "Costa", "Dunn", "Ekberg", "Fischer", "Gray", "Horvat", "Ito", "Jones", "Klein",
    ]);
    format!("{first} {last}")
}

/// One or two words.
pub(super) fn label(dice: &mut Dice) -> String {
    if dice.one_in(2) {
        capital(dice.pick(&NOUNS))
    } else {
        format!("{} {}", capital(dice.pick(&ADJECTIVES)), dice.pick(&NOUNS))
    }
}
