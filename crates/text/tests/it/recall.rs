//! Recall documents and needle prompts.

use crate::{corpus, tokenizer};
use fathom_text::recall::{RecallGenerator, Split};
use std::collections::BTreeMap;

fn filler() -> Vec<String> {
    corpus().iter().flat_map(|text| text.lines().map(str::to_owned)).collect()
}

/// `key -> value` pairs stated in a text.
fn facts(text: &str) -> BTreeMap<&str, &str> {
    let stated = text.lines().filter_map(|line| line.strip_prefix("Remember the words "));
    stated.filter_map(|fact| fact.trim_end_matches('.').rsplit_once(' ')).collect()
}

#[test]
fn documents_answer_their_own_questions() {
    for split in [Split::Train, Split::Test] {
        let generator = RecallGenerator::new(1, split).with_filler(filler());
        let mut questions = 0;
        for index in 0..40 {
            let text = generator.document(index, 4000);
            assert_eq!(text, generator.document(index, 4000));
            assert!((3200..5000).contains(&text.len()), "{}", text.len());
            match (index % 3, generator.drill(index, 2000)) {
                (0, drill) => drill_repeats_its_lists(&drill),
                (1, drill) => drill_repeats_its_facts(&drill, split),
                _ => {}
            }
            let facts = facts(&text);
            assert!(!facts.is_empty());
            assert!(facts.keys().all(|key| Split::of_key(key) == split));
            let mut seen = 0;
            for line in text.lines().filter(|line| line.starts_with("Which word follows ")) {
                let (_, answer) = line.split_once("? The words ").unwrap();
                let (key, value) = answer.rsplit_once(' ').unwrap();
                assert_eq!(facts[key], value.trim_end_matches('.'));
                let fact = text
                    .find(&format!("\nRemember the words {key} "))
                    .or(text.starts_with("Remember").then_some(0));
                assert!(fact < text.find(line), "the fact comes first");
                seen += 1;
            }
            assert!(seen > 0);
            questions += seen;
        }
        assert!(questions > 300, "{questions}");
    }
}

/// Every list is stated four times and contains no word twice.
fn drill_repeats_its_lists(text: &str) {
    let filler = filler();
    let lists: Vec<&str> =
        text.lines().filter(|line| !filler.iter().any(|other| other.starts_with(line))).collect();
    assert!(
        lists.len() >= 4 && lists.chunks(4).all(|list| list.iter().all(|line| *line == list[0])),
        "{text}"
    );
    for list in lists.chunks(4) {
        let words: Vec<&str> = list[0].trim_end_matches('.').split(' ').collect();
        let distinct: std::collections::BTreeSet<&str> = words.iter().copied().collect();
        assert_eq!(distinct.len(), words.len(), "{}", list[0]);
    }
}

/// Every set of facts is stated several times, with the same contents each time.
fn drill_repeats_its_facts(text: &str, split: Split) {
    let rounds: Vec<BTreeMap<&str, &str>> = text
        .lines()
        .filter_map(|line| line.strip_prefix("The words "))
        .map(|words| {
            let words = words.trim_end_matches('.');
            words.split(", ").map(|fact| fact.rsplit_once(' ').unwrap()).collect()
        })
        .collect();
    assert!(rounds.iter().flat_map(BTreeMap::keys).all(|key| Split::of_key(key) == split));
    assert!(rounds.chunks(5).all(|rounds| rounds.iter().all(|round| *round == rounds[0])), "{text}");
}

#[test]
fn splits_share_no_key() {
    let keys = |split| -> Vec<String> {
        let generator = RecallGenerator::new(1, split);
        (0..40)
            .flat_map(|i| {
                facts(&generator.document(i, 4000)).into_keys().map(str::to_owned).collect::<Vec<_>>()
            })
            .collect()
    };
    let train = keys(Split::Train);
    assert!(keys(Split::Test).iter().all(|key| !train.contains(key)));
}

#[test]
fn needles_lie_at_their_depth() {
    let generator = RecallGenerator::new(2, Split::Test);
    for (index, (target, depth)) in
        [(128, 0.0), (512, 0.5), (512, 1.0), (2000, 0.25), (2000, 0.75)].into_iter().enumerate()
    {
        let needle = generator.needle_prompt(index as u64, target, depth, tokenizer(), &filler()).unwrap();
        assert!(
            needle.prompt_tokens <= target && needle.prompt_tokens + 100 > target,
            "{}",
            needle.prompt_tokens
        );
        assert_eq!(tokenizer().encode(&needle.prompt).unwrap().len(), needle.prompt_tokens);
        let facts = facts(&needle.prompt);
        let (key, value) = facts.iter().next().unwrap();
        assert_eq!((facts.len(), *value), (1, needle.answer.as_str()));
        assert!(needle.prompt.ends_with(&format!("Which word follows {key}? The words {key}")));
        let at = needle.prompt.find(&format!("Remember the words {key} {value}.")).unwrap();
        let before = tokenizer().encode(&needle.prompt[..at]).unwrap().len();
        let share = before as f64 / needle.prompt_tokens as f64;
        assert!(
            (share - depth).abs() < 0.35 * (1.0 - target as f64 / 2500.0),
            "{share} for {depth} of {target}"
        );
    }
    let error = generator.needle_prompt(0, 5, 0.5, tokenizer(), &[]).unwrap_err().to_string();
    assert!(error.contains("without any filler"), "{error}");
    assert!(generator.needle_prompt(0, 300, 0.5, tokenizer(), &[]).unwrap().prompt_tokens > 270);
}
