//! Semantic deduplication (SemDeDup, Abbas et al. 2023): removes documents whose embeddings nearly coincide within a
//! k-means cluster.
//!
//! Embeddings are stored in a file; memory holds a sample for fitting the centres and one block of a cluster. Within
//! a cluster, documents are sorted by preference, and each is removed whose cosine to an earlier one exceeds 1 - eps.

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dedup::components::Components;
use crate::dedup::embeddings::Embeddings;
use crate::dedup::fuzzy::{Duplicates, Needs};
use crate::dedup::generate::SplitMix;
use crate::dedup::kmeans::{Centres, dot};
use crate::dedup::numbering::NumberRuns;
use crate::error::Error;

/// Which of several close documents stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Preference {
    /// The one farthest from the centre of its cluster: the least typical.
    #[default]
    Hard,
    /// The one nearest to the centre.
    Easy,
    /// One drawn by the recipe's seed.
    Random,
}

/// Parameters of semantic deduplication.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SemanticOptions {
    /// Number of k-means clusters. Curator: 100.
    pub clusters: usize,
    /// Maximum number of k-means iterations. Curator: 300.
    pub max_iterations: usize,
    /// Movement of the centres at which k-means stops, relative to the variance. Curator: 1e-4.
    pub tolerance: f64,
    /// Documents are duplicates above a cosine of 1 - eps. Curator: 0.01.
    pub eps: f64,
    /// Preference for the document to keep.
    pub keep: Preference,
    /// Seed of the initialization and of random preferences.
    pub seed: u64,
    /// Maximum number of documents for fitting the centres; a random sample if there are more.
    pub sample: usize,
}

impl Default for SemanticOptions {
    fn default() -> SemanticOptions {
        SemanticOptions {
            clusters: 100,
            max_iterations: 300,
            tolerance: 1e-4,
            eps: 0.01,
            keep: Preference::Hard,
            seed: 42,
            sample: 1 << 18,
        }
    }
}

/// Rows of a cluster compared per block (Curator: 1024).
const BLOCK: usize = 1024;

/// Memory and disk needed by [`semantic`] for `documents` embeddings of `size` numbers.
pub fn semantic_needs(options: &SemanticOptions, documents: u64, size: usize) -> Needs {
    let row = 4 * size as u64;
    let sample = documents.min(options.sample as u64);
    let rows = sample * (row + 16) + (options.clusters as u64 + 4 * BLOCK as u64) * 2 * row;
    Needs { memory_bytes: rows + documents.saturating_mul(20), disk_bytes: documents.saturating_mul(row) }
}

/// Finds documents with the same meaning from complete embeddings. One of each group is kept, not necessarily the
/// first: a removed document's representative is the closest of those preferred to it.
///
/// # Errors
/// The embeddings cannot be read.
pub fn semantic(options: &SemanticOptions, rows: &mut Embeddings) -> Result<Vec<(u64, u64)>, Error> {
    if options.clusters == 0 || options.sample == 0 {
        let found = format!("{} (by {})", options.clusters, options.sample);
        return Err(Error::setting("clusters", found, "choose at least one"));
    }
    let documents = rows.num_documents();
    let mut removed = Vec::new();
    if documents > 0 {
        let centres = fit(options, rows, documents)?;
        for (cluster, members) in assign(&centres, rows, documents)?.into_iter().enumerate() {
            let order = ordered(options, cluster, members);
            removed.extend(close_ones(options, rows, &order)?);
        }
    }
    let number = |place| rows.number(place);
    let mut removed: Vec<(u64, u64)> =
        removed.into_iter().map(|(place, by)| (number(place), number(by))).collect();
    removed.sort_unstable();
    Ok(removed)
}

fn fit(options: &SemanticOptions, rows: &mut Embeddings, documents: u64) -> Result<Centres, Error> {
    let wanted = documents.min(options.sample as u64);
    // Selection sampling (Knuth, algorithm S): `wanted` indices, ascending.
    let mut random = SplitMix(options.seed);
    let mut places = Vec::with_capacity(wanted as usize);
    for place in 0..documents {
        if random.below(documents - place) < wanted - places.len() as u64 {
            places.push(place);
        }
    }
    let sample = rows.read(&places)?;
    let limits = (options.max_iterations, options.tolerance);
    Ok(Centres::fit(&sample, rows.size(), options.clusters, limits, options.seed))
}

/// Members of each cluster, with their distances to its centre.
fn assign(centres: &Centres, rows: &mut Embeddings, documents: u64) -> Result<Vec<Vec<(u64, f32)>>, Error> {
    let mut clusters: Vec<Vec<(u64, f32)>> = vec![Vec::new(); centres.len()];
    for first in (0..documents).step_by(BLOCK) {
        let places: Vec<u64> = (first..documents.min(first + BLOCK as u64)).collect();
        let (values, size) = (rows.read(&places)?, rows.size());
        let nearest: Vec<(usize, f32)> = values
            .par_chunks(size)
            .map(|row| {
                let (cluster, _) = centres.nearest(row);
                let centre = centres.centre(cluster);
                let length = (dot(row, row) * dot(centre, centre)).sqrt();
                (cluster, if length > 0.0 { 1.0 - dot(row, centre) / length } else { 1.0 })
            })
            .collect();
        for (place, (cluster, distance)) in places.into_iter().zip(nearest) {
            clusters[cluster].push((place, distance));
        }
    }
    Ok(clusters)
}

