//! Resolves nested wikitext from the inside out: templates, links, tables, tags.

use std::collections::BTreeSet;

use super::literal::{NOTHING, protected};
use super::tables;
use super::values::{Arguments, BAR, variant};

/// Maximum nesting depth; deeper markup is kept verbatim.
const MAX_DEPTH: usize = 40;

/// Maximum bytes of a tag.
const LONGEST_TAG: usize = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Page,
    Template,
    Link,
    External,
    Table,
    /// `-{`, in languages with variants.
    Variant,
}

struct Frame {
    open: Open,
    text: String,
}

struct Flattener<'a> {
    source: &'a str,
    at: usize,
    frames: Vec<Frame>,
    keep_tables: bool,
    /// Elements that are not closed in the rest of the page.
    unclosed: BTreeSet<String>,
}

/// Resolves all nested markup of a page; headings, lists and quotes remain marked up.
pub(super) fn flatten(source: &str, keep_tables: bool) -> String {
    let frames = vec![Frame { open: Open::Page, text: String::with_capacity(source.len() / 2) }];
    let mut flattener = Flattener { source, at: 0, frames, keep_tables, unclosed: BTreeSet::new() };
    while flattener.at < source.len() {
        flattener.step();
    }
    while flattener.frames.len() > 1 {
        flattener.give_up();
    }
    flattener.frames.pop().map(|f| f.text).unwrap_or_default()
}

