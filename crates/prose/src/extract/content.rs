//! Content of a record before text extraction.

/// Content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Plain text, with nothing to extract.
    Text(String),
    /// A web page in any encoding.
    Page {
        /// Body of the response.
        bytes: Vec<u8>,
        /// HTTP header `Content-Type`, which may name the charset.
        content_type: Option<String>,
    },
    /// Source of a wiki page.
    Wikitext(String),
    /// Sources of one paper; paths are relative, with `/` and without `..`.
    Latex(Vec<LatexFile>),
}

/// One file of a paper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatexFile {
    /// Path inside the paper's archive.
    pub path: String,
    /// Source text; invalid UTF-8 was read as Latin-1.
    pub text: String,
}

impl Content {
    /// Size in bytes.
    pub fn len(&self) -> usize {
        match self {
            Content::Text(text) | Content::Wikitext(text) => text.len(),
            Content::Page { bytes, .. } => bytes.len(),
            Content::Latex(files) => files.iter().map(|f| f.text.len()).sum(),
        }
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
