//! `regex`: configured patterns and words. Patterns have linear time and bounded size; a list of plain words is one
//! automaton, whatever its length.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use regex_automata::meta;
use regex_automata::util::syntax;
use regex_syntax::hir::{Hir, HirKind};
use serde::Deserialize;

use crate::config::Setting;
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Judged, Manifest, Opinion, Rail, Until};
use crate::registry::{RailKind, Refused};
use crate::verdict::{Direction, Finding, Reason};

/// Size of the compiled patterns at most, in bytes.
const MAX_SIZE: usize = 10 << 20;
/// Bytes around a match that assertions such as `\b` read.
const LOOK_AROUND: usize = 4;

/// Options.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Patterns in the syntax of the regex crate. With several, the one that begins first wins, then the first named.
    #[serde(default)]
    patterns: Vec<String>,
    /// Plain texts, found wherever they occur as whole words.
    #[serde(default)]
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
    patterns: Option<meta::Regex>,
    words: Option<AhoCorasick>,
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

    fn build(options: Options, _: &Setting, _: &Needs) -> Result<Box<dyn Rail>, Refused> {
        if options.patterns.is_empty() && options.words.is_empty() {
            return Err(Refused::new("patterns", "is empty; give `patterns` or `words`"));
        }
        let (patterns, longest) = compiled(&options)?;
        let words = words(&options)?;
        let longest_word = options.words.iter().map(String::len).max().unwrap_or(0);
        let horizon = match longest {
            Some(longest) => Horizon::Bytes(longest.max(longest_word) + LOOK_AROUND),
            None => Horizon::Whole,
        };
        Ok(Box::new(Regex { patterns, words, kind: options.kind, horizon }))
    }
}

/// The patterns as one automaton, and the length of the longest match, if it is bounded.
fn compiled(options: &Options) -> Result<(Option<meta::Regex>, Option<usize>), Refused> {
    if options.patterns.is_empty() {
        return Ok((None, Some(0)));
    }
    let syntax = syntax::Config::new().case_insensitive(options.case_insensitive);
    let mut all: Vec<Hir> = Vec::with_capacity(options.patterns.len());
    for pattern in &options.patterns {
        let parsed = syntax::parse_with(pattern, &syntax);
        let hir = parsed.map_err(|error| Refused::new("patterns", format!("`{pattern}`: {error}")))?;
        let properties = hir.properties();
        if properties.minimum_len() == Some(0) {
            let message =
                format!("`{pattern}` matches the empty text, and so every text; require a character");
            return Err(Refused::new("patterns", message));
        }
        if matches!(hir.kind(), HirKind::Empty) || properties.maximum_len() == Some(0) {
            return Err(Refused::new("patterns", format!("`{pattern}` matches nothing")));
        }
        all.push(hir);
    }
    let longest =
        all.iter().map(|hir| hir.properties().maximum_len()).try_fold(0, |most, it| Some(most.max(it?)));
    let config =
        meta::Config::new().nfa_size_limit(Some(MAX_SIZE)).onepass(false).hybrid_cache_capacity(2 << 20);
    let regex = meta::Builder::new().configure(config).build_many_from_hir(&all);
    let regex = regex.map_err(|error| {
        Refused::new(
            "patterns",
            format!("are too large ({error}); use smaller repetitions, or `words` for plain texts"),
        )
    })?;
    Ok((Some(regex), longest))
}

fn words(options: &Options) -> Result<Option<AhoCorasick>, Refused> {
    if options.words.is_empty() {
        return Ok(None);
    }
    if options.words.iter().any(|word| word.trim().is_empty()) {
        return Err(Refused::new("words", "contains an empty word"));
    }
    if options.case_insensitive && options.words.iter().any(|word| !word.is_ascii()) {
        return Err(Refused::new(
            "words",
            "ignores the case of ASCII letters only; use `patterns` for other scripts",
        ));
    }
    let built = AhoCorasick::builder()
        .match_kind(MatchKind::Standard)
        .ascii_case_insensitive(options.case_insensitive)
        .kind(Some(AhoCorasickKind::ContiguousNFA))
        .prefilter(false)
        .build(&options.words);
    built.map(Some).map_err(|error| Refused::new("words", error.to_string()))
}

impl Regex {
    fn word_at(text: &str, start: usize, end: usize) -> bool {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let inside = |a: Option<char>, b: Option<char>| a.is_some_and(is_word) && b.is_some_and(is_word);
        !inside(text[..start].chars().next_back(), text[start..].chars().next())
            && !inside(text[..end].chars().next_back(), text[end..].chars().next())
    }
}

impl Rail for Regex {
    fn judge(&self, judged: &Judged<'_>, _: &Until) -> Result<Opinion, Failure> {
        let (text, from) = (judged.text, judged.from);
        let mut spans = Vec::new();
        if let Some(patterns) = &self.patterns {
            let mut input = regex_automata::Input::new(text).span(from..text.len());
            while let Some(found) = patterns.search(&input) {
                spans.push(found.range());
                input.set_start(found.end());
            }
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
}
