//! Web pages: their main text, with the headings above it and its place in the page.
//!
//! The extractor returns lines of text. Each is looked up in the page's whole text, of which the place of every character
//! and all headings are known.

use fathom_prose::extract::{Html, Refusal, charset};

use super::document::{Document, Passage};
use crate::chunk;

/// Bytes of a line by which it is looked up.
const LOOKED_UP: usize = 80;

/// The document of a page.
///
/// # Errors
/// The reason why it has none.
pub(super) fn document(html: &Html, bytes: &[u8], most: usize) -> Result<Document, String> {
    let reason = |refusal: Refusal| match refusal {
        Refusal::NoContent | Refusal::TooShort => "it has no text".to_string(),
        other => format!("no text can be extracted from the page: {}", other.reason()),
    };
    let (page, _) = charset::decode(bytes, None).map_err(reason)?;
    let text = html.extract(&page).map_err(reason)?;
    let flat = Flat::of(&page);
    // Places in a page of another charset are not those in the file.
    let is_file = page.as_bytes() == bytes;
    let mut document = Document { title: flat.title.clone(), ..Document::default() };
    let mut passage = |section: &[(&str, Option<usize>)], headings: &[String]| {
        let joined = section.iter().map(|(line, _)| *line).collect::<Vec<_>>().join("\n");
        let places: Vec<usize> = section.iter().filter_map(|(_, at)| *at).collect();
        let (from, to) = match (places.first(), places.last(), section.last()) {
            (Some(from), Some(to), Some((line, _))) if is_file => {
                (flat.source(*from), flat.source(to + line.len()))
            }
            _ => (0, page.len()),
        };
        let line = |at: usize| 1 + page.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() as u32;
        let (bytes, lines) = ([from as u64, to as u64], [line(from), line(to.max(from))]);
        document.passages.extend(chunk::plain(&joined, most, headings).into_iter().map(|chunk| Passage {
            text: joined[chunk.range].to_string(),
            headings: chunk.headings,
            bytes,
            lines,
            page: None,
        }));
    };
    let (mut section, mut path, mut at) = (Vec::new(), Vec::new(), 0);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let place = flat.find(line, at);
        at = place.unwrap_or(at);
        let above = flat.headings(at);
        let size: usize = section.iter().map(|(line, _): &(&str, _)| line.len() + 1).sum();
        if (above != path || size + line.len() > most) && !section.is_empty() {
            passage(&section, &path);
            section.clear();
        }
        path = above;
        section.push((line, place));
    }
    if !section.is_empty() {
        passage(&section, &path);
    }
    Ok(document)
}

/// The text of a page without tags, white space collapsed, with its places in the page.
#[derive(Default)]
struct Flat {
    text: String,
    /// Places in the text and in the page, where a run of characters begins.
    places: Vec<(usize, usize)>,
    /// Place in the text, level and words of each heading.
    marks: Vec<(usize, u8, String)>,
    title: String,
}

impl Flat {
    fn of(page: &str) -> Flat {
        let mut flat = Flat::default();
        let mut at = 0;
        // Start in the text of the title or heading that is open, with its level; 0 for the title.
        let mut open: Option<(usize, u8)> = None;
        while let Some(next) = page[at..].find('<').map(|next| at + next) {
            flat.push(page, at..next);
            let tag = &page[next..];
            let end =
                if tag.starts_with("<!--") { tag.find("-->").map(|end| end + 2) } else { tag.find('>') };
            at = end.map_or(page.len(), |end| next + end + 1);
            let name: String = tag[1..].chars().take_while(|c| c.is_alphanumeric() || *c == '/').collect();
            match name.to_ascii_lowercase().as_str() {
                skipped @ ("script" | "style") => {
                    let close = format!("</{skipped}");
                    at = lowered_find(page, at, &close).unwrap_or(page.len());
                }
                "title" => open = Some((flat.text.len(), 0)),
                name if name.len() == 2
                    && name.starts_with('h')
                    && (b'1'..=b'6').contains(&name.as_bytes()[1]) =>
                {
                    open = Some((flat.text.len(), name.as_bytes()[1] - b'0'));
                }
                name if name == "/title" || name.starts_with("/h") => flat.close(&mut open),
                _ => {}
            }
            flat.space();
        }
        flat.push(page, at..page.len());
        flat
    }

