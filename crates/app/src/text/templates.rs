//! Chat templates that a recipe names: files, or ones in the binary.

use std::path::Path;

use fathom_text::Tokenizer;
use fathom_text::chat::Template;

use crate::error::{Context, Error, Result};

/// Templates in the binary, by the name used in place of a file.
const SHIPPED: [(&str, &str); 1] = [("steerlm", include_str!("../../../../recipes/templates/steerlm.jinja"))];

/// Returns the text of a template.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn source(named: &Path) -> Result<String> {
    if let Some((_, text)) = SHIPPED.iter().find(|(name, _)| Path::new(name) == named) {
        return Ok((*text).to_string());
    }
    std::fs::read_to_string(named).with_context(|| format!("cannot read {}", named.display()))
}

/// Returns a template.
///
/// # Errors
/// A file that cannot be read, or an invalid template.
pub(crate) fn named(named: &Path, tokenizer: &Tokenizer) -> Result<Template> {
    if SHIPPED.iter().any(|(name, _)| Path::new(name) == named) {
        let made = Template::new(&source(named)?, tokenizer);
        return made.map_err(|why| Error::Refused(format!("{}: {why}", named.display())));
    }
    Ok(Template::from_file(named, tokenizer)?)
}
