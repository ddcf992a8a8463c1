//! From a file to documents of chunks. A file without text is skipped with a reason, by which it is listed.

mod document;
mod html;
mod inflated;
mod pdf;
mod rows;

use std::path::Path;

use fathom_prose::extract::Html;
use fathom_prose::pii::Pii;
use serde_json::Value;

use crate::chunk;

use document::placed;
pub use document::{Document, FileDocuments, Kind, Passage};

/// Names of source files by their ending.
const CODE: &str = " rs py pyi js mjs cjs ts tsx jsx c h cc cpp cxx hpp hh cu cuh m mm java kt kts scala go rb php cs swift \
    sh bash zsh fish sql lua r jl hs ml mli ex exs erl clj lisp el vim pl pm zig nim dart proto cmake mk gradle \
    toml yaml yml ini cfg json css scss xml vue svelte tf nix ";

impl Kind {
    /// The kind of a file's name; `None` for names of files that are not text.
    pub fn of(path: &Path) -> Option<Kind> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
        Some(match ending {
            "md" | "markdown" | "mdx" | "mkd" => Kind::Markdown,
            "txt" | "text" | "rst" | "org" | "adoc" | "tex" | "log" => Kind::Text,
            "html" | "htm" | "xhtml" => Kind::Html,
            "pdf" => Kind::Pdf,
            "jsonl" | "ndjson" => Kind::Rows,
            "" if ["readme", "license", "changelog", "authors", "notice"].contains(&&*name) => Kind::Text,
            "" if ["makefile", "dockerfile"].contains(&&*name) => Kind::Code,
            "" => return None,
            _ if CODE.contains(&format!(" {ending} ")) => Kind::Code,
            _ => return None,
        })
    }
}

/// Reads files into documents; shared by threads.
pub struct Reader {
    /// Bytes of a chunk, at most.
    pub chunk_bytes: usize,
    /// Replaces personal data by marks, if that is wanted.
    pub personal_data: Option<Pii>,
    html: Html,
}

impl Reader {
    /// A reader; `chunk_bytes` is the size of a chunk, at most.
    pub fn new(chunk_bytes: usize, personal_data: Option<Pii>) -> Reader {
        Reader { chunk_bytes, personal_data, html: Html::default() }
    }

    /// Documents of a file's bytes.
    ///
    /// # Errors
    /// The reason why the file has none.
    pub fn read(&self, kind: Kind, bytes: &[u8]) -> Result<FileDocuments, String> {
        let mut reading = match kind {
            Kind::Pdf => one(pdf::document(bytes, self.chunk_bytes)?),
            Kind::Html => one(html::document(&self.html, bytes, self.chunk_bytes)?),
            Kind::Rows => rows::read(text(bytes)?, self.chunk_bytes),
            Kind::Markdown | Kind::Text | Kind::Code => {
                let text = text(bytes)?;
                let chunks = match kind {
                    Kind::Markdown => chunk::markdown(text, self.chunk_bytes),
                    Kind::Code => chunk::code(text, self.chunk_bytes),
                    _ => chunk::plain(text, self.chunk_bytes, &[]),
                };
                one(Document { passages: placed(text, chunks, (0, 1)), ..Document::default() })
            }
        };
        reading.documents.retain(|document| !document.passages.is_empty());
        if reading.documents.is_empty() {
            return Err(reading.first_skipped.unwrap_or_else(|| "it has no text".into()));
        }
        if let Some(pii) = &self.personal_data {
            for document in &mut reading.documents {
                document.title = pii.apply(&document.title).0.into_owned();
                for passage in &mut document.passages {
                    passage.text = pii.apply(&passage.text).0.into_owned();
                    for heading in &mut passage.headings {
                        *heading = pii.apply(heading).0.into_owned();
                    }
                }
                for value in document.metadata.values_mut() {
                    if let Value::String(text) = value {
                        *text = pii.apply(text).0.into_owned();
                    }
                }
            }
        }
        Ok(reading)
    }
}

fn one(document: Document) -> FileDocuments {
    FileDocuments { documents: vec![document], ..FileDocuments::default() }
}

/// A file's bytes as text, without a byte order mark.
fn text(bytes: &[u8]) -> Result<&str, String> {
    if bytes.iter().take(8192).any(|byte| *byte == 0) {
        return Err("it is binary, not text".into());
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        format!("it is not UTF-8: byte {} is not part of a character", error.valid_up_to())
    })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_follows_from_a_name() {
        let of = |name: &str| Kind::of(Path::new(name));
        assert_eq!(of("a/B.MD"), Some(Kind::Markdown));
        assert_eq!(of("x.rs"), Some(Kind::Code));
        assert_eq!(of("README"), Some(Kind::Text));
        assert_eq!(of("rows.jsonl"), Some(Kind::Rows));
        assert_eq!([of("a.png"), of("core"), of("a.")], [None; 3]);
    }

    #[test]
    fn a_passage_knows_its_bytes_and_lines() {
        let reader = Reader::new(40, None);
        let text = "# A\n\none\n\n# B\n\ntwo\nthree\n";
        let found = reader.read(Kind::Markdown, text.as_bytes()).unwrap();
        let passages = &found.documents[0].passages;
        assert_eq!(passages[1].headings, ["B"]);
        assert_eq!((passages[1].bytes, passages[1].lines), ([10, 24], [5, 8]));
        assert_eq!(&text[10..24], passages[1].text);
    }

    #[test]
    fn files_without_text_are_refused_with_a_reason() {
        let reader = Reader::new(100, None);
        let why = |kind, bytes: &[u8]| reader.read(kind, bytes).unwrap_err();
        assert!(why(Kind::Text, b" \n").contains("no text"));
        assert!(why(Kind::Text, b"a\0b").contains("binary"));
        assert!(why(Kind::Code, b"a\xff").contains("not UTF-8"));
        assert!(why(Kind::Html, b"<html><body></body></html>").contains("no text"));
        assert!(why(Kind::Pdf, b"%PDF-1.4 nothing").contains("damaged"));
        assert!(why(Kind::Rows, b"{\"a\": 1}\n").contains("line 1"));
    }

    #[test]
    fn personal_data_is_left_out_where_that_is_wanted() {
        let pii = Pii::new(&fathom_prose::pii::PiiOptions::default()).unwrap();
        let reader = Reader::new(200, Some(pii));
        let found = reader.read(Kind::Text, b"Write to jane.doe@example.org today.").unwrap();
        assert_eq!(found.documents[0].passages[0].text, "Write to <EMAIL_ADDRESS> today.");
    }
}
