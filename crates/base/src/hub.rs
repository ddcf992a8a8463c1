//! Names of models on the Hugging Face hub. Fathom fetches nothing from there: it says what to type.

use std::path::Path;

/// What to do about a path that does not exist, if it looks like the name of a model on the hub: `ORG/MODEL`.
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

/// Whether the hub allows an organisation or a model to be called so. No such name needs quotes in a shell.
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
