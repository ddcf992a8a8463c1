//! Finds the spellings of added tokens in a text.
//!
//! Two searches, as in the `tokenizers` crate: first for tokens matched in the original text, then, in the parts
//! between, for those matched in the normalized text (which is identical here). Both use leftmost-longest matching.

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::AddedToken;

pub(super) enum TextPart<'t> {
    /// Ordinary text, not empty.
    Text(&'t str),
    /// An added token.
    Token(u32),
}

/// Finder of added tokens.
#[derive(Debug)]
pub(super) struct AddedTokens {
    raw: Option<Finder>,
    normalized: Option<Finder>,
}

#[derive(Debug)]
struct Finder {
    automaton: AhoCorasick,
    /// Id by pattern index; `None` if the spelling is ordinary text.
    ids: Vec<Option<u32>>,
}

impl AddedTokens {
    /// Builds the finder from tokens by ascending id; with `special`, special tokens are recognized. `None` if a
    /// token requires more than matching its spelling.
    pub(super) fn of(tokens: &[(u32, AddedToken)], special: bool) -> Option<Self> {
        let finder = |normalized: bool| -> Option<Option<Finder>> {
            let group = || tokens.iter().filter(|(_, token)| token.normalized == normalized);
            // A spelling treated as text still hides overlapping matches, so it takes part in the search.
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

    /// Passes the parts of `text` to `give` in order.
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
