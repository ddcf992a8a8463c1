//! Locality-sensitive hashing: a signature is cut into bands, and two texts are candidates if they agree in all
//! numbers of some band. At a Jaccard similarity of J the probability is `1 - (1 - J^rows)^bands` (Leskovec,
//! Rajaraman and Ullman, Mining of Massive Datasets, 3.4).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::dedup::minhash::{MinHash, MinHashOptions, MinHashScratch, Scheme};
use crate::dedup::shingle::Shingles;
use crate::error::Error;

/// Whose parameters a recipe begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// NeMo Curator: 24 characters, 20 bands of 13 rows, seed 42.
    #[default]
    Curator,
    /// datatrove: 5 words, 14 bands of 8 rows, permutations, seed 1.
    Datatrove,
}

/// How near-duplicates are found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FuzzyOptions {
    /// Whose parameters those options have that a recipe does not set.
    pub preset: Preset,
    /// Elements of a text's set (NeMo Curator: 24 characters; datatrove: 5 words).
    pub shingles: Shingles,
    /// Bands of a signature (NeMo Curator: 20; datatrove: 14).
    #[schemars(range(min = 1, max = 1024))]
    pub bands: usize,
    /// Numbers in a band (NeMo Curator: 13; datatrove: 8). Texts become candidates from a Jaccard similarity of about `(1 /
    /// bands)^(1 / rows)` on: 0.79 with the defaults.
    #[schemars(range(min = 1))]
    pub rows: usize,
    /// Seed of the hash functions (NeMo Curator: 42; datatrove: 1); not the recipe's.
    pub seed: u32,
    /// How signatures are made from the shingles.
    pub scheme: Scheme,
    /// Only documents whose Jaccard similarity to the one that stays is at least this are duplicates; the documents are
    /// read once more. None takes the candidates as they are, as NeMo Curator does.
    #[schemars(range(min = 0, max = 1))]
    pub check: Option<f64>,
}

impl Default for FuzzyOptions {
    fn default() -> FuzzyOptions {
        let MinHashOptions { shingles, seed, scheme, .. } = MinHashOptions::default();
        FuzzyOptions { preset: Preset::Curator, shingles, bands: 20, rows: 13, seed, scheme, check: None }
    }
}

impl FuzzyOptions {
    /// datatrove's parameters: 5 words, 14 bands of 8.
    pub fn datatrove() -> FuzzyOptions {
        let MinHashOptions { shingles, seed, scheme, .. } = MinHashOptions::datatrove();
        FuzzyOptions { preset: Preset::Datatrove, shingles, bands: 14, rows: 8, seed, scheme, check: None }
    }

    /// The signature that the bands are cut from.
    pub fn minhash(&self) -> MinHashOptions {
        let FuzzyOptions { shingles, seed, scheme, .. } = *self;
        MinHashOptions { shingles, hashes: self.bands.saturating_mul(self.rows), seed, scheme }
    }

    /// Probability that two texts of Jaccard similarity `jaccard` become a pair.
    pub fn probability(&self, jaccard: f64) -> f64 {
        1.0 - (1.0 - jaccard.powi(self.rows as i32)).powi(self.bands as i32)
    }
}

/// Computes band keys. Shared by all threads; each thread uses its own [`MinHashScratch`].
#[derive(Clone, Debug)]
pub struct Bands {
    minhash: MinHash,
    bands: usize,
    rows: usize,
}

impl Bands {
    /// Draws the hash functions.
    ///
    /// # Errors
    /// Bands, rows, shingles or threshold are out of range.
    pub fn new(options: &FuzzyOptions) -> Result<Bands, Error> {
        if options.bands == 0 || options.bands > 1024 || options.rows == 0 {
            let found = format!("{} bands of {} rows", options.bands, options.rows);
            let key = if options.rows == 0 { "rows" } else { "bands" };
            return Err(Error::setting(key, found, "choose 1 to 1024 bands of at least one row"));
        }
        if let Some(check) = options.check.filter(|check| !(0.0..=1.0).contains(check)) {
            return Err(Error::setting("check", check, "a Jaccard similarity lies between 0 and 1"));
        }
        Ok(Bands { minhash: MinHash::new(&options.minhash())?, bands: options.bands, rows: options.rows })
    }

    /// Bands of a signature.
    pub fn bands(&self) -> usize {
        self.bands
    }

    /// Writes one 64-bit key per band of `text` to `keys`; for a text without shingles clears `keys` and returns
    /// false. Two texts are a pair if they agree in any key at the same index.
    pub fn keys(&self, text: &str, scratch: &mut MinHashScratch, keys: &mut Vec<u64>) -> bool {
        keys.clear();
        let Some(signature) = self.minhash.signature(text, scratch) else { return false };
        let mut bytes = Vec::with_capacity(4 * self.rows);
        for (band, rows) in signature.chunks_exact(self.rows).enumerate() {
            bytes.clear();
            bytes.extend(rows.iter().flat_map(|number| number.to_le_bytes()));
            keys.push(XxHash3_64::oneshot_with_seed(band as u64, &bytes));
        }
        true
    }
}
