//! Rules by language and file extension (StarCoder, Li et al. 2023, as in NeMo Curator).

use super::Refusal;
use super::unicode::count_chars;
use crate::Error;
use std::collections::BTreeMap;
use std::path::Path;

/// Rules for one extension.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExtensionRule {
    /// True if such files are wanted at all.
    pub include: bool,
    /// Maximum characters of the longest line; the mean line length is then limited to 100.
    pub max_line: Option<u64>,
    /// Minimum share of `[a-zA-Z0-9\n?!,.]`.
    pub min_alphanumeric: Option<f64>,
    /// Minimum share of letters.
    pub min_alphabetic: Option<f64>,
}

/// Rules by extension and language, as in the CSV table of the StarCoder project.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtensionRules {
    rules: BTreeMap<(String, String), ExtensionRule>,
}

impl ExtensionRules {
    /// Reads a table from a file.
    ///
    /// # Errors
    /// [`Error::Read`] if the file cannot be read, and those of [`ExtensionRules::parse`].
    pub fn open(path: &Path) -> Result<ExtensionRules, Error> {
        ExtensionRules::parse(&std::fs::read_to_string(path).map_err(|e| Error::read(path, e))?)
    }

    /// Parses a table with the columns `language, extension, Include, Long_line_threshold, Alphanum_threshold, Alpha
    /// filter`; values that are not numbers mean no rule.
    ///
    /// # Errors
    /// [`Error::Option`] if a column is missing or there are no rows.
    pub fn parse(csv: &str) -> Result<ExtensionRules, Error> {
        let fault = |found: String, advice: &str| Error::Option {
            piece: "code",
            key: "extensions".to_string(),
            found,
            advice: advice.to_string(),
        };
        let mut lines = csv.lines();
        let head = csv_fields(lines.next().unwrap_or(""));
        let column = |name: &str| {
            head.iter().position(|h| h == name).ok_or_else(|| {
                fault(
                    format!("a table without the column `{name}`"),
                    "give StarCoder's table with its first line",
                )
            })
        };
        let (language, extension, include) = (column("language")?, column("extension")?, column("Include")?);
        let (line, alnum, alpha) =
            (column("Long_line_threshold")?, column("Alphanum_threshold")?, column("Alpha filter")?);
        let mut rules = BTreeMap::new();
        for row in lines.map(csv_fields) {
            let field = |i: usize| row.get(i).map_or("", String::as_str);
            let rule = ExtensionRule {
                include: field(include) == "1",
                max_line: field(line).trim().parse().ok(),
                min_alphanumeric: field(alnum).trim().parse().ok(),
                min_alphabetic: field(alpha).trim().parse().ok(),
            };
            if !field(language).is_empty() {
                let extension = field(extension).trim_start_matches('.').to_ascii_lowercase();
                rules.insert((extension, spelling(field(language))), rule);
            }
        }
        if rules.is_empty() {
            return Err(fault("a table without rows".to_string(), "add rows"));
        }
        Ok(ExtensionRules { rules })
    }

    /// Checks `source` by the rules of its language (`C#`, `Jupyter Notebook`, ..) and extension:
    /// `extension_unknown`, `extension_excluded`, `extension_line_length`, `extension_alphanumeric`,
    /// `extension_alphabetic`. If the language is unknown, one of the languages with the extension must accept it;
    /// otherwise the refusal is that of the last included one by name.
    ///
    /// # Errors
    /// The [`Refusal`] with the measured value.
    pub fn check(&self, source: &str, language: Option<&str>, extension: &str) -> Result<(), Refusal> {
        let extension = extension.to_ascii_lowercase();
        let wanted = language.map(spelling);
        let from = (extension.clone(), String::new());
        let rules = self.rules.range(from..).take_while(|((of, _), _)| *of == extension);
        let mut verdict = Err(Refusal { reason: "extension_unknown", value: 0.0 });
        for ((_, name), rule) in rules {
            if wanted.as_ref().is_some_and(|wanted| wanted != name) {
                continue;
            }
            let found = rule.check(source);
            if found.is_ok() {
                return Ok(());
            }
            if rule.include || matches!(verdict, Err(Refusal { reason: "extension_unknown", .. })) {
                verdict = found;
            }
        }
        verdict
    }
}

/// Language name as spelled in StarCoder's table.
fn spelling(language: &str) -> String {
    match language {
        "C#" => "c-sharp".to_string(),
        "F#" => "f-sharp".to_string(),
        other => other.to_lowercase().replace(' ', "-"),
    }
}

impl ExtensionRule {
    fn check(&self, source: &str) -> Result<(), Refusal> {
        let refuse = |reason, value| Err(Refusal { reason, value });
        if !self.include {
            return refuse("extension_excluded", 0.0);
        }
        let chars = count_chars(source.as_bytes());
        if let Some(max) = self.max_line {
            let (mut lines, mut longest) = (0usize, 0);
            for line in source.split('\n') {
                lines += 1;
                longest = longest.max(count_chars(line.as_bytes()));
            }
            let mean = (chars + 1) as f64 / lines as f64 - 1.0;
            if longest as u64 > max || mean > 100.0 {
                return refuse("extension_line_length", longest as f64);
            }
        }
        let share = |count: usize| count as f64 / chars.max(1) as f64;
        if let Some(min) = self.min_alphanumeric {
            let plain = source.bytes().filter(|b| b.is_ascii_alphanumeric() || b"\n?!,.".contains(b)).count();
            if share(plain) < min {
                return refuse("extension_alphanumeric", share(plain));
            }
        }
        if let Some(min) = self.min_alphabetic {
            let letters = source.chars().filter(|c| c.is_alphabetic()).count();
            if share(letters) < min {
                return refuse("extension_alphabetic", share(letters));
            }
        }
        Ok(())
    }
}

fn csv_fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            c => {
                if let Some(field) = fields.last_mut() {
                    field.push(c);
                }
            }
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_go_by_language_and_extension() {
        let table = "language,extension,count,Include,Long_line_threshold,Alphanum_threshold,Alpha filter\n\
                     c,h,1,1,20,0.25,\nc-sharp,cs,1,1,,,0.5\nobjective-c,h,1,1,2000,,\nmaple,mpl,1,0,,,\n";
        let rules = ExtensionRules::parse(table).unwrap();
        let check = |source: &str, language: Option<&str>, extension: &str, reason: Option<&str>| {
            let found = rules.check(source, language, extension).err().map(|refusal| refusal.reason);
            assert_eq!(found, reason, "{source} {language:?} {extension}");
        };
        let long = "int main(void) { return 0; }";
        check(long, Some("C"), "h", Some("extension_line_length"));
        check(long, Some("objective-c"), "H", None);
        check(long, None, "h", None);
        check("@@@@@@", Some("C"), "h", Some("extension_alphanumeric"));
        check("1 + 2 + 3", Some("C#"), "cs", Some("extension_alphabetic"));
        check("a", None, "mpl", Some("extension_excluded"));
        check("a", Some("c"), "rs", Some("extension_unknown"));
        assert!(ExtensionRules::parse("language,extension\n").unwrap_err().to_string().contains("`Include`"));
    }
}
