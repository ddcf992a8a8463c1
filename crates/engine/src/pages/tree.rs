//! Cached prefixes: a radix tree whose nodes are pages.
//!
//! A node has up to [`PAGE_ROWS`] tokens and, for each class, the page with their keys and values, which never changes
//! again. A sequence that begins with the tokens of a path shares its pages; where it diverges within a node, it copies
//! the common rows of that page. The least recently used nodes are evicted first, leaves before their parents.
//!
//! Where layers remember more than keys and values, a prefix ends with a node that has a *checkpoint*: their states after its
//! last token.

mod evict;

use std::collections::BTreeMap;

use fathom_tensor::{Device, PAGE_ROWS};

use super::{Checkpoint, Pages, Short, Table};

/// Everything besides tokens in which sequences must agree: the requests' scope, the adapter, the regime of rotary
/// embeddings.
pub(crate) type Root = (String, String, usize);

/// The tree of prefixes.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    roots: BTreeMap<Root, usize>,
    nodes: Vec<Option<Node>>,
    vacant: Vec<usize>,
    clock: u64,
    placed: u64,
    /// Most checkpoints; `None` if layers remember only keys and values.
    checkpoints: Option<usize>,
}

#[derive(Debug)]
struct Node {
    parent: Option<usize>,
    ids: Box<[u32]>,
    /// By class; `None` if it was evicted.
    pages: Vec<Option<u32>>,
    children: Vec<usize>,
    used: u64,
    /// Number of earlier nodes, which identifies this one.
    number: u64,
    /// States after its last token.
    checkpoint: Option<Checkpoint>,
}

/// A cached prefix of a sequence.
#[derive(Debug, Default)]
pub(crate) struct CachedPrefix {
    /// Its length in tokens.
    pub tokens: usize,
    /// The nodes whose pages are used completely, and the node of which only some rows are used.
    path: Vec<usize>,
    part: Option<(usize, usize)>,
}

/// The end of a prefix in the tree: a node's index and its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(usize, u64);

impl CachedPrefix {
    /// Number of whole pages.
    pub fn pages(&self) -> usize {
        self.path.len()
    }
}

impl Tree {
    /// A tree whose prefixes end at checkpoints, of which it keeps at most this many.
    pub fn of_states(most: usize) -> Tree {
        Tree { checkpoints: Some(most), ..Tree::default() }
    }

    /// The states after a prefix.
    pub fn checkpoint(&self, found: &CachedPrefix) -> Option<Checkpoint> {
        found.path.last().and_then(|node| self.node(*node).checkpoint.clone())
    }

    /// Caches the whole pages of a sequence's tokens with the states after them; gives up the checkpoints that were used least
    /// recently if there are too many.
    pub fn mark(
        &mut self,
        pages: &mut Pages,
        root: &Root,
        (ids, table): (&[u32], &Table),
        checkpoint: Checkpoint,
    ) {
        self.insert(pages, root, (ids, table), false);
        let mut at = self.root(root);
        for page in ids.chunks_exact(PAGE_ROWS) {
            let same = |child: &&usize| *self.node(**child).ids == *page;
            let Some(child) = self.node(at).children.iter().find(same).copied() else { return };
            at = child;
        }
        self.set_checkpoint(pages, at, checkpoint);
    }

    /// Sets the states after a place; false if that prefix was evicted.
    pub fn mark_at(&mut self, pages: &mut Pages, Place(at, number): Place, checkpoint: Checkpoint) -> bool {
        let there = self.nodes.get(at).and_then(Option::as_ref).is_some_and(|node| node.number == number);
        if there {
            self.set_checkpoint(pages, at, checkpoint);
        }
        there
    }

    fn set_checkpoint(&mut self, pages: &mut Pages, at: usize, checkpoint: Checkpoint) {
        self.node_mut(at).checkpoint.get_or_insert(checkpoint);
        let marked = self.live().filter(|(_, node)| node.checkpoint.is_some());
        let mut marked: Vec<(u64, usize)> = marked.map(|(at, node)| (node.used, at)).collect();
        let most = self.checkpoints.unwrap_or(0).max(1);
        if marked.len() > most {
            marked.sort_unstable();
            for (_, old) in marked.iter().filter(|(_, old)| *old != at).take(marked.len() - most) {
                self.node_mut(*old).checkpoint = None;
            }
            self.prune(pages);
        }
    }

