//! Matches that a growing text may still complete. What lies before the first of them is final, so prose in which no
//! pattern has started is released at once, however long the patterns' matches may be.

use std::sync::OnceLock;

use regex_automata::hybrid::dfa::{Cache, Config, DFA};
use regex_automata::util::pool::Pool;
use regex_automata::{Anchored, Input, nfa::thompson};
use regex_syntax::hir::Hir;

/// Bytes of states of the automaton that are kept.
const CACHE_BYTES: usize = 4 << 20;

type Caches =
    Pool<Cache, Box<dyn Fn() -> Cache + Send + Sync + std::panic::UnwindSafe + std::panic::RefUnwindSafe>>;

/// Patterns whose matches may be open at the end of a text, compiled when the first stream is judged.
pub(crate) struct PartialMatches {
    patterns: Vec<Hir>,
    /// Bytes of the longest match.
    longest: usize,
    built: OnceLock<Option<(DFA, Caches)>>,
}

impl PartialMatches {
    /// A matcher of these patterns, whose matches have at most `longest` bytes. Word boundaries in them are of ASCII.
    pub fn new(patterns: Vec<Hir>, longest: usize) -> PartialMatches {
        PartialMatches { patterns, longest, built: OnceLock::new() }
    }

    /// Offset, at or after `from`, of the first match that later text may complete, prolong or refuse; the text's
    /// length if there is none.
    pub fn first(&self, text: &str, from: usize) -> usize {
        let back = text.ceil_char_boundary(text.len().saturating_sub(self.longest).max(from));
        let Some((dfa, caches)) = self.built.get_or_init(|| self.build()) else { return back };
        let mut cache = caches.get();
        let starts = (back..text.len()).filter(|at| text.is_char_boundary(*at));
        let mut open = starts.filter(|start| is_open(dfa, &mut cache, text, *start));
        open.next().unwrap_or(text.len())
    }

    /// Compiles the patterns now.
    pub fn prepare(&self) {
        self.built.get_or_init(|| self.build());
    }

    /// `None` for patterns whose automaton is too large, or which assert what it cannot.
    fn build(&self) -> Option<(DFA, Caches)> {
        let config = thompson::Config::new().nfa_size_limit(Some(64 << 20));
        let nfa = thompson::Compiler::new().configure(config).build_many_from_hir(&self.patterns).ok()?;
        let config = Config::new().cache_capacity(CACHE_BYTES).skip_cache_capacity_check(true);
        let dfa = DFA::builder().configure(config).build_from_nfa(nfa).ok()?;
        let own = dfa.clone();
        Some((dfa, Pool::new(Box::new(move || own.create_cache()))))
    }
}

/// Returns whether the text from `start` on may be the beginning of a match, or a match that is not final: most texts
/// are no match after a byte or two.
fn is_open(dfa: &DFA, cache: &mut Cache, text: &str, start: usize) -> bool {
    let input = Input::new(text).span(start..text.len()).anchored(Anchored::Yes);
    let Ok(mut state) = dfa.start_state_forward(cache, &input) else { return true };
    for byte in &text.as_bytes()[start..] {
        match dfa.next_state(cache, state, *byte) {
            Ok(next) if next.is_dead() => return false,
            Ok(next) if !next.is_quit() => state = next,
            _ => return true,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_beginning_of_a_match_is_found() {
        let check = |pattern: &str, text: &str, open: &str| {
            let hir = regex_syntax::parse(pattern).unwrap();
            let longest = hir.properties().maximum_len().unwrap();
            let first = PartialMatches::new(vec![hir], longest + 4).first(text, 0);
            assert_eq!(&text[first..], open, "{pattern} in {text}");
        };
        check(r"(?-u:\b)\d{3}-\d{2}-\d{4}(?-u:\b)", "It is 12", "12");
        check(r"(?-u:\b)\d{3}-\d{2}-\d{4}(?-u:\b)", "It is 123-45-6789", "123-45-6789");
        check(r"(?-u:\b)\d{3}-\d{2}-\d{4}(?-u:\b)", "It is 123-45-67890", "");
        check(r"(?-u:\b)\d{3}-\d{2}-\d{4}(?-u:\b)", "It is 1234 or so, x12", "");
        check(r"top secret|secretary", "a top sec", "top sec");
        check(r"top secret|secretary", "a stop secre", "top secre");
        check(r"(?:ab){1,3}c", "xababab", "ababab");
        check(r"(?:ab){1,3}c", "xabababab", "ababab");
        check(r"a{2,5}b?", "caaaa", "aaaa");
        check(r"naïve", "so naï", "naï");
        check(r"(?i)bomb(?-u:\b)", "a BOMB", "BOMB");
        check(r"(?i)bomb(?-u:\b)", "a BOMB. B", "B");
        check(r"ссн \d{4}", "ссн 12", "ссн 12");
    }
}
