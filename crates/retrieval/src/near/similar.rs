//! Finds the near-duplicates of an index, from those of the manifest before it.

use std::cell::OnceCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use rayon::prelude::*;

use super::keys::{Keys, keys_of};
use super::shingle_set;
use crate::error::Result;
use crate::manifest::{self, Manifest, SegmentEntry};
use crate::segment::Segment;

/// Similarity from which two chunks are near-duplicates.
const SIMILAR: f64 = 0.8;
/// Chunks of a band that a chunk is compared with, at most: those that came first.
const COMPARED: usize = 8;
/// Number of an original that is gone.
const GONE: u32 = u32::MAX;

/// Near-duplicates before chunks came and went.
#[derive(Default)]
struct Before {
    /// Keys of the chunks that came and went.
    touched: Vec<u64>,
    /// Originals of the chunks that stayed, by their numbers now.
    originals: HashMap<u32, u32>,
}

/// First chunk of each segment.
fn starts(segments: &[SegmentEntry]) -> Vec<u32> {
    let mut all = 0;
    let start = |entry: &SegmentEntry| {
        all += entry.chunks as u32;
        all - entry.chunks as u32
    };
    segments.iter().map(start).collect()
}

/// Near-duplicate chunks over all segments, each with an earlier one; those of an older manifest hold where nothing that
/// they were compared with came or went.
///
/// # Errors
/// A segment cannot be read.
pub(crate) fn update(
    out: &Path,
    segments: &[SegmentEntry],
    old: Option<&Manifest>,
) -> Result<Vec<(u32, u32)>> {
    let starts = starts(segments);
    let old = old.and_then(|old| Some((old, Keys::read(out, &old.segments)?)));
    let had: HashSet<&str> =
        old.iter().flat_map(|(old, _)| &old.segments).map(|entry| entry.name.as_str()).collect();
    let new = |(entry, start): (&SegmentEntry, &u32)| -> Result<Vec<(u64, u32)>> {
        if had.contains(entry.name.as_str()) {
            return Ok(Vec::new());
        }
        let segment = Segment::reopen(&manifest::segment(out, &entry.name))?;
        let chunks = 0..segment.chunks();
        Ok(chunks.flat_map(|chunk| keys_of(start + chunk as u32, segment.bands(chunk))).collect())
    };
    let new = segments.par_iter().zip(&starts).map(new).collect::<Result<Vec<_>>>()?.concat();
    let (keys, before) = match &old {
        None => (Keys::default().updated(|_| None, new).0, None),
        Some((old, keys)) => {
            let moved = moved(segments, &starts, &old.segments);
            let of = |chunk: u32| moved.get(chunk as usize).copied().flatten();
            let mut touched: Vec<u64> = new.iter().map(|(key, _)| *key).collect();
            let (keys, gone) = keys.updated(of, new);
            touched.extend(gone);
            let originals = old.duplicates.iter();
            let kept = |(chunk, of_it): &(u32, u32)| Some((of(*chunk)?, of(*of_it).unwrap_or(GONE)));
            (keys, Some(Before { touched, originals: originals.filter_map(kept).collect() }))
        }
    };
    keys.write(out, segments)?;
    let opened: Vec<OnceCell<Segment>> = segments.iter().map(|_| OnceCell::new()).collect();
    duplicates(&keys, before.as_ref(), |chunk| {
        let at = starts.partition_point(|start| *start <= chunk) - 1;
        let segment = match opened[at].get() {
            Some(segment) => segment,
            None => {
                let segment = Segment::reopen(&manifest::segment(out, &segments[at].name))?;
                opened[at].get_or_init(|| segment)
            }
        };
        let text = segment.chunk((chunk - starts[at]) as usize).map_or("", |chunk| chunk.text);
        Ok(shingle_set(text))
    })
}

/// Number now of each chunk of older segments; `None` for those that are gone.
fn moved(segments: &[SegmentEntry], starts: &[u32], old: &[SegmentEntry]) -> Vec<Option<u32>> {
    let now: HashMap<&str, u32> =
        segments.iter().zip(starts).map(|(entry, start)| (entry.name.as_str(), *start)).collect();
    let of = |entry: &SegmentEntry| {
        let start = now.get(entry.name.as_str()).copied();
        (0..entry.chunks as u32).map(move |chunk| start.map(|start| start + chunk))
    };
    old.iter().flat_map(of).collect()
}

