//! Joins whole files of one group into long documents.

use crate::document::Document;
use crate::error::Error;

/// Separator between two joined texts.
pub const SEPARATOR: &str = "\n\n";

/// Joins consecutive documents of one group as long as the result stays within `target_bytes`. Documents are never
/// cut: one longer than the target stays as it is. Under a trained vocabulary, source code and English have three to
/// four bytes per token, so documents of 32K tokens need a target of at least 128 KiB.
pub fn group_documents<I: Iterator<Item = Result<Document, Error>>>(
    documents: I,
    target_bytes: usize,
) -> DocumentJoiner<I> {
    DocumentJoiner { documents, target_bytes, open: None, last: String::new(), waiting: None }
}

/// Iterator of [`group_documents`]. An error is yielded after the document that was being joined.
pub struct DocumentJoiner<I> {
    documents: I,
    target_bytes: usize,
    /// Document being joined, with the source of its first part.
    open: Option<Document>,
    /// Source of its last part; empty while there is only one part.
    last: String,
    waiting: Option<Error>,
}

impl<I> DocumentJoiner<I> {
    /// Returns the underlying iterator; a document being joined is lost.
    pub fn into_inner(self) -> I {
        self.documents
    }

    /// Returns true if `next` may be appended to `open`.
    fn fits(&self, open: &Document, next: &Document) -> bool {
        let length = open.text.len() + SEPARATOR.len() + next.text.len();
        open.group == next.group && length <= self.target_bytes
    }

    /// Takes the joined document and names it after its first and last part.
    fn close(&mut self) -> Option<Document> {
        let mut document = self.open.take()?;
        if !self.last.is_empty() {
            document.source = format!("{}..{}", document.source, self.last);
            self.last.clear();
        }
        Some(document)
    }
}

impl<I: Iterator<Item = Result<Document, Error>>> Iterator for DocumentJoiner<I> {
    type Item = Result<Document, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.waiting.take() {
            return Some(Err(error));
        }
        loop {
            let next = match self.documents.next() {
                Some(Ok(document)) => document,
                Some(Err(error)) => {
                    let Some(document) = self.close() else { return Some(Err(error)) };
                    self.waiting = Some(error);
                    return Some(Ok(document));
                }
                None => return self.close().map(Ok),
            };
            match self.open.take() {
                None => self.open = Some(next),
                Some(mut open) if self.fits(&open, &next) => {
                    open.text.push_str(SEPARATOR);
                    open.text.push_str(&next.text);
                    if next.source != open.source {
                        self.last = next.source;
                    }
                    self.open = Some(open);
                }
                Some(open) => {
                    self.open = Some(open);
                    let document = self.close();
                    self.open = Some(next);
                    return document.map(Ok);
                }
            }
        }
    }
}
