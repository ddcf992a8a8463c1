//! NumPy's `default_rng`: the generator PCG64 as `SeedSequence` seeds it, and the permutations that are drawn with it.

const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

/// A generator seeded with an integer.
#[derive(Clone, Debug)]
pub struct Pcg {
    state: u128,
    step: u128,
    /// Upper half of the last 64 bits, where only the lower one was used.
    rest: Option<u32>,
}

impl Pcg {
    /// `numpy.random.default_rng(seed)`.
    pub fn new(seed: u32) -> Pcg {
        let words = seeds(seed);
        let word = |at: usize| u128::from(words[at]) << 64 | u128::from(words[at + 1]);
        let mut pcg = Pcg { state: 0, step: word(2) << 1 | 1, rest: None };
        pcg.advance();
        pcg.state = pcg.state.wrapping_add(word(0));
        pcg.advance();
        pcg
    }

    fn advance(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.step);
    }

    fn next_u32(&mut self) -> u32 {
        if let Some(rest) = self.rest.take() {
            return rest;
        }
        self.advance();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        let drawn = folded.rotate_right((self.state >> 122) as u32);
        self.rest = Some((drawn >> 32) as u32);
        drawn as u32
    }

    /// Uniform in `0..=most`, by bits that are drawn until they are within.
    fn up_to(&mut self, most: u32) -> u32 {
        let mask = u32::MAX.checked_shr(most.leading_zeros()).unwrap_or(0);
        loop {
            let drawn = self.next_u32() & mask;
            if drawn <= most {
                return drawn;
            }
        }
    }

    /// `permutation(n)`.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            all.swap(i, self.up_to(i as u32) as usize);
        }
        all
    }
}

/// `SeedSequence(seed).generate_state(4, numpy.uint64)`.
fn seeds(seed: u32) -> [u64; 4] {
    let mut multiplier = 0x43b0_d7e5u32;
    let mut hashed = |value: u32| {
        let value = value ^ multiplier;
        multiplier = multiplier.wrapping_mul(0x931e_8875);
        let value = value.wrapping_mul(multiplier);
        value ^ value >> 16
    };
    let mut pool = [seed, 0, 0, 0].map(&mut hashed);
    for from in 0..4 {
        for to in (0..4).filter(|to| *to != from) {
            let mixed =
                pool[to].wrapping_mul(0xca01_f9dd).wrapping_sub(hashed(pool[from]).wrapping_mul(0x4973_f715));
            pool[to] = mixed ^ mixed >> 16;
        }
    }
    let mut multiplier = 0x8b51_f9ddu32;
    let words: [u32; 8] = std::array::from_fn(|at| {
        let value = pool[at % 4] ^ multiplier;
        multiplier = multiplier.wrapping_mul(0x58f3_8ded);
        let value = value.wrapping_mul(multiplier);
        value ^ value >> 16
    });
    std::array::from_fn(|at| u64::from(words[2 * at]) | u64::from(words[2 * at + 1]) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_are_those_of_numpy() {
        assert_eq!(Pcg::new(0).permutation(8), [2, 4, 3, 6, 5, 0, 1, 7]);
        assert_eq!(Pcg::new(42).permutation(12), [0, 7, 6, 9, 11, 3, 5, 2, 4, 10, 1, 8]);
        assert_eq!(Pcg::new(2147483647).permutation(10), [1, 8, 3, 2, 0, 7, 5, 6, 4, 9]);
        assert_eq!(Pcg::new(7).permutation(5000)[..6], [553, 4157, 148, 228, 402, 2792]);
    }
}
