//! A record before extraction: what a reader hands to the stage that makes text of it.

use std::sync::Arc;

use fathom_prose::extract::Content;

/// Named values that travel with a document, such as `url` or `title`, in the order of the reader.
pub type Columns = Vec<(String, String)>;

/// One record as it lay in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawRecord {
    /// `file#record`, counted from 1, or `file` where it is one record.
    pub id: String,
    /// The path or address of the file that it was read from, for messages.
    pub location: Arc<str>,
    /// What is to become text.
    pub content: Content,
    /// What the file says about it. Crawls: `url`, `warc_id`, `date`, `content_type`; WET: `url`, `language` (as
    /// Common Crawl labels it); Wikipedia: `title`, `page_id`, `timestamp`; arXiv: `arxiv_id`; tables: the columns asked for.
    pub columns: Columns,
}
