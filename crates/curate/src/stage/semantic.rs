//! Deduplication of a whole table by meaning.

use std::path::PathBuf;

use fathom_base::{Embed, human};
use serde::{Deserialize, Serialize};

use super::dedup::{remove, say, scratch};
use super::{Maker, model};
use crate::dedup::{Duplicates, Preference, SemanticOptions, semantic, semantic_needs};
use crate::error::Error;
use crate::pipeline::{Barrier, Job, ModelSettings, RowSet, Tally, Work};

/// Options of `semantic`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SemanticStageOptions {
    /// The model that embeds: a Hugging Face folder, or a run of `fathom train`. A text's vector is the mean of the hidden
    /// states behind the last norm, at length 1.
    pub model: PathBuf,
    /// The first so many tokens of a text count (Curator's default for embeddings: 512).
    pub max_tokens: usize,
    /// Clusters of k-means. Curator: 100.
    pub clusters: usize,
    /// Most iterations of k-means. Curator: 300.
    pub max_iterations: usize,
    /// Movement of the centres below which k-means ends, relative to the variance. Curator: 1e-4.
    pub tolerance: f64,
    /// Documents of a cluster are the same above a cosine of 1 - eps. Curator: 0.01.
    pub eps: f64,
    /// Which one stays: `hard` the farthest from the centre, `easy` the nearest, `random`.
    pub keep: Preference,
    /// Documents that the centres are fitted to: all, up to so many, else a random sample.
    pub sample: usize,
}

impl Default for SemanticStageOptions {
    fn default() -> Self {
        let SemanticOptions { clusters, max_iterations, tolerance, eps, keep, sample, .. } =
            SemanticOptions::default();
        let (model, max_tokens) = (PathBuf::new(), 512);
        SemanticStageOptions { model, max_tokens, clusters, max_iterations, tolerance, eps, keep, sample }
    }
}

/// Keeps one of all documents that mean the same.
pub(super) struct Semantic {
    options: SemanticStageOptions,
    folder: PathBuf,
}

impl Maker for Semantic {
    type Options = SemanticStageOptions;
    const NAME: &'static str = "semantic";
    const ABOUT: &'static str =
        "keeps one of all documents that mean nearly the same (embeddings of a model, k-means, cosine)";

    fn make(options: SemanticStageOptions) -> Result<Work, Error> {
        let refuse =
            |key, found: String, advice: &str| Err(Error::Setting { key, found, advice: advice.to_owned() });
        let counts =
            [("max_tokens", options.max_tokens), ("clusters", options.clusters), ("sample", options.sample)];
        if let Some((key, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return refuse(key, "0".to_owned(), "choose at least one");
        }
        if !(0.0..=2.0).contains(&options.eps) {
            let advice =
                "it is 1 less the least cosine of documents that are the same: 0 to 2, usually 0.001 to 0.1";
            return refuse("eps", options.eps.to_string(), advice);
        }
        let folder = model::folder(&options.model)?;
        Ok(Work::Table(Box::new(Semantic { options, folder })))
    }
}

impl Barrier for Semantic {
    fn run(&self, job: &Job<'_>, tally: &mut Tally) -> Result<(), Error> {
        let models = job.models(&self.folder)?;
        let work = scratch(job)?;
        let settings = ModelSettings {
            folder: self.folder.clone(),
            context_tokens: self.options.max_tokens,
            threads: job.threads(),
        };
        let pairs = job.on_threads(|| {
            let mut pairs = Vec::new();
            models.with_embed(&settings, &mut |embed| {
                let options = self.options(job, embed)?;
                // A text without a character means nothing, and so not the same as any other.
                let texts = job.documents().filter(|d| !matches!(d, Ok((_, t)) if t.as_ref().is_empty()));
                pairs = semantic(&options, embed, texts, &work)?;
                Ok(())
            })?;
            Ok::<_, Error>(pairs)
        })??;
        std::fs::remove_dir_all(&work).map_err(|e| Error::write("remove", &work, e))?;
        let dropped: RowSet = pairs.iter().map(|(document, _)| *document).collect();
        let found = Duplicates::from_pairs(0..job.num_documents(), &pairs)?;
        remove(job, &found, &dropped, "same_meaning", tally)
    }

    fn files(&self) -> Vec<PathBuf> {
        model::files(&self.folder)
    }

    fn models(&self) -> Vec<PathBuf> {
        vec![self.folder.clone()]
    }
}

impl Semantic {
    /// What the search goes by; says what it needs, and refuses what does not fit.
    fn options(&self, job: &Job<'_>, embed: &dyn Embed) -> Result<SemanticOptions, Error> {
        let SemanticStageOptions { clusters, max_iterations, tolerance, eps, keep, sample, .. } =
            self.options;
        let seed = job.seed();
        let options = SemanticOptions { clusters, max_iterations, tolerance, eps, keep, seed, sample };
        let (documents, size) = (job.num_documents(), embed.size());
        let needs = semantic_needs(&options, documents, size);
        if needs.memory_bytes > job.memory_bytes() {
            let found = format!("{sample}, which needs {}", human::bytes(needs.memory_bytes));
            let memory = human::bytes(job.memory_bytes());
            let advice =
                format!("`memory` is {memory}: fit fewer `clusters` or to fewer documents, or raise it");
            return Err(Error::Option { stage: "semantic", key: "sample".to_owned(), found, advice });
        }
        say(job, needs);
        Ok(options)
    }
}