impl<'a> Flattener<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn top(&mut self) -> &mut String {
        let last = self.frames.len() - 1;
        &mut self.frames[last].text
    }

    fn put(&mut self, text: &str) {
        self.top().push_str(text);
    }

    fn at_line_start(&self) -> bool {
        self.source[..self.at].trim_end_matches([' ', ':', '\t']).ends_with('\n') || self.at == 0
    }

    fn step(&mut self) {
        let rest = self.rest();
        let special = |b: &u8| matches!(b, b'{' | b'}' | b'[' | b']' | b'<' | b'|' | b'&' | b'-');
        let plain = rest.bytes().position(|b| special(&b)).unwrap_or(rest.len());
        if plain > 0 {
            self.put(&rest[..plain]);
            self.at += plain;
            return;
        }
        let inside = self.frames.last().map_or(Open::Page, |f| f.open);
        let full = self.frames.len() > MAX_DEPTH;
        match rest.as_bytes()[0] {
            b'{' if rest.starts_with("{|") && self.at_line_start() && !full => self.open(Open::Table, 2),
            b'{' if rest.starts_with("{{") && !full => self.open(Open::Template, 2),
            b'-' if rest.starts_with("-{") && !rest.starts_with("-{{") && !full => {
                self.open(Open::Variant, 2)
            }
            b'[' if rest.starts_with("[[") && !full => self.open(Open::Link, 2),
            b'[' if is_address(&rest[1..]) && !full => self.open(Open::External, 1),
            b'|' if rest.starts_with("|}") && !rest.starts_with("|}}") && self.at_line_start() => {
                self.close(Open::Table, 2)
            }
            b'}' if rest.starts_with("}-") && self.is_open(Open::Variant) => self.close(Open::Variant, 2),
            b'}' if rest.starts_with("}}") => self.close(Open::Template, 2),
            b']' if rest.starts_with("]]") && self.is_open(Open::Link) => self.close(Open::Link, 2),
            b']' if inside == Open::External => self.close(Open::External, 1),
            b'|' if matches!(inside, Open::Template | Open::Link | Open::Variant) => {
                self.top().push(BAR);
                self.at += 1;
            }
            b'<' => self.tag(),
            b'&' => self.entity(),
            _ => {
                self.put(&rest[..1]);
                self.at += 1;
            }
        }
    }

    fn is_open(&self, open: Open) -> bool {
        self.frames.iter().any(|f| f.open == open)
    }

    fn open(&mut self, open: Open, length: usize) {
        self.frames.push(Frame { open, text: String::new() });
        self.at += length;
    }

    /// Closes the nearest frame of a kind; unclosed frames inside it become text.
    fn close(&mut self, open: Open, length: usize) {
        if !self.is_open(open) {
            self.put(&self.rest()[..length]);
            self.at += length;
            return;
        }
        self.at += length;
        while self.frames.last().is_some_and(|f| f.open != open) {
            self.give_up();
        }
        let Some(frame) = self.frames.pop() else { return };
        let text = match open {
            Open::Template => template(&frame.text),
            Open::Link => link(&frame.text),
            Open::External => external(&frame.text),
            Open::Variant => variant(&frame.text),
            Open::Table if self.keep_tables => tables::rows(&frame.text),
            Open::Table | Open::Page => String::new(),
        };
        self.put(&text);
    }

    /// Turns the content of the topmost frame, which was never closed, into text.
    fn give_up(&mut self) {
        if let Some(frame) = self.frames.pop() {
            let text = frame.text.replace(BAR, "|");
            // An unclosed template is markup up to the end of its line.
            let text = match frame.open {
                Open::Variant => format!("-{{{text}"),
                Open::Template => text.find('\n').map_or("", |end| &text[end..]).to_string(),
                _ => text,
            };
            self.put(&text);
        }
    }

    fn entity(&mut self) {
        let rest = self.rest();
        let end = rest.bytes().take(12).position(|b| b == b';');
        let mut decoded = String::new();
        match end {
            Some(end) => {
                crate::extract::decode_entities(&mut decoded, &rest[..=end]);
                // A character written as a reference is not markup; `&` alone is an ordinary character.
                if decoded.chars().count() == 1 {
                    decoded = protected(&decoded);
                }
                self.at += end + 1;
            }
            None => {
                decoded.push('&');
                self.at += 1;
            }
        }
        self.put(&decoded);
    }

    /// Handles comments, references and other elements.
    fn tag(&mut self) {
        let rest = self.rest();
        if rest.starts_with("<!--") {
            self.at += rest.find("-->").map_or(rest.len(), |end| end + 3);
            return;
        }
        let mut window = rest.len().min(LONGEST_TAG);
        while !rest.is_char_boundary(window) {
            window -= 1;
        }
        let name_start = 1 + usize::from(rest.as_bytes().get(1) == Some(&b'/'));
        let name_length = rest[name_start..].bytes().take(20).take_while(u8::is_ascii_alphanumeric).count();
        let close = rest[..window].find('>');
        let (Some(close), true) = (close, name_length > 0) else {
            self.put("<");
            self.at += 1;
            return;
        };
        let name = rest[name_start..name_start + name_length].to_ascii_lowercase();
        self.at += close + 1;
        let closes_itself = rest[..close].ends_with('/') || name_start == 2;
        match name.as_str() {
            "br" => self.put("\n"),
            "p" | "div" | "blockquote" | "li" | "tr" => self.put("\n"),
            "ref" | "gallery" | "timeline" | "score" | "imagemap" | "graph" | "mapframe" | "maplink"
            | "templatestyles" | "indicator" | "hiero" | "references" | "inputbox" | "categorytree"
                if !closes_itself =>
            {
                self.content_of(&name);
            }
            "nowiki" | "pre" | "syntaxhighlight" | "source" if !closes_itself => {
                if let Some(content) = self.content_of(&name) {
                    let mut decoded = String::new();
                    crate::extract::decode_entities(&mut decoded, content);
                    let decoded = protected(&decoded);
                    if name == "nowiki" {
                        self.put(&decoded);
                    } else {
                        self.put("\n");
                        let marked: Vec<String> =
                            decoded.trim_matches('\n').lines().map(lines_mark).collect();
                        self.put(&marked.join("\n"));
                        self.put("\n");
                    }
                }
            }
            "nowiki" => self.put(NOTHING),
            "math" | "chem" | "ce" if !closes_itself => {
                if let Some(content) = self.content_of(&name) {
                    let content = content.trim();
                    let formula =
                        if name == "math" { format!("${content}$") } else { format!("$\\ce{{{content}}}$") };
                    self.put(&protected(&formula));
                }
            }
            _ => {}
        }
    }

    /// Skips to after the end tag of the element that was just opened and returns its content; `None` if it has none.
    fn content_of(&mut self, name: &str) -> Option<&'a str> {
        if self.unclosed.contains(name) {
            return None;
        }
        let rest = self.rest();
        let mut from = 0;
        while let Some(found) = rest[from..].find("</") {
            let at = from + found;
            let tail = &rest.as_bytes()[at + 2..];
            if tail.len() >= name.len() && tail[..name.len()].eq_ignore_ascii_case(name.as_bytes()) {
                let end = rest[at..].find('>').map_or(rest.len(), |e| at + e + 1);
                self.at += end;
                return Some(&rest[..at]);
            }
            from = at + 2;
        }
        self.unclosed.insert(name.to_string());
        None
    }
}

/// Marks a line that the line pass leaves unchanged.
fn lines_mark(line: &str) -> String {
    format!("{}{line}", super::lines::VERBATIM)
}

