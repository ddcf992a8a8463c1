//! RULER's score of an answer.

use crate::python::strip;

/// Share of the texts that are in an answer, without regard to case; with `any`, whether one of them is.
pub fn string_match(answer: &str, golds: &[String], any: bool) -> f64 {
    let plain: String =
        strip(answer).chars().map(|c| if c < '\u{20}' { '\n' } else { c }).collect::<String>().to_lowercase();
    let answer = strip(&plain);
    let found = golds.iter().filter(|gold| answer.contains(&gold.to_lowercase())).count();
    if any { f64::from(u8::from(found > 0)) } else { found as f64 / golds.len().max(1) as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_score_by_the_texts_in_them() {
        let golds = ["Amber".to_string(), "12".to_string()];
        for (answer, all, any) in [("amber and 12", 1.0, 1.0), (" AMBER\u{1}", 0.5, 1.0), ("none", 0.0, 0.0)]
        {
            assert_eq!((string_match(answer, &golds, false), string_match(answer, &golds, true)), (all, any));
        }
    }
}
