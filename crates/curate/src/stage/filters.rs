//! Row-wise stages that drop texts by counted features: heuristics, C4's page cleaning, characters, code, tokens.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{Array, StringArray, UInt64Array};
use fathom_prose::filter::{
    C4, C4Options, CodeFile, CodeFilters, CodeOptions, FilterOptions, Filters, Histogram, Refusal, Score,
    Scratch, TokenFilter,
};
use fathom_text::tokenizer::Tokenizer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::Maker;
use super::option_names;
use super::text::with_texts;
use super::tokenize::{open_tokenizer, tokenizer_file};
use crate::document::file_of;
use crate::error::Error;
use crate::pipeline::{Batch, Stage, Tally, Work};

/// Number of documents at the start of a batch that are scored by every filter, for the distributions; for the
/// others, scoring stops at the first rejection.
const MEASURED: usize = 256;

/// Heuristic text filters, in one pass.
pub(super) struct Heuristics(Filters);

impl Maker for Heuristics {
    type Options = FilterOptions;
    const NAME: &'static str = "heuristics";
    const ABOUT: &'static str = "the filters of NeMo Curator, Gopher, mC4 and FineWeb in one pass";

    fn make(options: FilterOptions) -> Result<Work, Error> {
        Ok(Work::Rows(Box::new(Heuristics(Filters::new(&option_names::of_reports(options))?))))
    }
}

impl Stage for Heuristics {
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error> {
        let mut scratch = Scratch::default();
        let mut scores = Vec::new();
        let mut keep = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            let document = (batch.id(row), batch.text(row));
            let verdict = if row < MEASURED {
                let verdict = self.0.scores(document.1, &mut scratch, &mut scores);
                note(&scores, &option_names::of_heuristics, &|name| self.0.limits(name), document, tally);
                verdict
            } else {
                self.0.check(document.1, &mut scratch)
            };
            if let Err(refusal) = verdict {
                tally.drop(&option_names::of_heuristics(refusal.reason), document.1.len() as u64);
            }
            keep.push(verdict.is_ok());
        }
        Ok(batch.keep(&keep))
    }
}

/// Adds the scores of a document to the distributions, under the names of the options.
fn note(
    scores: &[Score],
    shown: &dyn Fn(&'static str) -> Cow<'static, str>,
    limits: &dyn Fn(&str) -> Option<(f64, f64)>,
    document: (&str, &str),
    tally: &mut Tally,
) {
    for score in scores {
        let (low, high) = limits(score.name).unwrap_or((f64::NEG_INFINITY, f64::INFINITY));
        let finite: Vec<f64> = [low, high].into_iter().filter(|limit| limit.is_finite()).collect();
        tally.decided(&shown(score.name), score.value, &finite, score.keep, document);
    }
}

/// C4's page cleaning.
pub(super) struct C4Pages(C4, C4Options);

impl Maker for C4Pages {
    type Options = C4Options;
    const NAME: &'static str = "c4";
    const ABOUT: &'static str =
        "C4's page cleaning: drops lines that are no sentences, and pages by what is on them";

    fn make(options: C4Options) -> Result<Work, Error> {
        Ok(Work::Rows(Box::new(C4Pages(C4::new(&options)?, options))))
    }
}

impl Stage for C4Pages {
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error> {
        let found: Vec<Result<String, Refusal>> =
            (0..batch.rows()).map(|row| self.0.clean(batch.text(row))).collect();
        let keep: Vec<bool> = found.iter().map(Result::is_ok).collect();
        let mut texts = Vec::with_capacity(found.len());
        for (row, found) in found.into_iter().enumerate() {
            match found {
                Ok(text) => texts.push(Cow::Owned(text)),
                Err(refusal) => {
                    tally.drop(option_names::of_c4(refusal.reason), batch.text(row).len() as u64);
                }
            }
        }
        with_texts(&batch.keep(&keep), &texts, "empty_after_cleaning", tally)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.1.bad_words_file.iter().cloned().collect()
    }
}

/// Options of `histogram`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HistogramOptions {
    /// File with the usual characters of the language: the first of each line, up to a line that begins with `]`, as in
    /// NLLB's files of histograms.
    pub file: PathBuf,
    /// Texts stay whose share of usual characters is above this (NLLB: 0.8).
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub threshold: f64,
}

impl Default for HistogramOptions {
    fn default() -> Self {
        HistogramOptions { file: PathBuf::new(), threshold: 0.8 }
    }
}

/// NLLB's filter by the character set of a language.
pub(super) struct Characters(Histogram, HistogramOptions);

impl Maker for Characters {
    type Options = HistogramOptions;
    const NAME: &'static str = "histogram";
    const ABOUT: &'static str =
        "drops texts with few of the characters that their language uses, by NLLB's files of histograms";

    fn make(options: HistogramOptions) -> Result<Work, Error> {
        let refuse = |key, found: &dyn ToString, advice: &str| {
            Err(Error::Setting { key, found: found.to_string(), advice: advice.to_owned() })
        };
        if options.file.as_os_str().is_empty() {
            return refuse("file", &"empty", "name a file of characters, one a line");
        }
        if !(0.0..1.0).contains(&options.threshold) {
            return refuse("threshold", &options.threshold, "it is a share, give a number from 0 to below 1");
        }
        Ok(Work::Rows(Box::new(Characters(Histogram::open(&options.file, options.threshold)?, options))))
    }
}