    /// The longest cached prefix of `ids`, for a sequence in memory or for one on disk; pages in memory serve both.
    pub fn find(&self, pages: &Pages, root: &Root, ids: &[u32], on_disk: bool) -> CachedPrefix {
        let Some(root) = self.roots.get(root) else { return CachedPrefix::default() };
        let (mut at, mut found) = (*root, CachedPrefix::default());
        loop {
            let rest = &ids[found.path.len() * PAGE_ROWS..];
            let common = |child: &usize| common(rest, &self.node(*child).ids);
            let best = self.node(at).children.iter().map(|child| (common(child), *child)).max();
            match best {
                Some((PAGE_ROWS, child)) => {
                    found.path.push(child);
                    at = child;
                }
                Some((rows, child)) if rows > 0 => {
                    found.part = Some((child, rows));
                    break;
                }
                _ => break,
            }
        }
        self.reachable(pages, found, on_disk)
    }

    /// Shortens a prefix to where every class still has the pages that the next token reads.
    fn reachable(&self, pages: &Pages, mut found: CachedPrefix, on_disk: bool) -> CachedPrefix {
        let there = |node: usize, class: usize| {
            self.node(node).pages[class].is_some_and(|page| on_disk || !pages.is_on_disk(class, page))
        };
        loop {
            if self.checkpoints.is_some() {
                found.part = None;
                let marked = |node: &usize| self.node(*node).checkpoint.is_some();
                found.path.truncate(found.path.iter().rposition(marked).map_or(0, |last| last + 1));
            }
            let whole = found.path.len();
            found.tokens = whole * PAGE_ROWS + found.part.map_or(0, |(_, rows)| rows);
            let has = |class: usize| {
                let first =
                    pages.classes[class].window.map_or(0, |window| found.tokens.saturating_sub(window));
                let mut nodes = found.path[(first / PAGE_ROWS).min(whole)..].iter().copied();
                let part = found.part.map(|(node, _)| node);
                nodes.all(|node| there(node, class)) && part.is_none_or(|node| there(node, class))
            };
            if found.tokens == 0 || (0..pages.classes()).all(has) {
                return found;
            }
            if found.part.take().is_none() {
                found.path.pop();
            }
        }
    }

    /// Gives a new sequence, in memory or on disk, the pages of its prefix, and returns their tokens. Without a page
    /// for a copy, they end with a whole page.
    pub fn share(
        &mut self,
        device: &Device,
        pages: &mut Pages,
        (mut found, on_disk): (CachedPrefix, bool),
    ) -> (Table, usize) {
        self.clock += 1;
        loop {
            match self.hold(device, pages, (&found, on_disk)) {
                Ok(table) => return (table, found.tokens),
                Err(_) => {
                    found.part = None;
                    found = self.reachable(pages, found, on_disk);
                }
            }
        }
    }

    /// A table with the pages of a prefix.
    ///
    /// # Errors
    /// There is no page for a copy, and none can be evicted; the table is then empty.
    fn hold(
        &mut self,
        device: &Device,
        pages: &mut Pages,
        (found, on_disk): (&CachedPrefix, bool),
    ) -> Result<Table, Short> {
        let mut table = pages.table();
        for class in 0..pages.classes() {
            let window = pages.classes[class].window;
            let first = window.map_or(0, |window| found.tokens.saturating_sub(window)) / PAGE_ROWS;
            table.classes[class].first = first.min(found.path.len());
            for node in &found.path[first.min(found.path.len())..] {
                let Some(page) = self.node(*node).pages[class] else { continue };
                pages.retain(class, page);
                table.classes[class].pages.push(page);
            }
        }
        for node in found.path.iter().copied().chain(found.part.map(|(node, _)| node)) {
            self.touch(node);
        }
        let Some((node, rows)) = found.part else { return Ok(table) };
        // A page must not be evicted to make room for its own copy.
        let copied = self.node(node).pages.clone();
        let each = || copied.iter().enumerate().filter_map(|(class, page)| Some((class, (*page)?)));
        each().for_each(|(class, page)| pages.retain(class, page));
        let short = each().find(|(class, from)| {
            let to = self.take(pages, *class, on_disk);
            to.into_iter().for_each(|to| {
                table.classes[*class].pages.push(to);
                pages.copy(device, *class, [*from, to], rows);
            });
            to.is_none()
        });
        each().for_each(|(class, page)| pages.release(class, page));
        let Some((class, _)) = short else { return Ok(table) };
        pages.clear(&mut table);
        Err(Short { class, pages: 1 })
    }

