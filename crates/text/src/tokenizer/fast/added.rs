//! Added tokens: where their spellings stand in a text.
//!
//! Two searches as in the `tokenizers` crate: first the tokens looked for in the text as it is, then, in the parts
//! between, those looked for in the normalised text (which is the same text here). Both take the leftmost, longest.

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::AddedToken;

/// A part of a text.
pub(super) enum TextPart<'t> {
    /// Ordinary text, not empty.
    Text(&'t str),
    /// An added token.
    Token(u32),
}

/// Finds added tokens.
#[derive(Debug)]
pub(super) struct Added {
    raw: Option<Finder>,
    normalized: Option<Finder>,
}

#[derive(Debug)]
struct Finder {
    automaton: AhoCorasick,
    /// By number of the pattern: the id, or nothing where its spelling is ordinary text.
    ids: Vec<Option<u32>>,
}

impl Added {
    /// From the tokens by rising id; with `special`, special tokens are recognised. Nothing if a token asks for more
    /// than its spelling.
    pub(super) fn of(tokens: &[(u32, AddedToken)], special: bool) -> Option<Self> {
        let finder = |normalized: bool| -> Option<Option<Finder>> {
            let group = || tokens.iter().filter(|(_, token)| token.normalized == normalized);
            // A spelling that stands for itself still hides what it overlaps, so it takes part in the search.
            let ids: Vec<Option<u32>> =
                group().map(|(id, token)| (special || !token.special).then_some(*id)).collect();
            if ids.iter().all(Option::is_none) {
                return Some(None);
            }
            if group().any(|(_, token)| {
                (special || !token.special) && (token.single_word || token.lstrip || token.rstrip)
            }) {
                return None;
            }
            let automaton = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(group().map(|(_, token)| token.content.as_bytes()))
                .ok()?;
            Some(Some(Finder { automaton, ids }))
        };
        Some(Self { raw: finder(false)?, normalized: finder(true)? })
    }

    /// Gives the parts of `text` in order.
    pub(super) fn parts<'t>(&self, text: &'t str, mut give: impl FnMut(TextPart<'t>)) {
        parts(self.raw.as_ref(), text, &mut |part| match part {
            TextPart::Text(text) => parts(self.normalized.as_ref(), text, &mut give),
            token => give(token),
        });
    }
}

fn parts<'t>(finder: Option<&Finder>, text: &'t str, give: &mut impl FnMut(TextPart<'t>)) {
    let mut from = 0;
    for found in finder.iter().flat_map(|finder| finder.automaton.find_iter(text)) {
        let Some(id) = finder.and_then(|finder| finder.ids[found.pattern().as_usize()]) else { continue };
        if from < found.start() {
            give(TextPart::Text(&text[from..found.start()]));
        }
        give(TextPart::Token(id));
        from = found.end();
    }
    if from < text.len() {
        give(TextPart::Text(&text[from..]));
    }
}
