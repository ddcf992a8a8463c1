//! Removes further articles that a page loads below its own as readers scroll.
//!
//! Such a page is titled after its first article, and each further one is a separate element with a main heading. In
//! contrast, a list of posts is titled after the site, and a thread has a single main heading.

use super::blocks::{Block, Blocks, Kind, is_sure};
use super::dom::{Dom, Node};
use super::marks::Marks;
use super::tag::Tag;

/// Minimum characters of an article before a further one; a note above the article is shorter.
const ARTICLE: u32 = 600;

/// Drops the articles after the one named in the page's title.
pub(super) fn drop_followers(dom: &Dom<'_>, all: &Blocks, keep: &mut [bool]) {
    let headings = || {
        let blocks = all.blocks.iter().enumerate();
        blocks.filter(|(_, block)| block.kind == Kind::Heading(1))
    };
    if headings().nth(1).is_none() {
        return;
    }
    let Some(title) = title_of(dom).map(letters) else { return };
    let names_page = |block: &Block| is_title(&title, all.of(block));
    let Some((first, _)) = headings().find(|(_, block)| names_page(block)) else { return };
    // Articles follow the order of their headings, so one pass over the blocks suffices.
    let (mut walked, mut chars) = (0, 0);
    for (index, heading) in headings().filter(|(index, _)| *index > first) {
        if index < walked || names_page(heading) {
            continue;
        }
        let Some(article) = article_around(dom, heading.holder, all.blocks[first].first) else { continue };
        let inside = all.inside(dom, article);
        for (block, _) in
            all.blocks[..inside.start].iter().zip(&*keep).skip(walked).filter(|(_, kept)| **kept)
        {
            chars += if is_sure(block) { block.chars } else { 0 };
        }
        walked = walked.max(inside.start);
        if chars >= ARTICLE {
            walked = inside.end;
            keep[inside].fill(false);
        }
    }
}

/// Outermost article around `node` that starts after the block whose first text is `after`.
fn article_around(dom: &Dom<'_>, mut node: u32, after: u32) -> Option<u32> {
    let mut found = None;
    while node > after {
        let it = dom.nodes[node as usize];
        if it.tag == Tag::Article || it.marks.has(Marks::ARTICLE) {
            found = Some(node);
        }
        node = it.parent;
    }
    found
}

/// First non-empty `title` of a page.
fn title_of<'a>(dom: &Dom<'a>) -> Option<&'a str> {
    let is_title = |node: &Node| {
        let start = &dom.page.as_bytes()[node.start as usize..node.stop as usize];
        start.get(1..6).is_some_and(|name| name.eq_ignore_ascii_case(b"title"))
    };
    // Drawings have empty ones.
    let texts = dom.nodes.iter().filter(|n| n.tag == Tag::Hidden && is_title(n)).map(|n| {
        let rest = &dom.page[n.stop as usize..];
        &rest[..memchr::memchr(b'<', rest.as_bytes()).unwrap_or(0)]
    });
    texts.map(str::trim).find(|text| !text.is_empty())
}

/// Returns true if a heading matches the page's title: one of them begins with the other.
fn is_title(title: &str, heading: &str) -> bool {
    const SHORTEST: usize = 15;
    let heading = letters(heading);
    let shared = title.chars().zip(heading.chars()).take_while(|(a, b)| a == b).count();
    // Titles are often shortened or truncated forms of the heading.
    shared >= SHORTEST || heading.chars().count() >= SHORTEST && title.contains(&heading)
}

/// Letters and digits in lower case, truncated for long texts.
fn letters(text: &str) -> String {
    const LONGEST: usize = 300;
    let mut plain = String::with_capacity(text.len());
    super::entities::decode_entities(&mut plain, text);
    plain.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).take(LONGEST).collect()
}
