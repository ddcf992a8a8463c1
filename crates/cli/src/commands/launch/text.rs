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

/// A name that Kubernetes and Slurm accept: lower case letters, digits and hyphens, not at its ends, at most 40.
pub fn label(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let text: String = name.chars().map(plain).collect();
    let text: String = text.trim_matches('-').chars().take(40).collect();
    if text.is_empty() { "fathom".into() } else { text.trim_end_matches('-').into() }
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
    }
}
