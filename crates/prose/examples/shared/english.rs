//! Seeded English-like documents: common words with natural frequencies, made-up words by Zipf's law, sentences,
//! paragraphs, occasional lists and links, and in one document of ten a defect targeted by a filter.

/// A generator of 64-bit numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

const COMMON: &str = "the of and to a in that is was he for it with as his on be at by had not are but from or have an \
they which one you were her all she there would their we him been has when who will more no if out so said what up its \
about into than them can only other new some could time these two may then do first any my now such like our over man \
me even most made after also did many before must through back years where much your way well down should because each \
just those people how too little state good very make world still own see men work long get here between both life being";

/// Generator of documents.
pub struct English {
    random: Random,
    words: Vec<String>,
}

impl English {
    pub fn new(seed: u64) -> English {
        let mut random = Random(seed);
        let mut words: Vec<String> = COMMON.split_whitespace().map(str::to_string).collect();
        let onsets = [
            "b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "v", "st", "tr", "pl", "gr",
            "ch", "",
        ];
        let rimes = [
            "an", "er", "in", "or", "al", "ent", "ing", "ion", "at", "ous", "ic", "ed", "ure", "o", "e",
            "ar", "iv",
        ];
        while words.len() < 30_000 {
            let syllables = 1 + random.below(4);
            let word = (0..syllables)
                .map(|_| {
                    format!("{}{}", onsets[random.below(onsets.len())], rimes[random.below(rimes.len())])
                })
                .collect();
            words.push(word);
        }
        English { random, words }
    }

    fn word(&mut self) -> usize {
        // Inverse of Zipf's law with exponent 1: rank = n^u.
        let u = self.random.unit();
        ((self.words.len() as f64).powf(u) - 1.0) as usize
    }

    fn sentence(&mut self, out: &mut String) {
        let words = 6 + self.random.below(20);
        for i in 0..words {
            let index = self.word();
            let word = self.words[index].clone();
            if i == 0 {
                out.extend(word.chars().next().map(|c| c.to_ascii_uppercase()));
                out.push_str(&word[1..]);
            } else {
                out.push(' ');
                out.push_str(&word);
            }
            match self.random.below(60) {
                0..=4 if i + 1 < words => out.push(','),
                5 => out.push_str(&format!(" {}", self.random.below(2000))),
                6 => out.push_str("’s"),
                7 => out.push_str(" (naïve)"),
                _ => {}
            }
        }
        out.push_str([".", ".", ".", ".", "?", "!", ".\""][self.random.below(7)]);
    }

    /// Returns the next document, about 4 KB.
    pub fn document(&mut self) -> String {
        let mut text = String::new();
        let paragraphs = 3 + self.random.below(10);
        for _ in 0..paragraphs {
            for _ in 0..2 + self.random.below(6) {
                self.sentence(&mut text);
                text.push(if self.random.below(12) == 0 { '\n' } else { ' ' });
            }
            text.push_str("\n\n");
            if self.random.below(40) == 0 {
                text.push_str("Read it at https://www.example.org/a/b?c=1 today.\n\n");
            }
        }
        match self.random.below(50) {
            0 => text.truncate(text.char_indices().nth(120).map_or(0, |(at, _)| at)),
            1 => text = format!("{text}{text}"),
            2 => text.push_str("lorem ipsum dolor sit amet"),
            3 => text = text.replace(' ', " 12 "),
            4 => text = text.replace(' ', "\n• "),
            _ => {}
        }
        text
    }

    /// Documents of about `bytes` bytes in total.
    pub fn documents(&mut self, bytes: usize) -> Vec<String> {
        let mut documents = Vec::new();
        let mut total = 0;
        while total < bytes {
            documents.push(self.document());
            total += documents[documents.len() - 1].len();
        }
        documents
    }
}
