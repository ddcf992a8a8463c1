//! Row-wise stages that need nothing else from this crate.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::Maker;
use crate::error::Error;
use crate::pipeline::{Batch, Stage, Tally, Work};

/// Drops texts that are too short or too long.
pub(super) struct Length(LengthOptions);

/// Options of `length`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LengthOptions {
    /// Texts of fewer characters are dropped; not above `max_chars`.
    pub min_chars: u64,
    /// Texts of more characters are dropped.
    pub max_chars: u64,
}

impl Default for LengthOptions {
    fn default() -> Self {
        LengthOptions { min_chars: 1, max_chars: 100_000_000 }
    }
}

impl Maker for Length {
    type Options = LengthOptions;
    const NAME: &'static str = "length";
    const ABOUT: &'static str = "drops texts that are too short or too long, in characters";

    fn make(options: LengthOptions) -> Result<Work, Error> {
        if options.min_chars > options.max_chars {
            let advice = "it is above `max_chars`, so no text could pass".to_owned();
            return Err(Error::Setting { key: "min_chars", found: options.min_chars.to_string(), advice });
        }
        Ok(Work::Rows(Box::new(Length(options))))
    }
}

impl Stage for Length {
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error> {
        let limits = [self.0.min_chars as f64, self.0.max_chars as f64];
        let mut keep = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            let text = batch.text(row);
            let chars = text.chars().count() as u64;
            let reason = match chars {
                n if n < self.0.min_chars => Some("min_chars"),
                n if n > self.0.max_chars => Some("max_chars"),
                _ => None,
            };
            tally.decided("chars", chars as f64, &limits, reason.is_none(), (batch.id(row), text));
            if let Some(reason) = reason {
                tally.drop(reason, text.len() as u64);
            }
            keep.push(reason.is_none());
        }
        Ok(batch.keep(&keep))
    }
}

/// Truncates texts to a range of characters.
pub(super) struct Head(HeadOptions);

/// Options of `head`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HeadOptions {
    /// So many characters stay, counted from `start`.
    #[schemars(range(min = 1))]
    pub chars: u64,
    /// The first character that stays, counted from 0; a text that ends before it becomes empty.
    pub start: u64,
}

impl Default for HeadOptions {
    fn default() -> Self {
        HeadOptions { chars: 100_000, start: 0 }
    }
}

impl Maker for Head {
    type Options = HeadOptions;
    const NAME: &'static str = "slice";
    const ABOUT: &'static str = "keeps a range of characters of each text";

    fn make(options: HeadOptions) -> Result<Work, Error> {
        if options.chars == 0 {
            let advice = "nothing would stay; give the number of characters that do".to_owned();
            return Err(Error::Setting { key: "chars", found: "0".to_owned(), advice });
        }
        Ok(Work::Rows(Box::new(Head(options))))
    }
}

impl Stage for Head {
    fn run(&self, batch: Batch, _: &mut Tally) -> Result<Batch, Error> {
        let texts: Vec<Cow<'_, str>> =
            (0..batch.rows()).map(|row| Cow::Borrowed(slice(batch.text(row), &self.0))).collect();
        let unchanged = texts.iter().enumerate().all(|(row, text)| text.len() == batch.text(row).len());
        if unchanged { Ok(batch) } else { Ok(batch.clone().with_texts(&texts)) }
    }
}

fn slice<'t>(text: &'t str, options: &HeadOptions) -> &'t str {
    let place = |from: &'t str, chars: u64| {
        let mut places = from.char_indices().map(|(place, _)| place);
        usize::try_from(chars).ok().and_then(|n| places.nth(n)).unwrap_or(from.len())
    };
    let rest = &text[place(text, options.start)..];
    &rest[..place(rest, options.chars)]
}
