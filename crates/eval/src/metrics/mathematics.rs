//! Equality of answers to MATH's problems as lm-evaluation-harness decides it: by the text of LaTeX after replacements
//! (`hendrycks_math`), and by Minerva's normalisation of a `Final Answer` (Lewkowycz et al. 2022, appendix D).
//!
//! Two texts that differ and mean the same are different here; the harness asks SymPy about those of `minerva_math`.

use crate::python::pattern::{Pattern, replace};
use crate::python::strip;

/// True if what an answer has between its first and last dollar sign is the boxed part of a solution.
pub fn is_right(answer: &str, solution: &str) -> bool {
    let dollars: Vec<usize> = answer.match_indices('$').map(|found| found.0).collect();
    let answer = match dollars[..] {
        [first, .., last] => &answer[first + 1..last],
        _ => answer,
    };
    is_equal(answer, &boxed(solution).unwrap_or_else(|| solution.to_string()))
}

/// True if two texts are equal after replacements, or as they are where these fail.
pub fn is_equal(a: &str, b: &str) -> bool {
    match (stripped(a), stripped(b)) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// True if the `Final Answer` of a text is the boxed part of a solution.
///
/// # Errors
/// A search does not end.
pub fn is_final(answer: &str, solution: &str) -> Result<bool, String> {
    let answer = normal(&final_answer(answer)?)?;
    Ok(!answer.is_empty() && answer == normal(&boxed(solution).unwrap_or_else(|| solution.to_string()))?)
}

/// Content of the last `\boxed` of a solution.
pub fn boxed(solution: &str) -> Option<String> {
    if let Some((_, rest)) = solution.rsplit_once("\\boxed ") {
        return Some(rest.split('$').next().unwrap_or_default().to_string());
    }
    let text = &solution[solution.rfind("\\boxed")?..];
    let mut open = 0i64;
    for (at, c) in text.char_indices() {
        open += match c {
            '{' => 1,
            '}' => -1,
            _ => continue,
        };
        if open == 0 && c == '}' {
            return text[..at].strip_prefix("\\boxed{").map(str::to_string);
        }
    }
    None
}

/// A text after the replacements of `hendrycks_math`; none where its code raises an exception.
fn stripped(text: &str) -> Option<String> {
    const REPLACED: [(&str, &str); 10] = [
        ("\n", ""),
        ("\\!", ""),
        ("\\\\", "\\"),
        ("tfrac", "frac"),
        ("dfrac", "frac"),
        ("\\left", ""),
        ("\\right", ""),
        ("^{\\circ}", ""),
        ("^\\circ", ""),
        ("\\$", ""),
    ];
    let mut text = text.to_string();
    for (from, to) in REPLACED {
        text = text.replace(from, to);
    }
    if let [value, _, rest @ ..] = &text.split("\\text{ ").collect::<Vec<_>>()[..] {
        text = rest.is_empty().then(|| value.to_string())?;
    }
    for (from, to) in [("\\%", ""), (" .", " 0."), ("{.", "{0.")] {
        text = text.replace(from, to);
    }
    if text.starts_with('.') {
        text.insert(0, '0');
    }
    if let [name, value] = text.split('=').collect::<Vec<_>>()[..]
        && name.chars().count() <= 2
    {
        text = value.to_string();
    }
    if text.is_empty() {
        return Some(text);
    }
    let text = fractions(&roots(&text)?.replace(' ', ""))?;
    quotient(if text == "0.5" { "\\frac{1}{2}" } else { &text })
}

/// `\sqrt3` as `\sqrt{3}`.
fn roots(text: &str) -> Option<String> {
    let mut parts = text.split("\\sqrt");
    let mut out = parts.next()?.to_string();
    for part in parts {
        out += "\\sqrt";
        let first = part.chars().next()?;
        match first {
            '{' => out += part,
            _ => out += &format!("{{{first}}}{}", &part[first.len_utf8()..]),
        }
    }
    Some(out)
}

/// `\frac12` as `\frac{1}{2}`.
fn fractions(text: &str) -> Option<String> {
    let mut parts = text.split("\\frac");
    let mut out = parts.next()?.to_string();
    for part in parts {
        out += "\\frac";
        let mut chars = part.chars();
        let first = chars.next()?;
        if first == '{' {
            out += part;
            continue;
        }
        let Some(second) = chars.next() else { return Some(text.to_string()) };
        out += &match second {
            '{' => format!("{{{first}}}{second}{}", chars.as_str()),
            _ => format!("{{{first}}}{{{second}}}{}", chars.as_str()),
        };
    }
    Some(out)
}

/// A quotient of two whole numbers as a fraction; none where a side is no whole number.
fn quotient(text: &str) -> Option<String> {
    let [a, b] = text.split('/').collect::<Vec<_>>()[..] else { return Some(text.to_string()) };
    let is_canonical = |number: &str| {
        let digits = number.strip_prefix('-').unwrap_or(number);
        number == "0" || (!digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if !is_whole(a) || !is_whole(b) {
        return None;
    }
    let same = is_canonical(a) && is_canonical(b);
    Some(if same { format!("\\frac{{{a}}}{{{b}}}") } else { text.to_string() })
}

/// True for what Python's `int` reads.
fn is_whole(text: &str) -> bool {
    let text = strip(text);
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    digits.split('_').all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit()))
}

/// The text behind `Final Answer: The final answer is`.
fn final_answer(text: &str) -> Result<String, String> {
    let pattern = r"Final Answer: The final answer is(.*?). I hope it is correct.";
    let found = Pattern::new(pattern)?.find_all(&format!("{text}I hope it is correct."))?.into_iter().next();
    Ok(found.map_or_else(|| "[invalidanswer]".into(), |groups| strip(&groups[0]).to_string()))
}

const SUBSTITUTED: [(&str, &str); 10] = [
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
];
/// Units and other texts that are removed, in order.
const REMOVED: [&str; 41] = [
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "ft",
    "hours",
    "km",
    "units",
    "\\ldots",
    "sue",
    "points",
    "feet",
    "minutes",
    "digits",
    "cents",
    "degrees",
    "cm",
    "gm",
    "pounds",
    "meters",
    "meals",
    "edges",
    "students",
    "childrentickets",
    "multiples",
    "\\text{s}",
    "\\text{.}",
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    "\\mathrm{th}",
    "^\\circ",
    "^{\\circ}",
    "\\;",
    ",\\!",
    "{,}",
    "\"",
];
const LAST_REMOVED: &str = "\\dots";

fn normal(answer: &str) -> Result<String, String> {
    let mut text = answer.rsplit('=').next().unwrap_or_default().to_string();
    let is_word = |expression: &&str| expression.chars().all(char::is_alphabetic);
    for unit in REMOVED.into_iter().filter(is_word) {
        if text.contains(unit) {
            text = replace(&text, &format!(r"(?<!\\)\b{unit}\b"), "")?;
        }
    }
    for (from, to) in SUBSTITUTED {
        text = text.replace(from, to);
    }
    for removed in REMOVED.into_iter().chain([LAST_REMOVED]) {
        text = if is_word(&removed) { outside_commands(&text, removed) } else { text.replace(removed, "") };
    }
    for (pattern, with) in [
        (r"(.*?)(\$)(.*?)(\$)(.*)", r"$\3$"),
        (r"(\\text\{)(.*?)(\})", r"\2"),
        (r"(\\textbf\{)(.*?)(\})", r"\2"),
        (r"(\\overline\{)(.*?)(\})", r"\2"),
        (r"(\\boxed\{)(.*)(\})", r"\2"),
        (r"(frac)([^{])(.)", r"frac{\2}{\3}"),
        (r"(sqrt)(\[[^\]]*\])(\w)", r"\1\2{\3}"),
        (r"(sqrt)(?!\[)([^{])", r"sqrt{\2}"),
    ] {
        text = replace(&text, pattern, with)?;
    }
    text = text.replace('$', "");
    let is_grouped = !Pattern::new(r"\A-?\d{1,3}(,\d{3})+\z")?.find_all(&text)?.is_empty();
    Ok(if is_grouped { text.replace(',', "") } else { text })
}

/// A text without a word, except within the names of commands.
fn outside_commands(text: &str, word: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    let is_letter = |c: &char| c.is_ascii_alphabetic();
    loop {
        let begins = |at: &usize| rest[at + 1..].starts_with(|c: char| c.is_ascii_alphabetic());
        let Some(at) = rest.match_indices('\\').map(|found| found.0).find(begins) else { break };
        let name = 1 + rest[at + 1..].chars().take_while(is_letter).count();
        out += &rest[..at].replace(word, "");
        out += &rest[at..at + name];
        rest = &rest[at + name..];
    }
    out + &rest.replace(word, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_from_boxes_and_dollars() {
        assert_eq!(boxed(r"so $\boxed{\frac{1}{2}}$.").as_deref(), Some(r"\frac{1}{2}"));
        assert_eq!(boxed(r"$\boxed 7$ and").as_deref(), Some("7"));
        assert_eq!((boxed("none"), boxed(r"\boxed{1")), (None, None));
        assert!(is_right(r"It is $x = \frac12$.", r"\boxed{\frac{1}{2}}"));
        assert!(is_right("0.5", r"\boxed{1/2}") && !is_right("2", r"\boxed{3}"));
        let answer = r"Final Answer: The final answer is $12{,}000$ dollars. I hope it is correct.";
        assert!(
            is_final(answer, r"\boxed{12,000}").unwrap() && !is_final("12000", r"\boxed{12000}").unwrap()
        );
    }
}