/// Chunks that are near-duplicates of an earlier one, with that one, in ascending order; `set` has a chunk's shingles.
fn duplicates(
    keys: &Keys,
    before: Option<&Before>,
    set: impl Fn(u32) -> Result<HashSet<u64>>,
) -> Result<Vec<(u32, u32)>> {
    // A chunk with one that came before it, for every band that both have.
    let mut pairs: Vec<(u32, u32)> = Vec::new();
    for group in keys.shared() {
        for (at, chunk) in group.iter().enumerate() {
            pairs.extend(group[..at.min(COMPARED)].iter().map(|other| (*chunk, *other)));
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    let touched: Option<HashSet<u32>> =
        before.map(|before| before.touched.iter().flat_map(|key| keys.of(*key)).collect());
    let mut sets: HashMap<u32, HashSet<u64>> = HashMap::new();
    let mut originals: HashMap<u32, u32> = HashMap::new();
    for of in pairs.chunk_by(|a, b| a.0 == b.0) {
        let chunk = of[0].0;
        let holds = before.is_some_and(|before| {
            let is_touched = touched.as_ref().is_some_and(|touched| touched.contains(&chunk));
            let same = |other: &u32| before.originals.get(other) == originals.get(other);
            !is_touched && of.iter().all(|(_, other)| same(other))
        });
        let original = if holds {
            before.and_then(|before| before.originals.get(&chunk).copied())
        } else {
            let candidates = of.iter().map(|(_, other)| originals.get(other).copied().unwrap_or(*other));
            let own = set(chunk)?;
            first_similar(&own, candidates, &mut sets, &set)?
        };
        originals.extend(original.map(|original| (chunk, original)));
    }
    let mut found: Vec<(u32, u32)> = originals.into_iter().collect();
    found.sort_unstable();
    Ok(found)
}

/// The first of some chunks that has similar shingles.
fn first_similar(
    own: &HashSet<u64>,
    candidates: impl Iterator<Item = u32>,
    sets: &mut HashMap<u32, HashSet<u64>>,
    set: &impl Fn(u32) -> Result<HashSet<u64>>,
) -> Result<Option<u32>> {
    for original in candidates {
        let other: &HashSet<u64> = match sets.entry(original) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(set(original)?),
        };
        let both = own.intersection(other).count() as f64;
        let all = (own.len() + other.len()) as f64 - both;
        if all > 0.0 && both / all >= SIMILAR {
            return Ok(Some(original));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::near::{bands, hash};
    use crate::terms::terms;

    fn keys(texts: &[String]) -> Vec<(u64, u32)> {
        let of = |(at, text): (usize, &String)| {
            let mut all = Vec::new();
            terms(text, |term| all.push(hash(term.as_bytes())));
            keys_of(at as u32, bands(&all)).collect::<Vec<_>>()
        };
        texts.iter().enumerate().flat_map(of).collect()
    }

    fn of(texts: &[String]) -> Vec<(u32, u32)> {
        let all = Keys::default().updated(|_| None, keys(texts)).0;
        duplicates(&all, None, |at| Ok(shingle_set(&texts[at as usize]))).unwrap()
    }

    #[test]
    fn texts_that_differ_little_are_near_duplicates_of_the_first() {
        let long: Vec<String> = (0..80).map(|at| format!("word{}", at * at % 97)).collect();
        let a = long.join(" ");
        let b = a.replacen("word16", "other", 1);
        let c = format!("{} {}", "entirely different words here", a[..60].to_uppercase());
        assert_eq!(of(&[a.clone(), b, c, a]), [(1, 0), (3, 0)]);
        let short = ["one two", "one two", "one three", ""];
        assert_eq!(of(&short.map(String::from)), [(1, 0)]);
    }

    #[test]
    fn an_update_finds_the_near_duplicates_that_a_new_index_finds() {
        // Texts of a few sources with a few words changed, so that most are near another, some only by way of a third.
        let mut state = 5u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        let mut text = || {
            let source = below(4);
            let word = |at: u64| format!("word{}", (at * at + source * 31) % 211);
            let mut words: Vec<String> = (0..70).map(word).collect();
            (0..below(4)).for_each(|_| words[below(70) as usize] = format!("other{}", below(50)));
            words.join(" ")
        };
        let mut texts: Vec<String> = (0..40).map(|_| text()).collect();
        let mut found = of(&texts);
        let mut all = Keys::default().updated(|_| None, keys(&texts)).0;
        for round in 0..60 {
            // Two texts go from anywhere, and two come at one place.
            let gone = [round * 7 % 20, 20 + (round * 11 + 3) % 20];
            let at = round * 5 % 35;
            let stay: Vec<usize> = (0..40).filter(|old| !gone.contains(old)).collect();
            let place = |old: usize| {
                let place = stay.iter().position(|it| *it == old)?;
                Some((if place < at { place } else { place + 2 }) as u32)
            };
            let mut now: Vec<String> = stay.iter().map(|old| texts[*old].clone()).collect();
            (0..2).for_each(|_| now.insert(at, text()));
            let is_new = |(_, chunk): &(u64, u32)| (at..at + 2).contains(&(*chunk as usize));
            let new: Vec<(u64, u32)> = keys(&now).into_iter().filter(is_new).collect();
            let came = new.iter().map(|(key, _)| *key).collect::<Vec<u64>>();
            let (updated, gone) = all.updated(|chunk| place(chunk as usize), new);
            assert_eq!(updated, Keys::default().updated(|_| None, keys(&now)).0);
            all = updated;
            let kept = |(chunk, of): &(u32, u32)| {
                Some((place(*chunk as usize)?, place(*of as usize).unwrap_or(GONE)))
            };
            let before =
                Before { touched: [came, gone].concat(), originals: found.iter().filter_map(kept).collect() };
            found = duplicates(&all, Some(&before), |at| Ok(shingle_set(&now[at as usize]))).unwrap();
            assert_eq!(found, of(&now), "round {round}");
            texts = now;
        }
        assert!(found.len() > 10, "{found:?}");
    }
}