fn is_address(text: &str) -> bool {
    ["http://", "https://", "//", "ftp://", "mailto:", "news:", "irc://"]
        .iter()
        .any(|scheme| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
}

/// `[address text]`.
fn external(inner: &str) -> String {
    inner.split_once([' ', '\t']).map(|(_, text)| text.trim().to_string()).unwrap_or_default()
}

/// `[[target|text]]`, without files, categories and links to other languages.
fn link(inner: &str) -> String {
    let (target, text) = inner.split_once(BAR).unwrap_or((inner, ""));
    let shown_namespace = target.trim_start().strip_prefix(':');
    let target = shown_namespace.unwrap_or(target).trim();
    if let Some((prefix, _)) = target.split_once(':')
        && shown_namespace.is_none()
        && is_left_out(prefix.trim())
    {
        return String::new();
    }
    let text = text.rsplit(BAR).next().unwrap_or(text).trim();
    if !text.is_empty() {
        return text.to_string();
    }
    if inner.contains(BAR) {
        // The pipe trick: strips the namespace and the part in parentheses.
        let name = target.rsplit(':').next().unwrap_or(target);
        return name.split(" (").next().unwrap_or(name).to_string();
    }
    target.replace('_', " ")
}

/// Matches the namespaces of files and categories in the larger languages, and language codes.
fn is_left_out(prefix: &str) -> bool {
    const NAMES: [&str; 44] = [
        "file",
        "image",
        "media",
        "category",
        "datei",
        "bild",
        "kategorie",
        "fichier",
        "catégorie",
        "archivo",
        "imagen",
        "categoría",
        "ficheiro",
        "imagem",
        "categoria",
        "immagine",
        "bestand",
        "afbeelding",
        "categorie",
        "plik",
        "grafika",
        "kategoria",
        "файл",
        "изображение",
        "категория",
        "soubor",
        "kategória",
        "súbor",
        "fil",
        "kategori",
        "tiedosto",
        "luokka",
        "fájl",
        "kép",
        "dosya",
        "tập tin",
        "thể loại",
        "ファイル",
        "画像",
        "文件",
        "图像",
        "分类",
        "파일",
        "분류",
    ];
    let lower = prefix.to_lowercase();
    let is_code = |part: &str| (2..=3).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_lowercase());
    NAMES.contains(&lower.as_str())
        || lower == "simple"
        || (prefix == lower && lower.split('-').next().is_some_and(is_code))
}

/// Renders a template: the text of those that only format it, nothing for others.
fn template(inner: &str) -> String {
    let mut parts = inner.split(BAR);
    let name = parts.next().unwrap_or("").trim().to_lowercase();
    let arguments: Vec<&str> =
        parts.filter(|p| !p.contains('=') || p.contains("](")).map(str::trim).collect();
    let argument = |index: usize| arguments.get(index).copied().unwrap_or("").to_string();
    if let Some(number) = name.strip_prefix("formatnum:") {
        return number.to_string();
    }
    match name.as_str() {
        "lang" | "langue" => argument(1),
        "nowrap" | "nobr" | "small" | "big" | "em" | "strong" | "sic" | "abbr" | "tooltip" | "linktext"
        | "mono" | "code" | "smallcaps" | "sc" | "not a typo" | "as written" | "nihongo" | "translation"
        | "quote" | "blockquote" | "cquote" | "ill" | "interlanguage link" | "visible anchor" | "vanchor"
        | "okina" | "math" | "mvar" | "var" | "sup" | "sub" => argument(0),
        "convert" | "cvt" => {
            let unit = argument(1);
            let is_range = matches!(unit.as_str(), "-" | "–" | "to" | "and" | "by" | "x" | "or");
            if is_range {
                format!("{} {} {} {}", argument(0), unit, argument(2), argument(3))
            } else {
                format!("{} {unit}", argument(0))
            }
        }
        "val" => Arguments::of(inner).value(),
        "as of" | "asof" => Arguments::of(inner).as_of(),
        "ndash" | "–" => "–".to_string(),
        "snd" | "spnd" | "spaced ndash" => " – ".to_string(),
        "mdash" | "—" => "—".to_string(),
        "nbsp" | "space" | "nnbsp" => " ".to_string(),
        "!" => "|".to_string(),
        "=" => "=".to_string(),
        "'" => "'".to_string(),
        "circa" | "c." => format!("c. {}", argument(0)).trim_end().to_string(),
        "frac" | "sfrac" => match arguments.len() {
            1 => format!("1/{}", argument(0)),
            2 => format!("{}/{}", argument(0), argument(1)),
            3 => format!("{} {}/{}", argument(0), argument(1), argument(2)),
            _ => String::new(),
        },
        _ if name.starts_with("lang-") => argument(0),
        _ => String::new(),
    }
}