    /// Takes a page that is free, or evicts one.
    pub fn take(&mut self, pages: &mut Pages, class: usize, on_disk: bool) -> Option<u32> {
        if pages.free(class, on_disk) == 0 {
            self.evict(pages, class, (1, on_disk));
        }
        pages.take(class, on_disk)
    }

    /// Caches the tokens `ids` of a sequence, whose keys and values are in its table. With `tail`, rows of a partial
    /// last page are cached too, and the sequence must not write to it afterwards.
    pub fn insert(&mut self, pages: &mut Pages, root: &Root, (ids, table): (&[u32], &Table), tail: bool) {
        if ids.len() < if tail { 1 } else { PAGE_ROWS } {
            return;
        }
        self.clock += 1;
        let mut at = self.root(root);
        for (index, page) in ids.chunks(PAGE_ROWS).enumerate() {
            if page.len() < PAGE_ROWS && !tail {
                return;
            }
            let covers = |child: &&usize| self.node(**child).ids.starts_with(page);
            let child = self.node(at).children.iter().find(covers).copied();
            at = self.grow(pages, (at, child), page, &table.pages(index));
        }
    }

    /// The end of the whole pages of a prefix; `None` if it has none.
    pub fn end(&self, found: &CachedPrefix) -> Option<Place> {
        found.path.last().map(|at| Place(*at, self.node(*at).number))
    }

    /// Adds a whole page after an existing prefix, or after the place that this returned; `held` are its pages by
    /// class. `None` if that prefix was evicted.
    pub fn graft(
        &mut self,
        pages: &mut Pages,
        (root, after): (&Root, Option<Place>),
        (ids, held): (&[u32], &[Option<u32>]),
    ) -> Option<Place> {
        let there = |at: usize, number: u64| {
            self.nodes.get(at)?.as_ref().filter(|node| node.number == number).map(|_| at)
        };
        let at = match after {
            Some(Place(at, number)) => there(at, number)?,
            None => self.root(root),
        };
        let child = self.node(at).children.iter().find(|child| *self.node(**child).ids == *ids).copied();
        let at = self.grow(pages, (at, child), ids, held);
        Some(Place(at, self.node(at).number))
    }

    /// A node below another: the child with its tokens, restoring evicted pages, or a new one.
    fn grow(
        &mut self,
        pages: &mut Pages,
        (at, child): (usize, Option<usize>),
        ids: &[u32],
        held: &[Option<u32>],
    ) -> usize {
        let child = child.unwrap_or_else(|| {
            let given_up = vec![None; pages.classes()];
            let child = self.place(Some(at), ids, given_up);
            self.node_mut(at).children.push(child);
            child
        });
        for (class, page) in held.iter().enumerate() {
            let (Some(page), had) = (page, self.node(child).pages[class]) else { continue };
            // A page in memory is preferred to the same on disk.
            if had.is_none_or(|had| pages.is_on_disk(class, had) && !pages.is_on_disk(class, *page)) {
                pages.retain(class, *page);
                had.into_iter().for_each(|had| pages.release(class, had));
                self.node_mut(child).pages[class] = Some(*page);
            }
        }
        self.touch(child);
        child
    }

    fn root(&mut self, root: &Root) -> usize {
        if let Some(at) = self.roots.get(root) {
            return *at;
        }
        let at = self.place(None, &[], vec![]);
        self.roots.insert(root.clone(), at);
        at
    }

    /// Pins the pages of a prefix, so that they are not evicted; returns them by class, to be released.
    pub fn pin(&mut self, pages: &mut Pages, found: &CachedPrefix) -> Vec<(usize, u32)> {
        let mut pinned = Vec::new();
        for node in &found.path {
            for (class, page) in self.node(*node).pages.iter().enumerate() {
                if let Some(page) = page {
                    pages.retain(class, *page);
                    pinned.push((class, *page));
                }
            }
        }
        pinned
    }

    /// Number of a class's pages in memory that only the tree uses.
    pub fn alone(&self, pages: &Pages, class: usize) -> usize {
        let page = |node: &Node| node.pages.get(class).copied().flatten();
        let own = |page: &u32| pages.is_alone(class, *page) && !pages.is_on_disk(class, *page);
        self.live().filter_map(|(_, node)| page(node)).filter(own).count()
    }

