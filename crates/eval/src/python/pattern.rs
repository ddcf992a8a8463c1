//! Python's `re` by `fancy_regex`, whose syntax covers nearly all of it.

use fancy_regex::{Regex, RegexBuilder};

/// Steps back of a search, at most; Python has no limit.
const BACKTRACKS: usize = 1_000_000;

/// A compiled pattern.
#[derive(Debug)]
pub struct Pattern(Regex);

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// A message if it is invalid, or uses syntax that only Python knows.
    pub fn new(pattern: &str) -> Result<Pattern, String> {
        let ours = pattern.replace("\\Z", "\\z");
        let made = RegexBuilder::new(&ours).backtrack_limit(BACKTRACKS).build();
        made.map(Pattern).map_err(|error| format!("the pattern `{pattern}` cannot be used: {error}"))
    }

    /// `re.findall`: per match its groups, or the whole match if the pattern has none.
    ///
    /// # Errors
    /// The search does not end within its limit of steps.
    pub fn find_all(&self, text: &str) -> Result<Vec<Vec<String>>, String> {
        let mut all = Vec::new();
        for found in self.0.captures_iter(text) {
            let found = found.map_err(|error| error.to_string())?;
            let group = |at: usize| found.get(at).map_or_else(String::new, |it| it.as_str().to_string());
            let groups = found.len() - 1;
            all.push(if groups == 0 { vec![group(0)] } else { (1..=groups).map(group).collect() });
        }
        Ok(all)
    }

    /// `re.sub` with Python's notation of groups in the replacement (`\1`, `\g<1>`).
    ///
    /// # Errors
    /// Those of [`Pattern::find_all`].
    pub fn replace_all(&self, text: &str, with: &str) -> Result<String, String> {
        let (mut out, mut last) = (String::new(), 0);
        for found in self.0.captures_iter(text) {
            let found = found.map_err(|error| error.to_string())?;
            let Some(whole) = found.get(0) else { continue };
            out.push_str(&text[last..whole.start()]);
            let mut rest = with;
            while let Some(at) = rest.find('\\') {
                out.push_str(&rest[..at]);
                rest = &rest[at + 1..];
                let (group, after) = match rest.strip_prefix("g<").and_then(|it| it.split_once('>')) {
                    Some((group, after)) => (group, after),
                    None => rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).take(2).count()),
                };
                match (group.parse::<usize>(), rest.chars().next()) {
                    (Ok(group), _) => out.push_str(found.get(group).map_or("", |it| it.as_str())),
                    (Err(_), Some('n')) => out.push('\n'),
                    (Err(_), Some('t')) => out.push('\t'),
                    (Err(_), Some('\\')) => out.push('\\'),
                    (Err(_), Some(other)) => out.extend(['\\', other]),
                    (Err(_), None) => out.push('\\'),
                }
                rest = if group.is_empty() { rest.get(1..).unwrap_or_default() } else { after };
            }
            out.push_str(rest);
            last = whole.end();
        }
        out.push_str(&text[last..]);
        Ok(out)
    }
}

/// Replaces a pattern in a text; for the template filter `regex_replace`.
///
/// # Errors
/// Those of [`Pattern::new`] and [`Pattern::find_all`].
pub fn replace(text: &str, pattern: &str, with: &str) -> Result<String, String> {
    Pattern::new(pattern)?.replace_all(text, with)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_find_and_replace_as_python_does() {
        let found =
            Pattern::new(r"(-?[$0-9.,]{2,})|(-?[0-9]+)").unwrap().find_all("is 5, then 1,234.").unwrap();
        assert_eq!(found, [vec!["5,", ""], vec!["1,234.", ""]]);
        assert_eq!(Pattern::new(r"#### (\-?[0-9]+)").unwrap().find_all("#### 7").unwrap(), [["7"]]);
        assert_eq!(replace("a-b", r"(?P<x>\w)-(\w)", r"\2\g<1>\\n").unwrap(), "ba\\n");
        assert!(Pattern::new("(").is_err());
    }
}
