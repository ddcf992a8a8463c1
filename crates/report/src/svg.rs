//! A small SVG writer: lines, areas, rectangles and text, coloured by CSS classes so that one picture serves light
//! and dark pages.

use std::fmt::Write;

/// A point in user units; y grows downwards.
pub type Point = (f64, f64);

/// Alignment of a text relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The text begins at the point.
    Start,
    /// The text is centred at the point.
    Middle,
    /// The text ends at the point.
    End,
}

/// A rectangle, given by its upper left corner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rect {
    /// Left edge.
    pub x: f64,
    /// Upper edge.
    pub y: f64,
    /// Width.
    pub w: f64,
    /// Height.
    pub h: f64,
}

/// An SVG image being drawn.
#[derive(Clone, Debug)]
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    /// Creates an empty image of a size in user units; pages scale it to the available width.
    pub fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, body: String::new() }
    }

    /// Draws a straight line.
    pub fn line(&mut self, class: &str, from: Point, to: Point) {
        if ![from, to].into_iter().all(has_place) {
            return;
        }
        let (x1, y1, x2, y2) = (number(from.0), number(from.1), number(to.0), number(to.1));
        let _ = write!(self.body, r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#);
    }

    /// Draws a line through points; it is interrupted at points that cannot be drawn.
    pub fn path(&mut self, class: &str, points: &[Point]) {
        let d = path_data(points);
        if !d.is_empty() {
            let _ = write!(self.body, r#"<path class="line {class}" d="{d}"/>"#);
        }
    }

    /// Draws the area between an upper and a lower line with equal numbers of points.
    pub fn area(&mut self, class: &str, upper: &[Point], lower: &[Point]) {
        let outline: Vec<Point> = upper.iter().chain(lower.iter().rev()).copied().collect();
        let d = path_data(&outline);
        if !d.is_empty() {
            let _ = write!(self.body, r#"<path class="area {class}" d="{d}Z"/>"#);
        }
    }

    /// Draws a rectangle with a tooltip.
    pub fn rect(&mut self, class: &str, rect: Rect, title: &str) {
        if ![(rect.x, rect.y), (rect.w, rect.h)].into_iter().all(has_place) {
            return;
        }
        let (x, y, w, h) = (number(rect.x), number(rect.y), number(rect.w.max(0.0)), number(rect.h.max(0.0)));
        let _ = write!(self.body, r#"<rect class="{class}" x="{x}" y="{y}" width="{w}" height="{h}""#);
        self.close("rect", title);
    }

    /// Draws a disc with a tooltip.
    pub fn circle(&mut self, class: &str, at: Point, radius: f64, title: &str) {
        if !has_place(at) {
            return;
        }
        let (x, y, r) = (number(at.0), number(at.1), number(radius));
        let _ = write!(self.body, r#"<circle class="{class}" cx="{x}" cy="{y}" r="{r}""#);
        self.close("circle", title);
    }

    /// Draws text with its baseline at a point.
    pub fn text(&mut self, class: &str, at: Point, anchor: Anchor, text: &str) {
        self.text_with("", class, at, (anchor, text));
    }

    /// Draws text that reads upwards, centred at a point.
    pub fn text_upwards(&mut self, class: &str, at: Point, text: &str) {
        let turn = format!(r#" transform="rotate(-90 {} {})""#, number(at.0), number(at.1));
        self.text_with(&turn, class, at, (Anchor::Middle, text));
    }

    fn text_with(&mut self, extra: &str, class: &str, at: Point, text: (Anchor, &str)) {
        if !has_place(at) {
            return;
        }
        let anchor = match text.0 {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y, text) = (number(at.0), number(at.1), escape(text.1));
        let tag = format!(r#"<text class="{class}" x="{x}" y="{y}" text-anchor="{anchor}"{extra}>"#);
        let _ = write!(self.body, "{tag}{text}</text>");
    }

    fn close(&mut self, tag: &str, title: &str) {
        if title.is_empty() {
            self.body.push_str("/>");
        } else {
            let _ = write!(self.body, "><title>{}</title></{tag}>", escape(title));
        }
    }

    /// Returns the image as an HTML element; `label` is the text for screen readers.
    pub fn finish(self, label: &str) -> String {
        let (w, h, label) = (number(self.width), number(self.height), escape(label));
        format!(r#"<svg viewBox="0 0 {w} {h}" role="img" aria-label="{label}">{}</svg>"#, self.body)
    }
}

/// Returns whether a point can be drawn: it is finite, and not so far outside that its digits alone would swell the
/// page. Other points are left out.
fn has_place(point: Point) -> bool {
    point.0.abs() < 1e6 && point.1.abs() < 1e6
}

/// Escapes a trusted sentence for HTML, with the text between backticks as code.
pub fn sentence(text: &str) -> String {
    let mut parts = text.split('`');
    let mut out = escape(parts.next().unwrap_or_default());
    while let Some(inside) = parts.next() {
        out += &match parts.next() {
            Some(after) => format!("<code>{}</code>{}", escape(inside), escape(after)),
            None => format!("`{}", escape(inside)),
        };
    }
    out
}

/// Escapes text for HTML and SVG, in content and in quoted attributes. Control characters that XML forbids become a
/// replacement character.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Writes a coordinate with at most two decimals.
pub(crate) fn number(x: f64) -> String {
    let text = format!("{x:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

fn path_data(points: &[Point]) -> String {
    let mut d = String::with_capacity(points.len() * 12);
    let mut pen_up = true;
    for (x, y) in points {
        if !has_place((*x, *y)) {
            pen_up = true;
            continue;
        }
        let _ = write!(d, "{}{} {}", if pen_up { 'M' } else { 'L' }, number(*x), number(*y));
        pen_up = false;
    }
    d
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backticks_are_code() {
        let cases = [
            ("plain & simple", "plain &amp; simple"),
            ("`start` is <first>", "<code>start</code> is &lt;first&gt;"),
            ("a `b` c `d<e>`", "a <code>b</code> c <code>d&lt;e&gt;</code>"),
            ("one ` alone", "one ` alone"),
        ];
        for (text, html) in cases {
            assert_eq!(sentence(text), html);
        }
    }

    #[test]
    fn what_has_no_place_is_left_out() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.line("axis", (0.0, f64::NAN), (1.0, 1.0));
        svg.circle("s1", (1e300, 0.0), 1.0, "");
        svg.text("t", (f64::INFINITY, 0.0), Anchor::Start, "far");
        svg.rect("h1", Rect { x: 0.0, y: 0.0, w: f64::NAN, h: 1.0 }, "");
        svg.path("s1", &[(0.0, 0.0), (1.0, -1e300), (2.0, 2.0), (3.0, 3.0)]);
        let text = svg.finish("");
        assert_eq!(text.matches('<').count(), 3, "{text}");
        assert!(text.contains("M0 0M2 2L3 3"), "{text}");
    }

    #[test]
    fn writes_short_and_safe_elements() {
        let mut svg = Svg::new(100.0, 50.0);
        svg.line("axis", (0.0, 0.125), (10.0, -0.001));
        svg.path("s1", &[(0.0, 0.0), (1.0, 2.5), (2.0, f64::NAN), (3.0, 1.0), (4.0, 1.0)]);
        svg.text("t", (1.0, 2.0), Anchor::End, "a < b & \"c\"\u{1}");
        svg.rect("h5", Rect { x: 0.0, y: 0.0, w: -1.0, h: 2.0 }, "50 %");
        let text = svg.finish("a'b");
        assert!(text.contains(r#"<line class="axis" x1="0" y1="0.12" x2="10" y2="0"/>"#), "{text}");
        assert!(text.contains(r#"d="M0 0L1 2.5M3 1L4 1""#), "{text}");
        assert!(text.contains("a &lt; b &amp; &quot;c&quot;\u{fffd}</text>"), "{text}");
        assert!(text.contains(r#"width="0" height="2"><title>50 %</title></rect>"#), "{text}");
        assert!(text.starts_with(r#"<svg viewBox="0 0 100 50" role="img" aria-label="a&#39;b">"#), "{text}");
    }
}
