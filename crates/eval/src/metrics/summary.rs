//! ROUGE-L of summaries as the package `rouge` (1.0.1) computes it: over sets of words, by sentences that end with a full
//! stop.

use std::collections::BTreeSet;

use super::rouge::subsequences;

/// Keeps the package from dividing by zero.
const EPSILON: f64 = 1e-8;

/// F-measure of an answer; 0 if one of both is empty.
pub fn rouge_l(answer: &str, gold: &str) -> f64 {
    let [answer, gold] = [answer, gold].map(sentences);
    if answer.is_empty() || gold.is_empty() {
        return 0.0;
    }
    let words = |sentences: &[Vec<String>]| sentences.iter().flatten().collect::<BTreeSet<_>>().len() as f64;
    let mut found: BTreeSet<&String> = BTreeSet::new();
    for sentence in &gold {
        answer.iter().for_each(|other| found.extend(common(sentence, other)));
    }
    let (recall, precision) = (found.len() as f64 / words(&gold), found.len() as f64 / words(&answer));
    2.0 * (precision * recall / (precision + recall + EPSILON))
}

/// The words of each sentence; one of white space alone has an empty word.
fn sentences(text: &str) -> Vec<Vec<String>> {
    let words = |sentence: &str| {
        let words: Vec<String> = crate::python::words(sentence).map(str::to_string).collect();
        if words.is_empty() { vec![String::new()] } else { words }
    };
    text.split('.').filter(|sentence| !sentence.is_empty()).map(words).collect()
}

/// The words of a longest common subsequence, by the package's rules for ties.
fn common<'a>(a: &'a [String], b: &[String]) -> Vec<&'a String> {
    let table = subsequences(a, b);
    let (mut i, mut j, mut found) = (a.len(), b.len(), Vec::new());
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            found.push(&a[i - 1]);
            (i, j) = (i - 1, j - 1);
        } else if table[i - 1][j] > table[i][j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    found
}
