//! `length`: texts that are too long, repeat themselves or have little content (context bloat): by number of
//! characters and tokens, entropy, and the longest run.

use std::collections::HashMap;

use serde::Deserialize;

use crate::config::Setting;
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::registry::{OptionError, RailKind};
use crate::verdict::{Direction, Finding, Reason};

/// Characters below which a text's repetition says nothing.
const LEAST_CHARS: usize = 200;

/// Options.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Characters at most.
    max_chars: Option<usize>,
    /// Bits per character of the distribution of characters, at least.
    min_entropy: Option<f64>,
    /// Share of words that repeat the three words before them at an earlier place, at most.
    max_repetition: Option<f64>,
    /// Longest run of one character as a share of the text, at most.
    max_run: Option<f64>,
}

/// The rail.
pub struct Length {
    options: Options,
}

impl RailKind for Length {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "length",
        summary: "texts that are too long, repeat themselves or have little content",
        directions: &[Direction::Input, Direction::Output, Direction::Retrieval, Direction::ToolResult],
        actions: &[Action::Block, Action::Truncate, Action::Flag],
        cost: Cost::Text,
    };

    fn build(mut options: Options, setting: &Setting, _: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        let shares = [("max_repetition", options.max_repetition), ("max_run", options.max_run)];
        if let Some((key, _)) =
            shares.iter().find(|(_, share)| share.is_some_and(|it| !(0.0..=1.0).contains(&it)))
        {
            return Err(OptionError::new(key, "should be from 0 to 1"));
        }
        if options.max_chars == Some(0) {
            return Err(OptionError::new("max_chars", "should be at least 1"));
        }
        let bloat =
            options.min_entropy.is_some() || options.max_repetition.is_some() || options.max_run.is_some();
        if setting.action == Action::Truncate && (bloat || options.max_chars.is_none()) {
            return Err(OptionError::new(
                "max_chars",
                "action = \"truncate\" needs `max_chars`, and no other limit",
            ));
        }
        if !bloat && options.max_chars.is_none() {
            // The limits of NeMo Guardrails' rail for bloated contexts.
            options = Options {
                max_chars: Some(5000),
                min_entropy: Some(3.5),
                max_repetition: Some(0.4),
                max_run: Some(0.1),
            };
        }
        Ok(Box::new(Length { options }))
    }
}

/// Bits per character.
fn entropy(text: &str) -> f64 {
    let mut ascii = [0u32; 128];
    let mut other: HashMap<char, u32> = HashMap::new();
    let mut all = 0u32;
    for c in text.chars() {
        all += 1;
        match ascii.get_mut(c as usize) {
            Some(count) => *count += 1,
            None => *other.entry(c).or_default() += 1,
        }
    }
    let of = |count: u32| {
        let p = f64::from(count) / f64::from(all);
        -p * p.log2()
    };
    ascii.into_iter().chain(other.into_values()).filter(|count| *count > 0).map(of).sum()
}

/// Share of groups of three words that occurred before.
fn repetition(text: &str) -> f64 {
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.len() < 6 {
        return 0.0;
    }
    let mut seen = std::collections::HashSet::new();
    let groups = words.len() - 2;
    let repeated = words.windows(3).filter(|group| !seen.insert((group[0], group[1], group[2]))).count();
    repeated as f64 / groups as f64
}

/// Longest run of one character, other than white space, in characters.
fn longest_run(text: &str) -> usize {
    let (mut longest, mut run, mut before) = (0, 0, None);
    for c in text.chars() {
        run = if Some(c) == before && !c.is_whitespace() { run + 1 } else { 1 };
        before = Some(c);
        longest = longest.max(run);
    }
    longest
}

impl Length {
    /// Place behind the allowed characters, if there are more; before a grapheme that it would cut.
    fn excess(&self, text: &str) -> Option<usize> {
        let most = self.options.max_chars?;
        if text.len() <= most {
            return None;
        }
        let (at, _) = text.char_indices().nth(most)?;
        Some(crate::spans::grapheme_floor(text, at))
    }
}

impl Rail for Length {
    fn judge(&self, judged: &RailInput<'_>, _: &Until) -> Result<Opinion, Failure> {
        let text = judged.text;
        if let Some(at) = self.excess(text) {
            return Ok(Opinion::of(Reason::TooLong, vec![Finding::new(at..text.len(), "too_long")]));
        }
        let chars = text.chars().count();
        if chars < LEAST_CHARS {
            return Ok(Opinion::clean());
        }
        let options = &self.options;
        let kind = if options.min_entropy.is_some_and(|least| entropy(text) < least) {
            "entropy"
        } else if options.max_run.is_some_and(|most| longest_run(text) as f64 / chars as f64 > most) {
            "run"
        } else if options.max_repetition.is_some_and(|most| repetition(text) > most) {
            "repetition"
        } else {
            return Ok(Opinion::clean());
        };
        Ok(Opinion::whole(judged, Reason::Repetition, kind))
    }

    fn horizon(&self) -> Horizon {
        Horizon::Whole
    }
}
