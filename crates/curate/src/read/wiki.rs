//! Wikipedia XML dumps, including multistream ones: every page of the article namespace as wikitext.
//!
//! The dump is one huge XML file of `<page>` elements. Each is cut out by its tags and parsed separately, so that a
//! broken page costs one page. Redirects and pages of other namespaces are counted by reason.

use std::io::{self, BufRead};

use fathom_prose::extract::Content;
use memchr::memmem;
use quick_xml::events::Event;

use super::packed::{self, Decompressor};
use super::records::{Loss, Raw, Records, Step};
use crate::counters::Reason;

const START: &[u8] = b"<page>";
const END: &[u8] = b"</page>";

/// Pages of one dump.
pub(super) struct Dump {
    input: Decompressor,
    limit: usize,
    page: u64,
    buffer: Vec<u8>,
}

/// Fields of a `<page>` element.
#[derive(Default)]
struct Page {
    title: String,
    namespace: String,
    id: String,
    timestamp: String,
    text: String,
    redirect: bool,
}

/// Outcome of reading up to the end of a page.
enum PageEnd {
    Whole,
    TooLong,
    /// The file ended, possibly inside a page.
    Ended {
        inside: bool,
    },
}

impl Dump {
    pub(super) fn new(input: Decompressor, limit: usize) -> Dump {
        Dump { input, limit, page: 0, buffer: Vec::new() }
    }

    /// Reads up to and including `mark`, keeping at most `limit` bytes in `buffer`. Returns whether the mark was
    /// found before the end of the file, and whether the limit was exceeded.
    fn read_through(&mut self, mark: &[u8], limit: usize) -> io::Result<(bool, bool)> {
        let (mut too_long, mut tail) = (false, Vec::<u8>::new());
        loop {
            let chunk = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if chunk.is_empty() {
                return Ok((false, too_long));
            }
            // The mark may span two chunks: the last bytes of the previous one stay in `tail`.
            let joined = [tail.as_slice(), &chunk[..chunk.len().min(mark.len())]].concat();
            let (taken, found) = match memmem::find(&joined, mark) {
                Some(at) if at < tail.len() => (at + mark.len() - tail.len(), true),
                _ => match memmem::find(chunk, mark) {
                    Some(at) => (at + mark.len(), true),
                    None => (chunk.len(), false),
                },
            };
            too_long |= self.buffer.len() + taken > limit;
            if !too_long {
                self.buffer.extend_from_slice(&chunk[..taken]);
            }
            tail.extend_from_slice(&chunk[..taken]);
            let keep = tail.len().min(mark.len() - 1);
            tail.drain(..tail.len() - keep);
            self.input.consume(taken);
            if found {
                return Ok((true, too_long));
            }
        }
    }

    fn read_page(&mut self) -> io::Result<PageEnd> {
        self.buffer.clear();
        if !self.read_through(START, 0)?.0 {
            return Ok(PageEnd::Ended { inside: false });
        }
        self.page += 1;
        self.buffer.clear();
        self.buffer.extend_from_slice(START);
        // The markup of a page is slightly longer than its text.
        Ok(match self.read_through(END, self.limit.saturating_add(64 << 10))? {
            (false, _) => PageEnd::Ended { inside: true },
            (true, true) => PageEnd::TooLong,
            (true, false) => PageEnd::Whole,
        })
    }

    fn lost(&self, reason: Reason, detail: String) -> Step {
        let place = format!("page {}, byte {}", self.page, self.input.offset());
        Step::Lost(Loss { reason, records: 1, bytes: self.buffer.len() as u64, place, detail })
    }

    fn record(&self, page: Page) -> Step {
        if page.namespace != "0" {
            return self.lost(Reason::OtherNamespace, format!("`{}`", page.title));
        }
        if page.redirect {
            return self.lost(Reason::Redirect, format!("`{}`", page.title));
        }
        let columns = [("title", page.title), ("page_id", page.id), ("timestamp", page.timestamp)];
        let columns = columns.map(|(name, value)| (name.to_string(), value)).to_vec();
        Step::Record(Raw { content: Content::Wikitext(page.text), number: Some(self.page), columns })
    }
}

