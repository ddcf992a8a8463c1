//! A page as a flat tree: nodes in document order, each with its parent and the end of its subtree.
//!
//! The parser implements the rules of HTML that real pages rely on (implied end tags, void elements, table scopes),
//! not all of them. Elements deeper than [`MAX_DEPTH`] are flattened into the deepest allowed one, which bounds the
//! recursion depth of tree walkers.

use memchr::memmem;

use super::marks::{Marks, marks_of};
use super::scan::{Scanner, Token, attributes};
use super::tag::Tag;
use super::text;
use crate::extract::refusal::Refusal;

/// Maximum depth; deeper elements are flattened. The deepest real pages have about 100 levels; common parsers cut at
/// 256 to 512.
pub(super) const MAX_DEPTH: usize = 200;

/// Attributes per element beyond which each counts as an element and is hidden from third-party parsers, which
/// compare each attribute with all previous ones. Real elements have a few dozen at most.
pub(super) const MAX_ATTRIBUTES: usize = 128;

/// Marks the start of a block or line in pages rebuilt for third-party crates; a noncharacter.
pub(super) const LINE_START: char = '\u{fdd0}';

/// White space in `<pre>` that third-party parsers would collapse, and the code points that replace it in rebuilt
/// pages.
const KEPT_SPACES: [(char, char); 3] = [('\n', '\u{fdd1}'), (' ', '\u{fdd2}'), ('\t', '\u{fdd3}')];

/// An element or a run of text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub tag: Tag,
    pub marks: Marks,
    pub parent: u32,
    /// Index after the last node of the subtree.
    pub end: u32,
    /// Range in the page: of the text, or of the start tag.
    pub start: u32,
    pub stop: u32,
}

/// Tree of one page.
pub(super) struct Dom<'a> {
    pub page: &'a str,
    pub nodes: Vec<Node>,
}

struct Open {
    tag: Tag,
    /// Prefix of the element name, to match end tags among tags of one kind.
    name: [u8; 8],
    node: u32,
}

struct Builder<'a> {
    dom: Dom<'a>,
    open: Vec<Open>,
    link: bool,
    /// Attributes that count as elements.
    attributes: usize,
    limit: usize,
}

