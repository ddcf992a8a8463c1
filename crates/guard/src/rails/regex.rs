//! `regex`: configured patterns and words. Patterns have linear time and bounded size; a list of plain words is one
//! automaton, whatever its length.

use std::ops::Range;
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use regex_automata::nfa::thompson::WhichCaptures;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, meta};
use regex_syntax::hir::{Class, Hir, HirKind, Look, Repetition};
use serde::Deserialize;

use super::partial::PartialMatches;
use crate::config::Setting;
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::registry::{OptionError, RailKind};
use crate::verdict::{Direction, Finding, Reason};

/// States of the compiled patterns at most, by estimate.
const MAX_STATES: u64 = 500_000;
/// States from which patterns are compiled when they are loaded: a text's time limit may not suffice for it. Fewer take
/// less than a millisecond.
const STATES_AT_LOAD: u64 = 2_000;
/// Bytes of an automaton's cache for each state of its patterns, and at least.
const CACHE_BYTES: (usize, usize) = (64, 2 << 20);
/// Bytes of words up to which their automaton is a table, whose speed does not depend on their number.
const TABLE_BYTES: usize = 512 << 10;
/// Bytes around a match that assertions such as `\b` read.
const LOOK_AROUND: usize = 4;

/// Options.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Patterns in the syntax of the regex crate. With several, the one that begins first wins, then the first named.
    #[serde(default)]
    #[serde(deserialize_with = "crate::registry::list")]
    patterns: Vec<String>,
    /// Plain texts, found wherever they occur as whole words.
    #[serde(default)]
    #[serde(deserialize_with = "crate::registry::list")]
    words: Vec<String>,
    /// Ignores case.
    #[serde(default)]
    case_insensitive: bool,
    /// Kind that findings report, and the mark that masks them.
    #[serde(default = "kind")]
    kind: String,
}

fn kind() -> String {
    "pattern".into()
}

/// The rail.
pub struct Regex {
    patterns: Option<Patterns>,
    words: Option<AhoCorasick>,
    /// The words in order, in lower case if case is ignored.
    sorted: Vec<String>,
    ignores_case: bool,
    kind: String,
    horizon: Horizon,
}

impl RailKind for Regex {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "regex",
        summary: "patterns and words of the configuration",
        directions: &Direction::ALL,
        actions: &[Action::Block, Action::Mask, Action::Omit, Action::Flag],
        cost: Cost::Text,
    };

    fn build(options: Options, _: &Setting, _: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        if options.patterns.is_empty() && options.words.is_empty() {
            return Err(OptionError::new("patterns", "is empty; give `patterns` or `words`"));
        }
        let (patterns, longest) = compiled(&options)?;
        let words = words(&options)?;
        let longest_word = options.words.iter().map(String::len).max().unwrap_or(0);
        let horizon = match longest {
            Some(longest) => Horizon::Bytes(longest.max(longest_word) + LOOK_AROUND),
            None => Horizon::Whole,
        };
        let ignores_case = options.case_insensitive;
        let folded = |word: String| if ignores_case { word.to_ascii_lowercase() } else { word };
        let mut sorted: Vec<String> = options.words.into_iter().map(folded).collect();
        sorted.sort_unstable();
        Ok(Box::new(Regex { patterns, words, sorted, ignores_case, kind: options.kind, horizon }))
    }
}

/// Patterns as automata: many are built when they are loaded, few when the first text is judged.
struct Patterns {
    all: Vec<Hir>,
    states: u64,
    exact: OnceLock<meta::Regex>,
    partial: Option<PartialMatches>,
    /// The patterns without word boundaries, if they are bounded and have some.
    loose: Option<OnceLock<meta::Regex>>,
}

impl Patterns {
    /// One pattern that has all as alternatives, without groups: an automaton of several patterns reserves memory for
    /// each of them in each of its states.
    fn build(&self, all: impl Iterator<Item = Hir>) -> meta::Regex {
        let (each, least) = CACHE_BYTES;
        let config = meta::Config::new()
            .nfa_size_limit(None)
            .which_captures(WhichCaptures::Implicit)
            .hybrid_cache_capacity(least + each * self.states as usize);
        match meta::Builder::new().configure(config).build_from_hir(&Hir::alternation(all.collect())) {
            Ok(regex) => regex,
            Err(error) => panic!("patterns that were accepted: {error}"),
        }
    }

