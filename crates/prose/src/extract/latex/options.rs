//! Options of the extraction from LaTeX.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How papers become text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LatexOptions {
    /// Ends the text at the bibliography or the appendix, whichever comes first.
    pub cut_appendix: bool,
    /// Refuses papers without a chapter, section, subsection or titled paragraph, as NeMo Curator does.
    pub require_sections: bool,
    /// Expanding macros may read this many times the bytes of the paper; beyond it the paper is refused as
    /// `expansion_too_large`.
    pub max_expansion: usize,
    /// Equations of more bytes lose their end.
    pub max_equation_bytes: usize,
    /// Papers of more bytes, all files together, are refused as `page_too_large`.
    pub max_paper_bytes: usize,
}

impl Default for LatexOptions {
    fn default() -> Self {
        LatexOptions {
            cut_appendix: true,
            require_sections: true,
            max_expansion: 32,
            max_equation_bytes: 64 << 10,
            max_paper_bytes: 32 << 20,
        }
    }
}