    fn place(&mut self, parent: Option<usize>, ids: &[u32], pages: Vec<Option<u32>>) -> usize {
        self.placed += 1;
        let (number, ids) = (self.placed, ids.into());
        let node = Node { parent, ids, pages, children: vec![], used: 0, number, checkpoint: None };
        let at = self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.nodes[at] = Some(node);
        at
    }

    fn touch(&mut self, at: usize) {
        let clock = self.clock;
        self.node_mut(at).used = clock;
    }

    fn live(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes.iter().enumerate().filter_map(|(at, node)| Some((at, node.as_ref()?)))
    }

    fn node(&self, at: usize) -> &Node {
        self.nodes[at].as_ref().unwrap_or_else(|| panic!("no node {at}"))
    }

    fn node_mut(&mut self, at: usize) -> &mut Node {
        self.nodes[at].as_mut().unwrap_or_else(|| panic!("no node {at}"))
    }
}

/// Length of the common prefix of two token lists.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use fathom_tensor::PageFormat;

    use super::super::Class;
    use super::*;

    /// Pages of one class, without keys and values.
    fn pages(window: Option<usize>, count: usize) -> Pages {
        let free = (0..count as u32).rev().collect();
        let class = Class { window, users: vec![0; count], in_memory: count, free, free_on_disk: Vec::new() };
        let (of_layer, layers, states) = (Vec::new(), Vec::new(), Default::default());
        let (format, head_dim, file) = (PageFormat::Plain, 1, None);
        Pages { classes: vec![class], of_layer, layers, format, head_dim, file, states }
    }

    fn root(name: usize) -> Root {
        (name.to_string(), String::new(), 0)
    }

    /// Allocates the pages of a sequence, evicting others.
    fn table(tree: &mut Tree, pages: &mut Pages, tokens: usize) -> Table {
        let mut table = pages.table();
        while let Err(Short { class, pages: missing }) = pages.grow(&mut table, tokens, false) {
            tree.evict(pages, class, (missing, false));
        }
        table
    }

    #[test]
    fn what_stands_on_a_copied_page_gives_it_up() {
        let (mut tree, mut pages) = (Tree::default(), pages(None, 4));
        let ids: Vec<u32> = (0..3 * PAGE_ROWS as u32).collect();
        let mut first = table(&mut tree, &mut pages, PAGE_ROWS);
        tree.insert(&mut pages, &root(0), (&ids[..PAGE_ROWS], &first), false);
        pages.clear(&mut first);
        // The second sequence has computed the first page too, and continues after it.
        let mut second = table(&mut tree, &mut pages, 3 * PAGE_ROWS);
        tree.insert(&mut pages, &root(0), (&ids, &second), false);
        assert_eq!((pages.free(0, false), tree.alone(&pages, 0)), (0, 1));
        assert_eq!(pages.grow(&mut second, 4 * PAGE_ROWS, false), Err(Short { class: 0, pages: 1 }));
        tree.evict(&mut pages, 0, (1, false));
        pages.grow(&mut second, 4 * PAGE_ROWS, false).unwrap();
        pages.clear(&mut second);
        assert_eq!(pages.free(0, false), 4);
    }

    #[test]
    fn a_place_that_was_given_up_takes_nothing() {
        let (mut tree, mut pages) = (Tree::default(), pages(None, 2));
        let ids = [1; PAGE_ROWS];
        let page = pages.take(0, false);
        let place = tree.graft(&mut pages, (&root(0), None), (&ids, &[page])).unwrap();
        pages.release(0, page.unwrap());
        tree.evict(&mut pages, 0, (1, false));
        // Another node is at its former index.
        let page = pages.take(0, false);
        tree.graft(&mut pages, (&root(1), None), (&ids, &[page])).unwrap();
        assert!(tree.graft(&mut pages, (&root(0), Some(place)), (&ids, &[page])).is_none());
    }

    #[test]
    fn what_is_given_up_leaves_nothing() {
        for window in [None, Some(64)] {
            let (mut tree, mut pages) = (Tree::default(), pages(window, 4));
            for name in 0..1000 {
                let mut table = table(&mut tree, &mut pages, 200);
                tree.insert(&mut pages, &root(name), (&[7; 200], &table), name % 2 == 0);
                tree.insert(&mut pages, &root(name + 1000), (&[7; 100], &table), false);
                pages.clear(&mut table);
            }
            assert!(tree.nodes.len() <= 12 && tree.roots.len() <= 4, "{} nodes", tree.nodes.len());
        }
    }
}
