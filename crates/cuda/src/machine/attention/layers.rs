//! Packed sequences as calls of the library: the sequences of each call, and their lists.

use fathom_tensor::gpu;
use fathom_tensor::{Band, Sequence};

use super::operands::of_keys;
use crate::sdpa::{Case, uid};

/// Sequences of one call: all of one kind, with no row of queries or of keys in two of them, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub sequences: Vec<Sequence>,
    pub band: Band,
}

/// Beyond this many layers kernels are used, which read a mask once: each additional layer reads and writes the results
/// once more, which takes as long as attention to some 400 keys (bf16 parts of heads of any size at 4 TB/s and 600
/// TFLOP/s).
const MOST_LAYERS: usize = 128;

impl Layer {
    /// Groups sequences into the fewest layers of at most `most` each; `None` if there would be too many layers.
    pub fn of(sequences: &[Sequence], most: usize) -> Option<Vec<Layer>> {
        let mut layers: Vec<Layer> = Vec::new();
        for sequence in sequences {
            let follows = |last: &Sequence| last.q.end <= sequence.q.start && last.k.end <= sequence.k.start;
            let fits = |layer: &&mut Layer| {
                layer.band == sequence.band
                    && layer.sequences.len() < most
                    && layer.sequences.last().is_none_or(follows)
            };
            match layers.iter_mut().find(fits) {
                Some(layer) => layer.sequences.push(sequence.clone()),
                None => {
                    let (sequences, band) = (vec![sequence.clone()], sequence.band);
                    layers.push(Layer { sequences, band });
                }
            }
            if layers.len() > MOST_LAYERS {
                return None;
            }
        }
        Some(layers)
    }

    /// Largest number of query rows of a sequence, and of key rows.
    pub fn longest(&self) -> [usize; 2] {
        let most = |rows: fn(&Sequence) -> usize| self.sequences.iter().map(rows).max().unwrap_or(0);
        [most(|sequence| sequence.q.len()), most(|sequence| sequence.k.len())]
    }

    /// Starts of the sequences in each of these tensors, and their lengths: bytes for the device, and the offset of
    /// each list in them ([`gpu::attention_list`]).
    pub fn lists(&self, case: &Case, numbers: &[i64]) -> (Vec<u8>, Vec<(i64, u64)>) {
        let count = case.sequences as usize;
        let rows = |keys: bool| {
            let rows = move |sequence: &Sequence| if keys { sequence.k.clone() } else { sequence.q.clone() };
            let end = self.sequences.iter().map(rows).map(|rows| rows.end).max().unwrap_or(0);
            // Missing sequences are empty ones at the end.
            let rest = std::iter::repeat_n(end..end, count + 1 - self.sequences.len());
            self.sequences.iter().map(rows).chain(rest).collect::<Vec<_>>()
        };
        let (queries, keys) = (rows(false), rows(true));
        let (mut bytes, mut places) = (Vec::new(), Vec::new());
        let mut add = |number: i64, list: Vec<u8>, list_bytes: u64| {
            places.push((number, bytes.len() as u64));
            bytes.extend(list);
            bytes.resize((places[places.len() - 1].1 + list_bytes) as usize, 0);
        };
        for number in numbers {
            let (stride, rows) = (case.strides.of(*number), if of_keys(*number) { &keys } else { &queries });
            let list = rows.iter().flat_map(|rows| (rows.start as i64 * stride).to_le_bytes()).collect();
            add(uid::start_of(*number), list, gpu::attention_list(count + 1, 8));
        }
        for (number, rows) in [(uid::Q_LEN, &queries), (uid::K_LEN, &keys)] {
            let list = rows[..count].iter().flat_map(|rows| (rows.len() as i32).to_le_bytes()).collect();
            add(number, list, gpu::attention_list(count, 4));
        }
        (bytes, places)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::Band::{Causal, Full, Left};
    use super::*;

    fn sequence(q: Range<usize>, k: Range<usize>, band: Band) -> Sequence {
        Sequence { q, k, band }
    }

    fn counts(sequences: &[Sequence], most: usize) -> Option<Vec<(usize, Band)>> {
        let layers = Layer::of(sequences, most)?;
        Some(layers.iter().map(|layer| (layer.sequences.len(), layer.band)).collect())
    }

    #[test]
    fn no_row_is_in_a_layer_twice() {
        // Two documents; the first has two groups of keys before its queries.
        let sequences = [
            sequence(0..4, 4..8, Causal),
            sequence(4..8, 24..28, Causal),
            sequence(0..8, 0..4, Full),
            sequence(4..8, 4..24, Full),
            sequence(8..10, 30..32, Causal),
            sequence(8..10, 28..30, Full),
        ];
        assert_eq!(counts(&sequences, 8), Some(vec![(3, Causal), (2, Full), (1, Full)]));
        assert_eq!(counts(&sequences, 2), Some(vec![(2, Causal), (2, Full), (1, Full), (1, Causal)]));
        assert_eq!(counts(&sequences, 1).unwrap().len(), 6);
        assert_eq!(counts(&[], 4), Some(vec![]));
        // A window applies to a whole layer.
        let sequences = [
            sequence(0..2, 2..4, Left(1)),
            sequence(4..8, 4..8, Left(2)),
            sequence(8..10, 10..12, Left(1)),
            sequence(10..12, 11..13, Left(1)),
        ];
        assert_eq!(counts(&sequences, 8), Some(vec![(2, Left(1)), (1, Left(2)), (1, Left(1))]));
        let many: Vec<Sequence> = (0..129).map(|at| sequence(at..130, at..at + 1, Full)).collect();
        assert_eq!((counts(&many[1..], 64).unwrap().len(), counts(&many, 64)), (128, None));
    }
}
