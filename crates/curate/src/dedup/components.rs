//! Connected components: union-find over streamed edges. The root of a tree is always its smallest document, so the
//! result does not depend on the order of edges.

use std::collections::BTreeMap;

/// Parents of documents 0..n; 32-bit while the numbers fit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Parents {
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
}

/// A forest over documents 0..n: 4 bytes per document up to 2^32 documents, 8 above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Components {
    parents: Parents,
}

trait Number: Copy + PartialEq + Ord {
    fn index(self) -> usize;
}

impl Number for u32 {
    fn index(self) -> usize {
        self as usize
    }
}

impl Number for u64 {
    fn index(self) -> usize {
        self as usize
    }
}

/// Root of `of`, with path halving.
fn root<N: Number>(parents: &mut [N], of: usize) -> usize {
    let mut at = of;
    while parents[at].index() != at {
        let grandparent = parents[parents[at].index()];
        parents[at] = grandparent;
        at = grandparent.index();
    }
    at
}

fn link<N: Number>(parents: &mut [N], a: usize, b: usize) -> bool {
    let (a, b) = (root(parents, a), root(parents, b));
    if a == b {
        return false;
    }
    parents[a.max(b)] = parents[a.min(b)];
    true
}

impl Components {
    /// Creates `documents` components of one document each.
    pub fn new(documents: u64) -> Components {
        Components::with_width(documents, documents > 1 << 32)
    }

    fn with_width(documents: u64, wide: bool) -> Components {
        let parents = if wide {
            Parents::Wide((0..documents).collect())
        } else {
            Parents::Narrow((0..documents as u32).collect())
        };
        Components { parents }
    }

    /// Bytes of a forest over `documents` documents.
    pub fn bytes(documents: u64) -> u64 {
        documents.saturating_mul(if documents > 1 << 32 { 8 } else { 4 })
    }

    /// Total number of documents.
    pub fn documents(&self) -> u64 {
        match &self.parents {
            Parents::Narrow(parents) => parents.len() as u64,
            Parents::Wide(parents) => parents.len() as u64,
        }
    }

    /// Joins the components of two documents; returns true if they were different.
    ///
    /// # Panics
    /// If a document does not exist.
    pub fn join(&mut self, a: u64, b: u64) -> bool {
        match &mut self.parents {
            Parents::Narrow(parents) => link(parents, a as usize, b as usize),
            Parents::Wide(parents) => link(parents, a as usize, b as usize),
        }
    }

    /// Points every document directly at its representative, the smallest document of its component.
    pub fn flatten(&mut self) {
        // A parent is never larger than its child, so one ascending pass suffices.
        fn settle<N: Number>(parents: &mut [N]) {
            for at in 0..parents.len() {
                parents[at] = parents[parents[at].index()];
            }
        }
        match &mut self.parents {
            Parents::Narrow(parents) => settle(parents),
            Parents::Wide(parents) => settle(parents),
        }
    }

    /// Parent of a document: its representative once [`Components::flatten`] has run.
    pub fn parent(&self, document: u64) -> u64 {
        match &self.parents {
            Parents::Narrow(parents) => u64::from(parents[document as usize]),
            Parents::Wide(parents) => parents[document as usize],
        }
    }

    /// Makes a document point at `representative`, which must not be larger than it.
    pub(super) fn assign(&mut self, document: u64, representative: u64) {
        assert!(representative <= document, "assign: {representative} cannot represent {document}");
        match &mut self.parents {
            Parents::Narrow(parents) => parents[document as usize] = representative as u32,
            Parents::Wide(parents) => parents[document as usize] = representative,
        }
    }

    /// Number of components by size, for sizes above 1; call after [`Components::flatten`]. Uses 4 bytes per document
    /// while counting.
    pub fn sizes(&self) -> BTreeMap<u64, u64> {
        let mut others = vec![0u32; self.documents() as usize];
        for document in 0..self.documents() {
            let parent = self.parent(document);
            if parent != document {
                others[parent as usize] += 1;
            }
        }
        let mut sizes = BTreeMap::new();
        for count in others.into_iter().filter(|&count| count > 0) {
            *sizes.entry(u64::from(count) + 1).or_insert(0) += 1;
        }
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reference implementation: propagates the smallest number along edges until nothing changes.
    fn slowly(documents: u64, edges: &[(u64, u64)]) -> Vec<u64> {
        let mut least: Vec<u64> = (0..documents).collect();
        loop {
            let before = least.clone();
            for &(a, b) in edges {
                let both = least[a as usize].min(least[b as usize]);
                least[a as usize] = both;
                least[b as usize] = both;
            }
            if least == before {
                return least;
            }
        }
    }

    proptest! {
        #[test]
        fn components_are_those_of_the_graph(edges in prop::collection::vec((0u64..60, 0u64..60), 0..80)) {
            let expected = slowly(60, &edges);
            for wide in [false, true] {
                for reversed in [false, true] {
                    let mut components = Components::with_width(60, wide);
                    let mut order = edges.clone();
                    if reversed {
                        order.reverse();
                    }
                    for (a, b) in order {
                        components.join(a, b);
                    }
                    components.flatten();
                    let found: Vec<u64> = (0..60).map(|document| components.parent(document)).collect();
                    prop_assert_eq!(&found, &expected);
                }
            }
        }
    }

    #[test]
    fn a_long_chain_is_joined_in_linear_time() {
        let documents = 1_000_000;
        let mut components = Components::new(documents);
        for document in (1..documents).rev() {
            assert!(components.join(document, document - 1));
        }
        components.flatten();
        assert_eq!(components.sizes(), BTreeMap::from([(documents, 1)]));
        assert!((0..documents).all(|document| components.parent(document) == 0));
    }
}