    fn exact(&self) -> &meta::Regex {
        self.exact.get_or_init(|| self.build(self.all.iter().cloned()))
    }

    fn loose<'a>(&self, built: &'a OnceLock<meta::Regex>) -> &'a meta::Regex {
        built.get_or_init(|| self.build(self.all.iter().map(without_boundaries)))
    }

    /// Compiles all automata now, if that takes long.
    fn prepared(self) -> Patterns {
        if self.states >= STATES_AT_LOAD {
            self.exact();
            self.loose.iter().for_each(|built| _ = self.loose(built));
            self.partial.iter().for_each(PartialMatches::prepare);
        }
        self
    }

    fn find(&self, text: &str, from: usize, spans: &mut Vec<Range<usize>>) {
        let exact = self.exact();
        let mut input = Input::new(text).span(from..text.len());
        let Some(loose) = self.loose.as_ref().filter(|_| !text.is_ascii()) else {
            while let Some(found) = exact.search(&input) {
                spans.push(found.range());
                input.set_start(found.end());
            }
            return;
        };
        // Boundaries of words are slow in text that is not ASCII. A match begins where the pattern matches without
        // them, so only these places are looked at.
        let loose = self.loose(loose);
        while let Some(candidate) = loose.search(&input) {
            let start = candidate.start();
            let anchored = Input::new(text).span(start..text.len()).anchored(Anchored::Yes);
            let next = match exact.search(&anchored) {
                Some(found) => {
                    spans.push(found.range());
                    found.end()
                }
                None => text.ceil_char_boundary(start + 1),
            };
            input.set_start(next);
        }
    }
}

/// A pattern without its word boundaries.
fn without_boundaries(hir: &Hir) -> Hir {
    match hir.kind() {
        HirKind::Look(Look::WordUnicode | Look::WordUnicodeNegate) => Hir::empty(),
        HirKind::Repetition(it) => {
            Hir::repetition(Repetition { sub: Box::new(without_boundaries(&it.sub)), ..it.clone() })
        }
        HirKind::Capture(it) => without_boundaries(&it.sub),
        HirKind::Concat(all) => Hir::concat(all.iter().map(without_boundaries).collect()),
        HirKind::Alternation(all) => Hir::alternation(all.iter().map(without_boundaries).collect()),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => hir.clone(),
    }
}

/// Upper estimate of the states of a pattern's automaton.
fn states(hir: &Hir) -> u64 {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(text) => text.0.len() as u64,
        HirKind::Class(Class::Unicode(class)) => 1 + 2 * class.ranges().len() as u64,
        HirKind::Class(Class::Bytes(_)) => 2,
        HirKind::Repetition(it) => {
            let most = u64::from(it.max.unwrap_or(it.min + 1).max(1));
            most.saturating_mul(states(&it.sub).saturating_add(1))
        }
        HirKind::Capture(it) => states(&it.sub).saturating_add(2),
        HirKind::Concat(all) | HirKind::Alternation(all) => {
            all.iter().map(states).fold(1, |sum, it| sum.saturating_add(it).saturating_add(1))
        }
    }
}

/// A pattern, checked.
///
/// # Errors
/// The pattern with what is wrong about it.
pub(crate) fn parsed(pattern: &str, case_insensitive: bool) -> Result<Hir, String> {
    let syntax = syntax::Config::new().case_insensitive(case_insensitive);
    let hir = syntax::parse_with(pattern, &syntax).map_err(|error| format!("`{pattern}`: {error}"))?;
    match hir.properties().minimum_len() {
        Some(0) => Err(format!("`{pattern}` matches the empty text, and so every text; require a character")),
        None => Err(format!("`{pattern}` matches nothing")),
        Some(_) => Ok(hir),
    }
}

