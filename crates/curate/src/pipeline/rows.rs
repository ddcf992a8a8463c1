//! A set of document numbers as a bitmap.

/// Subset of a table's documents: 125 MB for a thousand million.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowSet {
    words: Vec<u64>,
    count: u64,
}

impl RowSet {
    /// Creates an empty set.
    pub fn new() -> RowSet {
        RowSet::default()
    }

    /// Adds a document; returns false if it was already present.
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

    /// Returns true if the set contains a document.
    pub fn contains(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Number of documents in the set.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Returns true if the set is empty.
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
    // A number above 2^38 would need more memory than any machine has; the resize panics in that case.
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
