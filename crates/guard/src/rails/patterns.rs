//! Named patterns of a rail as one automaton with bounded matches.

use regex_automata::meta;
use regex_syntax::hir::Hir;

use super::partial::PartialMatches;
use crate::verdict::Finding;

/// Size of compiled patterns at most, in bytes.
const MAX_SIZE: usize = 64 << 20;
/// Bytes around a match that assertions such as `\b` read.
const LOOK_AROUND: usize = 4;

/// Patterns by kind. Of several at one place the one that is named first wins.
pub(crate) struct PatternSet {
    regex: meta::Regex,
    kinds: Vec<&'static str>,
    longest: usize,
    partial: PartialMatches,
}

impl PatternSet {
    /// Compiles patterns of this crate, which are known to be valid and bounded.
    pub fn new(patterns: &[(&'static str, &str)]) -> PatternSet {
        let parsed: Vec<Hir> = patterns
            .iter()
            .map(|(kind, pattern)| match regex_syntax::parse(pattern) {
                Ok(hir) => hir,
                Err(error) => panic!("pattern of {kind}: {error}"),
            })
            .collect();
        let longest =
            parsed.iter().zip(patterns).map(|(hir, (kind, _))| match hir.properties().maximum_len() {
                Some(longest) => longest,
                None => panic!("pattern of {kind} is not bounded"),
            });
        let longest = longest.max().unwrap_or(0);
        let config = meta::Config::new().hybrid_cache_capacity(8 << 20).nfa_size_limit(Some(MAX_SIZE));
        let regex = match meta::Builder::new().configure(config).build_many_from_hir(&parsed) {
            Ok(regex) => regex,
            Err(error) => panic!("patterns of a rail: {error}"),
        };
        let partial = PartialMatches::new(parsed, longest + LOOK_AROUND);
        PatternSet { regex, kinds: patterns.iter().map(|(kind, _)| *kind).collect(), longest, partial }
    }

    /// Bytes of the longest match with those around it that assertions read.
    pub fn horizon(&self) -> usize {
        self.longest + LOOK_AROUND
    }

    /// Offset of the first match that later text may complete or refuse.
    pub fn first_open(&self, text: &str, from: usize) -> usize {
        self.partial.first(text, from)
    }

    /// Matches of wanted kinds from an offset on, ascending and disjoint. One that is not wanted hides none that begins
    /// in it, so that the result does not depend on the offset.
    pub fn find(&self, text: &str, from: usize, wanted: impl Fn(&str) -> bool) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut input = regex_automata::Input::new(text).span(from..text.len());
        while let Some(one) = self.regex.search(&input) {
            let kind = self.kinds[one.pattern().as_usize()];
            if wanted(kind) {
                found.push(Finding::new(one.range(), kind));
                input.set_start(one.end());
            } else {
                input.set_start(text.ceil_char_boundary(one.start() + 1));
            }
        }
        found
    }
}
