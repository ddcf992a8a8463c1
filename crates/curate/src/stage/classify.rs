//! Classifiers from folders of encoders (domain, quality, education, safety): what is missing for them is told by name.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Maker, model};
use crate::error::Error;
use crate::pipeline::Work;

/// Options of `classify`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClassifyOptions {
    /// The classifier: a Hugging Face folder of BERT's or DeBERTa's kind.
    pub model: PathBuf,
}

/// Always refused: see [`ClassifyOptions`].
pub(super) struct Classify;

impl Maker for Classify {
    type Options = ClassifyOptions;
    const NAME: &'static str = "classify";
    const ABOUT: &'static str =
        "classifiers of BERT's and DeBERTa's kind: refused until the model crate has encoders";

    fn make(options: ClassifyOptions) -> Result<Work, Error> {
        let folder = model::folder(&options.model)?;
        let path = folder.join("config.json");
        let bytes = std::fs::read(&path).map_err(|e| Error::read(&path, e))?;
        let config: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| Error::BadFile {
            path: path.clone(),
            kind: "model configuration",
            detail: e.to_string(),
        })?;
        let kind = config["model_type"].as_str().unwrap_or("unnamed").to_owned();
        let what = config["architectures"][0].as_str().map_or(kind.clone(), |name| format!("{kind}, {name}"));
        Err(Error::Setting {
            key: "model",
            found: format!("`{}` ({what})", folder.display()),
            advice: "classifiers need encoder blocks (attention to both sides) and a classification head, and \
                     fathom-model has decoder blocks only; until it has them train a fastText model for `quality`, or \
                     use `perplexity`"
                .to_owned(),
        })
    }
}
