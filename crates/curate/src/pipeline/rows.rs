//! A set of document numbers, one bit each.

/// Which documents of a table: 125 MB for a thousand million.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowSet {
    words: Vec<u64>,
    count: u64,
}

impl RowSet {
    /// No document.
    pub fn new() -> RowSet {
        RowSet::default()
    }

    /// Adds a document; false if it was there.
    pub fn insert(&mut self, number: u64) -> bool {
        let (word, bit) = place(number);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += u64::from(new);
        new
    }

    /// Whether a document is in it.
    pub fn contains(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// How many documents are in it.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether no document is in it.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl FromIterator<u64> for RowSet {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> RowSet {
        let mut set = RowSet::new();
        for number in numbers {
            set.insert(number);
        }
        set
    }
}

fn place(number: u64) -> (usize, u64) {
    // A number above 2^38 would need more memory than any machine has; the resize panics with that.
    ((number / 64) as usize, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
        let set: RowSet = [3u64, 64, 63, 3, 1000].into_iter().collect();
        assert_eq!(set.len(), 4);
        let inside: Vec<u64> = (0..2000).filter(|&n| set.contains(n)).collect();
        assert_eq!(inside, [3, 63, 64, 1000]);
        assert!(RowSet::new().is_empty());
    }
}
