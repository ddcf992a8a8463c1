//! Which language a page is in: by its text, and where that is not certain by what it declares.

use crate::language::{Language, built_in, script_of, two_letters};

/// So much of a text is looked at, in bytes.
const SAMPLE: usize = 16 << 10;
/// From this confidence on the detector is believed, whatever the page declares.
const CERTAIN: f32 = 0.5;
/// The element `html` stands within so many bytes.
const HEAD: usize = 4096;

/// The language of a page with this text; none where nothing tells it.
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

/// Whether a language is more than a guess.
pub(super) fn is_certain(language: &Language) -> bool {
    language.score >= CERTAIN
}

/// The language of `<html lang=..>`, by its shortest code.
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
