//! Main-content extraction by structure and density: linear in the page size, without a third-party tree.
//!
//! There are four steps. (1) Elements outside the content by their tag or name are pruned, unless that would remove
//! most of the text ([`super::prune`]). (2) The container is selected: an element named as the body of an article,
//! else `article`, else `main`, else the page; among several, the one with the most good text, if it holds a fair
//! share of the page's. (3) Lists and boxes of links inside it are dropped. (4) Single blocks are kept or dropped by
//! length, link density and their neighbours, and text before and after the article is removed ([`super::edges`]).
//! Steps 1 to 3 are based on trafilatura (Barbaresi, ACL 2021), step 4 on jusText (Pomikalek, 2011).

use super::blocks::{Block, Blocks, Kind, is_sure};
use super::dom::Dom;
use super::marks::Marks;
use super::prune::PrunedNodes;
use super::tag::Tag;
use super::{dense, edges, followers, phrases};
use crate::extract::refusal::Refusal;

/// Minimum number of visible characters for a container to be trusted.
const ENOUGH: u32 = 200;

/// Extracts the main text, with each block on a separate line.
///
/// # Errors
/// [`Refusal::NoContent`] for a page without text.
pub(super) fn main_text(page: &str, comments: bool, limit: usize) -> Result<String, Refusal> {
    let dom = Dom::parse(page, limit)?;
    let mut pruning = PrunedNodes::of(&dom, comments);
    let mut all = Blocks::collect(&dom, &pruning.pruned);
    let mut good = Sums::of(&all);
    if pruning.keeps_comments(&dom, good.inside(0..all.blocks.len())) {
        all = Blocks::collect(&dom, &pruning.pruned);
        good = Sums::of(&all);
    }
    let pruned = &pruning.pruned;
    let container = choose(&dom, &all, pruned, &good);
    let container = narrowed(&dom, &all, pruned, &good, container);
    let mut keep = vec![false; all.blocks.len()];
    for index in all.inside(&dom, container) {
        keep[index] = true;
    }
    add_lead(&all, &mut keep);
    followers::drop_followers(&dom, &all, &mut keep);
    drop_link_boxes(&dom, &all, container, &mut keep);
    judge(&all, &mut keep);
    edges::drop_surroundings(&all, &mut keep);
    drop_lonely_headings(&all, &mut keep);
    let kept = sum_kept(&all, &keep);
    if kept < ENOUGH {
        widen(&all, &mut keep);
    }
    let text = write(&dom, &all, &keep);
    if text.is_empty() { Err(Refusal::NoContent) } else { Ok(text) }
}

/// Prefix sums of the good text per block, so that the worth of a container is a single subtraction.
struct Sums(Vec<u32>);

impl Sums {
    fn of(all: &Blocks) -> Sums {
        let mut sums = vec![0];
        let mut sum = 0;
        for block in &all.blocks {
            sum += worth(block);
            sums.push(sum);
        }
        Sums(sums)
    }

    fn inside(&self, range: std::ops::Range<usize>) -> u32 {
        self.0[range.end].saturating_sub(self.0[range.start])
    }
}

/// Amount of good text in a block: zero if it is short or mostly links.
fn worth(block: &Block) -> u32 {
    let plain = block.chars.saturating_sub(block.link_chars);
    match block.kind {
        Kind::Heading(_) => 0,
        Kind::Paragraph | Kind::Pre | Kind::Quote if block.chars >= 25 && block.link_density() < 0.6 => plain,
        _ if block.chars >= 50 && block.link_density() < 0.4 => plain,
        _ => 0,
    }
}

/// Selects the element that contains the article.
fn choose(dom: &Dom<'_>, all: &Blocks, pruned: &[bool], good: &Sums) -> u32 {
    let whole = good.inside(0..all.blocks.len());
    // (matching function, minimum share of the page's good text)
    type Tier = (fn(Tag, Marks) -> bool, f32);
    let tiers: [Tier; 3] = [
        (|_, marks| marks.has(Marks::BODY), 0.25),
        (|tag, marks| tag == Tag::Article || marks.has(Marks::ARTICLE), 0.4),
        (|tag, marks| tag == Tag::Main || marks.has(Marks::MAIN), 0.4),
    ];
    for (matches, share) in tiers {
        let found = outermost(dom, pruned, matches, |node| good.inside(all.inside(dom, node)));
        let sum: u32 = found.iter().map(|(value, _)| value).sum();
        let Some(&best) = found.iter().max_by_key(|(value, node)| (*value, std::cmp::Reverse(*node))) else {
            continue;
        };
        // A thread has many posts of similar size: the content is then their common container.
        let many = found.len() > 1 && f64::from(best.0) < 0.6 * f64::from(sum);
        let (value, node) = if many {
            let node = common_ancestor(dom, found[0].1, found[found.len() - 1].1);
            (good.inside(all.inside(dom, node)), node)
        } else {
            best
        };
        if value >= ENOUGH && value as f32 >= share * whole as f32 {
            return node;
        }
    }
    0
}

