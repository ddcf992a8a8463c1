//! The words of RULER's tasks: the lists of wonderwords 3.0.1, which are part of the binary (MIT, `ruler/LICENSE.wonderwords`).

use std::collections::BTreeSet;

const NOUNS: &str = include_str!("../../ruler/nounlist.txt");
const ADJECTIVES: &str = include_str!("../../ruler/adjectivelist.txt");
const VERBS: &str = include_str!("../../ruler/verblist.txt");

fn sorted(text: &'static str) -> Vec<&'static str> {
    text.lines().map(str::trim_end).collect::<BTreeSet<_>>().into_iter().collect()
}

/// All words, sorted.
pub fn all() -> Vec<&'static str> {
    let lists = [NOUNS, ADJECTIVES, VERBS].map(sorted).concat();
    lists.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

/// The sorted list of all pairs `adjective-noun`, six million of them, of which only those that are drawn are written
/// out.
pub struct Pairs {
    nouns: Vec<&'static str>,
    runs: Vec<Run>,
    count: usize,
}

/// Pairs that follow each other in the list.
enum Run {
    /// Those of one adjective, which are in the order of the nouns.
    One(&'static str),
    /// Those of adjectives that begin alike up to a hyphen (`a`, `a-b`), which alternate.
    Several(Vec<String>),
}

impl Pairs {
    /// Prepares the list.
    pub fn new() -> Pairs {
        let nouns = sorted(NOUNS);
        let mut adjectives = sorted(ADJECTIVES);
        adjectives.sort_by_key(|adjective| format!("{adjective}-"));
        let mut runs = Vec::new();
        let mut rest = &adjectives[..];
        while let Some(first) = rest.first() {
            let stem = format!("{first}-");
            let like = rest[1..].iter().take_while(|other| other.starts_with(&stem)).count();
            let (own, after) = rest.split_at(like + 1);
            rest = after;
            runs.push(if like == 0 {
                Run::One(first)
            } else {
                let pairs = own.iter().flat_map(|it| nouns.iter().map(move |noun| format!("{it}-{noun}")));
                Run::Several(pairs.collect::<BTreeSet<_>>().into_iter().collect())
            });
        }
        let mut pairs = Pairs { nouns, runs, count: 0 };
        pairs.count = pairs.runs.iter().map(|run| pairs.length(run)).sum();
        pairs
    }

    fn length(&self, run: &Run) -> usize {
        match run {
            Run::One(_) => self.nouns.len(),
            Run::Several(pairs) => pairs.len(),
        }
    }

    /// Number of pairs.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The pair at an index below [`Pairs::count`].
    pub fn get(&self, mut at: usize) -> String {
        for run in &self.runs {
            let length = self.length(run);
            if at < length {
                return match run {
                    Run::One(adjective) => format!("{adjective}-{}", self.nouns[at]),
                    Run::Several(pairs) => pairs[at].clone(),
                };
            }
            at -= length;
        }
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_those_of_the_whole_sorted_list() {
        let pairs = Pairs::new();
        let whole: BTreeSet<String> = sorted(ADJECTIVES)
            .iter()
            .flat_map(|adjective| sorted(NOUNS).into_iter().map(move |noun| format!("{adjective}-{noun}")))
            .collect();
        assert_eq!(pairs.count(), whole.len());
        for (at, pair) in whole.iter().enumerate().step_by(997) {
            assert_eq!(pairs.get(at), *pair);
        }
    }
}
