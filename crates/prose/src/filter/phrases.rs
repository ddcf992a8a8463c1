//! Phrases of cookie banners and policies, matched ignoring ASCII case.

use super::lines::paragraphs;
use aho_corasick::{AhoCorasick, AhoCorasickKind};

/// Curator's list from C4's processing. Long texts are represented by a unique prefix, or by a short phrase that they
/// contain.
const POLICY: [&str; 12] = [
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "privacy overview",
    "use of cookies",
    "use cookies",
    "privacy & cookies policy",
    "privacy and cookies policy",
    NECESSARY,
    UNNECESSARY,
    CONTINUE,
];
const NECESSARY: &str = "necessary cookies are absolutely essential for the website to function properly. this \
category only includes cookies that ensures basic functionalities and security features of the website. these \
cookies do not store any personal information.";
const UNNECESSARY: &str = "any cookies that may not be particularly necessary for the website to function and is \
used specifically to collect user personal data via analytics, ads, other embedded contents are termed as \
non-necessary cookies. it is mandatory to procure user consent prior to running these cookies on your website.";
const CONTINUE: &str = "if you continue to browse this site without changing your cookie settings, you agree to \
this use. acceptread more";
const LOREM: &str = "lorem ipsum";

/// Matcher of the phrases.
#[derive(Clone, Debug)]
pub(crate) struct PolicyPhrases {
    automaton: AhoCorasick,
}

impl PolicyPhrases {
    pub(crate) fn new() -> PolicyPhrases {
        let all = POLICY.iter().chain([&LOREM]);
        let build =
            AhoCorasick::builder().ascii_case_insensitive(true).kind(Some(AhoCorasickKind::DFA)).build(all);
        match build {
            Ok(automaton) => PolicyPhrases { automaton },
            Err(error) => panic!("policy phrases: {error}"),
        }
    }

    /// Returns true if any phrase occurs.
    pub(crate) fn any(&self, text: &str) -> bool {
        self.automaton.is_match(text)
    }

    /// Share of paragraphs with a policy phrase; 1 if any paragraph contains "lorem ipsum".
    pub(crate) fn ratio(&self, text: &str, num_paragraphs: u32) -> f64 {
        let Some(first) = self.automaton.find(text) else { return 0.0 };
        let mut with_phrase = 0u32;
        let mut start = 0;
        for paragraph in paragraphs(text) {
            if start + paragraph.len() > first.start() {
                let (policy, lorem) = self.look(paragraph);
                if lorem {
                    return 1.0;
                }
                with_phrase += u32::from(policy);
            }
            start += paragraph.len() + 2;
        }
        f64::from(with_phrase) / f64::from(num_paragraphs.max(1))
    }

    /// Returns whether `paragraph` contains a policy phrase, and whether it contains "lorem ipsum".
    pub(crate) fn look(&self, paragraph: &str) -> (bool, bool) {
        let (mut policy, mut lorem) = (false, false);
        for found in self.automaton.find_overlapping_iter(paragraph) {
            if found.pattern().as_usize() == POLICY.len() {
                lorem = true;
                break;
            }
            policy = true;
        }
        (policy, lorem)
    }
}
