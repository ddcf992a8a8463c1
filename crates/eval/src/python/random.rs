//! Python's `random.Random` and NumPy's `RandomState`: the Mersenne twister and what both draw with it, bit for bit.

/// Words of the twister's state.
const WORDS: usize = 624;
/// Offset of the twister's second word.
const MIDDLE: usize = 397;

/// A generator seeded with an integer.
#[derive(Clone, Debug)]
pub struct Random {
    words: Vec<u32>,
    at: usize,
}

impl Random {
    /// `random.Random(seed)`.
    pub fn new(seed: u64) -> Random {
        let key = match seed >> 32 {
            0 => vec![seed as u32],
            high => vec![seed as u32, high as u32],
        };
        let mut random = Random::numpy(19_650_218);
        let words = &mut random.words;
        let (mut i, mut j) = (1, 0);
        for _ in 0..WORDS.max(key.len()) {
            words[i] = (words[i] ^ mixed(words[i - 1]).wrapping_mul(1_664_525))
                .wrapping_add(key[j])
                .wrapping_add(j as u32);
            (i, j) = (i + 1, (j + 1) % key.len());
            if i >= WORDS {
                words[0] = words[WORDS - 1];
                i = 1;
            }
        }
        for _ in 0..WORDS - 1 {
            words[i] = (words[i] ^ mixed(words[i - 1]).wrapping_mul(1_566_083_941)).wrapping_sub(i as u32);
            i += 1;
            if i >= WORDS {
                words[0] = words[WORDS - 1];
                i = 1;
            }
        }
        words[0] = 0x8000_0000;
        random.at = WORDS;
        random
    }

    /// `numpy.random.RandomState(seed)`.
    pub fn numpy(seed: u32) -> Random {
        let mut words = vec![seed; WORDS];
        for i in 1..WORDS {
            words[i] = mixed(words[i - 1]).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Random { words, at: WORDS }
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.at >= WORDS {
            for k in 0..WORDS {
                let y = (self.words[k] & 0x8000_0000) | (self.words[(k + 1) % WORDS] & 0x7fff_ffff);
                let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
                self.words[k] = self.words[(k + MIDDLE) % WORDS] ^ (y >> 1) ^ odd;
            }
            self.at = 0;
        }
        let mut y = self.words[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// `random()`: uniform in [0, 1).
    pub fn random(&mut self) -> f64 {
        let (high, low) = (self.next_u32() >> 5, self.next_u32() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }

    /// `getrandbits(bits)` for up to 64 bits.
    pub fn bits(&mut self, bits: u32) -> u64 {
        match bits {
            0 => 0,
            1..=32 => u64::from(self.next_u32() >> (32 - bits)),
            _ => {
                let low = u64::from(self.next_u32());
                low | u64::from(self.next_u32() >> (64 - bits)) << 32
            }
        }
    }

    /// Uniform below `n`, as `randrange(n)`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 {
            return 0;
        }
        let bits = usize::BITS - n.leading_zeros();
        loop {
            let drawn = self.bits(bits) as usize;
            if drawn < n {
                return drawn;
            }
        }
    }

    /// Uniform below `n`, as NumPy's `RandomState.randint(n)` and `choice` draw; 0 if `n` is 0.
    pub fn numpy_below(&mut self, n: usize) -> usize {
        let Some(most) = n.checked_sub(1).filter(|most| *most > 0) else { return 0 };
        let mask = u32::MAX >> (most as u32).leading_zeros();
        loop {
            let drawn = (self.next_u32() & mask) as usize;
            if drawn <= most {
                return drawn;
            }
        }
    }

    /// Uniform in `from..=to`, as `randint(from, to)`.
    pub fn int(&mut self, from: i64, to: i64) -> i64 {
        from + self.below((to - from + 1).max(0) as usize) as i64
    }

    /// `random.shuffle(items)`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i + 1);
            items.swap(i, j);
        }
    }

    /// Indices that `random.sample(range(n), k)` draws; `None` if there are fewer than `k`.
    pub fn sample(&mut self, n: usize, k: usize) -> Option<Vec<usize>> {
        if k > n {
            return None;
        }
        // Sizes up to which a list is faster for CPython than a set; they decide the algorithm.
        let mut set_size = 21;
        if k > 5 {
            set_size += 4usize.pow(((k * 3) as f64).log(4.0).ceil() as u32);
        }
        let mut drawn = Vec::with_capacity(k);
        if n <= set_size {
            let mut pool: Vec<usize> = (0..n).collect();
            for i in 0..k {
                let j = self.below(n - i);
                drawn.push(pool[j]);
                pool[j] = pool[n - i - 1];
            }
        } else {
            let mut selected = std::collections::BTreeSet::new();
            while drawn.len() < k {
                let j = self.below(n);
                if selected.insert(j) {
                    drawn.push(j);
                }
            }
        }
        Some(drawn)
    }

    /// An index that `random.choices(items)` draws from `n` items.
    pub fn choice_index(&mut self, n: usize) -> usize {
        (self.random() * n as f64) as usize
    }
}

fn mixed(word: u32) -> u32 {
    word ^ (word >> 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_those_of_python() {
        // random.Random(1234): random() twice, getrandbits(40), sample(range(10), 3), sample(range(1000), 6), a shuffle.
        let mut random = Random::new(1234);
        assert_eq!(random.random(), 0.966_453_535_692_138_8);
        assert_eq!(random.random(), 0.440_732_599_175_352_7);
        let mut random = Random::new(1234);
        assert_eq!(random.sample(10, 3).unwrap(), [7, 1, 0]);
        assert_eq!(random.sample(1000, 6).unwrap(), [92, 932, 965, 961, 826, 596]);
        let mut items: Vec<u32> = (0..6).collect();
        random.shuffle(&mut items);
        assert_eq!(items, [2, 3, 1, 4, 5, 0]);
        assert_eq!((random.bits(40), random.int(-5, 5), random.choice_index(100)), (30139623970, -5, 34));
        assert!(random.sample(2, 3).is_none());
        assert_eq!(Random::new(1 << 40).random(), 0.1036394562812375);
        assert_eq!(Random::numpy(42).random(), 0.374_540_118_847_362_5);
    }
}
