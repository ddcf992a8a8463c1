//! Rankings that an answer writes (`3 > 1 > 2`), and their gain, by HELMET's rules.

use crate::python::pattern::Pattern;

/// Ids of the longest ranking in an answer, each once, best first; the whole answer if it has no number.
///
/// # Errors
/// The search does not end.
pub fn ranking(answer: &str) -> Result<Vec<String>, String> {
    let mut text = answer.to_string();
    text.retain(|c| !matches!(c, '[' | ']' | ':'));
    let text = text.to_lowercase().replace("id", "");
    let mut longest = String::new();
    for found in Pattern::new(r"(?P<all>\d+(?:\s*>\s*\d+)*)")?.find_all(&text)? {
        if found[0].chars().count() > longest.chars().count() {
            longest.clone_from(&found[0]);
        }
    }
    if longest.is_empty() {
        return Ok(vec![text]);
    }
    let mut ids: Vec<String> = Vec::new();
    for id in longest.split('>').map(|id| crate::python::strip(id).to_string()) {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// NDCG at `k` of a ranking, with the gain of each id (trec_eval's `ndcg_cut`): gains are divided by the logarithm of the
/// rank, and by what the best ranking would give.
pub fn ndcg(ranking: &[String], gain: impl Fn(&str) -> f64, gains: &[f64], k: usize) -> f64 {
    let discounted = |gains: &mut dyn Iterator<Item = f64>| -> f64 {
        gains.take(k).enumerate().map(|(at, gain)| gain.max(0.0) / (at as f64 + 2.0).log2()).sum()
    };
    let mut best = gains.to_vec();
    best.sort_by(|a, b| b.total_cmp(a));
    let best = discounted(&mut best.into_iter());
    if best == 0.0 { 0.0 } else { discounted(&mut ranking.iter().map(|id| gain(id))) / best }
}