impl<'a> Dom<'a> {
    /// Builds the tree; node 0 represents the page.
    ///
    /// # Errors
    /// [`Refusal::TooManyElements`] beyond `limit` nodes and excess attributes (above [`MAX_ATTRIBUTES`] of an
    /// element).
    pub(super) fn parse(page: &'a str, limit: usize) -> Result<Dom<'a>, Refusal> {
        let root = Node { tag: Tag::Html, marks: Marks::default(), parent: 0, end: 0, start: 0, stop: 0 };
        let mut nodes = Vec::with_capacity(page.len() / 40 + 16);
        nodes.push(root);
        let dom = Dom { page, nodes };
        let mut builder = Builder { dom, open: Vec::new(), link: false, attributes: 0, limit };
        let mut data = false;
        for token in Scanner::new(page) {
            match token {
                Token::Text { start, end } => builder.text(start, end)?,
                Token::Start { name, attributes, start, end } => {
                    data = name.eq_ignore_ascii_case(b"script")
                        && memmem::find(attributes, b"ld+json").is_some();
                    builder.start(name, attributes, (start, end))?;
                }
                Token::End { name, .. } => builder.end(name),
                Token::Raw { start, end } if data => builder.text(start, end)?,
                Token::Raw { .. } | Token::Comment { .. } => {}
            }
        }
        builder.close_to(0);
        let end = builder.dom.nodes.len() as u32;
        builder.dom.nodes[0].end = end;
        Ok(builder.dom)
    }

    fn close(&mut self, node: u32) {
        let end = self.nodes.len() as u32;
        self.nodes[node as usize].end = end;
    }

    /// Level of a heading, 1 to 6; 0 for other elements.
    pub(super) fn heading_level(&self, node: u32) -> u8 {
        let node = &self.nodes[node as usize];
        let digit = self.page.as_bytes().get(node.start as usize + 2);
        if node.tag == Tag::Heading { digit.map_or(0, |d| d.saturating_sub(b'0')) } else { 0 }
    }

    /// Rebuilds the page as HTML that any parser reads the same way: properly nested, with bounded depth and numbers
    /// of attributes, without scripts (except JSON-LD), styles, drawings, annotations and soft hyphens.
    pub(super) fn to_html(&self) -> String {
        self.rebuilt(false)
    }

    /// Like [`to_html`](Dom::to_html), with [`LINE_START`] before the first text of every block and after every
    /// `<br>`.
    pub(super) fn to_html_with_lines(&self) -> String {
        self.rebuilt(true)
    }

    fn rebuilt(&self, lines: bool) -> String {
        let mut out = String::with_capacity(self.page.len());
        let mut open: Vec<u32> = Vec::new();
        let mut index = 1u32;
        let mut at_line_start = false;
        // End of the current `<pre>`.
        let mut pre_end = 0;
        while (index as usize) < self.nodes.len() {
            while open.last().is_some_and(|&o| self.nodes[o as usize].end <= index) {
                at_line_start |= self.parts_lines(open.last().copied());
                self.write_end(&mut out, open.pop());
            }
            let node = self.nodes[index as usize];
            let raw = &self.page[node.start as usize..node.stop as usize];
            if node.tag == Tag::Text {
                let is_shown = text::count(raw) > 0 && self.nodes[node.parent as usize].tag != Tag::Hidden;
                let starts = lines && is_shown && std::mem::replace(&mut at_line_start, false);
                if lines && index < pre_end {
                    write_text(&mut out, "", starts);
                    write_code(&mut out, raw);
                } else {
                    write_text(&mut out, raw, starts);
                }
            } else if self.is_left_out(index) {
                index = node.end.max(index + 1);
                continue;
            } else if !(lines && self.is_passed_over(index)) {
                at_line_start |= self.parts_lines(Some(index));
                self.write_start(&mut out, index, raw);
                if node.tag == Tag::Pre {
                    pre_end = pre_end.max(node.end);
                }
                if !Tag::is_void(self.name(index)) {
                    open.push(index);
                }
            }
            index += 1;
        }
        while !open.is_empty() {
            self.write_end(&mut out, open.pop());
        }
        out
    }

    /// Returns true if text before and after an element's tag is on different lines.
    fn parts_lines(&self, node: Option<u32>) -> bool {
        node.is_some_and(|n| matches!(self.nodes[n as usize].tag, Tag::Br) || !flows(self, n))
    }

    fn is_left_out(&self, index: u32) -> bool {
        let node = self.nodes[index as usize];
        let name = self.name(index);
        let is_empty = node.tag == Tag::Hidden && node.end == index + 1 && !Tag::is_void(name);
        let is_math = name.eq_ignore_ascii_case(b"math");
        let never_shown = node.tag == Tag::Hidden && !is_math && flows(self, index);
        is_empty || never_shown || node.tag == Tag::Annotation || matches!(name, b"svg" | b"SVG")
    }

    /// Inline elements that third-party crates treat as line ends; only their content is written.
    fn is_passed_over(&self, index: u32) -> bool {
        let may_flow = self.nodes[index as usize].tag.may_flow();
        (may_flow && flows(self, index)) || self.name(index).eq_ignore_ascii_case(b"wbr")
    }

    fn write_start(&self, out: &mut String, index: u32, raw: &str) {
        let behind_name = 1 + self.name(index).len();
        let mut cut = raw.len();
        if raw.len() > MAX_ATTRIBUTES {
            let mut number = 0;
            attributes(&raw.as_bytes()[behind_name..], |name, _| {
                number += 1;
                if number == MAX_ATTRIBUTES + 1 {
                    cut = name.as_ptr() as usize - raw.as_ptr() as usize;
                }
            });
        }
        write_text(out, &raw[..cut], false);
        if cut < raw.len() {
            out.push('>');
        }
    }

    /// Element name as written.
    fn name(&self, node: u32) -> &[u8] {
        let node = &self.nodes[node as usize];
        let tag = &self.page.as_bytes()[node.start as usize..node.stop as usize];
        let tag = tag.get(1..).unwrap_or(&[]);
        let end = tag.iter().position(|b| matches!(b, b'>' | b'/') || b.is_ascii_whitespace());
        &tag[..end.unwrap_or(tag.len())]
    }

    fn write_end(&self, out: &mut String, node: Option<u32>) {
        let Some(node) = node else { return };
        out.push_str("</");
        out.push_str(&String::from_utf8_lossy(self.name(node)));
        out.push('>');
    }
}

impl Builder<'_> {
    fn parent(&self) -> u32 {
        self.open.last().map_or(0, |o| o.node)
    }

    fn push(&mut self, node: Node) -> Result<u32, Refusal> {
        let index = self.dom.nodes.len();
        if index + self.attributes >= self.limit {
            return Err(Refusal::TooManyElements);
        }
        self.dom.nodes.push(node);
        Ok(index as u32)
    }

