//! Language of a page: detected from its text, or, if that is uncertain, as declared.

use crate::language::{Language, built_in, script_of, two_letters};

/// Maximum bytes of text examined.
const SAMPLE: usize = 16 << 10;
/// Confidence from which the detector overrides the declaration.
const CERTAIN: f32 = 0.5;
/// Bytes searched for the element `html`.
const HEAD: usize = 4096;

/// Language of a page with this text; `None` if it cannot be determined.
pub(super) fn of_page(page: &str, text: &str) -> Option<Language> {
    let found = built_in(text, SAMPLE);
    if found.as_ref().is_some_and(is_certain) {
        return found;
    }
    match declared(page) {
        Some(code) => Some(Language { code, script: script_of(text).to_string(), score: CERTAIN }),
        None => found,
    }
}

/// Returns true if a detected language is more than a guess.
pub(super) fn is_certain(language: &Language) -> bool {
    language.score >= CERTAIN
}

/// Language of `<html lang=..>`, as its shortest code.
fn declared(page: &str) -> Option<String> {
    let head = page[..page.floor_char_boundary(HEAD)].to_ascii_lowercase();
    let from = head.find("<html")?;
    let tag = head[from..].split('>').next()?;
    let at = tag.find(" lang=").or_else(|| tag.find(" xml:lang="))?;
    let value = tag[at..].split_once('=')?.1.trim_start_matches(['"', '\'', ' ']);
    let code: String = value.chars().take_while(char::is_ascii_lowercase).collect();
    (2..=3).contains(&code.len()).then(|| two_letters(&code).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_page_declares_helps_where_its_text_does_not() {
        for (page, code) in [
            ("<!doctype html><HTML class=a lang=\"de-AT\"><p>1", Some("de")),
            ("<html xml:lang='eng'>", Some("en")),
            ("<html lang=\"\">", None),
            ("<html><p lang=fr>", None),
            ("no page", None),
        ] {
            assert_eq!(declared(page).as_deref(), code, "{page}");
        }
        let german =
            "Der Ausschuss traf sich an einem regnerischen Abend und sprach über die Straßen der Stadt.";
        assert_eq!(of_page("<html lang=en>", german).unwrap().code, "de");
        assert_eq!(of_page("<html lang=pl>", "12 34").unwrap().code, "pl");
        assert_eq!(of_page("<html>", "12 34"), None);
    }
}
