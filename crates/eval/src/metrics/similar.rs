//! Similarity of two texts as Python's `difflib.SequenceMatcher` computes it.

use std::collections::HashMap;

/// Length from which characters that are more frequent than one in a hundred begin no match.
const LONG: usize = 200;

/// Share of characters in matching blocks, of both texts: `SequenceMatcher(None, a, b).ratio()`.
pub fn ratio(a: &str, b: &str) -> f64 {
    let [a, b] = [a, b].map(|text| text.chars().collect::<Vec<char>>());
    if a.len() + b.len() == 0 {
        return 1.0;
    }
    let mut places: HashMap<char, Vec<usize>> = HashMap::new();
    b.iter().enumerate().for_each(|(at, c)| places.entry(*c).or_default().push(at));
    if b.len() >= LONG {
        places.retain(|_, at| at.len() <= b.len() / 100 + 1);
    }
    let mut open = vec![([0, a.len()], [0, b.len()])];
    let mut matches = 0;
    while let Some(([a_from, a_to], [b_from, b_to])) = open.pop() {
        let (i, j, size) = longest([&a, &b], &places, [a_from, a_to], [b_from, b_to]);
        if size == 0 {
            continue;
        }
        matches += size;
        open.push(([a_from, i], [b_from, j]));
        open.push(([i + size, a_to], [j + size, b_to]));
    }
    2.0 * matches as f64 / (a.len() + b.len()) as f64
}

/// The first longest block of both ranges: where it begins in each, and its length.
fn longest(
    [a, b]: [&[char]; 2],
    places: &HashMap<char, Vec<usize>>,
    [a_from, a_to]: [usize; 2],
    [b_from, b_to]: [usize; 2],
) -> (usize, usize, usize) {
    let (mut i, mut j, mut size) = (a_from, b_from, 0);
    let mut ends: HashMap<usize, usize> = HashMap::new();
    for at in a_from..a_to {
        let mut next = HashMap::new();
        let inside = |place: &&usize| (b_from..b_to).contains(*place);
        for place in places.get(&a[at]).into_iter().flatten().filter(inside) {
            let length = 1 + place.checked_sub(1).and_then(|it| ends.get(&it)).copied().unwrap_or(0);
            next.insert(*place, length);
            if length > size {
                (i, j, size) = (at + 1 - length, place + 1 - length, length);
            }
        }
        ends = next;
    }
    // Frequent characters may lengthen a block.
    while i > a_from && j > b_from && a[i - 1] == b[j - 1] {
        (i, j, size) = (i - 1, j - 1, size + 1);
    }
    while i + size < a_to && j + size < b_to && a[i + size] == b[j + size] {
        size += 1;
    }
    (i, j, size)
}