    fn text(&mut self, start: usize, stop: usize) -> Result<(), Refusal> {
        let mut marks = Marks::default();
        if self.link {
            marks.insert(Marks::LINK);
        }
        let end = self.dom.nodes.len() as u32 + 1;
        let parent = self.parent();
        self.push(Node { tag: Tag::Text, marks, parent, end, start: start as u32, stop: stop as u32 })?;
        Ok(())
    }

    /// Closes open elements down to and including position `at`.
    fn close_to(&mut self, at: usize) {
        while self.open.len() > at {
            if let Some(open) = self.open.pop() {
                // A flattened element shares its node with its parent, which stays open.
                if self.open.last().is_none_or(|below| below.node != open.node) && open.node != 0 {
                    self.dom.close(open.node);
                }
            }
        }
    }

    /// Closes the nearest open element selected by `wanted`, unless one selected by `scope` lies above it.
    fn close_nearest(&mut self, wanted: impl Fn(&Open) -> bool, scope: impl Fn(Tag) -> bool) -> bool {
        // In real pages it is near the top; the bound keeps hostile pages linear.
        const FAR: usize = 2 * MAX_DEPTH;
        for at in (self.open.len().saturating_sub(FAR)..self.open.len()).rev() {
            let open = &self.open[at];
            if wanted(open) {
                self.close_to(at);
                return true;
            }
            if scope(open.tag) {
                return false;
            }
        }
        false
    }

    fn start(&mut self, name: &[u8], attributes: &[u8], place: (usize, usize)) -> Result<(), Refusal> {
        let tag = Tag::of(name);
        self.close_implied(tag);
        if name.eq_ignore_ascii_case(b"rb") {
            self.close_nearest(|o| o.tag == Tag::Annotation, |t| !t.is_inline());
        }
        let (marks, has_href) = marks_of(tag, attributes);
        self.attributes += count(attributes).saturating_sub(MAX_ATTRIBUTES);
        let parent = self.parent();
        let index = self.dom.nodes.len() as u32;
        if tag == Tag::A {
            self.link = has_href;
        }
        let flat = self.open.len() >= MAX_DEPTH;
        let is_void = Tag::is_void(name);
        let node = if flat && !is_void {
            parent
        } else {
            let (start, stop) = (place.0 as u32, place.1 as u32);
            self.push(Node { tag, marks, parent, end: index + 1, start, stop })?
        };
        if !is_void {
            self.open.push(Open { tag, name: short(name), node });
        }
        Ok(())
    }

    /// Closes elements implied by a start tag: a paragraph before a block, an item before an item, a cell before a
    /// cell.
    fn close_implied(&mut self, tag: Tag) {
        let cell = |t: Tag| matches!(t, Tag::Cell | Tag::Table | Tag::Caption);
        match tag {
            Tag::Li => {
                self.close_nearest(|o| o.tag == Tag::Li, |t| t == Tag::Ul || cell(t));
            }
            Tag::Dt | Tag::Dd => {
                self.close_nearest(|o| matches!(o.tag, Tag::Dt | Tag::Dd), |t| t == Tag::Dl || cell(t));
            }
            Tag::Cell => {
                self.close_nearest(|o| o.tag == Tag::Cell, |t| matches!(t, Tag::Row | Tag::Table));
            }
            Tag::Row => {
                self.close_nearest(|o| o.tag == Tag::Row, |t| t == Tag::Table);
            }
            // Annotations rarely have end tags. They end with the next one and with the next word.
            Tag::Annotation => {
                self.close_nearest(|o| o.tag == Tag::Annotation, |t| !t.is_inline());
            }
            Tag::TablePart => {
                self.close_nearest(|o| o.tag == Tag::TablePart, |t| t == Tag::Table);
            }
            Tag::Body => {
                self.close_nearest(|o| &o.name[..4] == b"head", |t| t == Tag::Body);
            }
            _ => {}
        }
        if !tag.is_inline() && !matches!(tag, Tag::Control | Tag::Hidden | Tag::Noscript | Tag::Other) {
            self.close_nearest(|o| o.tag == Tag::Annotation, |t| !t.is_inline());
            self.close_nearest(|o| o.tag == Tag::P, |t| !t.is_inline());
            // The head ends with the first element not allowed in it.
            if tag != Tag::Html {
                self.close_nearest(|o| &o.name == b"head\0\0\0\0", |t| t != Tag::Hidden);
            }
        }
    }

