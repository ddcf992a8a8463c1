//! A source that reads retrieved neighbours (RETRO; Borgeaud et al., arXiv 2112.04426).

use super::architecture::{LayerSpec, PartKind, Spec};

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
