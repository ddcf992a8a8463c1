//! Prunes elements outside the content by their tag or name, unless the page indicates otherwise.
//!
//! A name is only a hint. If the named elements contain most of the page's prose, the page uses them for its content:
//! galleries have their text in captions, or in slides of which all but one are hidden; forums call posts comments.

use super::dom::Dom;
use super::marks::Marks;
use super::tag::Tag;
use super::text;

/// Amount of prose below which no conclusions are drawn about a page.
const PROSE: u32 = 400;

/// Reason for pruning a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// Never part of a page's text.
    NoText,
    /// An element that is outside the content by definition, or the header of the site.
    Around,
    Figure,
    Caption,
    Hidden,
    Boilerplate,
    Widget,
    Teaser,
    Comments,
}

/// Reasons that are ignored on a page where they would remove most of the prose.
const DOUBTFUL: [Reason; 4] = [Reason::Figure, Reason::Caption, Reason::Hidden, Reason::Boilerplate];

/// Nodes of a page that are pruned together with their subtrees.
pub(super) struct PrunedNodes {
    pub pruned: Vec<bool>,
    reasons: Vec<Option<Reason>>,
    weights: Weights,
}

impl PrunedNodes {
    /// Prunes a page; readers' comments are kept if requested.
    pub(super) fn of(dom: &Dom<'_>, comments: bool) -> PrunedNodes {
        let weights = weigh(dom);
        let reasons = reasons(dom, &weights, comments);
        let pruned = reasons.iter().map(Option::is_some).collect();
        let mut pruning = PrunedNodes { pruned, reasons, weights };
        pruning.doubt(dom);
        pruning
    }

    /// Restores comments if the page has only `good` characters of good text and the comments have much more, so that
    /// its content is a discussion. Returns true if it did.
    pub(super) fn keeps_comments(&mut self, dom: &Dom<'_>, good: u32) -> bool {
        const LITTLE: u32 = 600;
        let comments = self.pruned_text(dom, Reason::Comments, |w, node| w.chars[node] - w.links[node]);
        let is_discussion = good < LITTLE && comments > 2 * good && comments > 0;
        if is_discussion {
            self.forget(Reason::Comments);
        }
        is_discussion
    }

    /// Drops reasons that would remove most of the page's prose.
    fn doubt(&mut self, dom: &Dom<'_>) {
        const PERCENT: u64 = 60;
        let all = u64::from(self.weights.prose[0]);
        let taken = DOUBTFUL.map(|reason| self.pruned_text(dom, reason, |w, node| w.prose[node]));
        for (reason, prose) in DOUBTFUL.into_iter().zip(taken) {
            if prose > PROSE && u64::from(prose) * 100 > all * PERCENT {
                self.forget(reason);
                if reason == Reason::Figure {
                    self.forget(Reason::Caption);
                }
            }
        }
    }

    fn forget(&mut self, reason: Reason) {
        for found in self.reasons.iter_mut().filter(|found| **found == Some(reason)) {
            *found = None;
        }
        self.pruned = self.reasons.iter().map(Option::is_some).collect();
    }

    /// Amount of text in the outermost nodes pruned for `reason`.
    fn pruned_text(&self, dom: &Dom<'_>, reason: Reason, text: impl Fn(&Weights, usize) -> u32) -> u32 {
        let (mut sum, mut node) = (0, 1);
        while node < dom.nodes.len() {
            match self.reasons[node] {
                Some(found) => {
                    sum += if found == reason { text(&self.weights, node) } else { 0 };
                    node = (dom.nodes[node].end as usize).max(node + 1);
                }
                None => node += 1,
            }
        }
        sum
    }
}

/// Amount of text below each node.
struct Weights {
    /// Visible characters, without elements that are never displayed.
    chars: Vec<u32>,
    /// Those outside of links and inside paragraphs.
    prose: Vec<u32>,
    /// Those inside links.
    links: Vec<u32>,
}

