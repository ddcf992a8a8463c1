//! Curator's generator of hash parameters: numpy's `RandomState`, which is MT19937 (Matsumoto and Nishimura 1998)
//! seeded by one integer, with masked rejection for bounded integers.

const N: usize = 624;
const M: usize = 397;

/// MT19937 with the initial state of `numpy.random.RandomState(seed)`.
pub(super) struct MersenneTwister {
    state: [u32; N],
    next: usize,
}

impl MersenneTwister {
    /// Initializes the state from one 32-bit number (Knuth).
    pub(super) fn new(seed: u32) -> MersenneTwister {
        let mut state = [0u32; N];
        state[0] = seed;
        for i in 1..N {
            let before = state[i - 1];
            state[i] = (before ^ (before >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        MersenneTwister { state, next: N }
    }

    fn refill(&mut self) {
        for i in 0..N {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
            let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + M) % N] ^ (y >> 1) ^ odd;
        }
        self.next = 0;
    }

    /// Returns the next 32 random bits.
    pub(super) fn next_u32(&mut self) -> u32 {
        if self.next == N {
            self.refill();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// `randint(low, high, dtype=uint32)`: masks to the range's bits and redraws values above it.
    pub(super) fn bounded(&mut self, low: u32, high: u32) -> u32 {
        let range = high - 1 - low;
        if range == 0 {
            return low;
        }
        let mask = u32::MAX >> range.leading_zeros();
        loop {
            let draw = self.next_u32() & mask;
            if draw <= range {
                return low + draw;
            }
        }
    }
}

/// Pairs (a, b) of Curator's 32-bit MinHash: a in 1..2^31-1, b in 0..2^31-1, drawn alternately.
pub(super) fn curator_parameters(seed: u32, hashes: usize) -> (Vec<u32>, Vec<u32>) {
    const PRIME: u32 = (1 << 31) - 1;
    let mut random = MersenneTwister::new(seed);
    (0..hashes).map(|_| (random.bounded(1, PRIME), random.bounded(0, PRIME))).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_parameters_of_numpy() {
        let (a, b) = curator_parameters(42, 260);
        assert_eq!(a[..4], [1_608_637_543, 1_935_803_229, 996_406_379, 423_734_973]);
        assert_eq!(b[..4], [1_273_642_419, 787_846_414, 1_201_263_687, 415_968_276]);
        assert_eq!((a[259], b[259]), (417_369_880, 897_299_057));
    }

    #[test]
    fn bounded_numbers_reach_both_ends() {
        let mut random = MersenneTwister::new(1);
        let mut seen = [0; 5];
        for _ in 0..500 {
            seen[(random.bounded(3, 8) - 3) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| count > 50), "{seen:?}");
        assert_eq!((0..50).map(|_| random.bounded(7, 8)).max(), Some(7));
    }
}
