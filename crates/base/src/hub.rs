//! Model names of the Hugging Face hub. Fathom downloads nothing itself; it prints the command to use.

use std::path::Path;

/// Advice for a nonexistent path that looks like a model name of the hub: `ORG/MODEL`.
pub fn advice(path: &Path) -> Option<String> {
    let name = path.to_str()?;
    let (organisation, model) = name.split_once('/')?;
    if !is_part(organisation) || !is_part(model) || path.exists() {
        return None;
    }
    Some(format!(
        "if it is a model of the Hugging Face hub, fetch it with the hub's own client (pip install huggingface_hub) and run this \
         again: hf download {name} --local-dir {name}"
    ))
}

/// Returns true for valid names of organizations and models on the hub. Such names never need quotes in a shell.
fn is_part(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    name.len() <= 96 && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub_are_distinguished_from_paths() {
        let says = |path: &str| advice(Path::new(path));
        let found = says("google/gemma-3-4b-it").unwrap();
        assert!(
            found.ends_with("hf download google/gemma-3-4b-it --local-dir google/gemma-3-4b-it"),
            "{found}"
        );
        assert!(says("meta-llama/Llama-3.2-1B").is_some());
        for path in
            ["gemma", "a/b/c", "/google/gemma", "../gemma", "google/", "google/gem ma", "-a/b", "src/hub.rs"]
        {
            assert_eq!(says(path), None, "{path}");
        }
    }
}