/// Innermost box with nearly all the good text of `container`; the rest of the container is not the article.
fn narrowed(dom: &Dom<'_>, all: &Blocks, pruned: &[bool], good: &Sums, container: u32) -> u32 {
    const SHARE: f32 = 0.97;
    let value = |node: u32| good.inside(all.inside(dom, node)) as f32;
    let least = SHARE * value(container);
    let holds = |node: u32| {
        let tag = dom.nodes[node as usize].tag;
        let is_text = matches!(tag, Tag::P | Tag::Heading | Tag::Pre | Tag::Blockquote)
            || matches!(tag, Tag::Ul | Tag::Li | Tag::Dl)
            || matches!(tag, Tag::Table | Tag::TablePart | Tag::Row | Tag::Cell);
        !tag.is_inline() && !is_text && !pruned[node as usize] && value(node) >= least
    };
    let (mut narrow, mut node) = (container, container + 1);
    while least > 0.0 && node < dom.nodes[narrow as usize].end {
        if holds(node) {
            (narrow, node) = (node, node + 1);
        } else {
            node = dom.nodes[node as usize].end.max(node + 1);
        }
    }
    narrow
}

/// Outermost matching nodes with good text, and its amount.
fn outermost(
    dom: &Dom<'_>,
    pruned: &[bool],
    matches: fn(Tag, Marks) -> bool,
    value: impl Fn(u32) -> u32,
) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    let mut node = 1u32;
    while (node as usize) < dom.nodes.len() {
        let it = dom.nodes[node as usize];
        let is_element = it.tag != Tag::Text && !it.tag.is_inline();
        let skip = pruned[node as usize] || is_element && matches(it.tag, it.marks);
        if skip && !pruned[node as usize] {
            let value = value(node);
            if value > 50 {
                found.push((value, node));
            }
        }
        node = if skip { it.end.max(node + 1) } else { node + 1 };
    }
    found
}

fn common_ancestor(dom: &Dom<'_>, first: u32, last: u32) -> u32 {
    let mut node = first;
    while node > 0 && dom.nodes[node as usize].end <= last {
        node = dom.nodes[node as usize].parent;
    }
    node
}

/// Includes the paragraphs between the title and the container, since introductions are often outside of it. Shorter
/// ones merely repeat the article.
fn add_lead(all: &Blocks, keep: &mut [bool]) {
    const NEAR: usize = 12;
    const INTRODUCTION: usize = 3;
    const SHORTEST: u32 = 120;
    let Some(first) = keep.iter().position(|&k| k) else { return };
    let before = first.saturating_sub(NEAR)..first;
    let is_title = |i: &usize| matches!(all.blocks[*i].kind, Kind::Heading(1));
    let Some(title) = before.clone().rev().find(is_title) else { return };
    for i in title + 1..first {
        let block = &all.blocks[i];
        let is_near = first - i <= INTRODUCTION;
        keep[i] = is_near && block.chars >= SHORTEST && block.link_density() < 0.2 && !block.meta;
    }
}

/// Drops elements inside the container that are lists of links or boxes around a few.
fn drop_link_boxes(dom: &Dom<'_>, all: &Blocks, container: u32, keep: &mut [bool]) {
    let end = dom.nodes[container as usize].end;
    let mut node = container + 1;
    while node < end {
        let it = dom.nodes[node as usize];
        let is_list = matches!(it.tag, Tag::Ul | Tag::Dl);
        let is_box = matches!(it.tag, Tag::Div | Tag::Section | Tag::Table | Tag::Other | Tag::Details);
        if !is_list && !is_box {
            node += 1;
            continue;
        }
        let range = all.inside(dom, node);
        let (mut chars, mut links) = (0u32, 0u32);
        for block in &all.blocks[range.clone()] {
            chars += block.chars;
            links += block.link_chars;
        }
        let density = links as f32 / chars.max(1) as f32;
        let is_links = if is_list {
            density > 0.65 && (chars as usize) < 60 * range.len().max(1)
        } else {
            (density > 0.5 && chars < 300) || (density > 0.8 && (chars as usize) < 80 * range.len().max(1))
        };
        if chars > 0 && is_links {
            keep[range].fill(false);
            node = it.end.max(node + 1);
        } else {
            node += 1;
        }
    }
}

