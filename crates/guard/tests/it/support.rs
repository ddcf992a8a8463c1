//! Configurations, random texts and detectors for tests.

use std::path::Path;
use std::sync::Arc;

use fathom_base::clock::Clock;
use fathom_guard::needs::{PersonalData, PersonalDataFinder, PersonalDataOptions};
use fathom_guard::{Config, Context, Direction, Engine, Finding, Metrics, Needs, Subject};

/// Numbers of a fixed sequence.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) as usize) % most
    }
}

/// A detector of mail addresses (`email`) and of numbers with 16 digits (`credit_card`).
pub struct Detectors;

struct Finder(Vec<String>);

impl PersonalData for Detectors {
    fn kinds(&self) -> Vec<&'static str> {
        vec!["email", "credit_card"]
    }

    fn finder(&self, options: &PersonalDataOptions) -> fathom_base::Result<Box<dyn PersonalDataFinder>> {
        Ok(Box::new(Finder(options.kinds.clone())))
    }
}

impl PersonalDataFinder for Finder {
    fn find(&self, text: &str) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut at = 0;
        for word in text.split_inclusive(char::is_whitespace) {
            let bare = word.trim_end();
            let inside = bare.find('@').is_some_and(|place| place > 0 && place + 1 < bare.len());
            if inside && self.0.iter().any(|kind| kind == "email") {
                found.push(Finding::new(at..at + bare.len(), "email"));
            }
            at += word.len();
        }
        if self.0.iter().any(|kind| kind == "credit_card") {
            let digits: Vec<(usize, char)> =
                text.char_indices().filter(|(_, c)| c.is_ascii_digit() || *c == ' ').collect();
            let mut run: Vec<usize> = Vec::new();
            let mut last = None;
            for (at, c) in digits {
                if last != Some(at.wrapping_sub(1)) {
                    run.clear();
                }
                last = Some(at);
                if c.is_ascii_digit() {
                    run.push(at);
                    let followed = text[at + 1..].starts_with(|c: char| c.is_ascii_digit());
                    if run.len() == 16 && !followed {
                        found.push(Finding::new(run[0]..at + 1, "credit_card"));
                        run.clear();
                    }
                } else if run.len() > 16 {
                    run.clear();
                }
            }
        }
        found.sort_by_key(|finding| finding.span.start);
        let mut end = 0;
        found.retain(|finding| {
            let is_new = finding.span.start >= end;
            end = end.max(finding.span.end);
            is_new
        });
        found
    }

    fn first_open(&self, text: &str) -> usize {
        let part = |word: &&str| word.trim_end().bytes().last().is_none_or(|byte| byte.is_ascii_digit());
        let mut words = text.split_inclusive(char::is_whitespace).rev().peekable();
        let last = words.next_if(|word| !part(word)).map_or(0, str::len);
        text.len() - last - words.take_while(part).map(str::len).sum::<usize>()
    }
}

pub fn needs() -> Needs {
    Needs { personal_data: Some(Arc::new(Detectors)), ..Needs::default() }
}

pub fn config(text: &str) -> Config {
    match Config::parse(text, Path::new("test/guard.toml"), &needs()) {
        Ok(config) => config,
        Err(error) => panic!("{error}"),
    }
}

pub fn engine(text: &str) -> Arc<Engine> {
    Arc::new(Engine::new(Arc::new(config(text)), Clock::start(), Arc::new(Metrics::default())))
}

pub fn output() -> Subject {
    Subject::new(Direction::Output, Arc::new(Context::default()))
}
