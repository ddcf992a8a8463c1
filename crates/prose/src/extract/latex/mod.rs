//! LaTeX papers to text: sections become headings, equations are kept, macros of the paper are expanded; comments,
//! floats and the bibliography are left out.
//!
//! The converter supports TeX as used in papers, with arguments and braces, but is not a TeX engine: catcodes,
//! counters and conditionals (except `\iffalse`) are not supported. Expansion is bounded in depth, number and size.

mod input;
mod literal;
mod macros;
mod options;
mod render;
mod symbols;

use std::collections::BTreeMap;

use literal::Command;
pub use options::LatexOptions;

use super::refusal::Refusal;
use crate::extract::LatexFile;

/// Extractor with fixed options, for any number of papers.
#[derive(Clone, Debug, Default)]
pub struct Latex {
    options: LatexOptions,
}

/// Maximum number of included files.
const MAX_INCLUDES: usize = 500;

impl Latex {
    /// Creates an extractor with these options.
    pub fn new(options: &LatexOptions) -> Latex {
        Latex { options: options.clone() }
    }

    /// Extracts the text of a paper from its sources.
    ///
    /// # Errors
    /// [`Refusal::NoDocument`] if no file is a paper; [`Refusal::PageTooLarge`], [`Refusal::ExpansionTooLarge`] or
    /// [`Refusal::NoContent`].
    pub fn extract(&self, files: &[LatexFile]) -> Result<String, Refusal> {
        let limit = self.options.max_paper_bytes;
        if files.iter().map(|f| f.text.len()).sum::<usize>() > limit {
            return Err(Refusal::PageTooLarge);
        }
        let sources: BTreeMap<&str, String> =
            files.iter().map(|f| (f.path.as_str(), literal::without_comments(&f.text))).collect();
        let main = main_file(&sources).ok_or(Refusal::NoDocument)?;
        let mut whole = String::new();
        let mut includes = 0;
        include(&sources, main, &mut Vec::new(), &mut includes, limit, &mut whole)?;
        let has_sections =
            ["\\section", "\\chapter", "\\subsection", "\\paragraph"].iter().any(|s| whole.contains(s));
        if self.options.require_sections && !has_sections {
            return Err(Refusal::NoDocument);
        }
        let preamble = whole.contains("\\begin{document}");
        let text = render::Render::new(&self.options, whole, preamble).run()?;
        if text.trim().is_empty() { Err(Refusal::NoContent) } else { Ok(text) }
    }
}

/// Main file of the paper: the one with a document, the largest if there are several; otherwise the largest TeX file.
fn main_file<'a>(sources: &BTreeMap<&'a str, String>) -> Option<&'a str> {
    let is_tex = |path: &str| ![".sty", ".cls", ".def"].iter().any(|end| path.to_lowercase().ends_with(end));
    let largest = |wanted: &dyn Fn(&str) -> bool| {
        let candidates = sources.iter().filter(|(path, text)| is_tex(path) && wanted(text));
        // Ties are resolved by name, independent of the order in the archive.
        candidates.max_by_key(|(path, text)| (text.len(), std::cmp::Reverse(**path))).map(|(path, _)| *path)
    };
    let has_class = |text: &str| text.contains("\\documentclass") || text.contains("\\documentstyle");
    largest(&|text| has_class(text) && text.contains("\\begin{document}"))
        .or_else(|| largest(&|text| text.contains("\\begin{document}")))
        .or_else(|| largest(&|text| text.contains('\\')))
}

/// Writes file `path` and the files it includes.
fn include<'a>(
    sources: &'a BTreeMap<&str, String>,
    path: &'a str,
    inside: &mut Vec<&'a str>,
    includes: &mut usize,
    limit: usize,
    out: &mut String,
) -> Result<(), Refusal> {
    let Some(text) = sources.get(path) else { return Ok(()) };
    inside.push(path);
    let mut rest = text.as_str();
    while let Some((before, wanted, after)) = next_include(rest) {
        out.push_str(before);
        rest = after;
        let found = resolve(sources, wanted).filter(|found| !inside.contains(found));
        if let Some(found) = found
            && *includes < MAX_INCLUDES
        {
            *includes += 1;
            include(sources, found, inside, includes, limit, out)?;
        }
        if out.len() > limit {
            return Err(Refusal::ExpansionTooLarge);
        }
    }
    out.push_str(rest);
    inside.pop();
    Ok(())
}

/// Finds the next `\input{file}` or similar: the text before, the name, and the text after.
fn next_include(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    while let Some(found) = text[from..].find('\\') {
        let at = from + found;
        let rest = &text[at + 1..];
        from = at + 1;
        if let Some(name) = literal::begins_verbatim(&text[at..]) {
            let end = format!("\\end{{{name}}}");
            from = text[from..].find(&end).map_or(text.len(), |found| from + found);
            continue;
        }
        if let Command::Literal(length) = literal::command(&text[at..]) {
            from = at + length;
            continue;
        }
        for command in ["input", "include", "subfile", "subimport", "import"] {
            let Some(behind) = rest.strip_prefix(command) else { continue };
            let name = behind.trim_start_matches([' ', '\t']);
            let (name, after) = if let Some(inner) = name.strip_prefix('{') {
                let Some(close) = inner.find(['}', '\n']) else { continue };
                (&inner[..close], &inner[close + 1..])
            } else if command == "input" && name.len() < behind.len() {
                // Plain TeX: `\input file`.
                let end = name.find(char::is_whitespace).unwrap_or(name.len());
                (&name[..end], &name[end..])
            } else {
                continue;
            };
            if command.ends_with("import")
                && let Some(inner) = after.trim_start().strip_prefix('{')
                && let Some(close) = inner.find('}')
            {
                // The folder is irrelevant, since `resolve` compares the ends of paths.
                return Some((&text[..at], &inner[..close], &inner[close + 1..]));
            }
            return Some((&text[..at], name, after));
        }
        from += rest.chars().next().map_or(0, char::len_utf8);
    }
    None
}

/// File denoted by a name: verbatim, with `.tex`, or by its last component.
fn resolve<'a>(sources: &'a BTreeMap<&str, String>, wanted: &str) -> Option<&'a str> {
    let wanted = wanted.trim().trim_matches('"').trim_start_matches("./");
    if wanted.is_empty() {
        return None;
    }
    let with_extension = format!("{wanted}.tex");
    let last = |path: &str| path.rsplit('/').next().unwrap_or(path).to_string();
    let names = [wanted.to_string(), with_extension.clone()];
    let whole = names.iter().find_map(|name| sources.get_key_value(name.as_str()));
    whole
        .or_else(|| {
            sources.iter().find(|(path, _)| last(path) == last(&with_extension) || last(path) == last(wanted))
        })
        .map(|(path, _)| *path)
}
