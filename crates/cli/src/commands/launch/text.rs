//! Quoting for shells and YAML, object names, and indentation.

use anyhow::{Result, bail};

/// Quotes a word for a shell.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A command line.
pub fn command<S: AsRef<str>>(words: &[S]) -> String {
    words.iter().map(|word| quote(word.as_ref())).collect::<Vec<_>>().join(" ")
}

/// Words that YAML does not read as strings.
const WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"];

/// A name valid for Slurm and Kubernetes, including Services (RFC 1035): lower case letters, digits and hyphens, at
/// most 40, starting with a letter and not ending with a hyphen.
pub fn label(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let text: String = name.chars().map(plain).collect();
    let text = text.trim_matches('-');
    let is_name = text.starts_with(|c: char| c.is_ascii_lowercase()) && !WORDS.contains(&text);
    let text = if is_name { text.to_string() } else { format!("fathom-{text}") };
    text.chars().take(40).collect::<String>().trim_end_matches('-').into()
}

/// Checks a flag's value, which must stay on its line: a line break would start another option or key.
///
/// # Errors
/// Control characters.
pub fn one_line<'a>(flag: &str, value: &'a str) -> Result<&'a str> {
    if value.chars().any(char::is_control) {
        bail!("{flag} {value:?} holds a line break or another control character; give one line of text");
    }
    Ok(value)
}

/// A YAML string: plain if unambiguous, otherwise as JSON.
pub fn scalar(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    let is_name = word.starts_with(|c: char| c.is_ascii_alphabetic()) && !word.ends_with(':');
    if is_name && word.chars().all(plain) && !WORDS.contains(&word.to_ascii_lowercase().as_str()) {
        word.into()
    } else {
        string(word)
    }
}

/// A quoted YAML string.
pub fn string(word: &str) -> String {
    serde_json::Value::from(word).to_string()
}

/// Escapes a text for Kubernetes, which expands `$(NAME)` in commands and reads `$$` as a dollar sign.
pub fn as_it_is(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        out.push(c);
        if c == '$' && rest.peek().is_some_and(|next| ['$', '('].contains(next)) {
            out.push('$');
        }
    }
    out
}

/// Indents every line.
pub fn indent(text: &str, columns: usize) -> String {
    let shift =
        |line: &str| if line.is_empty() { String::new() } else { format!("{}{line}", " ".repeat(columns)) };
    text.lines().map(shift).collect::<Vec<_>>().join("\n")
}

/// A YAML list of strings.
pub fn list(words: &[String]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| string(word)).collect();
    format!("[{}]", quoted.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(
            command(&["fathom", "train", "a b", "mesh.tp=2", "x='y'", ""]),
            r"fathom train 'a b' mesh.tp=2 'x='\''y'\''' ''"
        );
    }

    #[test]
    fn strings_stay_strings_in_yaml() {
        for plain in ["runs", "registry.example/fathom:1", "a@sha256:0f"] {
            assert_eq!(scalar(plain), plain);
        }
        for other in
            ["", "1", "1e3", "0x1", "1:30", "No", "null", "a: b", "a:", "a}", "a #b", "~", "- a", "é"]
        {
            assert_eq!(scalar(other), format!("\"{other}\""));
        }
        assert_eq!(scalar("a\"b\\"), r#""a\"b\\""#);
        assert_eq!(one_line("--image", "a b").unwrap(), "a b");
        for broken in ["a\nb", "a\r", "\u{85}", "\0"] {
            assert!(one_line("--image", broken).unwrap_err().to_string().contains("--image"));
        }
    }

    /// Kubernetes' expansion of a command whose variables are all empty.
    fn expanded(text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            out += &rest[..at];
            rest = &rest[at + 1..];
            match (rest.strip_prefix('$'), rest.strip_prefix('(').and_then(|inner| inner.split_once(')'))) {
                (Some(after), _) => (out.push('$'), rest = after).1,
                (None, Some((_, after))) => rest = after,
                (None, None) => out.push('$'),
            }
        }
        out + rest
    }

    #[test]
    fn kubernetes_expands_nothing() {
        for text in ["plain", "$(HOME)", "$$", "$$(x)", "$HOME ${x} $", "a$$$(b)$(c", "\"$@\" $!"] {
            assert_eq!(expanded(&as_it_is(text)), text);
        }
        assert_eq!(as_it_is("kill $(pidof fathom) $x"), "kill $$(pidof fathom) $x");
    }

    #[test]
    fn labels_are_plain() {
        assert_eq!(label("Llama 3 / 8B!"), "llama-3---8b");
        assert_eq!(label("--"), "fathom");
        for (name, expected) in
            [("7b", "fathom-7b"), ("123", "fathom-123"), ("No", "fathom-no"), ("node", "node")]
        {
            assert_eq!(label(name), expected);
        }
        assert_eq!(label(&format!("{}-x", "a".repeat(39))), "a".repeat(39));
    }
}
