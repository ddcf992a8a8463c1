//! ROUGE as the package `rouge-score` computes it without a stemmer: F-measures of n-grams and of common subsequences.

use std::collections::BTreeSet;

use super::{counted, shared};

/// F-measures of rouge1, rouge2, rougeL and rougeLsum.
pub fn rouge(target: &str, answer: &str) -> [f64; 4] {
    let [a, b] = [target, answer].map(tokens);
    let of = |n: usize| {
        let [a, b] = [&a, &b].map(|tokens| counted(tokens.windows(n)));
        let [sum_a, sum_b] = [&a, &b].map(|counts| counts.values().sum::<usize>());
        measure(shared(&a, &b), sum_a.max(1), sum_b.max(1))
    };
    let longest =
        if a.is_empty() || b.is_empty() { 0.0 } else { measure(common(&a, &b).len(), a.len(), b.len()) };
    [of(1), of(2), longest, summary(target, answer)]
}

fn tokens(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let parts = lower.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit()));
    parts.filter(|part| !part.is_empty()).map(str::to_string).collect()
}

fn measure(hits: usize, targets: usize, answers: usize) -> f64 {
    let (precision, recall) = (hits as f64 / answers as f64, hits as f64 / targets as f64);
    if precision + recall > 0.0 { 2.0 * precision * recall / (precision + recall) } else { 0.0 }
}

/// Lengths of longest common subsequences of each beginning of `a` with each of `b`.
pub(super) fn subsequences(a: &[String], b: &[String]) -> Vec<Vec<u32>> {
    let mut table = vec![vec![0u32; b.len() + 1]; a.len() + 1];
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            table[i][j] = if a[i - 1] == b[j - 1] {
                table[i - 1][j - 1] + 1
            } else {
                table[i - 1][j].max(table[i][j - 1])
            };
        }
    }
    table
}

/// Indices in `a` of a longest common subsequence, by the package's rules for ties.
fn common(a: &[String], b: &[String]) -> Vec<usize> {
    let table = subsequences(a, b);
    let (mut i, mut j, mut found) = (a.len(), b.len(), Vec::new());
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            found.push(i - 1);
            (i, j) = (i - 1, j - 1);
        } else if table[i][j - 1] > table[i - 1][j] {
            j -= 1;
        } else {
            i -= 1;
        }
    }
    found.reverse();
    found
}

/// Over lines: the union of the common subsequences of each line of the target with all lines of the answer.
fn summary(target: &str, answer: &str) -> f64 {
    let lines = |text: &str| -> Vec<Vec<String>> {
        text.split('\n').filter(|line| !line.is_empty()).map(tokens).collect()
    };
    let [targets, answers] = [target, answer].map(lines);
    let [m, n] = [&targets, &answers].map(|lines| lines.iter().map(Vec::len).sum::<usize>());
    if m == 0 || n == 0 {
        return 0.0;
    }
    let [mut left_a, mut left_b] = [&targets, &answers].map(|lines| counted(lines.iter().flatten().cloned()));
    let mut hits = 0;
    for line in &targets {
        let union: BTreeSet<usize> = answers.iter().flat_map(|other| common(line, other)).collect();
        for token in union.into_iter().map(|at| &line[at]) {
            let counts = [left_a.get_mut(token), left_b.get_mut(token)];
            if let [Some(a), Some(b)] = counts
                && *a > 0
                && *b > 0
            {
                (*a, *b) = (*a - 1, *b - 1);
                hits += 1;
            }
        }
    }
    measure(hits, m, n)
}
