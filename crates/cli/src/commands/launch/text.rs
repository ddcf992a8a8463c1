//! Words for shells, names for objects, and indentation.

/// A word as a shell reads it back.
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

/// What YAML reads as something else than a name.
const WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"];

/// A name that Slurm and Kubernetes accept, for a Service too (RFC 1035): lower case letters, digits and hyphens, at most 40, a
/// letter first and no hyphen last.
pub fn label(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let text: String = name.chars().map(plain).collect();
    let text = text.trim_matches('-');
    let is_name = text.starts_with(|c: char| c.is_ascii_lowercase()) && !WORDS.contains(&text);
    let text = if is_name { text.to_string() } else { format!("fathom-{text}") };
    text.chars().take(40).collect::<String>().trim_end_matches('-').into()
}

/// Every line so far to the right.
pub fn indent(text: &str, columns: usize) -> String {
    let shift =
        |line: &str| if line.is_empty() { String::new() } else { format!("{}{line}", " ".repeat(columns)) };
    text.lines().map(shift).collect::<Vec<_>>().join("\n")
}

/// A list of strings as YAML reads it.
pub fn list(words: &[String]) -> String {
    let quoted = words.iter().map(|word| serde_json::Value::from(word.as_str()).to_string());
    format!("[{}]", quoted.collect::<Vec<_>>().join(", "))
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