impl Records for Dump {
    fn step(&mut self) -> Step {
        match self.read_page() {
            Ok(PageEnd::Ended { inside: false }) => Step::End,
            Ok(PageEnd::Ended { inside: true }) => {
                self.lost(Reason::BrokenRecord, "the file ends inside a page".into())
            }
            Ok(PageEnd::TooLong) => {
                self.lost(Reason::TooLarge, format!("a page of more than {} bytes", self.limit))
            }
            Ok(PageEnd::Whole) => match parse(&self.buffer) {
                Ok(page) => self.record(page),
                Err(detail) => self.lost(Reason::BrokenRecord, detail),
            },
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let step = self.lost(packed::cause(&error), error.to_string());
                match self.input.resync() {
                    Ok(_) => step,
                    Err(error) => Step::Failed(error),
                }
            }
            Err(error) => Step::Failed(error),
        }
    }
}

/// Parses one `<page>` element. Of several revisions the last is used, since history dumps list the newest last.
fn parse(xml: &[u8]) -> Result<Page, String> {
    let mut reader = quick_xml::Reader::from_reader(xml);
    reader.config_mut().check_end_names = false;
    let mut page = Page::default();
    let mut path: Vec<Vec<u8>> = Vec::new();
    loop {
        let event = reader.read_event().map_err(|e| format!("not XML: {e}"))?;
        match event {
            Event::Eof => return Ok(page),
            Event::Start(tag) => {
                let name = tag.local_name().as_ref().to_vec();
                if let Some(field) = page.field(&path, &name) {
                    field.clear();
                }
                path.push(name);
                if path.len() > 16 {
                    return Err("elements nested deeper than a page has".to_string());
                }
            }
            Event::Empty(tag) if tag.local_name().as_ref() == b"redirect" => page.redirect = true,
            Event::End(_) => {
                path.pop();
            }
            Event::Text(text) => {
                let text = text.decode().map_err(|e| format!("text is not UTF-8: {e}"))?;
                page.append(&path, &text);
            }
            Event::CData(data) => page.append(&path, &String::from_utf8_lossy(&data)),
            Event::GeneralRef(name) => page.append(&path, &entity(&name)),
            _ => {}
        }
    }
}

/// Character denoted by `&name;`; unknown names are kept verbatim.
fn entity(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let number = name.strip_prefix('#').and_then(|digits| match digits.strip_prefix(['x', 'X']) {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    });
    match (&*name, number) {
        ("lt", _) => "<".to_string(),
        ("gt", _) => ">".to_string(),
        ("amp", _) => "&".to_string(),
        ("quot", _) => "\"".to_string(),
        ("apos", _) => "'".to_string(),
        (_, Some(code)) => char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER).to_string(),
        _ => format!("&{name};"),
    }
}

impl Page {
    /// Field that receives the text of element `name` below `path`.
    fn field(&mut self, path: &[Vec<u8>], name: &[u8]) -> Option<&mut String> {
        let parent = path.last().map(Vec::as_slice);
        match (parent, name) {
            (Some(b"page"), b"title") => Some(&mut self.title),
            (Some(b"page"), b"ns") => Some(&mut self.namespace),
            (Some(b"page"), b"id") => Some(&mut self.id),
            (Some(b"revision"), b"timestamp") => Some(&mut self.timestamp),
            (Some(b"revision"), b"text") => Some(&mut self.text),
            _ => None,
        }
    }

    fn append(&mut self, path: &[Vec<u8>], text: &str) {
        if let Some((name, above)) = path.split_last()
            && let Some(field) = self.field(above, name)
        {
            field.push_str(text);
        }
    }
}
