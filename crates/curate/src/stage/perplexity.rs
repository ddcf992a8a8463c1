//! Perplexity of texts under a model. The threads of the run tokenize and send their batches to the model.

use std::path::PathBuf;

use arrow_array::Float32Array;
use fathom_base::{LanguageModel, Numbers};
use fathom_text::tokenizer::Tokenizer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::Maker;
use super::model;
use super::model_client::ModelClient;
use crate::error::Error;
use crate::pipeline::{Batch, ModelKind, ModelSettings, Stage, Tally, Tools, Work};

/// Bytes of a text that are tokenized per allowed token.
const BYTES_PER_TOKEN: usize = 32;

/// Options of `perplexity`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PerplexityOptions {
    /// The model: a Hugging Face folder, or a run of `fathom train`.
    pub model: PathBuf,
    /// Texts of less perplexity are dropped: repetition and boilerplate. None for no limit.
    #[schemars(range(min = 1))]
    pub min: Option<f64>,
    /// Texts of more perplexity are dropped: noise. None for no limit.
    #[schemars(range(min = 1))]
    pub max: Option<f64>,
    /// Tokens that the model sees at once; longer texts are cut into windows, each scored without the one before.
    #[schemars(range(min = 2))]
    pub context_tokens: usize,
    /// Only this many tokens of a text are read, the first ones.
    #[schemars(range(min = 2))]
    pub max_tokens: usize,
}

impl Default for PerplexityOptions {
    fn default() -> Self {
        let (model, context_tokens, max_tokens) = (PathBuf::new(), 1024, 8192);
        PerplexityOptions { model, min: None, max: None, context_tokens, max_tokens }
    }
}

/// Adds the column `perplexity`, and drops texts beyond its limits.
pub(super) struct Perplexity {
    options: PerplexityOptions,
    folder: PathBuf,
    tokenizer: Tokenizer,
    /// Token prepended to every text, if the tokenizer has one.
    bos: Option<u32>,
    limits: Vec<f64>,
    /// Maps token ids of texts to their mean losses.
    scorer: ModelClient<Vec<Vec<u32>>, Vec<Option<f64>>>,
}

impl Maker for Perplexity {
    type Options = PerplexityOptions;
    const NAME: &'static str = "perplexity";
    const ABOUT: &'static str = "adds the column perplexity, by a model; drops texts below min or above max";

    fn make(options: PerplexityOptions) -> Result<Work, Error> {
        let refuse =
            |key, found: String, advice: &str| Err(Error::Setting { key, found, advice: advice.to_owned() });
        for (key, tokens) in [("context_tokens", options.context_tokens), ("max_tokens", options.max_tokens)]
        {
            if tokens < 2 {
                return refuse(key, tokens.to_string(), "one token predicts the next: choose at least 2");
            }
        }
        for (key, limit) in [("min", options.min), ("max", options.max)] {
            if let Some(limit) = limit.filter(|limit| limit.is_nan() || *limit < 1.0) {
                return refuse(key, limit.to_string(), "no perplexity is below 1");
            }
        }
        if let (Some(min), Some(max)) = (options.min, options.max)
            && min > max
        {
            return refuse("min", min.to_string(), "it is above `max`, so no text could pass");
        }
        let folder = model::folder(&options.model)?;
        let tokenizer = Tokenizer::from_dir(&folder)?;
        let bos = tokenizer.prompt_bos();
        let limits = options.min.into_iter().chain(options.max).collect();
        let scorer = ModelClient::new(folder.clone());
        Ok(Work::Rows(Box::new(Perplexity { options, folder, tokenizer, bos, limits, scorer })))
    }
}

