//! Tracks the minimum of many changing numbers and its first position: a tree with sixteen entries per node.

/// Marker for no number.
pub(super) const NONE: u32 = u32::MAX;

const WIDTH: usize = 16;

/// Numbers by position. Level zero holds them, every higher level the minimum of each node below.
#[derive(Debug, Default)]
pub(super) struct Tree {
    levels: Vec<Vec<[u32; WIDTH]>>,
    /// Number of levels in use; the last has one node.
    used: usize,
}

impl Tree {
    /// Fills the positions from zero on with these numbers.
    pub(super) fn fill(&mut self, numbers: impl Iterator<Item = u32>) {
        let mut nodes = self.emptied(0);
        for (at, number) in numbers.enumerate() {
            if at % WIDTH == 0 {
                nodes.push([NONE; WIDTH]);
            }
            nodes[at / WIDTH][at % WIDTH] = number;
        }
        if nodes.is_empty() {
            nodes.push([NONE; WIDTH]);
        }
        self.levels[0] = nodes;
        self.used = 1;
        while self.levels[self.used - 1].len() > 1 {
            let mut above = self.emptied(self.used);
            for nodes in self.levels[self.used - 1].chunks(WIDTH) {
                let mut node = [NONE; WIDTH];
                node.iter_mut().zip(nodes).for_each(|(lowest, node)| *lowest = least(node));
                above.push(node);
            }
            self.levels[self.used] = above;
            self.used += 1;
        }
    }

    /// Changes the number at a filled position.
    #[inline]
    pub(super) fn set(&mut self, mut at: usize, mut number: u32) {
        for level in &mut self.levels[..self.used] {
            let node = &mut level[at / WIDTH];
            node[at % WIDTH] = number;
            number = least(node);
            at /= WIDTH;
        }
    }

    /// Minimum and its first position.
    #[inline]
    pub(super) fn lowest(&self) -> Option<(u32, usize)> {
        let levels = &self.levels[..self.used];
        let lowest = least(levels.last()?.first()?);
        if lowest == NONE {
            return None;
        }
        let at = levels.iter().rev().fold(0, |at, level| at * WIDTH + first(&level[at], lowest));
        Some((lowest, at))
    }

    /// Takes a level's memory, with its nodes cleared.
    fn emptied(&mut self, level: usize) -> Vec<[u32; WIDTH]> {
        if self.levels.len() == level {
            self.levels.push(Vec::new());
        }
        let mut nodes = std::mem::take(&mut self.levels[level]);
        nodes.clear();
        nodes
    }
}

#[inline(always)]
fn least(node: &[u32; WIDTH]) -> u32 {
    node.iter().copied().fold(NONE, u32::min)
}

/// First position of a number in a node that contains it.
#[inline(always)]
fn first(node: &[u32; WIDTH], number: u32) -> usize {
    let places = node.iter().enumerate().fold(0u32, |places, (at, &n)| places | u32::from(n == number) << at);
    places.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_of_the_lowest_is_found(
            numbers in prop::collection::vec(prop_oneof![0u32..9, Just(NONE)], 0..700),
            changes in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![0u32..9, Just(NONE)]), 0..40),
        ) {
            let mut numbers = numbers;
            let mut tree = Tree::default();
            // Filled twice: earlier contents must not matter.
            tree.fill((0..5000).map(|n| n % 7));
            tree.fill(numbers.iter().copied());
            for change in std::iter::once(None).chain(changes.into_iter().map(Some)) {
                if let Some((index, number)) = change.filter(|_| !numbers.is_empty()) {
                    let at = index.index(numbers.len());
                    numbers[at] = number;
                    tree.set(at, number);
                }
                let lowest = numbers.iter().copied().min().filter(|&lowest| lowest != NONE);
                let wanted = lowest.and_then(|lowest| {
                    Some((lowest, numbers.iter().position(|&number| number == lowest)?))
                });
                prop_assert_eq!(tree.lowest(), wanted);
            }
        }
    }
}