fn weigh(dom: &Dom<'_>) -> Weights {
    let mut weights = Weights {
        chars: vec![0; dom.nodes.len()],
        prose: vec![0; dom.nodes.len()],
        links: vec![0; dom.nodes.len()],
    };
    for (index, node) in dom.nodes.iter().enumerate().rev() {
        if node.tag == Tag::Text {
            weights.chars[index] = text::count(&dom.page[node.start as usize..node.stop as usize]);
            if node.marks.has(Marks::LINK) {
                weights.links[index] = weights.chars[index];
            }
        } else if node.tag.is_no_text() {
            (weights.chars[index], weights.prose[index], weights.links[index]) = (0, 0, 0);
        } else if matches!(node.tag, Tag::P | Tag::Pre | Tag::Blockquote) {
            weights.prose[index] = weights.chars[index] - weights.links[index];
        }
        if index > 0 {
            let parent = node.parent as usize;
            weights.chars[parent] += weights.chars[index];
            weights.prose[parent] += weights.prose[index];
            weights.links[parent] += weights.links[index];
        }
    }
    weights
}

impl Weights {
    /// Returns true if a node has so much of the page's prose (or of all its text, if the page has hardly any prose)
    /// that it must be content.
    fn is_most(&self, node: usize) -> bool {
        let (part, all, percent) = if self.prose[0] >= PROSE {
            (self.prose[node], self.prose[0], 40)
        } else {
            (self.chars[node], self.chars[0], 50)
        };
        u64::from(part) * 100 > u64::from(all) * percent
    }
}

/// Reason for pruning each node, considered individually.
fn reasons(dom: &Dom<'_>, weights: &Weights, comments: bool) -> Vec<Option<Reason>> {
    let mut reasons = vec![None; dom.nodes.len()];
    let mut inside_article = vec![false; dom.nodes.len()];
    let holds_body = holders_of_body(dom, weights);
    for index in 1..dom.nodes.len() {
        let node = dom.nodes[index];
        let in_article = inside_article[node.parent as usize]
            || node.tag == Tag::Article
            || node.marks.has(Marks::BODY | Marks::ARTICLE);
        inside_article[index] = in_article;
        let (chars, links) = (weights.chars[index], weights.links[index]);
        let found = match node.tag {
            Tag::Text => None,
            tag if tag.is_no_text() => Some(Reason::NoText),
            Tag::Around | Tag::Noscript => Some(Reason::Around),
            // A site's header contains links, an article's header a title and an introduction.
            Tag::Header if in_article => (links * 3 > chars * 2).then_some(Reason::Around),
            Tag::Header => (links * 3 > chars || chars < 60).then_some(Reason::Around),
            Tag::Figure | Tag::Caption => (!contains(dom, index, Tag::Table)).then_some(Reason::Figure),
            _ if holds_body[index] || matches!(node.tag, Tag::Body | Tag::Html | Tag::Main) => None,
            // Embedded posts of social networks are quotes.
            Tag::Blockquote => None,
            _ => by_name(node.marks, (chars, links), in_article, comments),
        };
        let is_sure = found == Some(Reason::NoText);
        reasons[index] = found.filter(|_| is_sure || !weights.is_most(index));
    }
    reasons
}

/// Reason for pruning an element by its names, given its amounts of text and link text.
fn by_name(marks: Marks, (chars, links): (u32, u32), in_article: bool, comments: bool) -> Option<Reason> {
    // Longer captions are the content itself.
    const CAPTION: u32 = 250;
    let rules = [
        (Marks::HIDDEN, true, Reason::Hidden),
        (Marks::BOILERPLATE, true, Reason::Boilerplate),
        (Marks::WIDGET, !in_article, Reason::Widget),
        (Marks::TEASER, links * 10 > chars || !in_article, Reason::Teaser),
        (Marks::CAPTION, chars < CAPTION, Reason::Caption),
        (Marks::COMMENTS, !comments, Reason::Comments),
    ];
    let (_, holds, reason) = rules.into_iter().find(|(mark, ..)| marks.has(*mark))?;
    holds.then_some(reason)
}

/// Nodes that are, or contain, an article body by name, with some text in it.
fn holders_of_body(dom: &Dom<'_>, weights: &Weights) -> Vec<bool> {
    const SOME: u32 = 200;
    let mut holds = vec![false; dom.nodes.len()];
    for index in (1..dom.nodes.len()).rev() {
        let node = dom.nodes[index];
        holds[index] |= node.marks.has(Marks::BODY) && weights.chars[index] >= SOME;
        // A reader's text is the body of a comment.
        holds[index] &= !node.marks.has(Marks::COMMENTS);
        holds[node.parent as usize] |= holds[index];
    }
    holds
}

fn contains(dom: &Dom<'_>, node: usize, tag: Tag) -> bool {
    dom.nodes[node + 1..dom.nodes[node].end as usize].iter().any(|n| n.tag == tag)
}