/// Keeps or drops individual blocks.
fn judge(all: &Blocks, keep: &mut [bool]) {
    let mut seen = std::collections::HashSet::new();
    let sure: Vec<bool> = (0..keep.len()).map(|i| keep[i] && is_sure(&all.blocks[i])).collect();
    let sure_near = |i: usize| {
        let near = i.saturating_sub(2)..(i + 3).min(sure.len());
        sure[near].iter().any(|&s| s)
    };
    for i in 0..keep.len() {
        if !keep[i] {
            continue;
        }
        let block = &all.blocks[i];
        let text = all.of(block);
        keep[i] = match block.kind {
            _ if phrases::is_boilerplate(text) => false,
            Kind::Heading(_) => block.link_density() < 0.9 || block.chars > 60,
            Kind::Paragraph => {
                let links = block.link_density() > 0.8 && block.chars < 100;
                !(links || block.meta && block.chars < 60)
            }
            Kind::Quote | Kind::Pre => block.link_density() < 0.8,
            Kind::Item | Kind::Cell => block.link_density() < 0.7 || block.chars > 80,
            Kind::Bare => {
                let edge = edges::is_address(text) || (block.meta && block.chars < 100);
                !edge && block.link_density() < 0.5 && (is_sure(block) || (block.chars >= 3 && sure_near(i)))
            }
        };
        // A long line that occurs twice is a teaser for an article, or due to a sloppy page.
        if keep[i] && block.chars > 40 && !seen.insert(text) {
            keep[i] = false;
        }
    }
    for i in 0..keep.len() {
        let announces = all.blocks[i].chars < 80 && all.of(&all.blocks[i]).ends_with(':');
        // The text announced by this line was dropped, so the line is dropped too.
        if keep[i] && announces && i + 1 < keep.len() && !keep[i + 1] {
            keep[i] = false;
        }
    }
}

/// Drops headings without text before the next one of their level or the end; their text was dropped.
fn drop_lonely_headings(all: &Blocks, keep: &mut [bool]) {
    let mut below: Option<u8> = Some(0);
    for i in (0..keep.len()).rev() {
        if !keep[i] {
            continue;
        }
        match all.blocks[i].kind {
            // A long heading is really a paragraph in large letters.
            Kind::Heading(level) if all.blocks[i].chars < 80 => {
                // `below` is the level of the next kept line: a deeper heading counts as text.
                if below.is_some_and(|next| next <= level) {
                    keep[i] = false;
                } else {
                    below = Some(level);
                }
            }
            _ => below = None,
        }
    }
}

fn sum_kept(all: &Blocks, keep: &[bool]) -> u32 {
    all.blocks.iter().zip(keep).filter(|(_, k)| **k).map(|(b, _)| b.chars).sum()
}

/// If next to nothing was found, keeps every good block of the page; if there is none, everything except links.
fn widen(all: &Blocks, keep: &mut [bool]) {
    let mut found = sum_kept(all, keep);
    let rules: [fn(&Block) -> bool; 2] = [|b| worth(b) > 0, |b| b.link_density() < 0.5];
    for rule in rules {
        if found >= ENOUGH {
            return;
        }
        for (block, keep) in all.blocks.iter().zip(keep.iter_mut()) {
            *keep |= rule(block) && !phrases::is_boilerplate(all.of(block));
        }
        found = sum_kept(all, keep);
    }
}

/// Writes the kept blocks: one per line, list items with a dash, the cells of a row on one line.
fn write(dom: &Dom<'_>, all: &Blocks, keep: &[bool]) -> String {
    let mut out = String::with_capacity(all.text.len() / 2);
    let mut last_row = None;
    for (block, _) in all.blocks.iter().zip(keep).filter(|(_, keep)| **keep) {
        let row = row_of(dom, block);
        if !out.is_empty() {
            out.push_str(if row.is_some() && row == last_row { " | " } else { "\n" });
        }
        last_row = row;
        if block.kind == Kind::Item {
            out.push_str("- ");
        }
        out.push_str(all.of(block));
    }
    out
}

/// Row of a table cell that contains only text.
fn row_of(dom: &Dom<'_>, block: &Block) -> Option<u32> {
    let holder = dom.nodes[block.holder as usize];
    let row = dom.nodes[holder.parent as usize];
    (holder.tag == Tag::Cell && row.tag == Tag::Row && block.chars < 200).then_some(holder.parent)
}

/// Complete text of a page, without elements that are never displayed.
pub(super) fn whole_text(page: &str, limit: usize) -> Result<String, Refusal> {
    let dom = Dom::parse(page, limit)?;
    let pruned: Vec<bool> = dom.nodes.iter().map(|n| n.tag.is_no_text()).collect();
    let all = Blocks::collect(&dom, &pruned);
    Ok(write(&dom, &all, &vec![true; all.blocks.len()]))
}

/// Plain text of everything a page shows, for HTML returned by the crates.
pub(super) fn all_text(page: &str, limit: usize) -> Result<String, Refusal> {
    dense::whole_text(page, limit)
}