    /// Notes the title or heading that ends here.
    fn close(&mut self, open: &mut Option<(usize, u8)>) {
        let Some((start, level)) = open.take() else { return };
        let words = chunk::heading(&self.text[start..]);
        match level {
            _ if words.is_empty() => {}
            0 if self.title.is_empty() => self.title = words,
            0 => {}
            level => self.marks.push((start, level, words)),
        }
    }

    fn space(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with(' ') {
            self.text.push(' ');
        }
    }

    /// Appends characters of the page.
    fn push(&mut self, page: &str, range: std::ops::Range<usize>) {
        let mut at = range.start;
        for word in page[range].split_inclusive(char::is_whitespace) {
            let own = word.trim_end();
            if !own.is_empty() {
                self.places.push((self.text.len(), at));
                let mut own = own;
                while let Some(start) = own.find('&') {
                    self.text.push_str(&own[..start]);
                    let entity = ENTITIES.iter().find(|(name, _)| own[start..].starts_with(name));
                    let (name, plain) = entity.copied().unwrap_or(("&", "&"));
                    self.text.push_str(plain);
                    own = &own[start + name.len()..];
                }
                self.text.push_str(own);
            }
            if own.len() < word.len() {
                self.space();
            }
            at += word.len();
        }
    }

    /// Place of a line, looked for behind another place first.
    fn find(&self, line: &str, behind: usize) -> Option<usize> {
        let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let words = &words[..words.floor_char_boundary(LOOKED_UP)];
        let later = self.text.get(behind..).and_then(|rest| rest.find(words)).map(|at| behind + at);
        later.or_else(|| self.text.find(words))
    }

    /// Headings above a place, the outermost first.
    fn headings(&self, at: usize) -> Vec<String> {
        let mut path: Vec<(u8, &str)> = Vec::new();
        for (_, level, words) in self.marks.iter().take_while(|(start, ..)| *start <= at) {
            path.retain(|(above, _)| above < level);
            path.push((*level, words));
        }
        path.into_iter().map(|(_, words)| words.to_string()).collect()
    }

    /// Place in the page of a place in the text.
    fn source(&self, at: usize) -> usize {
        let run = self.places.partition_point(|(start, _)| *start <= at).saturating_sub(1);
        let (start, source) = self.places.get(run).copied().unwrap_or_default();
        let next = self.places.get(run + 1).map_or(usize::MAX, |(_, source)| *source);
        (source + at.saturating_sub(start)).min(next)
    }
}

/// Entities that pages of text use.
const ENTITIES: [(&str, &str); 8] = [
    ("&amp;", "&"),
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&quot;", "\""),
    ("&#39;", "'"),
    ("&apos;", "'"),
    ("&nbsp;", " "),
    ("&ndash;", "–"),
];

/// Place of a lower-case text, whatever the case in the page.
fn lowered_find(page: &str, from: usize, text: &str) -> Option<usize> {
    let bytes = page.as_bytes().get(from..)?;
    let found = bytes.windows(text.len()).position(|part| part.eq_ignore_ascii_case(text.as_bytes()));
    found.map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_gives_its_main_text_under_its_headings_with_its_place() {
        let long = |what: &str| {
            format!("{what} is long enough to be taken for the content of a page &amp; it is that. ")
                .repeat(4)
        };
        let page = format!(
            "<html><head><TITLE>The &amp; title</TITLE><style>p > a {{}}</style></head><body>\n<nav><a href=x>Home</a></nav><article><h1>Top</h1>\n<p>{}</p>\n<h2 class=a>Sub <b>part</b></h2><p>{}</p></article></body></html>",
            long("One"),
            long("Two")
        );
        let found = document(&Html::default(), page.as_bytes(), 2000).unwrap();
        assert_eq!(found.title, "The & title");
        let paths: Vec<String> = found.passages.iter().map(|passage| passage.headings.join(" > ")).collect();
        assert_eq!(paths, ["Top", "Top > Sub part"], "{found:?}");
        let [from, to] = found.passages[1].bytes.map(|at| at as usize);
        let place = &page[from..to];
        assert!(place.contains("Two is long") && place.ends_with("it is that."), "{place}");
        assert!(!place.contains("One is long"), "{place}");
        assert_eq!(found.passages[1].lines, [4, 4]);
    }
}
