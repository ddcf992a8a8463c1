//! Tolerates output of Python's `json` that is not JSON: `NaN` and `Infinity`, and unpaired surrogates.

use std::borrow::Cow;

/// Non-finite numbers.
const NO_NUMBERS: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
/// Replacement for unpaired surrogates, U+FFFD.
const REPLACEMENT: &[u8] = b"\\ufffd";

/// Parses a line, also accepting Python's extensions. They are looked for only after a parse failure, so that valid
/// lines cost nothing extra.
pub(crate) fn leniently<T>(
    line: &[u8],
    parse: impl Fn(&[u8]) -> Result<T, serde_json::Error>,
) -> Result<T, serde_json::Error> {
    parse(line).or_else(|error| match as_json(line) {
        Cow::Owned(mended) => parse(&mended),
        Cow::Borrowed(_) => Err(error),
    })
}

/// Rewrites the line as JSON: `null` for non-finite numbers, U+FFFD for each unpaired surrogate. Borrowed if there is
/// nothing to replace.
fn as_json(line: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    // Number of input bytes already covered by `out`.
    let mut done = 0;
    let mut replace = |from: usize, to: usize, by: &[u8]| {
        out.extend_from_slice(&line[done..from]);
        out.extend_from_slice(by);
        done = to;
    };
    let (mut at, mut in_string) = (0, false);
    while let Some(&byte) = line.get(at) {
        let rest = &line[at..];
        at += match byte {
            b'"' => {
                in_string = !in_string;
                1
            }
            b'\\' if in_string => {
                let (length, sound) = escape(rest);
                if !sound {
                    replace(at, at + length, REPLACEMENT);
                }
                length
            }
            b'N' | b'I' | b'-' if !in_string => match NO_NUMBERS.iter().find(|word| rest.starts_with(word)) {
                Some(word) => {
                    replace(at, at + word.len(), b"null");
                    word.len()
                }
                None => 1,
            },
            _ => 1,
        };
    }
    if done == 0 {
        return Cow::Borrowed(line);
    }
    out.extend_from_slice(&line[done..]);
    Cow::Owned(out)
}

/// Length of the escape at the start of `text`, with a surrogate pair counted as one, and true if it denotes a
/// character.
fn escape(text: &[u8]) -> (usize, bool) {
    match (unit(text), text.get(6..).and_then(unit)) {
        (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (12, true),
        (Some(0xd800..=0xdfff), _) => (6, false),
        (Some(_), _) => (6, true),
        (None, _) => (2, true),
    }
}

/// Value of an escape `\u1234`.
fn unit(text: &[u8]) -> Option<u16> {
    let digits = std::str::from_utf8(text.strip_prefix(b"\\u")?.get(..4)?).ok()?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: &str) {
        assert_eq!(String::from_utf8_lossy(&as_json(line.as_bytes())), expected);
    }

    #[test]
    fn only_what_is_no_json_changes() {
        for line in [
            "",
            "{}",
            r#"{"a": "NaN \" -Infinity", "b": -1}"#,
            r#"{"a": "\ud83d\ude00\\ud83d \u00e9"}"#,
            "\"\\",
        ] {
            check(line, line);
            assert!(matches!(as_json(line.as_bytes()), Cow::Borrowed(_)), "{line}");
        }
        check(
            r#"{"a":NaN,"b":[-Infinity, Infinity],"NaN":"NaN"}"#,
            r#"{"a":null,"b":[null, null],"NaN":"NaN"}"#,
        );
        check(r#"{"a":"x\ud83d","b":NaN}"#, r#"{"a":"x\ufffd","b":null}"#);
        check(
            r#"["\ude00\ud83d", "\ud83d\ud83d\ude00\u12"]"#,
            r#"["\ufffd\ufffd", "\ufffd\ud83d\ude00\u12"]"#,
        );
    }
}
