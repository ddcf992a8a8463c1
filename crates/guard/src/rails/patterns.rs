//! Named patterns of a rail as one automaton with bounded matches.

use regex_automata::meta;
use regex_syntax::hir::Hir;

use crate::verdict::Finding;

/// Size of compiled patterns at most, in bytes.
const MAX_SIZE: usize = 64 << 20;

/// Patterns by kind. Of several at one place the one that is named first wins.
pub(crate) struct PatternSet {
    regex: meta::Regex,
    kinds: Vec<&'static str>,
    longest: usize,
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
        PatternSet { regex, kinds: patterns.iter().map(|(kind, _)| *kind).collect(), longest }
    }

    /// Bytes of the longest match.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Matches from an offset on, ascending and disjoint.
    pub fn find(&self, text: &str, from: usize) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut input = regex_automata::Input::new(text).span(from..text.len());
        while let Some(one) = self.regex.search(&input) {
            found.push(Finding::new(one.range(), self.kinds[one.pattern().as_usize()]));
            input.set_start(one.end());
        }
        found
    }
}
