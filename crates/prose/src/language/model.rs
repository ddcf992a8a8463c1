//! fastText models (`.bin`, `.ftz`), with predictions identical to those of the library's own `predict`.

use super::layout;
use super::quantised::Head;
use crate::Error;
use fasttext::{FastText, Prediction};
use std::path::Path;

/// End-of-line token, in models and in the library's line parsing.
const END: &str = "</s>";

/// A text classifier; shared by threads.
pub(super) struct Model {
    model: FastText,
    /// Output layer of a quantized model.
    head: Option<Head>,
}

impl From<FastText> for Model {
    fn from(model: FastText) -> Model {
        let head = Head::of(&model);
        Model { model, head }
    }
}

impl Model {
    /// Loads the model at `path`.
    ///
    /// # Errors
    /// [`Error::Read`] if the file cannot be read, [`Error::BadFile`] if it is damaged or not a fastText text
    /// classifier.
    pub(super) fn open(path: &Path) -> Result<Model, Error> {
        layout::check(path)?;
        let bad = |error: fasttext::FastTextError| Error::BadFile {
            path: path.to_path_buf(),
            kind: "fastText model",
            detail: error.to_string(),
        };
        FastText::load_model(path).map(Model::from).map_err(bad)
    }

    /// The model's labels.
    pub(super) fn labels(&self) -> Vec<String> {
        self.model.get_labels().0
    }

    /// Most likely label of `text`, read as one line; `None` if the model knows neither its words nor the end-of-line
    /// token.
    pub(super) fn best(&self, text: &str) -> Option<Prediction> {
        self.predict(text, 1).into_iter().next()
    }

    /// At most `count` labels of `text`, most likely first.
    ///
    /// The library treats the end of a line as a word like any other, including in n-grams. The crate's `predict`
    /// appends it after the n-grams and returns nothing for a line without other known words, so it is written out
    /// here.
    fn predict(&self, text: &str, count: usize) -> Vec<Prediction> {
        // Characters that only the library treats as spaces, and inner line ends.
        let mut line = text.replace(['\n', '\x0b', '\0'], " ");
        line.push(' ');
        line.push_str(END);
        let (mut words, mut labels) = (Vec::new(), Vec::new());
        self.model.dict().get_line_from_str(&line, &mut words, &mut labels);
        match &self.head {
            Some(head) => head.predict(&self.model, &words, count),
            None => self.model.predict_on_words(&words, count, 0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// The top labels of every text have the library's probabilities (`oracle/fasttext_models.py`).
    #[test]
    fn scores_are_the_librarys() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fasttext");
        let golden = std::fs::read_to_string(folder.join("golden.json")).unwrap();
        let golden: serde_json::Value = serde_json::from_str(&golden).unwrap();
        let texts: Vec<&str> =
            golden["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
        let mut wrong = Vec::new();
        for (name, wanted) in golden["models"].as_object().unwrap() {
            let model = Model::open(&folder.join(name)).unwrap();
            for (text, wanted) in texts.iter().zip(wanted.as_array().unwrap()) {
                let wanted = wanted.as_array().unwrap();
                // Labels of equal probability may come in any order.
                let found = model.predict(text, usize::MAX);
                let near = |p: &Prediction, pair: &serde_json::Value| {
                    (f64::from(p.prob) - pair[1].as_f64().unwrap()).abs() < 1e-4
                };
                let ranked = found.iter().zip(wanted).all(|(p, pair)| near(p, pair));
                let labelled =
                    |pair: &serde_json::Value| found.iter().any(|p| pair[0] == *p.label && near(p, pair));
                let count = found.len().min(3) == wanted.len();
                if !(count && ranked && wanted.iter().all(labelled)) {
                    wrong.push(format!("{name}, {text:?}: {found:?}, not {wanted:?}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{} differ: {:#?}", wrong.len(), wrong);
    }
}