    fn end(&mut self, name: &[u8]) {
        let tag = Tag::of(name);
        if tag == Tag::A {
            self.link = false;
        }
        let wanted = short(name);
        let cell = |t: Tag| matches!(t, Tag::Cell | Tag::Table | Tag::Caption);
        match tag {
            Tag::Html | Tag::Body => {}
            Tag::Table | Tag::Row | Tag::TablePart | Tag::Cell => {
                self.close_nearest(|o| o.name == wanted, |t| t == Tag::Table && tag != Tag::Table);
            }
            // An inline end tag does not close the block around it.
            _ if tag.is_inline() => {
                self.close_nearest(|o| o.name == wanted, |t| !t.is_inline());
            }
            Tag::Heading => {
                self.close_nearest(|o| o.tag == Tag::Heading, cell);
            }
            _ => {
                self.close_nearest(|o| o.name == wanted, cell);
            }
        }
    }
}

/// Number of attributes in the text of a tag after its name.
fn count(raw: &[u8]) -> usize {
    let mut number = 0;
    // An attribute takes at least two bytes.
    if raw.len() > 2 * MAX_ATTRIBUTES {
        attributes(raw, |_, _| number += 1);
    }
    number
}

/// Writes text or a tag without the characters that parsers must not see.
fn write_text(out: &mut String, raw: &str, starts_line: bool) {
    let text = raw.trim_ascii_start();
    out.push_str(&raw[..raw.len() - text.len()]);
    if starts_line {
        // A separate word, so that counting stop words still recognizes the next one.
        out.extend([LINE_START, ' ']);
    }
    out.extend(text.chars().filter(is_written));
}

fn is_written(c: &char) -> bool {
    !matches!(*c, '\0' | text::SOFT_HYPHEN | LINE_START) && !KEPT_SPACES.iter().any(|(_, mark)| mark == c)
}

/// Writes text of a `<pre>`, with line ends and all but single spaces between words replaced by marks.
fn write_code(out: &mut String, raw: &str) {
    let mut chars = raw.chars().filter(|c| is_written(c) && *c != '\r').peekable();
    let mut in_line = false;
    while let Some(c) = chars.next() {
        let single = c == ' ' && in_line && chars.peek().is_some_and(|c| !c.is_whitespace());
        let mark = KEPT_SPACES.iter().find(|(space, _)| *space == c).filter(|_| !single);
        out.push(mark.map_or(c, |(_, mark)| *mark));
        in_line = !c.is_whitespace();
    }
}

/// Restores the white space of `<pre>` in the text of a rebuilt page.
pub(super) fn with_kept_spaces(text: String) -> String {
    let unmarked = |c: char| KEPT_SPACES.iter().find(|(_, mark)| *mark == c).map_or(c, |(space, _)| *space);
    if text.contains(KEPT_SPACES.map(|(_, mark)| mark)) { text.chars().map(unmarked).collect() } else { text }
}

/// First eight bytes of a name in lower case, which suffice to distinguish elements.
fn short(name: &[u8]) -> [u8; 8] {
    let mut out = [0; 8];
    let count = name.len().min(8);
    out[..count].copy_from_slice(&name[..count]);
    out.make_ascii_lowercase();
    out
}

/// Enclosing element in whose lines of text `node` is inline, with no line-separating element in between. Unknown
/// elements are inline in paragraphs and headings; elsewhere pages use them as blocks.
pub(super) fn line_around(dom: &Dom<'_>, node: u32) -> Option<u32> {
    let is_line = |node: &u32| matches!(dom.nodes[*node as usize].tag, Tag::P | Tag::Heading);
    let around = above(dom, node, |tag| tag.is_inline() || tag.may_flow());
    let items = above(dom, node, |tag| tag.is_inline() || tag.may_flow() && tag != Tag::Other);
    let is_item = |node: &u32| {
        let tag = dom.nodes[*node as usize].tag;
        matches!(tag, Tag::Li | Tag::Dt | Tag::Dd | Tag::Cell | Tag::Blockquote | Tag::Caption)
    };
    Some(around).filter(is_line).or(Some(items).filter(is_item))
}

/// Returns true if an element is inline: text before and after it is on the same line.
pub(super) fn flows(dom: &Dom<'_>, node: u32) -> bool {
    let tag = dom.nodes[node as usize].tag;
    tag.is_inline() || tag.may_flow() && line_around(dom, node).is_some()
}

/// Nearest node at or above `node` for which `passes` returns false.
pub(super) fn above(dom: &Dom<'_>, mut node: u32, passes: fn(Tag) -> bool) -> u32 {
    while node > 0 && passes(dom.nodes[node as usize].tag) {
        node = dom.nodes[node as usize].parent;
    }
    node
}
