//! Prompts of judges, and the verdicts in their answers.

use crate::python::pattern::Pattern;

/// Which answer is shown first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The one that is judged.
    First,
    /// The one that it is compared with.
    Second,
}

/// The request to compare an answer with another one.
pub fn compare(instruction: &str, answer: &str, other: &str, order: Order) -> String {
    let [a, b] = if order == Order::First { [answer, other] } else { [other, answer] };
    format!(
        "Compare two answers to an instruction. Judge whether they are right, whether they help, and whether they do what \
         was asked; neither their order nor their length matters. Give your reasons in a few sentences. Then write a last \
         line with your verdict alone: [[A]] if answer A is better, [[B]] if answer B is better, [[C]] if they are as \
         good.\n\nInstruction:\n{instruction}\n\nAnswer A:\n{a}\n\nAnswer B:\n{b}\n\nReasons and verdict:"
    )
}

/// The request to rate an answer.
pub fn rate(instruction: &str, answer: &str) -> String {
    format!(
        "Rate an answer to an instruction from 1 (useless) to 10 (could not be better). Judge whether it is right, whether \
         it helps, and whether it does what was asked. Give your reasons in a few sentences. Then write a last line with \
         the number alone in double brackets, such as [[7]].\n\nInstruction:\n{instruction}\n\nAnswer:\n{answer}\n\nReasons \
         and rating:"
    )
}

/// Preference for the judged answer in a judge's text, by its last verdict: 1, 0, or 0.5 for as good; `None` without one.
pub fn verdict(text: &str, order: Order) -> Option<f64> {
    let a = match last(text, r"\[\[([ABCabc])\]\]")?.to_ascii_uppercase().as_str() {
        "A" => 1.0,
        "B" => 0.0,
        _ => 0.5,
    };
    Some(if order == Order::First { a } else { 1.0 - a })
}

/// The rating in a judge's text, from 1 to 10.
pub fn rating(text: &str) -> Option<f64> {
    let number: f64 = last(text, r"\[\[(\d+\.?\d*)\]\]")?.parse().ok()?;
    (1.0..=10.0).contains(&number).then_some(number)
}

fn last(text: &str, pattern: &str) -> Option<String> {
    Pattern::new(pattern).ok()?.find_all(text).ok()?.pop()?.pop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_verdict_counts_in_both_orders() {
        for (text, first, second) in [
            ("[[B]] at first, but no: [[A]]", Some(1.0), Some(0.0)),
            ("[[b]]", Some(0.0), Some(1.0)),
            ("[[C]]", Some(0.5), Some(0.5)),
            ("A is better", None, None),
            ("[A]", None, None),
        ] {
            assert_eq!(
                (verdict(text, Order::First), verdict(text, Order::Second)),
                (first, second),
                "{text}"
            );
        }
        assert_eq!(
            ["[[7]]", "[[3]] or [[8.5]]", "[[11]]", "[[0]]", "7"].map(rating),
            [Some(7.0), Some(8.5), None, None, None]
        );
        let swapped = compare("i", "mine", "other", Order::Second);
        assert!(
            swapped.contains("Answer A:\nother\n\nAnswer B:\nmine") && swapped.contains("Instruction:\ni\n")
        );
    }
}
