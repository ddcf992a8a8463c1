//! A page as a sequence of blocks: runs of text between block elements, with the features that classify them as
//! content.

use super::dom::{Dom, above, flows, line_around};
use super::marks::Marks;
use super::tag::Tag;
use super::text;

/// Kind of element that directly contains a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Paragraph,
    Heading(u8),
    Item,
    Cell,
    Quote,
    Pre,
    /// Text directly in a `div` or similar element.
    Bare,
}

/// A run of text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub kind: Kind,
    /// First text node of the run.
    pub first: u32,
    /// Nearest enclosing block element.
    pub holder: u32,
    /// Range in [`Blocks::text`].
    pub start: u32,
    pub end: u32,
    /// Visible characters, in total and in links.
    pub chars: u32,
    pub link_chars: u32,
    /// True for a line about the article rather than part of it.
    pub meta: bool,
}

impl Block {
    /// Share of the text inside links, 0 to 1.
    pub(super) fn link_density(&self) -> f32 {
        self.link_chars as f32 / self.chars.max(1) as f32
    }
}

/// Blocks of a page in order.
pub(super) struct Blocks {
    pub text: String,
    pub blocks: Vec<Block>,
}

impl Blocks {
    /// Text of a block.
    pub(super) fn of(&self, block: &Block) -> &str {
        &self.text[block.start as usize..block.end as usize]
    }

    /// Index range of the blocks inside a node.
    pub(super) fn inside(&self, dom: &Dom<'_>, node: u32) -> std::ops::Range<usize> {
        let end = dom.nodes[node as usize].end;
        let from = self.blocks.partition_point(|b| b.first < node);
        let to = self.blocks.partition_point(|b| b.first < end);
        from..to
    }

    /// Collects the blocks of the page, skipping `pruned` nodes with their subtrees.
    pub(super) fn collect(dom: &Dom<'_>, pruned: &[bool]) -> Blocks {
        let mut out = Blocks { text: String::with_capacity(dom.page.len() / 8), blocks: Vec::new() };
        let mut current: Option<Block> = None;
        let (mut breaks, mut node) = (0, 1u32);
        while (node as usize) < dom.nodes.len() {
            let it = dom.nodes[node as usize];
            if pruned[node as usize] {
                // A skipped element still separates the surrounding text, unless it was inline.
                if !flows(dom, node) {
                    out.close(&mut current);
                }
                node = it.end.max(node + 1);
                continue;
            }
            match it.tag {
                Tag::Text => {
                    let raw = &dom.page[it.start as usize..it.stop as usize];
                    let holder = holder_of(dom, it.parent);
                    if current.is_some_and(|c| c.holder != holder) {
                        out.close(&mut current);
                    }
                    let chars = text::count(raw);
                    if chars > 0 && breaks > 1 {
                        out.close(&mut current);
                    }
                    if chars > 0 || current.is_some() {
                        let block = current.get_or_insert_with(|| out.open(dom, node, holder));
                        if chars > 0 && std::mem::take(&mut breaks) == 1 && block.chars > 0 {
                            out.line_end();
                        }
                        block.chars += chars;
                        if it.marks.has(Marks::LINK) {
                            block.link_chars += chars;
                        }
                        text::append(&mut out.text, raw, block.kind == Kind::Pre);
                    }
                }
                Tag::Br => breaks += 1,
                _ if flows(dom, node) => {}
                _ => {
                    breaks = 0;
                    out.close(&mut current);
                }
            }
            node += 1;
        }
        out.close(&mut current);
        out
    }

    fn open(&self, dom: &Dom<'_>, first: u32, holder: u32) -> Block {
        let start = self.text.len() as u32;
        let (kind, meta) = kind_of(dom, holder);
        Block { kind, first, holder, start, end: start, chars: 0, link_chars: 0, meta }
    }

    fn close(&mut self, current: &mut Option<Block>) {
        let Some(mut block) = current.take() else { return };
        let kept = self.text[block.start as usize..].trim_end().len() + block.start as usize;
        self.text.truncate(kept);
        block.end = kept as u32;
        // Written between blocks, so that no block starts with a space.
        self.text.push('\n');
        if block.end > block.start && block.chars > 0 {
            self.blocks.push(block);
        }
    }

    fn line_end(&mut self) {
        let kept = self.text.trim_end_matches(' ').len();
        self.text.truncate(kept);
        self.text.push('\n');
    }
}

/// Nearest block element at or above `node`.
fn holder_of(dom: &Dom<'_>, node: u32) -> u32 {
    line_around(dom, node).unwrap_or_else(|| above(dom, node, Tag::is_inline))
}

/// Kind of text directly in `holder`: determined by the nearest significant element, a few levels up.
fn kind_of(dom: &Dom<'_>, holder: u32) -> (Kind, bool) {
    let mut meta = false;
    let mut node = holder;
    for _ in 0..6 {
        let it = dom.nodes[node as usize];
        meta |= it.marks.has(Marks::META);
        let kind = match it.tag {
            Tag::P => Some(Kind::Paragraph),
            Tag::Heading => Some(Kind::Heading(dom.heading_level(node))),
            Tag::Li | Tag::Dd | Tag::Dt => Some(Kind::Item),
            Tag::Cell => Some(Kind::Cell),
            Tag::Blockquote => Some(Kind::Quote),
            Tag::Pre => Some(Kind::Pre),
            _ => None,
        };
        if let Some(kind) = kind {
            return (kind, meta);
        }
        if node == 0 || !matches!(it.tag, Tag::Div | Tag::Section | Tag::Other | Tag::Details) {
            break;
        }
        node = it.parent;
    }
    (Kind::Bare, meta)
}

/// Returns true for text that is content regardless of its surroundings.
pub(super) fn is_sure(block: &Block) -> bool {
    block.chars >= 60 && block.link_density() < 0.35 && !matches!(block.kind, Kind::Heading(_))
}
