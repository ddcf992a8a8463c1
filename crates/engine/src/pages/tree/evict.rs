//! Eviction of cached prefixes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Node, Tree};
use crate::pages::Pages;

impl Tree {
    /// Evicts the least recently used pages until a class has `count` more free ones, in memory or on disk, or nothing
    /// can be evicted.
    pub fn evict(&mut self, pages: &mut Pages, class: usize, (count, on_disk): (usize, bool)) {
        let wanted = pages.free(class, on_disk) + count;
        if pages.classes[class].window.is_some() {
            self.evict_any(pages, class, wanted);
        } else {
            // Leaves whose own page is in the wanted place come first, then all leaves.
            self.evict_ends(pages, class, (wanted, on_disk, true));
            self.evict_ends(pages, class, (wanted, on_disk, false));
            if pages.free(class, on_disk) < wanted {
                self.evict_copied(pages, class, (wanted, on_disk));
            }
        }
        self.prune(pages);
    }

    /// Evicts pages of a class with a window, anywhere in the tree.
    fn evict_any(&mut self, pages: &mut Pages, class: usize, wanted: usize) {
        let mut order: Vec<(u64, usize)> = self
            .live()
            .filter(|(_, node)| node.pages.get(class).is_some_and(Option::is_some))
            .map(|(at, node)| (node.used, at))
            .collect();
        order.sort_unstable();
        for (_, at) in order {
            if pages.free(class, false) >= wanted {
                return;
            }
            let alone = |page: &u32| pages.is_alone(class, *page);
            if let Some(page) = self.node(at).pages[class].filter(alone) {
                pages.release(class, page);
                self.node_mut(at).pages[class] = None;
            }
        }
    }

    /// Removes leaves without pages, and unused roots.
    pub(super) fn prune(&mut self, pages: &mut Pages) {
        let bare = |node: &Node| {
            let bare = node.children.is_empty() && node.checkpoint.is_none();
            node.parent.is_some() && bare && node.pages.iter().all(Option::is_none)
        };
        let mut open: Vec<usize> = self.live().filter(|(_, node)| bare(node)).map(|(at, _)| at).collect();
        while let Some(at) = open.pop() {
            let parent = self.remove(pages, at);
            open.extend(bare(self.node(parent)).then_some(parent));
        }
        let (nodes, vacant) = (&mut self.nodes, &mut self.vacant);
        self.roots.retain(|_, at| {
            let used = nodes[*at].as_ref().is_some_and(|root| !root.children.is_empty());
            if !used {
                nodes[*at] = None;
                vacant.push(*at);
            }
            used
        });
    }

    /// Evicts pages of inner nodes, together with used pages below them: a sequence that uses those has computed copies
    /// of the earlier pages.
    fn evict_copied(&mut self, pages: &mut Pages, class: usize, (wanted, on_disk): (usize, bool)) {
        let own = |page: u32| pages.is_alone(class, page) && pages.is_on_disk(class, page) == on_disk;
        let alone = |node: &Node| node.pages.get(class).copied().flatten().is_some_and(own);
        let mut order: Vec<(u64, usize)> =
            self.live().filter(|(_, node)| alone(node)).map(|(at, node)| (node.used, at)).collect();
        order.sort_unstable();
        for (_, at) in order {
            if pages.free(class, on_disk) >= wanted {
                return;
            }
            if self.nodes[at].is_some() {
                self.remove_all(pages, at);
            }
        }
    }

    fn evict_ends(&mut self, pages: &mut Pages, class: usize, (wanted, on_disk, there): (usize, bool, bool)) {
        let leaf = |(at, node): (usize, &Node)| {
            (node.children.is_empty() && node.parent.is_some()).then_some(Reverse((node.used, at)))
        };
        let mut leaves: BinaryHeap<Reverse<(u64, usize)>> = self.live().filter_map(leaf).collect();
        while pages.free(class, on_disk) < wanted {
            let Some(Reverse((_, at))) = leaves.pop() else { return };
            let node = self.node(at);
            let elsewhere = |page| there && pages.is_on_disk(class, page) != on_disk;
            if node.pages[class].is_some_and(|page| !pages.is_alone(class, page) || elsewhere(page)) {
                continue;
            }
            let parent = self.remove(pages, at);
            let up = self.node(parent);
            if up.children.is_empty() && up.parent.is_some() {
                leaves.push(Reverse((up.used, parent)));
            }
        }
    }

    /// Evicts everything.
    pub fn clear(&mut self, pages: &mut Pages) {
        let held: Vec<(usize, u32)> = self
            .live()
            .flat_map(|(_, node)| {
                node.pages.iter().enumerate().filter_map(|(class, page)| Some((class, (*page)?)))
            })
            .collect();
        held.into_iter().for_each(|(class, page)| pages.release(class, page));
        let Tree { clock, placed, checkpoints, .. } = *self;
        *self = Tree { clock, placed, checkpoints, ..Tree::default() };
    }

    /// Removes a leaf; returns its parent.
    fn remove(&mut self, pages: &mut Pages, at: usize) -> usize {
        let Some(node) = self.nodes[at].take() else { panic!("no node {at}") };
        self.vacant.push(at);
        for (class, page) in node.pages.iter().enumerate() {
            if let Some(page) = page {
                pages.release(class, *page);
            }
        }
        let Some(parent) = node.parent else { panic!("a root is no leaf") };
        self.node_mut(parent).children.retain(|child| *child != at);
        parent
    }

    /// Removes a node with all of its descendants.
    fn remove_all(&mut self, pages: &mut Pages, at: usize) {
        let mut open = vec![at];
        while let Some(at) = open.last().copied() {
            match self.node(at).children.last() {
                Some(child) => open.push(*child),
                None => {
                    self.remove(pages, at);
                    open.pop();
                }
            }
        }
    }
}
