//! Retrieved neighbours as a source (RETRO; Borgeaud et al., arXiv 2112.04426).

use std::ops::Range;

use super::architecture::{LayerSpec, PartKind, Spec};

/// Sizes of retrieval: a text is cut into chunks, each of which has neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retrieval {
    /// Tokens of a chunk.
    pub chunk: usize,
    /// Most neighbours of a chunk.
    pub neighbours: usize,
}

impl Retrieval {
    /// Sizes of the paper.
    pub const PAPER: Retrieval = Retrieval { chunk: 64, neighbours: 2 };

    /// Most tokens of a neighbour: a chunk and its continuation.
    pub fn neighbour(self) -> usize {
        2 * self.chunk
    }

    /// Most chunks of a stream of so many tokens.
    pub fn chunks(self, tokens: usize) -> usize {
        tokens / self.chunk
    }

    /// Tokens of the stream of all neighbours of a stream of so many tokens.
    pub fn source(self, tokens: usize) -> usize {
        self.chunks(tokens) * self.neighbours * self.neighbour()
    }

    /// Most documents of that stream: short neighbours leave nearly all of it to those that fill it up, also to whole
    /// chunks of sums.
    pub fn documents(self, tokens: usize) -> usize {
        2 * self.chunks(tokens) * self.neighbours + 2
    }

    /// Rows that read the neighbours of the chunk that begins at row `start` of a document which ends at `end`: from
    /// the chunk's last row, which has seen all of it, to the row before the next chunk's last.
    pub fn readers(self, start: usize, end: usize) -> Range<usize> {
        let last = start + self.chunk - 1;
        last..(last + self.chunk).min(end)
    }
}

impl LayerSpec {
    /// The place among its parts of attention to another stream.
    pub(crate) fn cross(&self) -> Option<usize> {
        self.parts.iter().position(|part| matches!(part.kind, PartKind::Cross))
    }
}

impl Spec {
    /// The layer of the main stack, and the place among its parts, before which the source runs over neighbours.
    pub(crate) fn meeting(&self) -> Option<(usize, usize)> {
        let main = self.retrieval.map(|_| self.source..self.layers.len())?;
        main.into_iter().find_map(|layer| Some((layer, self.layers[layer].cross()?)))
    }

    /// Segments of all layers in the order of a forward pass, of those of the source, an embedding, its blocks and a norm, and
    /// those of the main stream. With retrieval, the main stream comes first, up to the layer where both meet.
    pub(crate) fn in_order<T>(&self, mut runs: Vec<Vec<T>>) -> Vec<Vec<T>> {
        if let (Some((layer, _)), Some(run)) = (self.meeting(), runs.first_mut()) {
            run[..layer + 4].rotate_left(self.source + 2);
        }
        runs
    }

    /// Refuses stages of a pipeline, if a source reads neighbours.
    ///
    /// # Errors
    /// The reason.
    pub(crate) fn check_stages(&self, stages: usize) -> Result<(), String> {
        if self.retrieval.is_none() || stages == 1 {
            return Ok(());
        }
        let family = self.family;
        Err(format!(
            "{stages} stages would each need the main stream and its neighbours, which meet in the middle of {family}; it must be 1"
        ))
    }

    /// Number of a stack's masks: those of its reaches, and that of attention to another stream.
    pub(crate) fn masks(&self) -> usize {
        self.reaches().len() + usize::from(self.layers.iter().any(|layer| layer.cross().is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_neighbours_of_a_chunk_are_read_by_rows_that_have_seen_all_of_it() {
        let sizes = Retrieval { chunk: 4, neighbours: 2 };
        let readers =
            |end: usize| (0..end / 4).map(move |chunk| sizes.readers(4 * chunk, end)).collect::<Vec<_>>();
        assert!(readers(3).is_empty());
        assert_eq!(readers(4), [3..4]);
        assert_eq!(readers(14), [3..7, 7..11, 11..14]);
        assert_eq!(
            (sizes.neighbour(), sizes.chunks(14), sizes.source(14), sizes.documents(14)),
            (8, 3, 48, 14)
        );
    }
}
