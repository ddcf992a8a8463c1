//! A record before extraction: the input of the stage that extracts its text.

use std::sync::Arc;

use fathom_prose::extract::Content;

/// Named values attached to a document, such as `url` or `title`, in the reader's order.
pub type Columns = Vec<(String, String)>;

/// One record as stored in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawRecord {
    /// `file#record`, counted from 1, or `file` if the file is a single record.
    pub id: String,
    /// Path or address of its file, for messages.
    pub location: Arc<str>,
    /// Content from which text is extracted.
    pub content: Content,
    /// Metadata from the file. Crawls: `url`, `warc_id`, `date`, `content_type`; WET: `url`, `language` (as labelled
    /// by Common Crawl); Wikipedia: `title`, `page_id`, `timestamp`; arXiv: `arxiv_id`; tables: the requested
    /// columns.
    pub columns: Columns,
}