impl Stage for Perplexity {
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error> {
        let texts = (0..batch.rows()).map(|row| self.ids(batch.text(row))).collect::<Result<Vec<_>, _>>()?;
        let losses = if texts.is_empty() { Vec::new() } else { self.scorer.ask(texts)? };
        let mut keep = Vec::with_capacity(batch.rows());
        let mut column: Vec<Option<f32>> = Vec::with_capacity(batch.rows());
        for (row, loss) in losses.into_iter().enumerate() {
            let text = batch.text(row);
            let perplexity = loss.map(f64::exp).filter(|perplexity| perplexity.is_finite());
            let reason = match perplexity {
                _ if self.limits.is_empty() => None,
                None => Some("not_scored"),
                Some(value) if self.options.min.is_some_and(|min| value < min) => Some("min"),
                Some(value) if self.options.max.is_some_and(|max| value > max) => Some("max"),
                Some(_) => None,
            };
            if let Some(value) = perplexity {
                let document = (batch.id(row), text);
                tally.decided("perplexity", value, &self.limits, reason.is_none(), document);
            }
            if let Some(reason) = reason {
                tally.drop(reason, text.len() as u64);
            }
            column.push(perplexity.map(|value| value as f32));
            keep.push(reason.is_none());
        }
        Ok(batch.with_column("perplexity", std::sync::Arc::new(Float32Array::from(column))).keep(&keep))
    }

    fn files(&self) -> Vec<PathBuf> {
        model::files(&self.folder)
    }

    fn models(&self) -> Vec<(PathBuf, ModelKind)> {
        vec![(self.folder.clone(), ModelKind::Text)]
    }

    fn begin(&self, tools: &Tools) -> Result<(), Error> {
        let models = tools.models(&self.folder)?.clone();
        let (folder, context_tokens) = (self.folder.clone(), self.options.context_tokens);
        let settings = ModelSettings { folder, context_tokens, threads: tools.threads };
        self.scorer.begin(move |queue| {
            models.with_score(&settings, &mut |score| {
                let window = settings.context_tokens.min(score.max_tokens());
                queue.serve(|texts| texts.iter().map(|ids| mean_loss(score, ids, window)).collect());
                Ok(())
            })
        })
    }

    fn end(&self) {
        self.scorer.end();
    }
}

impl Perplexity {
    /// Ids of a text, up to the token limit. Spellings of special tokens are ordinary text.
    fn ids(&self, text: &str) -> Result<Vec<u32>, Error> {
        let most = self.options.max_tokens;
        let end = text.floor_char_boundary(most.saturating_mul(BYTES_PER_TOKEN));
        let mut ids: Vec<u32> = self.bos.into_iter().collect();
        ids.extend(self.tokenizer.encode(&text[..end])?);
        ids.truncate(most);
        Ok(ids)
    }
}

/// Mean loss of all tokens but the first, in windows that overlap by one token; `None` if there is none.
fn mean_loss(score: &dyn LanguageModel, ids: &[u32], window: usize) -> Result<Option<f64>, Error> {
    let (mut sum, mut count) = (0.0, 0u64);
    let mut start = 0;
    while start + 1 < ids.len() {
        let end = ids.len().min(start + window.max(2));
        let tokens = score.look(&[ids[start..end].to_vec()], Numbers::Logprobs)?.concat();
        sum -= tokens.iter().step_by(2).map(|logprob| f64::from(*logprob)).sum::<f64>();
        count += (tokens.len() / 2) as u64;
        start = end - 1;
    }
    Ok((count > 0).then(|| sum / count as f64))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use fathom_base::{GenerateRequest, Generation};

    use super::*;

    /// A token's loss is its id.
    #[derive(Default)]
    struct Plain(RefCell<Vec<usize>>);

    impl LanguageModel for Plain {
        fn max_tokens(&self) -> usize {
            1 << 20
        }

        fn generate_all(&self, _: Vec<GenerateRequest>) -> fathom_base::Result<Vec<Vec<Generation>>> {
            Err(fathom_base::Error::product("writes nothing"))
        }

        fn look(&self, texts: &[Vec<u32>], _: Numbers) -> fathom_base::Result<Vec<Vec<f32>>> {
            self.0.borrow_mut().extend(texts.iter().map(Vec::len));
            Ok(texts
                .iter()
                .map(|ids| ids[1..].iter().flat_map(|id| [-(*id as f32), 0.0]).collect())
                .collect())
        }
    }

    #[test]
    fn every_token_but_the_first_is_scored_once() {
        for (window, lengths) in [(2, vec![2; 6]), (4, vec![4, 4]), (5, vec![5, 3]), (9, vec![7])] {
            let score = Plain::default();
            let mean = mean_loss(&score, &[100, 1, 2, 3, 4, 5, 6], window).unwrap();
            assert_eq!((mean, score.0.into_inner()), (Some(3.5), lengths));
        }
        assert_eq!(mean_loss(&Plain::default(), &[3], 8).unwrap(), None);
    }
}
