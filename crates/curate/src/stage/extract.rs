//! Text extraction from records: the only stage that is always present.

use fathom_prose::extract::{ExtractOptions, Extraction};

use super::kind::Maker;
use crate::error::Error;
use crate::pipeline::Work;

/// Extracts text from web pages, papers and wiki pages.
pub(super) struct Extract;

impl Maker for Extract {
    type Options = ExtractOptions;
    const NAME: &'static str = "extract";
    const ABOUT: &'static str =
        "makes text of web pages, LaTeX and wikitext; comes first, also where it is not named";

    fn make(options: ExtractOptions) -> Result<Work, Error> {
        Ok(Work::Extract(Box::new(Extraction::new(&options)?)))
    }
}
