//! Languages that a detector can return: requesting any other would drop every text.

use super::codes::{JAPANESE, iso_15924, two_letters};
use crate::Error;
use whatlang::{Lang, Script};

/// A detectable language.
pub(super) struct DetectorLanguage {
    /// ISO 639-1 code if one exists, otherwise the detector's code.
    code: String,
    /// ISO 15924 codes of its scripts; empty if the script is determined from the text.
    scripts: Vec<String>,
    /// English name, in lower case.
    name: String,
}

pub(super) fn built_in() -> Vec<DetectorLanguage> {
    let of = |lang: &Lang| {
        let scripts = Script::all().iter().filter(|script| script.langs().contains(lang));
        let mut scripts: Vec<String> = scripts.map(|script| iso_15924(*script).to_string()).collect();
        if *lang == Lang::Jpn {
            scripts = vec![JAPANESE.to_string()];
        }
        DetectorLanguage {
            code: two_letters(lang.code()).to_string(),
            scripts,
            name: lang.eng_name().to_lowercase(),
        }
    };
    Lang::all().iter().map(of).collect()
}

/// Languages of a model with these labels.
pub(super) fn of_labels(labels: &[String]) -> Vec<DetectorLanguage> {
    let of = |label: &String| {
        let (code, script) = parts_of(label);
        let name = built_in().into_iter().find(|known| known.code == code).map_or(String::new(), |k| k.name);
        DetectorLanguage {
            code: code.to_string(),
            scripts: script.map(str::to_string).into_iter().collect(),
            name,
        }
    };
    labels.iter().map(of).collect()
}

/// Language of a model's label, as its shortest code, and its script if the label includes one.
pub(super) fn parts_of(label: &str) -> (&str, Option<&str>) {
    let label = label.trim_start_matches("__label__");
    match label.split_once('_') {
        Some((code, script)) => (two_letters(code), Some(script)),
        None => (two_letters(label), None),
    }
}

/// Rejects a wanted language that `detector` cannot return.
pub(super) fn check(wanted: &[String], known: &[DetectorLanguage], detector: &str) -> Result<(), Error> {
    for word in wanted {
        let (language, script) = word.split_once('_').unwrap_or((word, ""));
        let language = language.to_ascii_lowercase();
        let same: Vec<&DetectorLanguage> =
            known.iter().filter(|known| known.code == two_letters(&language)).collect();
        let advice = if same.is_empty() {
            match known.iter().find(|known| !known.name.is_empty() && known.name == language) {
                Some(known) => format!("write `{}` for it", known.code),
                None => {
                    let mut codes: Vec<&str> = known.iter().map(|known| known.code.as_str()).collect();
                    codes.sort_unstable();
                    codes.dedup();
                    format!("{detector} finds {}", codes.join(", "))
                }
            }
        } else {
            let fits = |known: &DetectorLanguage| {
                let same = |known: &String| known.eq_ignore_ascii_case(script);
                script.is_empty() || known.scripts.is_empty() || known.scripts.iter().any(same)
            };
            if same.iter().any(|known| fits(known)) {
                continue;
            }
            let scripts: Vec<&str> =
                same.iter().flat_map(|known| &known.scripts).map(String::as_str).collect();
            format!("{detector} finds this language in the scripts {}", scripts.join(", "))
        };
        return Err(Error::Option {
            piece: "language",
            key: "languages".to_string(),
            found: format!("`{word}`"),
            advice,
        });
    }
    Ok(())
}
