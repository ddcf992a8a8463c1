//! Cache of recently used values.

use std::collections::BTreeMap;

/// Holds a limited number of values; a new one replaces the least recently used.
pub struct Recent<K, V> {
    most: usize,
    asked: u64,
    values: BTreeMap<K, (V, u64)>,
}

impl<K: Ord + Copy, V: Clone> Recent<K, V> {
    /// Creates a cache with room for `most` values.
    pub fn new(most: usize) -> Recent<K, V> {
        Recent { most, asked: 0, values: BTreeMap::new() }
    }

    /// Returns the value of a key, making it if absent.
    ///
    /// # Errors
    /// That of `make`; nothing is stored then.
    pub fn get<E>(&mut self, key: K, make: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        self.asked += 1;
        if let Some((value, asked)) = self.values.get_mut(&key) {
            *asked = self.asked;
            return Ok(value.clone());
        }
        let value = make()?;
        if self.values.len() >= self.most {
            let oldest = self.values.iter().min_by_key(|(_, (_, asked))| *asked).map(|(key, _)| *key);
            oldest.map(|key| self.values.remove(&key));
        }
        self.values.insert(key, (value.clone(), self.asked));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_longest_ago_goes() {
        let mut recent = Recent::new(2);
        let mut made = Vec::new();
        for key in [1, 2, 1, 3, 1, 2] {
            let value = recent.get(key, || {
                made.push(key);
                Ok::<_, ()>(10 * key)
            });
            assert_eq!(value, Ok(10 * key));
        }
        assert_eq!(made, [1, 2, 3, 2]);
        assert_eq!(recent.get(9, || Err("refused")), Err("refused"));
        assert_eq!(recent.get(1, || Err("forgotten")), Ok(10));
    }
}
