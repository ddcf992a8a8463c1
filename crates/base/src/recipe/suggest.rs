//! "Did you mean": names similar to the one written.

/// Returns a hint for a name that is not among `names`: the most similar ones, or the full list.
pub(crate) fn name(written: &str, names: &[&str], what: &str) -> String {
    let near = nearest(names.iter().map(|n| (n.to_string(), similarity(written, n))).collect());
    if near.is_empty() { format!("{what}: {}", list(names)) } else { did_you_mean(&near) }
}

/// Returns a hint for an unknown key. `table` is the path of the table in which it is written (empty at the top),
/// `names` are the keys of that table, and `paths` all paths of the recipe.
pub(crate) fn key(table: &str, written: &str, names: &[&str], paths: &[String]) -> String {
    let prefix = if table.is_empty() { String::new() } else { format!("{table}.") };
    let mut scored: Vec<(String, f64)> =
        names.iter().map(|n| (format!("{prefix}{n}"), similarity(written, n))).collect();
    let full = format!("{prefix}{written}");
    let star =
        |part: &str| if part.bytes().all(|b| b.is_ascii_digit()) { "*".into() } else { part.to_string() };
    let here = table.split('.').map(star).collect::<Vec<_>>().join(".") + ".";
    for path in paths {
        // Keys of the same table are compared by name above; here their common prefix would make any two look alike.
        if !table.is_empty() && path.starts_with(&here) {
            continue;
        }
        // The right name in the wrong table is the most common mistake after a typing error.
        let last = path.rsplit('.').next().unwrap_or(path);
        let score = if last == written { 0.9 } else { similarity(&full, path) };
        scored.push((path.clone(), score));
    }
    let near = nearest(scored);
    if !near.is_empty() {
        return did_you_mean(&near);
    }
    let owner = if table.is_empty() { "the recipe's top level".to_string() } else { format!("`{table}`") };
    format!("{owner} has: {}", list(names))
}

/// Similarity from 0 (nothing in common) to 1 (equal), ignoring case and the difference between `-` and `_`.
fn similarity(a: &str, b: &str) -> f64 {
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let (a, b) = (plain(a), plain(b));
    strsim::normalized_damerau_levenshtein(&a, &b).max(strsim::jaro_winkler(&a, &b) - 0.2)
}

/// Returns at most three names with scores near the best, best first, ties in the given order.
fn nearest(mut scored: Vec<(String, f64)>) -> Vec<String> {
    scored.sort_by(|a, b| b.1.total_cmp(&a.1));
    let best = scored.first().map_or(0.0, |(_, score)| *score);
    let mut out: Vec<String> = Vec::new();
    for (name, score) in scored {
        if score >= 0.6 && score >= best - 0.1 && out.len() < 3 && !out.contains(&name) {
            out.push(name);
        }
    }
    out
}

fn did_you_mean(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
    format!("did you mean {}?", quoted.join(" or "))
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "nothing".into() } else { names.join(", ") }
}