/// The patterns, checked, and the length of the longest match, if it is bounded.
fn compiled(options: &Options) -> Result<(Option<Patterns>, Option<usize>), OptionError> {
    if options.patterns.is_empty() {
        return Ok((None, Some(0)));
    }
    let mut all: Vec<Hir> = Vec::with_capacity(options.patterns.len());
    for pattern in &options.patterns {
        all.push(parsed(pattern, options.case_insensitive).map_err(|why| OptionError::new("patterns", why))?);
    }
    let states = all.iter().map(states).fold(0, u64::saturating_add);
    if states > MAX_STATES {
        let message = format!(
            "are too large: about {states} states, and at most {MAX_STATES}; use smaller repetitions, or `words` for plain texts"
        );
        return Err(OptionError::new("patterns", message));
    }
    let mut longest = all.iter().map(|hir| hir.properties().maximum_len());
    let longest = longest.try_fold(0, |most, it| Some(most.max(it?)));
    let bounds = |hir: &Hir| {
        let looks = hir.properties().look_set();
        looks.contains(Look::WordUnicode) || looks.contains(Look::WordUnicodeNegate)
    };
    let loose = (longest.is_some() && all.iter().any(bounds)).then(OnceLock::new);
    let partial = longest.map(|longest| {
        let patterns = all.iter().map(without_boundaries).collect();
        PartialMatches::new(patterns, longest + LOOK_AROUND)
    });
    Ok((Some(Patterns { all, states, exact: OnceLock::new(), partial, loose }.prepared()), longest))
}

fn words(options: &Options) -> Result<Option<AhoCorasick>, OptionError> {
    if options.words.is_empty() {
        return Ok(None);
    }
    if options.words.iter().any(|word| word.trim().is_empty()) {
        return Err(OptionError::new("words", "contains an empty word"));
    }
    if options.case_insensitive && options.words.iter().any(|word| !word.is_ascii()) {
        return Err(OptionError::new(
            "words",
            "ignores the case of ASCII letters only; use `patterns` for other scripts",
        ));
    }
    let bytes: usize = options.words.iter().map(String::len).sum();
    let built = AhoCorasick::builder()
        .match_kind(MatchKind::Standard)
        .ascii_case_insensitive(options.case_insensitive)
        .kind(Some(if bytes <= TABLE_BYTES { AhoCorasickKind::DFA } else { AhoCorasickKind::ContiguousNFA }))
        .prefilter(false)
        .build(&options.words);
    built.map(Some).map_err(|error| OptionError::new("words", error.to_string()))
}

impl Regex {
    fn word_at(text: &str, start: usize, end: usize) -> bool {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let inside = |a: Option<char>, b: Option<char>| a.is_some_and(is_word) && b.is_some_and(is_word);
        !inside(text[..start].chars().next_back(), text[start..].chars().next())
            && !inside(text[..end].chars().next_back(), text[end..].chars().next())
    }
}

impl Regex {
    /// Offset of the first word that the text's end may be the beginning of.
    fn first_open_word(&self, text: &str, most: usize) -> usize {
        if self.sorted.is_empty() {
            return text.len();
        }
        let back = text.floor_char_boundary(text.len().saturating_sub(most));
        let end = &text[back..];
        let end = if self.ignores_case { end.to_ascii_lowercase() } else { end.to_string() };
        let begins = |at: &usize| {
            let rest = &end[*at..];
            let next = self.sorted.partition_point(|word| word.as_str() < rest);
            self.sorted.get(next).is_some_and(|word| word.starts_with(rest))
        };
        end.char_indices().map(|(at, _)| at).find(begins).map_or(text.len(), |at| back + at)
    }
}

impl Rail for Regex {
    fn judge(&self, judged: &RailInput<'_>, _: &Until) -> Result<Opinion, Failure> {
        let (text, from) = (judged.text, judged.from);
        let mut spans = Vec::new();
        if let Some(patterns) = &self.patterns {
            patterns.find(text, from, &mut spans);
        }
        if let Some(words) = &self.words {
            // All occurrences, since one that is no whole word must not hide another that overlaps it.
            let input = aho_corasick::Input::new(text).span(from..text.len());
            let found = words.try_find_overlapping_iter(input);
            let found = found.map_err(|error| Failure::Unavailable(error.to_string()))?;
            let whole = found.filter(|it| Regex::word_at(text, it.start(), it.end()));
            spans.extend(whole.map(|it| it.start()..it.end()));
        }
        let findings = crate::spans::merged(spans);
        let findings = findings.into_iter().map(|span| Finding::new(span, self.kind.clone())).collect();
        Ok(Opinion::of(Reason::Pattern, findings))
    }

    fn horizon(&self) -> Horizon {
        self.horizon
    }

    fn mark(&self, judged: &RailInput<'_>, _: &Opinion) -> usize {
        let Horizon::Bytes(most) = self.horizon else { return 0 };
        let pattern = self
            .patterns
            .as_ref()
            .and_then(|it| it.partial.as_ref())
            .map(|it| it.first(judged.text, judged.from));
        pattern.unwrap_or(judged.text.len()).min(self.first_open_word(judged.text, most))
    }
}
