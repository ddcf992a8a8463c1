//! Wikitext to plain text: templates, references, files and categories are left out, links become their text,
//! headings and lists become lines.
//!
//! One pass resolves nested markup (templates, links, tables), another processes the lines. Nesting is bounded, and
//! every byte is examined a bounded number of times. Templates are not expanded, except a few that only format their
//! text.

mod inline;
mod lines;
mod literal;
mod tables;
mod values;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::refusal::Refusal;

/// How wiki pages become text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WikitextOptions {
    /// Keeps tables as rows of cells.
    pub tables: bool,
    /// Sections with one of these headings are left out with all below them; case does not matter.
    pub cut_sections: Vec<String>,
    /// Pages of more bytes are refused as `page_too_large`.
    pub max_page_bytes: usize,
}

impl Default for WikitextOptions {
    fn default() -> Self {
        const CUT: [&str; 25] = [
            "see also",
            "references",
            "external links",
            "notes",
            "further reading",
            "bibliography",
            "sources",
            "footnotes",
            "citations",
            "notes and references",
            "weblinks",
            "einzelnachweise",
            "siehe auch",
            "literatur",
            "quellen",
            "anmerkungen",
            "liens externes",
            "voir aussi",
            "notes et références",
            "enlaces externos",
            "referencias",
            "véase también",
            "collegamenti esterni",
            "note",
            "примечания",
        ];
        WikitextOptions {
            tables: false,
            cut_sections: CUT.iter().map(ToString::to_string).collect(),
            max_page_bytes: 16 << 20,
        }
    }
}

/// Extractor with fixed options, for any number of pages.
#[derive(Clone, Debug, Default)]
pub struct Wikitext {
    options: WikitextOptions,
}

impl Wikitext {
    /// Creates an extractor with these options.
    pub fn new(options: &WikitextOptions) -> Wikitext {
        Wikitext { options: options.clone() }
    }

    /// Extracts the text of a page from its source.
    ///
    /// # Errors
    /// [`Refusal::Redirect`] for a page that redirects to another, [`Refusal::PageTooLarge`] or
    /// [`Refusal::NoContent`].
    pub fn extract(&self, source: &str) -> Result<String, Refusal> {
        if source.len() > self.options.max_page_bytes {
            return Err(Refusal::PageTooLarge);
        }
        if is_redirect(source) {
            return Err(Refusal::Redirect);
        }
        let flat = inline::flatten(source, self.options.tables);
        let text = lines::render(&flat, &self.options.cut_sections);
        let text = literal::restored(&text);
        if text.is_empty() { Err(Refusal::NoContent) } else { Ok(text) }
    }
}

/// Matches `#REDIRECT [[other]]`, also in the languages of larger wikis.
fn is_redirect(source: &str) -> bool {
    const WORDS: [&str; 8] = [
        "redirect",
        "weiterleitung",
        "redirection",
        "redirección",
        "rinvia",
        "перенаправление",
        "doorverwijzing",
        "patrz",
    ];
    let Some(rest) = source.trim_start().strip_prefix('#') else { return false };
    let start: String = rest.trim_start().chars().take(20).collect::<String>().to_lowercase();
    WORDS.iter().any(|word| start.starts_with(word))
}