/// Members in order of preference; ties in document order.
fn ordered(options: &SemanticOptions, cluster: usize, mut members: Vec<(u64, f32)>) -> Vec<u64> {
    match options.keep {
        Preference::Hard => members.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))),
        Preference::Easy => members.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0))),
        Preference::Random => {
            SplitMix(options.seed ^ (cluster as u64 + 1).rotate_left(32)).shuffle(&mut members)
        }
    }
    members.into_iter().map(|(place, _)| place).collect()
}

/// Members closer than eps to an earlier one, each with the closest such.
fn close_ones(
    options: &SemanticOptions,
    rows: &mut Embeddings,
    order: &[u64],
) -> Result<Vec<(u64, u64)>, Error> {
    let mut removed = Vec::new();
    let size = rows.size();
    for (at, block) in order.chunks(BLOCK).enumerate() {
        let own = rows.read(block)?;
        let mut best: Vec<(f32, u64)> = vec![(f32::NEG_INFINITY, 0); block.len()];
        for (before, others) in order.chunks(BLOCK).enumerate().take(at + 1) {
            let loaded;
            let values = if before == at {
                &own
            } else {
                loaded = rows.read(others)?;
                &loaded
            };
            best.par_iter_mut().enumerate().for_each(|(i, best)| {
                let row = &own[i * size..(i + 1) * size];
                let until = if before == at { i } else { others.len() };
                for (other, value) in others[..until].iter().zip(values.chunks_exact(size)) {
                    let cosine = dot(row, value);
                    if cosine > best.0 {
                        *best = (cosine, *other);
                    }
                }
            });
        }
        let close = |cosine: f32| f64::from(cosine) > 1.0 - options.eps;
        removed.extend(
            block.iter().zip(best).filter(|(_, best)| close(best.0)).map(|(&place, best)| (place, best.1)),
        );
    }
    Ok(removed)
}

impl Duplicates {
    /// Builds report clusters from pairs of (removed, representative); each cluster is represented by its first
    /// document, whichever is kept. Numbers in `pairs` must occur in `numbers`, which must ascend.
    ///
    /// # Errors
    /// Numbers do not ascend, or a pair contains an unknown number.
    pub fn from_pairs(numbers: impl Iterator<Item = u64>, pairs: &[(u64, u64)]) -> Result<Duplicates, Error> {
        let mut numbering = NumberRuns::default();
        for number in numbers {
            numbering.push(number)?;
        }
        let place = |number: u64| {
            let advice = "pairs are of the documents that were numbered";
            numbering.place(number).ok_or_else(|| Error::setting("document number", number, advice))
        };
        let mut components = Components::new(numbering.len());
        for &(a, b) in pairs {
            components.join(place(a)?, place(b)?);
        }
        components.flatten();
        Ok(Duplicates { numbering, components, unhashed: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fathom_base::Embed;

    /// Embeds `"x y"` as the unit vector in direction (x, y).
    struct Direction;

    impl Embed for Direction {
        fn embed(&mut self, texts: &[&str]) -> fathom_base::Result<Vec<Vec<f32>>> {
            let vector = |text: &&str| {
                let values: Vec<f32> = text.split(' ').map(|part| part.parse().unwrap()).collect();
                let length = dot(&values, &values).sqrt();
                values.iter().map(|value| value / length).collect()
            };
            Ok(texts.iter().map(vector).collect())
        }

        fn size(&self) -> usize {
            2
        }
    }

    fn find(options: &SemanticOptions, texts: &[&str]) -> Vec<(u64, u64)> {
        let work = tempfile::tempdir().unwrap();
        let documents = texts.iter().enumerate().map(|(number, text)| Ok((10 * number as u64, *text)));
        let mut embeddings = Embeddings::open(work.path(), "").unwrap();
        embeddings.add(&mut Direction, documents, &|| Ok(())).unwrap();
        semantic(options, &mut embeddings).unwrap()
    }

    #[test]
    fn close_documents_go_and_distant_ones_stay() {
        let texts = ["1 0", "0 1", "100 1", "1 1", "2 2", "1 100"];
        let options = SemanticOptions { clusters: 1, ..SemanticOptions::default() };
        let groups = |pairs: &[(u64, u64)]| {
            let found = Duplicates::from_pairs((0..6).map(|i| 10 * i), pairs).unwrap();
            found.pairs().collect::<Vec<_>>()
        };
        for keep in [Preference::Hard, Preference::Easy, Preference::Random] {
            let pairs = find(&SemanticOptions { keep, ..options.clone() }, &texts);
            assert_eq!(groups(&pairs), [(20, 0), (40, 30), (50, 10)], "{keep:?}");
        }
        // The centre is in between: the document on the axis is farther from it.
        let hard = find(&options, &texts);
        assert!(hard.contains(&(20, 0)) && hard.contains(&(50, 10)), "{hard:?}");
        let easy = find(&SemanticOptions { keep: Preference::Easy, ..options.clone() }, &texts);
        assert!(easy.contains(&(0, 20)) && easy.contains(&(10, 50)), "{easy:?}");
        let strict = SemanticOptions { eps: 1e-6, ..options };
        assert_eq!(groups(&find(&strict, &texts)), [(40, 30)]);
    }

    #[test]
    fn many_equal_documents_leave_one() {
        let texts = vec!["3 4"; 2500];
        let removed = find(&SemanticOptions::default(), &texts);
        assert_eq!(removed.len(), 2499);
        assert_eq!(find(&SemanticOptions::default(), &[]), []);
    }
}
