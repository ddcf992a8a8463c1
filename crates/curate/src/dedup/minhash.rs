//! MinHash signatures (Broder 1997): two texts agree in each number of their signatures with probability equal to the
//! Jaccard similarity of their shingle sets.
//!
//! The default reproduces NeMo Curator's bit for bit: shingles of 24 characters hashed by MurmurHash3, seeded with
//! the first of 260 pairs (a, b) from numpy's generator with seed 42, and the minimum of a x + b. cuDF documents this
//! modulo 2^61 - 1, but its 32-bit kernel multiplies 32-bit numbers, so the arithmetic is modulo 2^32; the values in
//! cuDF's own tests confirm this, and this implementation reproduces them. Linear functions of one x could be
//! correlated; these are not: in sets of 100 and of 1000 shingles no two functions of a band share their minimizing
//! shingle more often than chance predicts, and pooled over five corpora of 20,000 documents the recall is within
//! 0.007 of theory.

use fearless_simd::{Level, dispatch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dedup::kernels::{LANES, multiply_min};
use crate::dedup::one_permutation::OnePermutation;
use crate::dedup::seeds::curator_parameters;
use crate::dedup::shingle::{ShingleScratch, Shingles, hash_shingles};
use crate::error::Error;

/// How a signature is made from the shingles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// One hash function per number of the signature: `(x xor b) a` modulo 2^32, with a odd.
    Permutations,
    /// One hash function per number of the signature, as Curator's: `a x + b` modulo 2^32.
    #[default]
    Curator,
    /// One hash function in all: its range is cut into as many bins as the signature has numbers, each holds the minimum
    /// that falls into it, and empty bins borrow from full ones (optimal densification, Shrivastava 2017). Faster; texts
    /// with fewer shingles than bins are estimated less well.
    ///
    /// The work per shingle does not grow with the signature. `dedup_bench --recall` prints the recall for this and for
    /// permutations.
    OnePermutation,
}

/// Parameters of a signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MinHashOptions {
    /// Kind of shingles. Curator: 24 characters.
    pub shingles: Shingles,
    /// Numbers in a signature. Curator: 260.
    pub hashes: usize,
    /// Seed of the hash functions. Curator: 42.
    pub seed: u32,
    /// Scheme that derives the numbers from the shingles.
    pub scheme: Scheme,
}

impl Default for MinHashOptions {
    fn default() -> MinHashOptions {
        MinHashOptions { shingles: Shingles::Chars(24), hashes: 260, seed: 42, scheme: Scheme::Curator }
    }
}

impl MinHashOptions {
    /// datatrove's default parameters: 5 words, 112 numbers, seed 1.
    pub fn datatrove() -> MinHashOptions {
        MinHashOptions { shingles: Shingles::Words(5), hashes: 112, seed: 1, scheme: Scheme::Permutations }
    }
}

/// Computes signatures. Shared by all threads; each thread uses its own [`MinHashScratch`].
#[derive(Clone, Debug)]
pub struct MinHash {
    options: MinHashOptions,
    hash_seed: u32,
    /// Padded to whole vectors.
    a: Vec<u32>,
    b: Vec<u32>,
    level: Level,
}

/// Scratch memory for computing signatures, reused between texts: some tens of KiB.
#[derive(Default)]
pub struct MinHashScratch {
    shingles: ShingleScratch,
    minima: Vec<u32>,
}

impl MinHash {
    /// Draws the hash functions.
    ///
    /// # Errors
    /// Shingles or signatures have length zero, or a signature has more than 65,536 numbers.
    pub fn new(options: &MinHashOptions) -> Result<MinHash, Error> {
        if options.shingles.width() == 0 {
            return Err(Error::setting("shingles", "0 wide", "a shingle has at least one character or word"));
        }
        if options.hashes == 0 || options.hashes > 1 << 16 {
            return Err(Error::setting("hashes", options.hashes, "a signature has 1 to 65536 numbers"));
        }
        if options.scheme == Scheme::OnePermutation && options.hashes > 1 << 10 {
            // Filling empty bins takes time up to the square of their number.
            return Err(Error::setting(
                "hashes",
                options.hashes,
                "one permutation fills at most 1024 numbers",
            ));
        }
        let (mut a, mut b) = curator_parameters(options.seed, options.hashes);
        let hash_seed = a[0];
        if options.scheme != Scheme::Curator {
            // Curator's numbers have 31 bits. Making `a` odd and 32 bits wide makes it permute all hashes; `b` takes
            // its high bit from `a`.
            for (a, b) in a.iter_mut().zip(&mut b) {
                *b |= (*a & 1) << 31;
                *a = *a << 1 | 1;
            }
        }
        a.resize(options.hashes.next_multiple_of(LANES), 0);
        b.resize(options.hashes.next_multiple_of(LANES), 0);
        Ok(MinHash { options: options.clone(), hash_seed, a, b, level: Level::new() })
    }

    /// Parameters of the signatures.
    pub fn options(&self) -> &MinHashOptions {
        &self.options
    }

    /// Signature of `text`, valid until the next call; `None` for a text without shingles. Time is linear in the
    /// text, memory is constant.
    pub fn signature<'s>(&self, text: &str, scratch: &'s mut MinHashScratch) -> Option<&'s [u32]> {
        match self.options.scheme {
            Scheme::Permutations => {
                let any = dispatch!(self.level, simd => permutations::<_, false>(simd, self, text, scratch));
                any.then_some(&scratch.minima[..self.options.hashes])
            }
            Scheme::Curator => {
                let any = dispatch!(self.level, simd => permutations::<_, true>(simd, self, text, scratch));
                any.then_some(&scratch.minima[..self.options.hashes])
            }
            Scheme::OnePermutation => {
                let bins = OnePermutation::new(self.options.hashes, self.hash_seed);
                scratch.minima.clear();
                scratch.minima.resize(self.options.hashes, u32::MAX);
                let any = dispatch!(self.level, _simd => one_permutation(self, &bins, text, scratch));
                any.then(|| {
                    bins.densify(&mut scratch.minima);
                    &scratch.minima[..]
                })
            }
        }
    }
}

