//! What a record holds before it is text.

/// What a record holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Plain text, nothing to extract.
    Text(String),
    /// A web page in whatever encoding.
    Page {
        /// The body of the response.
        bytes: Vec<u8>,
        /// The HTTP header `Content-Type`, which may name the charset.
        content_type: Option<String>,
    },
    /// The source of a wiki page.
    Wikitext(String),
    /// The sources of one paper; paths are relative, with `/`, and never climb.
    Latex(Vec<LatexFile>),
}

/// One file of a paper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatexFile {
    /// The path inside the paper's archive.
    pub path: String,
    /// The source; bytes that are no UTF-8 were read as Latin-1.
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

    /// Whether there is not one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
