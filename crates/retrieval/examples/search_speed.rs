//! Measures searches in generated vectors: `search_speed ROWS DIMENSIONS FOLDER`. Prints times of exact and approximate
//! searches, the time of reading the vectors, and the recall of approximate searches.

use std::path::{Path, PathBuf};
use std::time::Instant;

use fathom_retrieval::{Encode, EncoderFacts, Index, IndexOptions, index};
use rayon::prelude::*;

/// Centres around which vectors lie.
const CENTRES: usize = 5000;
/// Queries.
const QUERIES: usize = 100;

/// Generates a vector from the number in a text.
struct NumberEmbedder {
    centres: Vec<f32>,
    dimensions: usize,
}

/// A normal number from a state (Box and Muller).
fn normal(state: &mut u64) -> f32 {
    let mut uniform = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((*state >> 40) as f32 + 1.0) / (1u64 << 24) as f32
    };
    (-2.0 * uniform().ln()).sqrt() * (std::f32::consts::TAU * uniform()).cos()
}

impl NumberEmbedder {
    fn new(dimensions: usize) -> NumberEmbedder {
        let mut state = 7;
        let centres = (0..CENTRES * dimensions).map(|_| normal(&mut state)).collect();
        NumberEmbedder { centres, dimensions }
    }

    /// A unit vector with a cosine of about 0.75 to its centre.
    fn vector(&self, number: u64) -> Vec<f32> {
        let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..8).for_each(|_| _ = normal(&mut state));
        let centre = &self.centres[(number % CENTRES as u64) as usize * self.dimensions..][..self.dimensions];
        let row: Vec<f32> = centre.iter().map(|x| x + 0.9 * normal(&mut state)).collect();
        let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        row.iter().map(|x| x / length).collect()
    }
}

impl Encode for NumberEmbedder {
    fn facts(&self) -> EncoderFacts {
        EncoderFacts {
            name: "generated".into(),
            fingerprint: "generated".into(),
            dimensions: self.dimensions,
        }
    }

    fn encode(&self, texts: &[String]) -> fathom_base::Result<Vec<Vec<f32>>> {
        let number = |text: &String| text.rsplit(' ').next().and_then(|it| it.parse().ok()).unwrap_or(0);
        Ok(texts.par_iter().map(|text| self.vector(number(text))).collect())
    }
}

fn argument<T: std::str::FromStr>(at: usize) -> T {
    let found = std::env::args().nth(at).and_then(|it| it.parse().ok());
    found.unwrap_or_else(|| panic!("search_speed ROWS DIMENSIONS FOLDER"))
}

/// Median milliseconds of some calls.
fn median_ms(mut call: impl FnMut(usize)) -> f64 {
    let mut times: Vec<f64> = (0..QUERIES)
        .map(|at| {
            let began = Instant::now();
            call(at);
            began.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[QUERIES / 2]
}

/// All bytes of the vectors of an index.
fn vectors(folder: &Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(folder.join("vectors")).into_iter().flatten().flatten();
    let is_part = |path: &PathBuf| path.extension().is_some_and(|it| it != "approximate");
    entries.map(|entry| entry.path()).filter(is_part).filter_map(|path| std::fs::read(path).ok()).collect()
}

fn main() {
    let (rows, dimensions, folder): (usize, usize, PathBuf) = (argument(1), argument(2), argument(3));
    let (source, out) = (folder.join("rows.jsonl"), folder.join("index"));
    let encoder = NumberEmbedder::new(dimensions);
    if !source.exists() {
        let text: String = (0..rows).map(|at| format!("{{\"text\": \"passage {at}\"}}\n")).collect();
        std::fs::write(&source, text).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    }
    let began = Instant::now();
    let report = index(&[source], &out, &IndexOptions::default(), Some(&encoder), &|_| ());
    println!("{report:?}\nindexed in {:.1} s", began.elapsed().as_secs_f64());
    let began = Instant::now();
    let index = Index::open(&out).unwrap_or_else(|error| panic!("{error}"));
    println!("opened in {:.3} s", began.elapsed().as_secs_f64());
    // Queries are further members of the clusters.
    let queries: Vec<Vec<f32>> = (0..QUERIES).map(|at| encoder.vector((rows + at * 37) as u64)).collect();
    let search = |at: usize, exact| index.dense(&queries[at], 10, &[], exact).unwrap_or_default();
    let mut hits = 0;
    for at in 0..QUERIES {
        let exact = search(at, true);
        let near = search(at, false);
        hits += exact.iter().filter(|(row, _)| near.iter().any(|(other, _)| other == row)).count();
    }
    println!("recall@10 {:.4}", hits as f64 / (10 * QUERIES) as f64);
    println!("approximate {:.3} ms", median_ms(|at| _ = search(at, false)));
    println!("exact {:.3} ms", median_ms(|at| _ = search(at, true)));
    let all = vectors(&out);
    let sum = |part: &Vec<u8>| {
        let words = part.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        words.fold(0u64, u64::wrapping_add)
    };
    let read =
        median_ms(|_| _ = std::hint::black_box(all.par_iter().map(sum).reduce(|| 0, u64::wrapping_add)));
    println!("reading the vectors {read:.3} ms");
    let sparse = median_ms(|at| _ = index.sparse(&format!("passage {at}"), 10, &[]));
    println!("bm25 {sparse:.3} ms");
}