impl Stage for Characters {
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error> {
        let mut keep = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            let document = (batch.id(row), batch.text(row));
            let value = self.0.score(document.1);
            let kept = value > self.1.threshold;
            tally.decided("threshold", value, &[self.1.threshold], kept, document);
            if !kept {
                tally.drop("threshold", document.1.len() as u64);
            }
            keep.push(kept);
        }
        Ok(batch.keep(&keep))
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.1.file.clone()]
    }
}

/// Filters of source code.
pub(super) struct Code(CodeFilters, CodeOptions);

impl Maker for Code {
    type Options = CodeOptions;
    const NAME: &'static str = "code";
    const ABOUT: &'static str =
        "the filters of source code: comments, lines, letters, markup, rules by file extension";

    fn make(options: CodeOptions) -> Result<Work, Error> {
        Ok(Work::Rows(Box::new(Code(CodeFilters::new(&options)?, options))))
    }
}

impl Code {
    /// Lowest and highest value that a filter accepts.
    fn limits(&self, filter: &str) -> Option<(f64, f64)> {
        let above = |low: f64| Some((low, f64::INFINITY));
        match filter {
            "num_lines" => Some(self.1.num_lines),
            "longest_line" => Some((0.0, self.1.longest_line)),
            "alpha" => above(self.1.alpha),
            "comment_ratio" => Some(self.1.comment_ratio),
            "html_boilerplate" => above(self.1.html_boilerplate),
            _ => None,
        }
    }
}

/// The text column named by an option of `code`.
fn named<'b>(batch: &'b Batch, key: &str, name: &str) -> Result<&'b StringArray, Error> {
    batch.column(name).ok_or_else(|| {
        let schema = batch.table().schema();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        let names = names.join(", ");
        let detail =
            format!("`code` reads the column `{name}` ({key}), and there is none of text; there are {names}");
        Error::Table { detail }
    })
}

impl Stage for Code {
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error> {
        let files = named(&batch, "file_column", &self.1.file_column)?;
        let languages = self.1.language_column.as_deref();
        let languages = languages.map(|name| named(&batch, "language_column", name)).transpose()?;
        let mut scores = Vec::new();
        let mut keep = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            let document = (batch.id(row), batch.text(row));
            let path = if files.is_valid(row) { file_of(files.value(row)) } else { "" };
            let language = languages.filter(|names| names.is_valid(row)).map(|names| names.value(row));
            let verdict = self.0.scores(document.1, CodeFile { path, language }, &mut scores);
            if row < MEASURED {
                note(&scores, &option_names::of_code, &|name| self.limits(name), document, tally);
            }
            if let Err(refusal) = verdict {
                tally.drop(&option_names::of_code(refusal.reason), document.1.len() as u64);
            }
            keep.push(verdict.is_ok());
        }
        Ok(batch.keep(&keep))
    }

    fn files(&self) -> Vec<PathBuf> {
        self.1.extensions.iter().cloned().collect()
    }
}

/// Options of `tokens`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TokensOptions {
    /// A `tokenizer.json` or a folder that holds one.
    pub tokenizer: PathBuf,
    /// Fewest and most tokens; `inf` for no limit.
    pub token_count: (f64, f64),
    /// Fewest characters a token (NeMo Curator: 2.5 for code); 0 for no rule.
    #[schemars(range(min = 0))]
    pub fertility: f64,
}

impl Default for TokensOptions {
    fn default() -> Self {
        TokensOptions { tokenizer: PathBuf::new(), token_count: (0.0, f64::INFINITY), fertility: 0.0 }
    }
}

/// Filters texts by their number of tokens.
pub(super) struct Tokens(TokenFilter, Tokenizer, TokensOptions);

impl Maker for Tokens {
    type Options = TokensOptions;
    const NAME: &'static str = "tokens";
    const ABOUT: &'static str =
        "counts tokens (column tokens); drops texts with too few, too many, or too few characters a token";

    fn make(options: TokensOptions) -> Result<Work, Error> {
        if options.tokenizer.as_os_str().is_empty() {
            let advice = "name a tokenizer.json or a folder that holds one".to_owned();
            return Err(Error::Setting { key: "tokenizer", found: "empty".to_owned(), advice });
        }
        let filter = TokenFilter::new(options.token_count, options.fertility)?;
        Ok(Work::Rows(Box::new(Tokens(filter, open_tokenizer(&options.tokenizer)?, options))))
    }
}

impl Stage for Tokens {
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error> {
        let limits = |name: &str| match name {
            "token_count" => Some(self.2.token_count),
            _ => Some((self.2.fertility, f64::INFINITY)),
        };
        let mut scores = Vec::new();
        let mut keep = Vec::with_capacity(batch.rows());
        let mut counts = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            let document = (batch.id(row), batch.text(row));
            let tokens = self.1.encode(document.1)?.len() as u64;
            self.0.scores(document.1, tokens, &mut scores);
            note(&scores, &option_names::of_tokens, &limits, document, tally);
            let refusal = scores.iter().find(|score| !score.keep);
            if let Some(refusal) = refusal {
                tally.drop(&option_names::of_tokens(refusal.name), document.1.len() as u64);
            }
            keep.push(refusal.is_none());
            counts.push(tokens);
        }
        Ok(batch.with_column("tokens", Arc::new(UInt64Array::from(counts))).keep(&keep))
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![tokenizer_file(&self.2.tokenizer)]
    }
}

#[cfg(test)]
mod tests {
    use super::file_of;

    #[test]
    fn ids_name_files() {
        for (id, file) in
            [("a/b.py", "a/b.py"), ("a.jsonl#12", "a.jsonl"), ("c#/x.cs", "c#/x.cs"), ("c#", "c#")]
        {
            assert_eq!(file_of(id), file);
        }
    }
}