#[inline(always)]
fn permutations<S: fearless_simd::Simd, const LINEAR: bool>(
    simd: S,
    hash: &MinHash,
    text: &str,
    scratch: &mut MinHashScratch,
) -> bool {
    let MinHashScratch { shingles, minima } = scratch;
    minima.clear();
    minima.resize(hash.a.len(), u32::MAX);
    let mut any = false;
    hash_shingles(text, hash.options.shingles, hash.hash_seed, shingles, |hashes| {
        any = true;
        // A closure is a separate function, which would be compiled without the vector instructions.
        simd.vectorize(
            #[inline(always)]
            || multiply_min::<_, LINEAR>(simd, hashes, &hash.a, &hash.b, minima),
        );
    });
    any
}

#[inline(always)]
fn one_permutation(hash: &MinHash, bins: &OnePermutation, text: &str, scratch: &mut MinHashScratch) -> bool {
    let MinHashScratch { shingles, minima } = scratch;
    let mut any = false;
    hash_shingles(text, hash.options.shingles, hash.hash_seed, shingles, |hashes| {
        any = true;
        bins.lower(hashes, minima);
    });
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signature with the given hash parameters.
    fn signature(a: &[u32], seed: u32, width: usize, text: &str) -> Vec<u32> {
        let shingles = Shingles::Chars(width);
        let scheme = Scheme::Curator;
        let options = MinHashOptions { shingles, hashes: a.len(), scheme, ..MinHashOptions::default() };
        let mut hash = MinHash::new(&options).unwrap();
        hash.hash_seed = seed;
        hash.a[..a.len()].copy_from_slice(a);
        hash.b[..a.len()].copy_from_slice(a);
        hash.signature(text, &mut MinHashScratch::default()).unwrap().to_vec()
    }

    /// Inputs and expected values of cuDF's own test of `minhash` (seed 0, a = b = 10, 11, 12, width 4).
    #[test]
    fn gives_the_values_of_cudf() {
        let check = |text: &str, expected: [u32; 3]| {
            assert_eq!(signature(&[10, 11, 12], 0, 4, text), expected, "{text:?}");
        };
        check("doc 1", [1_392_101_586, 394_869_177, 811_528_444]);
        check("this is doc 2", [211_415_830, 187_088_503, 130_291_444]);
        check("d", [2_264_583_304, 2_920_538_364, 3_576_493_424]);
        check("The quick brown fox jumpéd over the lazy brown dog.", [253_327_882, 41_747_273, 302_030_804]);
        check("line ten", [547_084_870, 1_748_895_564, 656_501_844]);
        let wide = |text: String| signature(&[20, 21, 22], 0, 4, &text);
        assert_eq!(wide("x".repeat(2 << 10)), [1_731_998_032, 315_359_380, 3_193_688_024]);
        assert_eq!(wide("y".repeat(2 << 19)), [1_293_098_788, 2_860_992_281, 133_918_478]);
    }

    #[test]
    fn long_and_mixed_texts_are_hashed_as_one() {
        let scheme = Scheme::Curator;
        let hash = MinHash::new(&MinHashOptions { scheme, ..MinHashOptions::default() }).unwrap();
        let mut scratch = MinHashScratch::default();
        for (unit, times) in
            [("plain words of ASCII, ", 700), ("žluťoučký kůň ", 900), ("日本語の文 text ", 800)]
        {
            let text: String = (0..times).map(|i| format!("{unit}{i} ")).collect();
            let chars: Vec<char> = text.chars().collect();
            let mut expected = vec![u32::MAX; 260];
            for window in chars.windows(24) {
                let shingle: String = window.iter().collect();
                let x = crate::dedup::murmur::murmur3(shingle.as_bytes(), hash.a[0]);
                for (lane, least) in expected.iter_mut().enumerate() {
                    *least = (*least).min(x.wrapping_mul(hash.a[lane]).wrapping_add(hash.b[lane]));
                }
            }
            assert_eq!(hash.signature(&text, &mut scratch).unwrap(), expected, "{unit:?}");
        }
    }

    #[test]
    fn texts_without_shingles_have_no_signature() {
        let mut scratch = MinHashScratch::default();
        for scheme in [Scheme::Permutations, Scheme::Curator, Scheme::OnePermutation] {
            let chars = MinHash::new(&MinHashOptions { scheme, ..MinHashOptions::default() }).unwrap();
            let words = MinHash::new(&MinHashOptions { scheme, ..MinHashOptions::datatrove() }).unwrap();
            assert!(chars.signature("", &mut scratch).is_none());
            assert!(chars.signature("é", &mut scratch).is_some());
            assert!(words.signature(" ... ", &mut scratch).is_none());
            assert!(words.signature("one", &mut scratch).is_some());
        }
    }

    #[test]
    fn settings_without_meaning_are_refused() {
        let refused = |options: MinHashOptions| MinHash::new(&options).unwrap_err().to_string();
        let options = MinHashOptions { shingles: Shingles::Chars(0), ..MinHashOptions::default() };
        assert!(refused(options).contains("shingles"));
        assert!(refused(MinHashOptions { hashes: 0, ..MinHashOptions::default() }).contains("hashes"));
    }
}
