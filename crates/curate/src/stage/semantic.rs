//! Semantic deduplication of a whole table.

use std::path::PathBuf;

use fathom_base::human;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::dedup::{kept_scratch, remove, say};
use super::kind::Maker;
use super::model;
use crate::dedup::{Duplicates, Embeddings, Preference, SemanticOptions, semantic, semantic_needs};
use crate::error::Error;
use crate::pipeline::{Barrier, Job, KeyHasher, ModelKind, ModelSettings, RowSet, Tally, Work};

/// Options of `semantic`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SemanticStageOptions {
    /// The model that embeds: a Hugging Face folder (an encoder's too), or a run of `fathom train`. A text's vector is the mean of the
    /// hidden states behind the last norm, or what the folder's `modules.json` makes of them, at length 1.
    pub model: PathBuf,
    /// Only this many tokens of a text are read, the first ones (NeMo Curator: 512); fewer where the model's folder says so
    /// (`max_seq_length` of `sentence_bert_config.json`, `model_max_length`).
    #[schemars(range(min = 1))]
    pub max_tokens: usize,
    /// Clusters of k-means; documents are compared within one (NeMo Curator: 100).
    #[schemars(range(min = 1))]
    pub clusters: usize,
    /// Most iterations of k-means (NeMo Curator: 300).
    pub max_iterations: usize,
    /// k-means ends when the centres move less than this, relative to the variance (NeMo Curator: 1e-4).
    pub tolerance: f64,
    /// Documents of a cluster are the same above a cosine of 1 - `eps` (NeMo Curator: 0.01); usually 0.001 to 0.1.
    #[schemars(range(min = 0, max = 2))]
    pub eps: f64,
    /// Which of several documents with the same meaning stays.
    pub keep: Preference,
    /// Documents that the centres are fitted to: all, or a random sample of this many.
    #[schemars(range(min = 1))]
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

/// Keeps one of each group of documents with the same meaning.
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
        let work = kept_scratch(job)?;
        let mut embeddings = Embeddings::open(&work, &self.key(job)?)?;
        let pairs = job.on_threads(|| {
            if embeddings.is_complete() {
                self.check_needs(job, embeddings.size())?;
            } else {
                self.embed(job, &mut embeddings)?;
            }
            semantic(&self.options(job), &mut embeddings)
        })??;
        let dropped: RowSet = pairs.iter().map(|(document, _)| *document).collect();
        let found = Duplicates::from_pairs(0..job.num_documents(), &pairs)?;
        remove(job, &found, &dropped, "same_meaning", tally)?;
        // Removed only now: if the run is killed while the table is written, the next one need not run the model
        // again.
        std::fs::remove_dir_all(&work).map_err(|e| Error::write("remove", &work, e))
    }

    fn files(&self) -> Vec<PathBuf> {
        model::files(&self.folder)
    }

    fn models(&self) -> Vec<(PathBuf, ModelKind)> {
        vec![(self.folder.clone(), ModelKind::Vectors)]
    }
}

impl Semantic {
    /// Embeds the documents that an earlier run has not embedded.
    fn embed(&self, job: &Job<'_>, embeddings: &mut Embeddings) -> Result<(), Error> {
        let settings = ModelSettings {
            folder: self.folder.clone(),
            context_tokens: self.options.max_tokens,
            threads: job.threads(),
        };
        if embeddings.num_documents() > 0 {
            let (done, all) = (embeddings.num_documents(), job.num_documents());
            job.say(&format!("goes on behind {done} of at most {all} embeddings"));
        }
        job.models(&self.folder)?.with_embed(&settings, &mut |embed| {
            self.check_needs(job, embed.size())?;
            // An empty text has no meaning, and hence matches no other.
            let texts = job.documents().filter(|d| !matches!(d, Ok((_, t)) if t.as_ref().is_empty()));
            embeddings.add(embed, texts, &|| job.point("embedded"))
        })
    }

    /// Key of everything that determines the vectors. Comparison options are excluded: another `eps` reuses the
    /// vectors.
    fn key(&self, job: &Job<'_>) -> Result<String, Error> {
        let mut key = KeyHasher::new().with("embeddings").with(&self.options.max_tokens.to_string());
        for file in self.files() {
            key = key.with_file(&file)?;
        }
        Ok(job.parts().iter().fold(key, |key, part| key.with(&part.facts.hash)).finish())
    }

    /// Options of the search.
    fn options(&self, job: &Job<'_>) -> SemanticOptions {
        let SemanticStageOptions { clusters, max_iterations, tolerance, eps, keep, sample, .. } =
            self.options;
        SemanticOptions { clusters, max_iterations, tolerance, eps, keep, seed: job.seed(), sample }
    }

    /// Reports the resources that the search needs with vectors of `size` numbers, and rejects what does not fit.
    fn check_needs(&self, job: &Job<'_>, size: usize) -> Result<(), Error> {
        let needs = semantic_needs(&self.options(job), job.num_documents(), size);
        if needs.memory_bytes > job.memory_bytes() {
            let found = format!("{}, which needs {}", self.options.sample, human::bytes(needs.memory_bytes));
            let memory = human::bytes(job.memory_bytes());
            let advice =
                format!("`memory` is {memory}: fit fewer `clusters` or to fewer documents, or raise it");
            return Err(Error::Option { stage: "semantic", key: "sample".to_owned(), found, advice });
        }
        say(job, needs);
        Ok(())
    }
}
